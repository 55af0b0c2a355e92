"""Which host should lead each shard, and who claims first when a leader is lost: the same plan on all nodes."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from fila_worker.log.placement.views import NodeView, PlacementLimits


@lru_cache(maxsize=65_536)
def weight(shard: int, host: str) -> int:
    """Return a number that looks random, and is the same in all processes."""
    return int.from_bytes(blake2b(f"{shard}:{host}".encode(), digest_size=8).digest())


def leaders(views: Iterable[NodeView]) -> dict[int, str]:
    """Return which host leads each shard. If several say so, the highest epoch is right."""
    terms = sorted((epoch, view.host, shard) for view in views for shard, epoch in view.leads.items())
    return {shard: host for _, host, shard in terms}


def plan_leaders(views: Collection[NodeView], shards: Iterable[int], limits: PlacementLimits) -> dict[int, str]:
    """Return which host should lead each shard. Shards without a copy on a node that may lead are left out.

    Shards with copies on the same nodes are a group. Within each group the hosts get even shares, to within one, so that the
    nodes of a host have the same work. A host that got fewer in the groups before is first for a larger share.
    """
    takers = [view for view in views if not view.drains]
    now = leaders(views)
    groups: dict[tuple[str, ...], list[int]] = {}
    for shard in sorted(shards):
        groups.setdefault(tuple(view.name for view in takers if shard in view.follows), []).append(shard)
    plan: dict[int, str] = {}
    totals: Counter[str] = Counter()
    for names, group in sorted(groups.items(), key=lambda item: item[1]):
        hosts = {view.host: view for view in takers if view.name in names}
        if hosts:
            planned = _plan_group(hosts, group, now, totals, limits)
            plan.update(planned)
            totals.update(planned.values())
    return plan


def _plan_group(
    hosts: Mapping[str, NodeView],
    shards: Collection[int],
    now: Mapping[int, str],
    totals: Mapping[str, int],
    limits: PlacementLimits,
) -> dict[int, str]:
    plan = {shard: now[shard] for shard in shards if now.get(shard) in hosts}
    counts = Counter(plan.values())
    room = Counter(_shares(hosts, counts, totals, len(shards)))
    room.subtract(counts)
    pairs = sorted((hosts[host].lags(shard, limits), -weight(shard, host), shard, host) for shard in shards for host in hosts)
    for _, _, shard, host in pairs:
        if shard not in plan and room[host] > 0:
            plan[shard] = host
            room[host] -= 1
    for _, _, shard, host in pairs:
        giver = plan[shard]
        if room[giver] < 0 < room[host]:
            plan[shard] = host
            room[giver] += 1
            room[host] -= 1
    return plan


def _shares(hosts: Collection[str], counts: Mapping[str, int], totals: Mapping[str, int], shards: int) -> dict[str, int]:
    """Return how many shards of a group each host should lead: even to within one, and more for those that lead more already.

    While the shards of a new cluster get their leaders, that changes nothing: moves are made in any order.
    """
    least, more = divmod(shards, len(hosts))
    order = sorted(hosts, key=lambda host: (totals[host], min(least - counts[host], 0), host))
    return {host: least + (place < more) for place, host in enumerate(order)}


def line_up(
    views: Collection[NodeView], shards: Iterable[int], plan: Mapping[int, str], limits: PlacementLimits
) -> dict[int, list[str]]:
    """Return the hosts that follow each shard, in the order in which they should claim it."""
    now = leaders(views)
    counts = Counter(now.values())
    lines = {}
    for shard in shards:

        def place(view: NodeView, shard: int = shard) -> tuple[bool, bool, bool, int, int, str]:
            elsewhere = plan.get(shard) != view.host
            return view.drains, view.lags(shard, limits), elsewhere, counts[view.host], -weight(shard, view.host), view.host

        there = [view for view in views if shard in view.follows and now.get(shard) != view.host]
        lines[shard] = [view.host for view in sorted(there, key=place)]
    return lines


class Decision(NamedTuple):
    """The tasks of a node, until the next decision."""

    request: int | None
    """The shard that it should ask for."""
    ranks: Mapping[int, int]
    """Its place in the line of each shard that it follows."""


class PlacementDecisions:
    """The decisions of one node. Call :meth:`step` once a second."""

    def __init__(self, name: str, host: str, shards: Collection[int], now_ms: int, limits: PlacementLimits) -> None:
        """``shards``: of the whole cluster."""
        self.name, self.host, self.shards, self.limits = name, host, frozenset(shards), limits
        self._plan: dict[int, str] = {}
        self._leads: dict[int, str] = {}
        self._moves: dict[int, tuple[str | None, str | None, int]] = {}
        """Who leads each shard and who should, and since when it is so."""
        self._request: int | None = None
        self._requested_ms = now_ms
        self._gave: int | None = None
        """The last shard that this node gave away."""
        self._gave_ms = now_ms - limits.give_ms

    def step(self, views: Collection[NodeView], now_ms: int) -> Decision:
        """Decide by what is known now. ``views`` has this node's own state."""
        me = next(view for view in views if view.name == self.name)
        self._plan = plan_leaders(views, self.shards, self.limits)
        self._leads = leaders(views)
        for shard in self.shards:
            move = self._leads.get(shard), self._plan.get(shard)
            if self._moves.get(shard, ())[:2] != move:
                self._moves[shard] = *move, now_ms
        lines = line_up(views, me.follows, self._plan, self.limits)
        ranks = {shard: line.index(self.host) for shard, line in lines.items() if self.host in line}
        return Decision(self._next_request(me, now_ms), ranks)

    def successors(self, views: Collection[NodeView]) -> dict[int, str]:
        """Return the successor for each of this node's shards; empty if no copy has caught up."""
        leaving = [replace(view, drains=view.drains or view.name == self.name) for view in views]
        plan = plan_leaders(leaving, self.shards, self.limits)
        ready = {
            (view.host, shard)
            for view in leaving
            for shard in view.follows
            if not (view.drains or view.lags(shard, self.limits))
        }
        mine = [shard for view in views if view.name == self.name for shard in view.follows]
        others = [view for view in leaving if view.host != self.host]
        lines = line_up(others, mine, plan, self.limits)
        return {shard: next((host for host in line if (host, shard) in ready), "") for shard, line in lines.items()}

    def may_give(self, shard: int, now_ms: int, to: str | None = None) -> bool:
        """Return whether this node may give a shard away now; if so, it must do so, and give no other one for a while.

        ``to``: the host that asks for it; None: this node gives all up, and chooses the host itself.
        """
        if to is not None and self._plan.get(shard) != to:
            return False
        if now_ms - self._gave_ms < self.limits.give_ms or (self._gave is not None and self._gave not in self._leads):
            return False
        self._gave, self._gave_ms = shard, now_ms
        self._leads.pop(shard, None)
        return True

    def _next_request(self, me: NodeView, now_ms: int) -> int | None:
        def wanted(shard: int) -> bool:
            if (
                self._plan.get(shard) != self.host
                or self._leads.get(shard, self.host) == self.host
                or shard not in me.follows
            ):
                return False
            return not me.lags(shard, self.limits) and now_ms - self._moves[shard][2] >= self.limits.settle_ms

        if self._request is not None and now_ms - self._requested_ms < self.limits.request_ms and wanted(self._request):
            return self._request
        wanted_shards = [shard for shard in sorted(self.shards) if wanted(shard)]
        later = [shard for shard in wanted_shards if self._request is not None and shard > self._request]
        self._request, self._requested_ms = next(iter(later or wanted_shards), None), now_ms
        return self._request
