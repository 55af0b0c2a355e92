"""The dedup ids: each can be read, is of a queue that exists, and will be forgotten when its window ends."""

from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from typing import Final, TypeAlias

from fila_worker.check.findings import Change, Finding
from fila_worker.check.reading import Reading, decoded
from fila_worker.core.enqueue.dedup import PLACED_BYTES, RECORD_BYTES, decode_ids, encode_ids
from fila_worker.core.keys import LAST, u32, u64
from fila_worker.core.model.due_index import Kind, entry_key, on_the_grid

IDS_AT_ONCE: Final = 200_000
"""The ids that are held in memory. For each portion of them the due index is read once."""

_QUEUE_BYTES: Final = 4

_Ids: TypeAlias = dict[tuple[bytes, int], bytes]
"""Dedup ids for which no entry of the due index was found yet, by key and the end of the window on the grid of that index."""


def check_dedup(reading: Reading) -> Iterator[Finding]:
    """Check all dedup ids."""
    items = reading.scan("dedup")
    while True:
        ids: _Ids = {}
        portion = list(islice(items, IDS_AT_ONCE))
        if not portion:
            return
        for key, value in portion:
            if fault := _fault(reading, key, value):
                yield Finding("dedup", fault, changes=(Change("dedup", key, None),))
            else:
                ids[key, on_the_grid(u64(value))] = value
        if ids:
            _cross_out(reading, ids)
            yield from _not_forgotten(reading, ids)


def _fault(reading: Reading, key: bytes, value: bytes) -> str | None:
    if (
        len(key) <= _QUEUE_BYTES
        or len(value) not in {RECORD_BYTES, PLACED_BYTES}
        or decoded(bytes.decode, key[_QUEUE_BYTES:]) is None
    ):
        return f"the dedup id {key.hex()} cannot be read"
    if u32(key) not in reading.queues and "queues" not in reading.incomplete:
        return f"the dedup id {key[_QUEUE_BYTES:].decode()!r} is of queue number {u32(key)}, which has no record"
    return None


def _cross_out(reading: Reading, ids: _Ids) -> None:
    """Remove the ids that an entry of the due index lists."""
    first = min(due_ms for _, due_ms in ids)
    begin = entry_key(first, Kind.FORGET, b"")
    for key, note in reading.store.scan(begin, LAST, reading.families.schedule):
        if len(key) > 9 + _QUEUE_BYTES and key[8] == Kind.FORGET:  # time and kind
            due_ms, prefix = u64(key), key[9 : 9 + _QUEUE_BYTES]
            for name in decoded(decode_ids, note) or ():
                ids.pop((prefix + name.encode(), due_ms), None)


def _not_forgotten(reading: Reading, ids: _Ids) -> Iterator[Finding]:
    for key, due_ms in ids:
        name, subject = key[_QUEUE_BYTES:].decode(), key[:_QUEUE_BYTES] + _free_number(key)
        change = Change("schedule", entry_key(due_ms, Kind.FORGET, subject), encode_ids([name]))
        yield Finding(
            "dedup",
            f"the dedup id {name!r} of {reading.name_of(u32(key))} would never be forgotten",
            reading.queue_name(u32(key)),
            changes=(change,),
        )


def _free_number(key: bytes) -> bytes:
    """Return the number for a dedup id's entry in the due index: eight bytes that no message can have as its number."""
    return b"\xff" + blake2b(key, digest_size=7).digest()
