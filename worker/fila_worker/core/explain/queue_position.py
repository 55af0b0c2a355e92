"""The position of a message in its key: how many messages go before it.

A binary search counts the messages of a lane that are in memory. The messages on disk are counted by reading, up to a bound.
Beyond the bound the rest is estimated from the sequence numbers, which grow evenly enough in a long lane.
"""

from bisect import bisect_left
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from fila_worker.core.keys import u64
from fila_worker.core.model.lanes import sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fila_worker.core.model.fairness_keys import FairnessKey
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.state import State

READ_MAX: Final = 5000
"""Messages of a lane that are read to count them, and messages of all other lanes of its key together: a few milliseconds."""

LANES_MAX: Final = 200
"""Lanes of a key that are examined."""

_PRIORITY: Final = slice(8, 12)
_SEQUENCE_AT: Final = 12


class QueuePosition(NamedTuple):
    """``ahead`` messages of its key go before a message; ``in_lane`` of these need the same tokens.

    If not ``exact``, the numbers are estimates.
    """

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
