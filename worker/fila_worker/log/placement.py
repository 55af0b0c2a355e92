"""Where shards should be: which host leads each one, which hosts have copies, and when a host asks for a shard.

Each host says once a second what it leads, what it follows and how far behind, in a small log of its own (``bodies.HostState``). Each host
computes all of this from what it has read, by the same rules, and nobody decides for others: a plan is only a wish. A host that should lead a
shard asks its leader (a WISH in the shard's log), and the leader agrees only if its own plan says the same. So views that differ for a while
delay a move, and no move can harm: who leads is decided by markers alone.

**Plan of leaders.** Each host that is live and does not drain has a share: the number of shards by the number of hosts, one more for those
that lead most now. A host keeps what it leads up to its share. What is left over, and what has no leader, goes to hosts with room: first to
copies that have caught up, then to other copies, then anywhere; among equals by highest random weight (Thaler & Ravishankar, 1998). When a
host comes or goes, only as many shards move as the shares need.

**No storm.** A wish needs a plan and a leader that have not changed for ``settle_ms``, a copy that has caught up and a leader that speaks. A host has one
wish at a time, and a leader's host gives one shard away at a time. A host that is away keeps its copies in all plans for ``gone_ms``.

Cost: hosts × shards for a plan, once a second.

Rejected: a host that deals shards out. It needs a second election, and nothing works while it is away.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from fila_worker.log.bodies import HostState


@dataclass(frozen=True, slots=True)
class PlacementLimits:
    """Spans of time in milliseconds, and counts."""

    standbys: int = 1
    """Copies on other hosts than the leader's."""
    live_ms: int = 4000
    """A host that has said nothing for longer is not planned with. Less than a leader's silence, so that the line is known when it ends."""
    gone_ms: int = 600_000
    """A host that has said nothing for longer is taken to have no copies: others begin new ones."""
    learn_ms: int = 3000
    """After its start a host only listens: it can't know who else is there."""
    settle_ms: int = 10_000
    """A wish needs a plan that is as old as that."""
    wish_ms: int = 5000
    """For how long a wish is the only one."""
    give_ms: int = 2000
    """Between two shards that a host gives away: a hand-over takes less."""
    drop_ms: int = 60_000
    """A copy that is not needed is kept for that long."""
    behind_max: int = 200
    """Records: a copy that is further behind has not caught up."""


@dataclass(frozen=True, slots=True)
class HostView:
    """What a host has said, and how long ago."""

    host: str
    leads: Mapping[int, int] = field(default_factory=dict)
    """Shards with the epoch."""
    follows: Mapping[int, int] = field(default_factory=dict)
    """Shards with the number of records that the copy is behind."""
    drains: bool = False
    age_ms: int = 0

    def behind(self, shard: int, limits: PlacementLimits) -> int:
        """Return 0 for a copy that has caught up or leads, 1 for another copy, 2 for none."""
        if shard in self.leads:
            return 0
        return 2 if shard not in self.follows else int(self.follows[shard] > limits.behind_max)


class HostViews:
    """What all hosts have said last, with the time when this process read it.

    Only a change after the first reading proves that a host is there: the log keeps what dead hosts have said.
    """

    def __init__(self, hosts_max: int = 1000) -> None:
        self._hosts_max = hosts_max
        self._states: dict[str, tuple[HostState, int]] = {}

    def read(self, state: HostState, now_ms: int) -> None:
        """Take what a host has said."""
        self._states.pop(state.host, None)
        self._states[state.host] = (state, now_ms)
        while len(self._states) > self._hosts_max:
            self._states.pop(next(iter(self._states)))

    def views(self, now_ms: int, gone_ms: int) -> list[HostView]:
        """Return what is known of hosts that are not gone, by name. Forget the others."""
        self._states = {host: said for host, said in self._states.items() if now_ms - said[1] <= gone_ms}
        return [
            HostView(host, state.leads, state.follows, state.drains, now_ms - read_ms)
            for host, (state, read_ms) in sorted(self._states.items())
        ]


@lru_cache(maxsize=65_536)
def _weight(shard: int, host: str) -> int:
    return int.from_bytes(blake2b(f"{shard}:{host}".encode(), digest_size=8).digest())


