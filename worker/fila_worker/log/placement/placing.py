"""One node's part in the placement: it appends its state, reads the others', and puts its copies into their places."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from fila_worker.log.bodies import Node, NodeState
from fila_worker.log.leadership import Leadership, LeadershipState
from fila_worker.log.partition import Partition
from fila_worker.log.placement.control import ControlPartition
from fila_worker.log.placement.plan import PlacementDecisions, weight
from fila_worker.log.placement.views import NodeView, PlacementLimits, without_the_unfit

UNKNOWN_BEHIND = 2**31
"""The lag of a copy for which the end of the log is unknown."""


class PlacedCopy(Protocol):
    """A copy of a shard, such as :class:`fila_worker.log.member.Member`."""

    leadership: Leadership
    may_give: Callable[[str, int], bool]
    """Whether the shard may go to a host that asks for it, now. If so, it goes."""

    @property
    def behind(self) -> int | None:
        """How many records it is behind the log; None: unknown."""


class Placing:
    """The owner calls :meth:`step` in each turn. ``copies``: those that are open, by shard."""

    def __init__(
        self,
        node: Node,
        shards_total: int,
        copies: Callable[[], Mapping[int, PlacedCopy]],
        partition: Partition,
        now_ms: int,
        limits: PlacementLimits | None = None,
        router: str = "",
        keys: str = "",
    ) -> None:
        """``partition``: the control partition. ``router``: the endpoint of this host's router for workers of other hosts.
        ``keys``: a fingerprint of the cluster's keys."""
        self.limits = limits or PlacementLimits()
        self.drains = False
        """Whether it gives up all its shards, one after the other. The owner sets it."""
        self.apart = False
        """Whether it reaches no router of another host. The owner sets it."""
        self.failing = False
        """Whether its disk is full or refuses writes. The owner sets it."""
        self._apart_ms: int | None = None
        """Since when that is so."""
        self._node, self._copies, self._router, self._keys = node, copies, router, keys
        self._control = ControlPartition(partition, now_ms, self.limits, node)
        self._placement = PlacementDecisions(node.name, node.host, range(shards_total), now_ms, self.limits)
        self._views: list[NodeView] = []
        """The views at the last decision."""
        self._first_views: list[NodeView] = []
        """The views before the first decision: perhaps not of all live nodes."""
        self._retires = False
        self._read_due_ms = self._decide_due_ms = now_ms

    def join(self, shard: int, copy: PlacedCopy) -> None:
        """Put a newly opened copy into its first place in the line, and connect its requests with the placement.

        The place is one of the last. It is a different one on most hosts, for those that have not read each other's states
        yet.
        """
        copy.leadership.rank = copy.leadership.limits.ranks_max - weight(shard, self._node.host) % 3
        copy.leadership.holds_back = self._holds_back
        copy.may_give = partial(self.may_give, shard)

    @property
    def routers(self) -> set[str]:
        """The endpoints for workers of all known hosts' routers. A new process joins each at once: clients wait there."""
        return {view.router for view in self._views or self._first_views if view.router}

    @property
    def twin(self) -> Node | None:
        """Another process with this node's name, which was there before this one."""
        return self._control.twin

    def step(self, now_ms: int) -> None:
        """Append, read and decide what is due."""
        if now_ms < self._read_due_ms:
            return
        self._read_due_ms = now_ms + self.limits.read_ms
        if not self.apart:
            self._apart_ms = None
        elif self._apart_ms is None:
            self._apart_ms = now_ms
        state = self._state()
        self._control.append(state, now_ms)
        self._control.read(now_ms)
        for copy in self._copies().values():
            copy.leadership.holds_back = self._holds_back
        if 0 in state.leads:
            self._control.trim(now_ms)
        if not self._control.is_complete(now_ms):
            self._request(None)
            if not self._views:
                self._first_views = self._control.views(state, now_ms)
        elif now_ms >= self._decide_due_ms:
            self._decide_due_ms = now_ms + self.limits.decide_ms
            self._decide(state, now_ms)

    def _decide(self, state: NodeState, now_ms: int) -> None:
        self._views = without_the_unfit(self._control.views(state, now_ms))
        decision = self._placement.step(self._views, now_ms)
        copies = self._copies()
        for shard in decision.ranks.keys() & copies.keys():
            copies[shard].leadership.rank = decision.ranks[shard]
        self._request(decision.request)
        if self.drains or self._gives_up(now_ms):
            self._give_one_up(now_ms)

    def _gives_up(self, now_ms: int) -> bool:
        """Whether hosts that clients reach, or that have room on their disks, should have its shards."""
        long_apart = self._apart_ms is not None and now_ms - self._apart_ms >= self.limits.apart_ms
        return (self.failing or long_apart) and self._is_unfit

    @property
    def _holds_back(self) -> bool:
        """Whether it claims its own earlier shards only after a silence.

        Another process may have its name, until enough is read; or its disk is full, and some other host may have room.
        """
        return not self._control.named or (self.failing and (not self._views or self._is_unfit))

    @property
    def _is_unfit(self) -> bool:
        return any(view.name == self._node.name and view.drains for view in self._views)

    def _request(self, shard: int | None) -> None:
        for number, copy in self._copies().items():
            copy.leadership.wants = number == shard

    def _state(self) -> NodeState:
        copies = self._copies()
        leads = {
            shard: copy.leadership.epoch for shard, copy in copies.items() if copy.leadership.state is LeadershipState.LEADS
        }
        follows = {
            shard: UNKNOWN_BEHIND if copy.behind is None else copy.behind
            for shard, copy in copies.items()
            if shard not in leads
        }
        leaves = self.drains or self._retires
        return NodeState(self._node, leads, follows, leaves, self._router, self.apart, self._keys, self.failing)

    def _give_one_up(self, now_ms: int) -> None:
        successors = self._placement.successors(self._views)
        for shard, copy in self._copies().items():
            if (
                copy.leadership.state is LeadershipState.LEADS
                and successors[shard]
                and self._placement.may_give(shard, now_ms)
            ):
                copy.leadership.leave(successors[shard], now_ms)

    def may_give(self, shard: int, to: str, now_ms: int) -> bool:
        """Return whether a shard may go to a host that asks for it. If so, it has to: no other one may for a while."""
        return self._control.is_complete(now_ms) and self._placement.may_give(shard, now_ms, to)

    def retire(self, now_ms: int) -> None:
        """Leave all shards to their successors, and claim none, because the process is about to end."""
        self._retires = True
        successors = self._placement.successors(self._views)
        for shard, copy in self._copies().items():
            copy.leadership.retire(successors.get(shard, ""), now_ms)
        self._control.append(self._state(), now_ms)

    def close(self) -> None:
        """Leave the control partition."""
        self._control.close()
