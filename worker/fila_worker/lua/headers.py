"""Headers of a batch, from the envelopes' bytes to the flat arguments of a loop.

A batch is decoded at once, as an array of its maps. If all messages have the same header names, as in most batches, it is
decoded into a struct made for these names (half the time of dicts). Only the values go to Lua, to a loop made for these
names. Batches are short and small, because they take room in the scripts' memory.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

import msgspec

BATCH_MESSAGES: Final = 128
BATCH_BYTES: Final = 64 * 1024
"""Packed headers in a batch; a single message may exceed this in a batch of its own."""

NAMES_MAX: Final = 20
"""The most headers of a message for which a shape is made."""

_ARRAY_32: Final = b"\xdd"
_EMPTY_MAP: Final = b"\x80"
_BAD: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_decode_all = msgspec.msgpack.Decoder(list[dict[str, str]]).decode
_decode_one = msgspec.msgpack.Decoder(dict[str, str]).decode


class Shape:
    """Headers with exactly these names. Raises ValueError for names that msgspec does not accept."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        fields = {f"column_{index}": name for index, name in enumerate(self.names)}
        kind = msgspec.defstruct(
            "Headers", [(field, str) for field in fields], rename=fields, forbid_unknown_fields=True, gc=False
        )
        self._columns = [attrgetter(field) for field in fields]
        self._decode = msgspec.msgpack.Decoder(list[kind]).decode  # type: ignore[valid-type]

    def columns(self, array: bytes) -> list[str] | None:
        """Return the values of all messages, name by name; None if some message has other headers."""
        try:
            batch = self._decode(array)
        except _BAD:
            return None
        flat: list[str] = []
        for column in self._columns:
            flat += map(column, batch)
        return flat

    def columns_of(self, batch: Sequence[dict[str, str]]) -> list[str]:
        """Return the same values from decoded headers."""
        return [headers[name] for name in self.names for headers in batch]


@lru_cache(maxsize=256)
def shape_of(names: frozenset[str]) -> Shape | None:
    """Return the shape of headers with these names, one for all queues; None if msgspec rejects them."""
    try:
        return Shape(sorted(names))
    except ValueError:
        return None


def batch_of(packed: Sequence[bytes], start: int) -> Sequence[bytes]:
    """Return as many as fit into one batch, from ``start`` on: at least one."""
    batch = packed[start : start + BATCH_MESSAGES]
    if sum(map(len, batch)) <= BATCH_BYTES:
        return batch
    end = size = 0
    while not end or size + len(batch[end]) <= BATCH_BYTES:
        size += len(batch[end])
        end += 1
    return batch[:end]


def array_of(packed: Sequence[bytes]) -> bytes:
    """Return one msgpack array of the headers of a batch."""
    if not all(packed):
        packed = [headers or _EMPTY_MAP for headers in packed]
    return b"".join((_ARRAY_32, len(packed).to_bytes(4, "big"), *packed))


def decode(packed: Sequence[bytes]) -> list[dict[str, str]]:
    """Return the headers of each message, up to the first that are not a map of strings: the list may be shorter."""
    try:
        return _decode_all(array_of(packed))
    except _BAD:
        return list(_decode_until_bad(packed))


def _decode_until_bad(packed: Iterable[bytes]) -> Iterable[dict[str, str]]:
    for headers in packed:
        try:
            yield _decode_one(headers or _EMPTY_MAP)
        except _BAD:
            return


def common_names(batch: Sequence[dict[str, str]]) -> frozenset[str] | None:
    """Return the names that all messages have, if all have the same, and not too many for a shape; else None."""
    names = batch[0].keys()
    if len(names) > NAMES_MAX or any(headers.keys() != names for headers in batch):
        return None
    return frozenset(names)


def flat_items(batch: Iterable[dict[str, str]]) -> list[Any]:
    """Return for each message how many values follow, then names and values in turn."""
    flat: list[Any] = []
    for headers in batch:
        flat.append(2 * len(headers))
        for item in headers.items():
            flat += item
    return flat