def leaders(views: Iterable[HostView], limits: PlacementLimits) -> dict[int, str]:
    """Return which live host leads each shard. If several say so, the highest epoch is right."""
    said = sorted(
        (epoch, view.host, shard) for view in views if view.age_ms <= limits.live_ms for shard, epoch in view.leads.items()
    )
    return {shard: host for _, host, shard in said}


def plan_leaders(views: Collection[HostView], shards: Collection[int], limits: PlacementLimits) -> dict[int, str]:
    """Return which host should lead each shard; no shard if no host can."""
    takers = {view.host: view for view in views if view.age_ms <= limits.live_ms and not view.drains}
    if not takers:
        return {}
    now = {shard: host for shard, host in leaders(views, limits).items() if shard in shards}
    counts = Counter(now.values())
    room = _shares(takers, counts, len(shards))
    plan: dict[int, str] = {}
    for host in takers:
        room[host] -= counts[host]
    surplus = {host: -free for host, free in room.items() if free < 0}
    plan = {shard: host for shard, host in now.items() if host in takers}

    def give(candidates: Iterable[int]) -> None:
        cost = (
            (takers[host].behind(shard, limits), -free, -_weight(shard, host), shard, host)
            for host, free in room.items()
            if free > 0
            for shard in candidates
        )
        *_, shard, host = min(cost)
        giver = plan.get(shard)
        if giver is not None:
            surplus[giver] -= 1
        plan[shard] = host
        room[host] -= 1

    while homeless := [shard for shard in sorted(shards) if shard not in plan]:
        give(homeless)
    while any(surplus.values()):
        give([shard for shard, host in sorted(plan.items()) if surplus.get(host, 0) > 0 and now.get(shard) == host])
    return plan


def _shares(hosts: Collection[str], counts: Mapping[str, int], shards: int) -> dict[str, int]:
    """Return how many shards each host should lead: even within one, and more for those that lead more already."""
    least, more = divmod(shards, len(hosts))
    order = sorted(hosts, key=lambda host: (-counts[host], host))
    return {host: least + (place < more) for place, host in enumerate(order)}


def line_of(shard: int, views: Collection[HostView], plan: Mapping[int, str], limits: PlacementLimits) -> list[str]:
    """Return the standbys of a shard in the order in which they should claim it."""
    now = leaders(views, limits)
    counts = Counter(now.values())

    def place(view: HostView) -> tuple[bool, int, bool, int, int, str]:
        planned = plan.get(shard) == view.host
        return view.drains, view.behind(shard, limits), not planned, counts[view.host], -_weight(shard, view.host), view.host

    there = [
        view for view in views if view.age_ms <= limits.live_ms and shard in view.follows and now.get(shard) != view.host
    ]
    return [view.host for view in sorted(there, key=place)]


def plan_copies(
    views: Collection[HostView], shards: Collection[int], plan: Mapping[int, str], limits: PlacementLimits
) -> dict[int, frozenset[str]]:
    """Return which hosts should have a copy of each shard, leaders included.

    Whoever has one already comes first, so that few copies are begun. Then the standbys of one leader are spread, because they share its
    shards when it dies. A copy that is not needed stays until the others have caught up.
    """
    members = {view.host: view for view in views if view.age_ms <= limits.gone_ms}
    now = leaders(views, limits)
    loads: Counter[str] = Counter()
    pairs: Counter[tuple[str | None, str]] = Counter()
    """Of the leader in the plan and another host: the copies that they share."""
    copies = {}
    for shard in sorted(shards):

        def place(host: str, shard: int = shard) -> tuple[bool, bool, bool, int, int, int]:
            has = members[host].behind(shard, limits) < 2
            first = now.get(shard) != host, plan.get(shard) != host, not has
            return *first, pairs[plan.get(shard), host], loads[host], -_weight(shard, host)

        order = sorted((host for host, view in members.items() if not view.drains), key=place)
        chosen = order[: limits.standbys + 1]
        if plan.get(shard) in members:
            chosen = [*chosen, *({plan[shard]} - {*chosen})]
        loads.update(chosen)
        pairs.update((plan.get(shard), host) for host in chosen)
        ready = sum(members[host].behind(shard, limits) == 0 for host in chosen)
        kept = members if ready < min(limits.standbys + 1, len(members)) else {}
        copies[shard] = frozenset(chosen) | {host for host in kept if members[host].behind(shard, limits) < 2}
    return copies


