"""The fairness keys of a queue, by name and in the order in which they were made.

A dictionary that grows moves all that is in it: 35 ms of one turn at 700,000 keys. And it never becomes smaller. So a table has *parts*,
dictionaries of a bounded size, in the order in which they were begun: new keys go into the last one, and one that has lost most of its keys
is made anew. Usually there is one part, and a look-up goes to it without a step between.

Cost: a look-up in a table of a million keys goes through four parts, 0.3 µs. Rejected: parts by a hash of the name (an order of the keys that
differs from process to process, and two steps for each look-up in the smallest queue).
"""

from collections.abc import Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from fila_worker.core.fairness_key import FairnessKey

SHRINK_MIN: Final = 64
"""A part that never had more keys is not worth being made anew."""


class KeyTable:
    """Fairness keys by name.

    Invariants: each key is in one part, under its name. No part but a sole one is empty. ``get`` looks into all parts.
    """

    __slots__ = ("_count", "_part_max", "_parts", "_peaks", "get")

    def __init__(self, part_max: int) -> None:
        self._part_max = part_max
        self._parts: list[dict[str, FairnessKey]] = [{}]
        self._peaks = [0]
        """The largest that each part was when it lost a key, since it was made."""
        self._count = 0
        self.get: Callable[[str], FairnessKey | None] = self._parts[0].get
        """The key of a name, or None."""

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
        """All keys in the order in which they were made. None may come or go meanwhile."""
        return chain.from_iterable(part.values() for part in self._parts)

    def portion(self, start: int, count: int) -> "list[FairnessKey]":
        """Up to ``count`` keys from a place in their order on."""
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
        """A key is new."""
        if len(self._parts[-1]) >= self._part_max:
            self._begin_part()
        self._parts[-1][key.name] = key
        self._count += 1

    def remove(self, key: "FairnessKey") -> None:
        """A key is no more."""
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
        """Begin a new part. If two neighbours are small by now they become one, so that there are never many."""
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
        """See to it that a look-up finds the parts as they are now."""
        self.get = self._parts[0].get if len(self._parts) == 1 else self._find

    def _find(self, name: str) -> "FairnessKey | None":
        for part in self._parts:
            if name in part:
                return part[name]
        return None
