"""Estimates of delivery times, from the queue's pace, the key's share and the incoming tokens; and positions in a key.

An estimate supposes that all stays as it is: no other message takes the tokens, no key comes or goes, and messages cost about
the same. Where this gives no time (a pause, no consumer, strict order behind a lease) there is no estimate.

The position of a message is the number of messages of its key before it. A binary search counts those of a lane that are in
memory. Those on disk are counted by reading, up to a bound. The rest is estimated from the sequence numbers, which grow
evenly enough in a long lane.
"""

from bisect import bisect_left
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from fila_proto_zmq.limits import EXPLAINED_KEYS_MAX
from fila_worker.core.keys import u64
from fila_worker.core.model.lanes import sample
from fila_worker.core.model.token_client import LIVE_MS, MICRO_PER_MILLI

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fila_worker.core.model.fairness_keys import FairnessKey
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

READ_MAX: Final = 5000
"""Messages of a lane that are read to count them, and messages of all other lanes of its key together: a few milliseconds."""

LANES_MAX: Final = 200
"""Lanes of a key that are examined."""

_PRIORITY: Final = slice(8, 12)
_SEQUENCE_AT: Final = 12


class QueuePosition(NamedTuple):
    """``ahead`` messages of its key go before a message; ``in_lane`` of these need its tokens. ``exact``: no estimate."""

    ahead: int
    in_lane: int
    exact: bool


def place_in_line(state: "State", lane: "Lane", message_key: bytes) -> QueuePosition:
    """Return the position of a pending message.

    In strict order every message before it counts. Else messages of other lanes that wait for tokens do not count: they do
    not delay it.
    """
    key = lane.key
    in_lane, exact = _before(state, lane, message_key, READ_MAX)
    ahead = in_lane
    for other in islice(_in_the_same_line(key, lane), LANES_MAX):
        count, sure = _before(state, other, other.prefix + message_key[8:], READ_MAX // min(LANES_MAX, len(key.lanes)))
        ahead, exact = ahead + count, exact and sure
    return QueuePosition(ahead, in_lane, exact and len(key.lanes) <= LANES_MAX)


def _in_the_same_line(key: "FairnessKey", lane: "Lane") -> "Iterator[Lane]":
    strict = key.queue.options.max_in_flight_per_key == 1
    return (each for each in key.lanes.values() if each is not lane and each.pending and (strict or not each.blocked))


def _before(state: "State", lane: "Lane", message_key: bytes, reads_max: int) -> tuple[int, bool]:
    """Return how many pending messages of a lane have a smaller key, and whether that number is exact."""
    held = len(lane.line) + len(lane.returned)
    if lane.tail is None or message_key <= lane.tail:
        in_line = bisect_left(lane.line, message_key, key=lambda entry: entry[0])
        return in_line + sum(key < message_key for key, _ in lane.returned), True
    stored, all_of_them = sample(state.store.scan(lane.tail, message_key, state.store.families.messages), reads_max)
    keys = [key for key, _ in stored]
    claimed = lane.claimed
    count = sum(key not in claimed for key in keys)
    if all_of_them:
        return held + count, True
    return held + min(lane.pending - held, round(count * _stretch(keys, message_key))), False


def _stretch(keys: list[bytes], message_key: bytes) -> float:
    """Return the distance to a message as a multiple of the distance that the keys cover."""
    if keys[-1][_PRIORITY] != message_key[_PRIORITY]:
        return 1.0
    first, last, wanted = (u64(key, _SEQUENCE_AT) for key in (keys[0], keys[-1], message_key))
    return (wanted - first) / max(1, last - first)


class Rivals(NamedTuple):
    """The other keys that take turns with a key: their number, their weights, and how many of their messages go first."""

    keys: int
    weights: int
    messages: int


def rivals_of(key: "FairnessKey", ahead_in_key: int) -> Rivals:
    """Return the messages of other keys before a message; ``ahead_in_key`` messages of its own key go before it."""
    rounds = -(-(ahead_in_key + 1) // key.weight)
    looked = key.queue.keys.portion(0, EXPLAINED_KEYS_MAX)
    others = [each for each in looked if each.active and each is not key]
    messages = sum(min(each.pending, each.weight * rounds) for each in others)
    scale = len(key.queue.keys) / len(looked)
    return Rivals(round(len(others) * scale), round(sum(each.weight for each in others) * scale), round(messages * scale))


def is_read(queue: "Queue", now_ms: int) -> bool:
    """Return whether a consumer receives from a queue, or did less than ``LIVE_MS`` ago."""
    return bool(queue.subscribers) or (queue.served_ms > 0 and now_ms - queue.served_ms < LIVE_MS)


def is_served(key: "FairnessKey", now_ms: int) -> bool:
    """Return whether a key's messages are delivered at all: a consumer receives from its queue, and neither is paused."""
    return not key.queue.paused and not key.paused and is_read(key.queue, now_ms)


def delivery_ms(
    state: "State", lane: "Lane", spot: bytes, place: "QueuePosition", rivals: Rivals, cost_milli: int, now_ms: int
) -> int:
    """Return when a message of a lane will be delivered, in Unix ms; 0 if there is no estimate.

    ``spot`` is the message's place in its lane, ``place`` and ``rivals`` count the messages before it.
    """
    key, queue = lane.key, lane.key.queue
    if (
        not is_served(key, now_ms)
        or queue.full
        or lane in state.places.where
        or not key.open
        or (key.blocked_head and spot > key.blocked_head)
    ):
        return 0
    tokens_ms = tokens_come_ms(state, lane, place.in_lane, cost_milli, now_ms)
    if tokens_ms is None or tokens_ms > now_ms:
        return tokens_ms or 0
    messages = place.ahead + rivals.messages
    pace = queue.delivery_rate.per_second(now_ms)
    if not messages and any(demand.credit > 0 for demand in queue.demands):
        return now_ms
    return now_ms + round((messages + 1) * 1000 / pace) if pace else 0


def tokens_come_ms(state: "State", lane: "Lane", ahead: int, cost_milli: int, now_ms: int) -> int | None:
    """Return when a message, with ``ahead`` others before it in its lane, has all its tokens, Unix ms; None: never."""
    throttling = state.token_client
    if lane.throttle is None:
        return now_ms
    latest = max(now_ms, throttling.parks.until(lane.throttle_keys))
    for name in lane.throttle_keys:
        limit = throttling.limits.get(name)
        if limit is None:
            continue
        limit = throttling.levels.in_force(name, limit)
        cost = cost_milli * MICRO_PER_MILLI
        missing = ahead * cost + limit.level_for(cost) - lane.tokens - throttling.levels.tokens_in(name, limit, now_ms)
        if missing > 0:
            if not limit.rate_milli:
                return None
            latest = max(latest, now_ms - (-missing // limit.rate_milli))
    return latest
