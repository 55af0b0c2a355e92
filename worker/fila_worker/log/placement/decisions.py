"""What one node does about the plan: its places in the lines, what it asks for, what it gives and to whom."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from fila_worker.log.placement.limits import PlacementLimits
from fila_worker.log.placement.plan import leaders, line_up, plan_leaders
from fila_worker.log.placement.views import NodeView


class Decision(NamedTuple):
    """What a node should do, until the next one."""

    wish: int | None
    """The shard that it should ask for."""
    ranks: Mapping[int, int]
    """Its place in the line of each shard that it follows."""


class Placement:
    """The decisions of one node. Call :meth:`step` once a second."""

    def __init__(self, name: str, host: str, shards: Collection[int], now_ms: int, limits: PlacementLimits) -> None:
        """``shards``: of the whole cluster."""
        self.name, self.host, self.shards, self.limits = name, host, frozenset(shards), limits
        self._plan: dict[int, str] = {}
        self._leads: dict[int, str] = {}
        self._moves: dict[int, tuple[str | None, str | None, int]] = {}
        """Who leads each shard and who should, and since when it is so."""
        self._wish: int | None = None
        self._wish_ms = now_ms
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
        return Decision(self._wished(me, now_ms), ranks)

    def successors(self, views: Collection[NodeView]) -> dict[int, str]:
        """Return whom to leave each of this node's shards to; empty if no copy has caught up."""
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
        """Return whether this node may give a shard away now; if so, it has to: no other one may go for a while.

        ``to``: the host that asks for it; None: this node gives all up, and chooses the host itself.
        """
        if to is not None and self._plan.get(shard) != to:
            return False
        if now_ms - self._gave_ms < self.limits.give_ms or (self._gave is not None and self._gave not in self._leads):
            return False
        self._gave, self._gave_ms = shard, now_ms
        self._leads.pop(shard, None)
        return True

    def _wished(self, me: NodeView, now_ms: int) -> int | None:
        def wanted(shard: int) -> bool:
            if (
                self._plan.get(shard) != self.host
                or self._leads.get(shard, self.host) == self.host
                or shard not in me.follows
            ):
                return False
            return not me.lags(shard, self.limits) and now_ms - self._moves[shard][2] >= self.limits.settle_ms

        if self._wish is not None and now_ms - self._wish_ms < self.limits.wish_ms and wanted(self._wish):
            return self._wish
        wishes = [shard for shard in sorted(self.shards) if wanted(shard)]
        later = [shard for shard in wishes if self._wish is not None and shard > self._wish]
        self._wish, self._wish_ms = next(iter(later or wishes), None), now_ms
        return self._wish
