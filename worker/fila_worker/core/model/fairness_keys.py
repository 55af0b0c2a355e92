"""A fairness key of a queue: its lanes, and which lane is first.

Usually a key has one lane and nothing that could block it: its ``only_lane``. Otherwise a heap orders the lanes that may
deliver by the places of their first messages. An entry is corrected when its lane comes to the top, so the heap need not be
kept exact at each change.

A key far from its turn is *cold*: its lane is not an object but a few packed bytes (:mod:`core.model.cold_lanes`). Code that
only reads lanes uses ``views``. Code that changes a lane uses ``lanes``, which makes the key warm again.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush, heapreplace
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from fila_worker.core.keys import FIRST_PLACE
from fila_worker.core.model.cold_lanes import pending_cold, unpacked, warm_up
from fila_worker.core.model.lanes import Lane

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fila_worker.core.model.cold_lanes import ColdLane
    from fila_worker.core.model.drr import Debtors, Line
    from fila_worker.core.model.queues import Queue

MILLI: Final = 1000
"""Credit and costs are counted in thousandths."""


class FairnessKey:
    """One fairness key of a queue: its lanes, its weight, its place in the ring, its counters.

    Invariant: ``active`` if and only if :attr:`deliverable`; then it is in the ring.
    """

    __slots__ = (
        "active",
        "before",
        "behind",
        "blocked",
        "blocked_head",
        "cold",
        "credit",
        "delivered",
        "due",
        "heads",
        "held",
        "joined_at",
        "joined_turn",
        "last_turn",
        "line",
        "name",
        "only",
        "only_lane",
        "paused",
        "queue",
        "ready",
        "several",
        "spent",
        "weight",
    )

    def __init__(self, name: str, queue: "Queue") -> None:
        self.name = name
        self.queue = queue
        self.cold: bytes | None = None
        """Its one lane in packed form, while it is cold (:mod:`core.model.cold_lanes`). None: its lanes are objects."""
        self.only: Lane | None = None
        """Its lane, if it has exactly one and is warm."""
        self.several: dict[tuple[str, ...], Lane] | None = None
        """Its lanes by throttle keys (sorted, distinct), if it has several. A dictionary takes more than all the rest."""
        self.only_lane: Lane | None = None
        """Its one lane, if nothing can block it: no throttle, and no cap on messages in flight."""
        self.heads: list[tuple[bytes, int, Lane]] | None = None
        """A heap of the lanes that may deliver, by the place of their first message. An entry that differs from its lane's
        ``head_place`` is stale. None while there is an ``only_lane``."""
        self.ready = 0
        """The number of lanes that are active and not blocked."""
        self.blocked = 0
        """The number of lanes that wait for tokens."""
        self.weight = 1
        self.active = False
        self.paused = False
        self.blocked_head = b""
        """In a strictly ordered queue: the place of its first message, if that waits for tokens. The others wait, too."""
        self.credit = 0
        """The rest of the turn in progress, in thousandths of a unit of cost. Below 0 it is a debt."""
        self.held = 0
        """The number of messages leased or waiting for a retry. Counted only if the queue has a cap on them."""
        self.joined_turn = 0
        """The number of turns of the ring when it last became active."""
        self.last_turn = -1
        """The number of its last turn, as the ring counts turns. A turn that delivered nothing does not count."""
        self.due = 0
        """The round of the ring in which its debt is paid."""
        self.delivered = 0
        self.spent = 0
        """The cost of all its deliveries, in thousandths."""
        self.joined_at = 0
        """``spent`` when the key last became active."""
        self.line: Line | Debtors | None = None
        """The part of the ring in which it waits, and its neighbours there."""
        self.before: FairnessKey | None = None
        self.behind: FairnessKey | None = None

    @property
    def lanes(self) -> dict[tuple[str, ...], Lane]:
        """Its lanes by throttle keys. This warms a cold key up; only to read, use :attr:`views`."""
        if self.cold is not None:
            warm_up(self)
        if self.only is not None:
            return {self.only.throttle_keys: self.only}
        return self.several or {}

    @property
    def views(self) -> "Iterable[Lane | ColdLane]":
        """Its lanes for reading only, warm or cold."""
        if self.only is not None:
            return (self.only,)
        if self.cold is not None:
            return (unpacked(self),)
        return self.several.values() if self.several is not None else ()

    def add(self, lane: Lane) -> None:
        """Add a new lane."""
        if self.only is None and self.several is None and self.cold is None:  # the usual case, without a dictionary
            self.only = lane
            if lane.throttle is None and self.queue.options.max_in_flight_per_key is None:
                self.only_lane = lane
                return
        lanes = self.lanes | {lane.throttle_keys: lane} if self.several is None else self.several
        lanes[lane.throttle_keys] = lane
        self.only, self.several = (lane, None) if len(lanes) == 1 else (None, lanes)
        if self.only_lane is not None or len(lanes) == 1:
            self.settle_shape()

    def drop(self, lane: Lane) -> None:
        """Remove a lane. Both references are cut, or only the cyclic garbage collector would free the two."""
        if lane is self.only:  # the usual case
            self.only = self.only_lane = self.heads = None
            del lane.key
            return
        lanes = self.lanes
        del lanes[lane.throttle_keys], lane.key
        if len(lanes) == 1:
            self.only, self.several = next(iter(lanes.values())), None
            self.settle_shape()

    @property
    def deliverable(self) -> bool:
        """Whether one of its messages may be delivered, if a consumer has credit."""
        return self.ready > 0 and not self.blocked_head and self.open

    @property
    def open(self) -> bool:
        """Whether neither a pause nor its cap blocks it."""
        cap = self.queue.options.max_in_flight_per_key
        return not self.paused and (cap is None or self.held < cap)

    @property
    def pending(self) -> int:
        """The number of messages in line."""
        if self.only_lane is not None:
            return self.only_lane.pending
        if self.cold is not None:
            return pending_cold(self)
        return sum(lane.pending for lane in self.views)

    def settle_shape(self) -> None:
        """Find out whether there is an ``only_lane``, after lanes came or went or the queue's options changed."""
        if self.cold is not None:
            return  # done when the key is warmed up
        lanes = list(self.lanes.values())
        simple = len(lanes) == 1 and lanes[0].throttle is None and self.queue.options.max_in_flight_per_key is None
        self.only_lane = lanes[0] if simple else None
        self.heads = None
        if self.only_lane is None:
            for lane in lanes:
                lane.head_place = b""
                if lane.active and not lane.blocked:
                    self.note_head(lane, lane.prefix + FIRST_PLACE)

    def note_head(self, lane: Lane, message_key: bytes) -> None:
        """Note that this may be the lane's first message."""
        place = message_key[8:]
        if not lane.head_place or place < lane.head_place:
            lane.head_place = place
            if self.heads is None:
                self.heads = []
            heappush(self.heads, (place, lane.id, lane))

    def first_lane(self, head_of: Callable[[Lane], bytes]) -> Lane | None:
        """Return the lane whose first message has the smallest place. ``head_of`` returns a lane's first key."""
        heads = self.heads
        while heads:
            place, _, lane = heads[0]
            if place != lane.head_place or not lane.active or lane.blocked:
                if place == lane.head_place:
                    lane.head_place = b""
                heappop(heads)
                continue
            first = head_of(lane)[8:]
            if first <= place:
                return lane
            lane.head_place = first
            heapreplace(heads, (first, lane.id, lane))
        return None

    def first_is_blocked(self) -> None:
        """Block the lane that :meth:`first_lane` returned."""
        assert self.heads is not None, f"{self.name!r} has a sole lane, which never waits"
        _, _, lane = heappop(self.heads)
        lane.head_place = b""
        self.ready -= 1
        self.blocked += 1

    def only_is_blocked(self) -> None:
        """Block its only lane."""
        assert self.only is not None
        self.only.head_place, self.heads = b"", None
        self.ready -= 1
        self.blocked += 1

    def deficit(self, quantum: int) -> float:
        """Return the rest of ``weight × quantum`` in the key's round; 0 while it has nothing to deliver."""
        if not self.active:
            return 0
        entitled = self.weight * quantum * MILLI
        return (entitled - (self.spent - self.joined_at) % entitled) / MILLI


