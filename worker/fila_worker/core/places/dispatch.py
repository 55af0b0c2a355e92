"""What one shard has to tell another, until the other has seen it.

An *item* names a part of the state, such as an account. It is read when a frame is made, so a repeated item is never out of
date. A frame has a serial, and the serials of the other side's frames that were taken in since the last one. Items of a frame
that was not taken in are said again: it was lost, or a later one has overtaken it. A frame without items only confirms others,
and is not confirmed.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from fila_worker.core.due_time import AT_ONCE

ITEMS_MAX: Final = 500
"""The most items of a frame."""

REPEAT_MS: Final = 250
PAUSE_MS_MAX: Final = 2000
"""The time until what was not seen is said again. It doubles each time, up to the longest."""

CONFIRMED_MAX: Final = 64
"""The most frames that one frame confirms. The others come again."""

OPENING_BITS: Final = 40
"""Serials are taken from the counter of leases: what is above these bits differs for each opening of a store."""

Item = tuple[str | int | tuple[str, ...], ...]


class Dispatch:
    """The items for one other shard."""

    def __init__(self) -> None:
        self._pause_ms = REPEAT_MS
        self._unsaid: dict[Item, None] = {}
        self._said: dict[Item, int] = {}
        """The items that were not seen, with the serials of their frames."""
        self._frames: dict[int, list[Item]] = {}
        """The items of the frames that were not seen."""
        self._again_ms = 0
        self._last = 0
        """The last serial of the other side that was taken in."""
        self._owed: list[int] = []
        """The serials that are to be confirmed."""

    def say(self, item: Item) -> None:
        """Have an item said with the next frame."""
        self._unsaid[item] = None

    def pending(self, item: Item) -> bool:
        """Return whether the other side may not have seen an item yet."""
        return item in self._unsaid or item in self._said

    def heard(self, serial: int, seen: Iterable[int], *, has_items: bool) -> bool:
        """Take in the numbers of a frame. Return False if a later one was taken in before."""
        if serial < self._last:
            return False
        for confirmed in seen:
            for item in self._frames.pop(confirmed, ()):
                if self._said.get(item) == confirmed:  # else it was said again since
                    del self._said[item]
        if not self._said:
            self._frames.clear()
        if has_items and len(self._owed) < CONFIRMED_MAX:
            self._owed.append(serial)
        self._pause_ms = REPEAT_MS
        self._last = serial
        return True

    def is_new(self, serial: int) -> bool:
        """Return whether a serial is of another life of the other side than the last one."""
        return serial >> OPENING_BITS != self._last >> OPENING_BITS

    def take_owed(self) -> list[int]:
        """Return the serials to be confirmed by the next frame."""
        owed, self._owed = self._owed, []
        return owed

    def fill(self, serial: int, add: Callable[[Item], bool], now_ms: int) -> bool:
        """Fill the next frame, which has this serial. Return False if there is nothing to say.

        ``add`` adds an item to the frame. It returns False if there is nothing of it any more.
        """
        if self._said and now_ms >= self._again_ms:
            self._unsaid = dict.fromkeys([*self._said, *self._unsaid])
            self._said.clear()
            self._frames.clear()
            self._pause_ms = min(2 * self._pause_ms, PAUSE_MS_MAX)
        items = []
        for item in list(islice(self._unsaid, ITEMS_MAX)):
            del self._unsaid[item]
            if add(item):
                self._said[item] = serial
                items.append(item)
        if items:
            self._frames[serial] = items
            self._again_ms = now_ms + self._pause_ms
        return bool(items)

    def due_ms(self) -> int | None:
        """Return when there is something to say, Unix ms."""
        if self._unsaid or self._owed:
            return AT_ONCE
        return self._again_ms if self._said else None
