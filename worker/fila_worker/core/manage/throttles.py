"""The throttle keys that have limits: their limits, their tokens, and what waits for them."""

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final

from fila_proto_zmq import runtime_config
from fila_proto_zmq.commands import ListThrottles, ThrottleList, ThrottleStats
from fila_proto_zmq.limits import LIST_THROTTLES_MAX
from fila_worker.core.model.component import Component

if TYPE_CHECKING:
    from fila_worker.core.effects import ClientCall
    from fila_worker.core.model.state import State

LISTED_COST: Final = 5
"""Effort to show a throttle key."""

LANES_COUNTED_AT_ONCE: Final = 8
"""Waiting lanes whose messages are added up for one unit of effort."""

LANES_COUNTED_MAX: Final = 20_000
"""The most lanes that are read for one page, so that no turn is long: some messages are not counted if more wait."""


def list_throttles(state: "State", call: "ClientCall", command: ListThrottles) -> ThrottleList:
    """Return a page of the throttle keys with a limit, by name: those after a given one, with the prefix."""
    prefix, after = command.prefix, command.after
    found: list[str] = []
    for key in state.runtime.throttle_keys.irange(max(prefix, after)):
        if not key.startswith(prefix) or len(found) > LIST_THROTTLES_MAX:
            break
        if key > after:
            found.append(key)
    shown = found[:LIST_THROTTLES_MAX]
    return ThrottleList(throttle_stats(state, shown, call.now_ms), len(shown) < len(found))


def throttle_stats(state: "State", keys: Iterable[str], now_ms: int) -> list[ThrottleStats]:
    """Return the limits of throttle keys, and what waits for them here."""
    client, values = state.token_client, state.runtime.values
    left, stats = LANES_COUNTED_MAX, []
    for key in keys:
        limit, each = state.runtime.limits.get(key), ThrottleStats(key)
        if limit is not None:
            each.rate, each.burst = limit.rate_milli / 1000, limit.burst_micro / 1e6
            each.tokens = client.levels.tokens_in(key, limit, now_ms) / 1e6
            each.rate_min = runtime_config.rate_min_of(key, values)
        each.concurrency = runtime_config.concurrency_of(key, values)
        each.waiting, looks = _waiting_for(state, key, left)
        left -= looks
        stats.append(each)
    state.jobs.charge(LISTED_COST * len(stats) + (LANES_COUNTED_MAX - left) // LANES_COUNTED_AT_ONCE)
    return stats


def _waiting_for(state: "State", key: str, looks_max: int) -> tuple[int, int]:
    """Return how many messages wait in lanes that need a throttle key, and how many sets of keys and lanes were read.

    ``looks_max``: how many of each are read at most.
    """
    sets = list(islice(state.token_client.by_key.get(key, ()), looks_max))
    lanes = list(islice((lane for each in sets for lane in each.waiting), looks_max))
    return sum(lane.pending for lane in lanes), len(sets) + len(lanes)


class ThrottleLists(Component):
    """The command that lists throttle keys."""

    verbs: ClassVar = {ListThrottles: list_throttles}
