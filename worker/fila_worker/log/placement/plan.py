"""Which host should lead each shard, and who claims first when a leader is lost. All nodes compute the same from the same views."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b

from fila_worker.log.placement.limits import PlacementLimits
from fila_worker.log.placement.views import NodeView


@lru_cache(maxsize=65_536)
def weight(shard: int, host: str) -> int:
    """Return a number that looks random, and is the same in all processes."""
    return int.from_bytes(blake2b(f"{shard}:{host}".encode(), digest_size=8).digest())


def leaders(views: Iterable[NodeView]) -> dict[int, str]:
    """Return which host leads each shard. If several say so, the highest epoch is right."""
    said = sorted((epoch, view.host, shard) for view in views for shard, epoch in view.leads.items())
    return {shard: host for _, host, shard in said}


def plan_leaders(views: Collection[NodeView], shards: Iterable[int], limits: PlacementLimits) -> dict[int, str]:
    """Return which host should lead each shard; no shard of which no node that may lead has a copy.

    Shards that the same nodes have copies of are a group. Within each group the hosts get even shares within one, so that the nodes
    of a host have as much to do as each other; a host that got fewer in the groups before comes first for a share that is one larger.
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
    """Return how many shards of a group each host should lead: even within one, and more for those that lead more already.

    While the shards of a new cluster find their leaders, that changes nothing: what is planned is done in any order.
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
