"""The oldest pending message of a queue.

A lane is in the order of priorities, and within a priority in the order of arrival. So the oldest message is the first one of
some priority, and the search skips all others. It reads a bounded number of messages from disk, and misses those beyond.
"""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from fila_proto_zmq.ids import enqueued_ms
from fila_proto_zmq.record import record_id
from fila_worker.core.keys import pack_u32, u32
from fila_worker.core.model.lanes import head

if TYPE_CHECKING:
    from fila_worker.core.model.cold_lanes import ColdLane
    from fila_worker.core.model.fairness_keys import FairnessKey
    from fila_worker.core.model.lanes import Entry, Lane
    from fila_worker.core.model.state import State

LOOKS_MAX: Final = 10_000
"""Searches behind the first priority of lanes, about a microsecond each."""

LOOK_ENTRIES: Final = 64
"""Messages out of order in a lane that cost as much as one search."""

LEASED_MAX: Final = 1000
"""Consecutive leased messages on disk that are skipped to find a pending one."""

_PRIORITY: Final = slice(8, 12)
_LAST_PRIORITY: Final = b"\xff" * 4
_key_of = itemgetter(0)


def waiting_since_ms(state: "State", keys: "Iterable[FairnessKey]", reads_max: int) -> int | None:
    """Return when the oldest pending message of some fairness keys was enqueued, Unix ms; None without messages."""
    search = _Search(state, reads_max)
    for key in keys:
        for lane in key.views:
            search.look(lane)
    return search.found_ms


class _Search:
    """A search through some lanes. ``found_ms``: when the oldest message so far was enqueued, Unix ms; or None."""

    __slots__ = ("_looks_left", "_reads_left", "_state", "found_ms")

    def __init__(self, state: "State", reads_max: int) -> None:
        self.found_ms: int | None = None
        self._state = state
        self._reads_left = reads_max
        self._looks_left = LOOKS_MAX

    def look(self, view: "Lane | ColdLane") -> None:
        """Take the pending messages of a lane into account."""
        if not view.pending:
            return
        entry = view.peek()
        if entry is None:
            if not self._may_read():
                return
            entry = head(self._state, view.warm())
        lane = view.warm()
        while entry is not None:
            self._note(entry)
            entry = self._first_of_next_priority(lane, entry[0])

    def _note(self, entry: "Entry") -> None:
        message_key, record = entry
        if record is None:
            if not self._may_read():
                return
            record = self._state.read((message_key,))[0]
        came_ms = enqueued_ms(record_id(record)[0])
        self.found_ms = came_ms if self.found_ms is None else min(self.found_ms, came_ms)

    def _may_read(self) -> bool:
        self._reads_left -= 1
        return self._reads_left >= 0

    def _first_of_next_priority(self, lane: "Lane", message_key: bytes) -> "Entry | None":
        """Return the first message of a less urgent priority than that of ``message_key``."""
        priority = message_key[_PRIORITY]
        if self._looks_left <= 0 or priority == _LAST_PRIORITY or not _may_have_more(lane, priority):
            return None
        self._looks_left -= 1 + len(lane.returned) // LOOK_ENTRIES
        start = lane.prefix + pack_u32(u32(priority) + 1)
        return _first_in_memory(lane, start) or self._first_on_disk(lane, start)

    def _first_on_disk(self, lane: "Lane", start: bytes) -> "Entry | None":
        if lane.tail is None or not self._may_read():
            return None
        self._state.settle_writes()
        stored = self._state.store.scan(max(lane.tail, start), lane.end, self._state.store.families.messages)
        claimed = lane.claimed
        return next((entry for entry in islice(stored, LEASED_MAX) if entry[0] not in claimed), None)


def _may_have_more(lane: "Lane", priority: bytes) -> bool:
    """Return whether a lane may have messages of a less urgent priority. Most lanes have one priority: then it is False."""
    known = lane.key.queue.priorities
    if known is not None and len(known) == 1:
        return False
    return lane.tail is not None or bool(lane.returned) or bool(lane.line and lane.line[-1][0][_PRIORITY] != priority)


def _first_in_memory(lane: "Lane", start: bytes) -> "Entry | None":
    line = lane.line
    index = bisect_left(line, start, key=_key_of)
    found = [line[index]] if index < len(line) else []
    return min((*found, *(entry for entry in lane.returned if entry[0] >= start)), key=_key_of, default=None)