class Decision(NamedTuple):
    """What a host should do, until the next one."""

    follow: frozenset[int]
    """Shards to have a copy of, those that it leads included."""
    wish: int | None
    """The shard that it should ask for."""
    ranks: Mapping[int, int]
    """Its place in the line of each shard that it follows."""


class Placement:
    """The decisions of one host. Call :meth:`step` once a second."""

    def __init__(self, host: str, shards: Collection[int], now_ms: int, limits: PlacementLimits | None = None) -> None:
        self.host, self.shards, self.limits = host, frozenset(shards), limits or PlacementLimits()
        self._began_ms = now_ms
        self._plan: dict[int, str] = {}
        self._moves: dict[int, tuple[str | None, str | None, int]] = {}
        """Who leads each shard and who should, and since when it is so."""
        self._needed_ms: dict[int, int] = {}
        """When each of its copies was needed last."""
        self._wish: int | None = None
        self._wish_ms = now_ms
        self._gave_ms = now_ms - self.limits.give_ms

    def step(self, views: Collection[HostView], now_ms: int) -> Decision:
        """Decide by what is known now. ``views`` has this host's own state, with age 0."""
        me = next((view for view in views if view.host == self.host), HostView(self.host))
        plan = plan_leaders(views, self.shards, self.limits)
        now = leaders(views, self.limits)
        for shard in self.shards:
            move = now.get(shard), plan.get(shard)
            if self._moves.get(shard, ())[:2] != move:
                self._moves[shard] = *move, now_ms
        self._plan = plan
        lines = {shard: line_of(shard, views, plan, self.limits) for shard in sorted(self.shards)}
        ranks = {shard: line.index(self.host) for shard, line in lines.items() if self.host in line}
        return Decision(self._follow(me, views, now_ms), self._wished(me, views, now_ms), ranks)

    def successors(self, views: Collection[HostView]) -> dict[int, str]:
        """Return whom to leave each shard to when this host's process ends; empty if no copy has caught up."""
        others = [view for view in views if view.host != self.host]
        staying = [*others, *(replace(view, drains=True) for view in views if view.host == self.host)]
        plan = plan_leaders(staying, self.shards, self.limits)
        ready = {view.host: view for view in others}
        return {
            shard: next(
                (
                    host
                    for host in line_of(shard, staying, plan, self.limits)
                    if host in ready and ready[host].behind(shard, self.limits) == 0
                ),
                "",
            )
            for shard in self.shards
        }

    def may_give(self, shard: int, to: str, now_ms: int) -> bool:
        """Return whether a shard that this host leads may go to another one now; if so, no other may for a while."""
        if self._plan.get(shard) != to or now_ms - self._gave_ms < self.limits.give_ms:
            return False
        self._gave_ms = now_ms
        return True

    def _follow(self, me: HostView, views: Collection[HostView], now_ms: int) -> frozenset[int]:
        has = {*me.leads, *me.follows} & self.shards
        if now_ms - self._began_ms < self.limits.learn_ms:
            return frozenset(has)
        copies = plan_copies(views, self.shards, self._plan, self.limits)
        needed = {shard for shard, hosts in copies.items() if self.host in hosts}
        self._needed_ms.update(dict.fromkeys(needed, now_ms))
        kept = {shard for shard in has if now_ms - self._needed_ms.setdefault(shard, now_ms) < self.limits.drop_ms}
        return frozenset(needed | kept | (set(me.leads) & self.shards))

    def _wished(self, me: HostView, views: Collection[HostView], now_ms: int) -> int | None:
        leads = leaders(views, self.limits)
        states = {view.host: view for view in views}

        def wanted(shard: int) -> bool:
            if self._plan.get(shard) != self.host or leads.get(shard, self.host) == self.host:
                return False
            settle_ms = 0 if states[leads[shard]].drains else self.limits.settle_ms
            return me.behind(shard, self.limits) == 0 and now_ms - self._moves[shard][2] >= settle_ms

        if self._wish is not None and now_ms - self._wish_ms < self.limits.wish_ms and wanted(self._wish):
            return self._wish
        wishes = [shard for shard in sorted(self.shards) if wanted(shard)]
        later = [shard for shard in wishes if self._wish is not None and shard > self._wish]
        self._wish, self._wish_ms = next(iter(later or wishes), None), now_ms
        return self._wish
