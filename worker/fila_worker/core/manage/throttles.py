"""The throttle keys that have limits: their limits, their tokens, and what waits for them."""

from collections.abc import Iterable
from heapq import merge, nlargest
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, ClassVar, Final

from sortedcontainers import SortedDict

from fila_proto_zmq import runtime_config
from fila_proto_zmq.bucket_limits import is_pattern
from fila_proto_zmq.commands import ListThrottles, ThrottleList, ThrottleStats, ThrottleWaiter
from fila_proto_zmq.limits import LIST_THROTTLES_MAX, THROTTLE_USERS_SHOWN
from fila_worker.core.explain.concurrency import longest_holders, places_in_use
from fila_worker.core.model.component import Component
from fila_worker.core.model.lanes import Lane

if TYPE_CHECKING:
    from fila_worker.core.effects import ClientCall
    from fila_worker.core.model.state import State

LISTED_COST: Final = 5
"""Effort to show a throttle key."""

LOOKS_MAX: Final = 4000
"""The most throttle keys that are read for one page, with and without limits."""

LANES_COUNTED_AT_ONCE: Final = 8
"""Waiting lanes whose messages are added up for one unit of effort."""

LANES_COUNTED_MAX: Final = 20_000
"""The most lanes that are read for one page, so that no turn is long: some messages are not counted if more wait."""


def list_throttles(state: "State", call: "ClientCall", command: ListThrottles) -> ThrottleList:
    """Return a page of the throttle keys with a limit, by name: those after a given one, with the prefix.

    Keys with limits by a pattern are listed while this shard has messages with them.
    """
    if command.exact:
        return _one(state, command.prefix, call.now_ms)
    prefix, after = command.prefix, command.after
    begin, limits, own = max(prefix, after), state.runtime.limits, state.runtime.throttle_keys
    in_use = state.token_client.by_key if limits.has_patterns else SortedDict()
    found: list[str] = []
    looks, last = 0, ""
    for key, _ in groupby(merge(own.irange(begin), in_use.irange(begin))):
        if not key.startswith(prefix):
            break
        if len(found) >= LIST_THROTTLES_MAX or looks >= LOOKS_MAX:
            state.jobs.charge(looks)
            return ThrottleList(_here(state, found, call.now_ms), last)
        looks, last = looks + 1, key
        if key > after and (key in own or limits.covers(key)):
            found.append(key)
    state.jobs.charge(looks)
    return ThrottleList(_here(state, found, call.now_ms))


def _one(state: "State", key: str, now_ms: int) -> ThrottleList:
    """Return one throttle key with the messages of this shard that hold it, and the fairness keys that wait for it."""
    waiting: dict[tuple[str, str], int] = {}
    lanes, looks = _waiting_lanes(state, key, LANES_COUNTED_MAX)
    for lane in lanes:
        label = lane.key.queue.name, lane.key.name
        waiting[label] = waiting.get(label, 0) + lane.pending
    state.jobs.charge(looks // LANES_COUNTED_AT_ONCE)
    most = nlargest(THROTTLE_USERS_SHOWN, waiting, key=lambda label: waiting[label])
    waiters = [ThrottleWaiter(*label, waiting[label]) for label in most]
    return ThrottleList(_here(state, [key], now_ms), "", longest_holders(state, key), waiters)


def _here(state: "State", keys: list[str], now_ms: int) -> list[ThrottleStats]:
    """Return throttle keys with the leased messages of this shard, so that those of all shards add up."""
    stats = throttle_stats(state, keys, now_ms)
    for each in stats:
        traffic = state.token_client.traffic.get(each.key)
        each.in_use = traffic.leased if traffic is not None and each.concurrency is not None else 0
    return stats


def throttle_stats(state: "State", keys: Iterable[str], now_ms: int) -> list[ThrottleStats]:
    """Return the limits of throttle keys, their places in use in the cluster, as last heard, and what waits for them here."""
    client, limits = state.token_client, state.runtime.limits
    left, stats = LANES_COUNTED_MAX, []
    for key in keys:
        limit, each = limits.get(key), ThrottleStats(key)
        if limit is not None:
            each.rate, each.burst = limit.rate_milli / 1000, limit.burst_micro / 1e6
            each.rate_in_force = client.levels.in_force(key, limit).rate_milli / 1000
            each.tokens = None if is_pattern(key) else client.levels.tokens_in(key, limit, now_ms) / 1e6
        each.rate_min = runtime_config.number_of(limits.find(key, "rate_min"))
        each.concurrency = limits.concurrency(key)
        if each.concurrency is not None:
            each.in_use = places_in_use(state, key)
        lanes, looks = _waiting_lanes(state, key, left)
        each.waiting = sum(lane.pending for lane in lanes)
        left -= looks
        stats.append(each)
    state.jobs.charge(LISTED_COST * len(stats) + (LANES_COUNTED_MAX - left) // LANES_COUNTED_AT_ONCE)
    return stats


def _waiting_lanes(state: "State", key: str, looks_max: int) -> "tuple[list[Lane], int]":
    """Return the lanes that need a throttle key and wait, and how many sets of keys and lanes were read.

    ``looks_max``: how many of each are read at most.
    """
    sets = list(islice(state.token_client.by_key.get(key, ()), looks_max))
    for_tokens = (lane for each in sets for lane in each.waiting)
    for_places = (lane for lane in state.places.waiting_for(key) if isinstance(lane, Lane))
    lanes = list(islice(chain(for_tokens, for_places), looks_max))
    return lanes, len(sets) + len(lanes)


class ThrottleLists(Component):
    """The command that lists throttle keys."""

    verbs: ClassVar = {ListThrottles: list_throttles}