SHRINK_MIN: Final = 64
"""A part that never had more keys is not rebuilt: it would save too little memory."""


class KeyTable:
    """Fairness keys by name.

    Invariants: each key is in one part, under its name. No part is empty, unless it is the only one. ``get`` searches all
    parts.
    """

    __slots__ = ("_count", "_part_max", "_parts", "_peaks", "get")

    def __init__(self, part_max: int) -> None:
        self._part_max = part_max
        self._parts: list[dict[str, FairnessKey]] = [{}]
        self._peaks = [0]
        """The largest size of each part when it lost a key, since the part was made."""
        self._count = 0
        self.get: Callable[[str], FairnessKey | None] = self._parts[0].get
        """Return the key with a name, or None."""

    def __len__(self) -> int:
        return self._count

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def __getitem__(self, name: str) -> "FairnessKey":
        key = self.get(name)
        if key is None:
            raise KeyError(name)
        return key

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._parts)

    def values(self) -> "Iterator[FairnessKey]":
        """Return all keys in the order in which they were made. None may come or go meanwhile."""
        return chain.from_iterable(part.values() for part in self._parts)

    def portion(self, start: int, count: int) -> "list[FairnessKey]":
        """Return up to ``count`` keys from a place in their order on."""
        found: list[FairnessKey] = []
        for part in self._parts:
            if start < len(part):
                found += islice(part.values(), start, start + count - len(found))
                start = 0
                if len(found) == count:
                    break
            else:
                start -= len(part)
        return found

    def add(self, key: "FairnessKey") -> None:
        """Add a new key."""
        if len(self._parts[-1]) >= self._part_max:
            self._begin_part()
        self._parts[-1][key.name] = key
        self._count += 1

    def remove(self, key: "FairnessKey") -> None:
        """Remove a key."""
        index = next(index for index, part in enumerate(self._parts) if key.name in part)
        part = self._parts[index]
        self._peaks[index] = max(self._peaks[index], len(part))
        del part[key.name]
        self._count -= 1
        if not part and len(self._parts) > 1:
            del self._parts[index], self._peaks[index]
            self._settle()
        elif 4 * len(part) < self._peaks[index] > SHRINK_MIN:
            self._replace(index, index + 1, dict(part))

    def _begin_part(self) -> None:
        """Begin a new part. Two small neighbours are merged first, so that there are never many parts."""
        sizes = [len(part) for part in self._parts]
        for index in range(len(sizes) - 1):
            if sizes[index] + sizes[index + 1] <= self._part_max // 2:
                self._replace(index, index + 2, self._parts[index] | self._parts[index + 1])
                break
        self._parts.append({})
        self._peaks.append(0)
        self._settle()

    def _replace(self, start: int, end: int, part: "dict[str, FairnessKey]") -> None:
        self._parts[start:end] = [part]
        self._peaks[start:end] = [len(part)]
        self._settle()

    def _settle(self) -> None:
        """Point ``get`` to a look-up that fits the parts."""
        self.get = self._parts[0].get if len(self._parts) == 1 else self._find

    def _find(self, name: str) -> "FairnessKey | None":
        for part in self._parts:
            if name in part:
                return part[name]
        return None
