"""The due index and the dedup ids: all can be read, and everything that waits for a time has an entry behind the cursor."""

from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from typing import Final, TypeAlias

from fila_worker.check.findings import Finding, RecordChange
from fila_worker.check.reading import CheckReading, decoded
from fila_worker.core.enqueue.dedup import PLACED_BYTES, RECORD_BYTES, decode_ids, encode_ids
from fila_worker.core.keys import FIRST, LAST, MESSAGE_KEY_BYTES, pack_u32, u32, u64
from fila_worker.core.model.due_index import CHECKPOINT, DueKind, entry_key, on_the_grid
from fila_worker.core.model.shard_transfers import OUTBOX_KEY_BYTES, decode_outbox

_LOOKED_UP_MAX: Final = 512
_SUBJECT_BYTES: Final = {
    DueKind.RELEASE: MESSAGE_KEY_BYTES,
    DueKind.EXPIRE: MESSAGE_KEY_BYTES,
    DueKind.IDLE: 4,
    DueKind.FORGET: 12,
    DueKind.ENQUEUE: OUTBOX_KEY_BYTES,
}
_HEAD_BYTES: Final = 9


class Expected:
    """Entries that must be in the due index, looked up many at a time."""

    def __init__(self, reading: CheckReading) -> None:
        self._reading = reading
        self._findings: dict[bytes, Finding] = {}

    def entry(self, due_ms: int, kind: DueKind, subject: bytes, text: str, queue: str | None) -> Iterator[Finding]:
        """Expect an entry. ``text`` describes the fault if it is missing."""
        key = entry_key(due_ms, kind, subject)
        self._findings[key] = Finding("due index", text, queue, changes=(RecordChange("schedule", key, b""),))
        if len(self._findings) >= _LOOKED_UP_MAX:
            yield from self.check()

    def check(self) -> Iterator[Finding]:
        """Yield the findings of those that are not there."""
        findings, self._findings = self._findings, {}
        found = self._reading.store.get_many(list(findings), self._reading.families.schedule)
        for finding, note in zip(findings.values(), found, strict=True):
            if note is None:
                yield finding


def check_schedule(reading: CheckReading) -> Iterator[Finding]:
    """Check the entries, the cursor, and that queues that are deleted when they are idle have an entry."""
    first: bytes | None = None
    watched: set[int] = set()
    for key, note in reading.scan("schedule"):
        first = key if first is None else first
        if _well_formed(key, note):
            if key[8] == DueKind.IDLE:
                watched.add(int.from_bytes(key[_HEAD_BYTES:], "big"))
            continue
        yield Finding(
            "due index",
            f"the entry {key.hex()} of the due index cannot be read",
            changes=(RecordChange("schedule", key, None),),
        )
    yield from _check_cursor(reading, first)
    if "queues" not in reading.incomplete:
        yield from _check_idle(reading, watched)


def _well_formed(key: bytes, note: bytes) -> bool:
    if len(key) < _HEAD_BYTES or key[8] not in _SUBJECT_BYTES:
        return False
    if len(key) - _HEAD_BYTES != _SUBJECT_BYTES[DueKind(key[8])]:
        return False
    if key[8] == DueKind.ENQUEUE:
        return decoded(decode_outbox, note) is not None
    return key[8] != DueKind.FORGET or decoded(decode_ids, note) is not None


def _check_cursor(reading: CheckReading, first: bytes | None) -> Iterator[Finding]:
    cursor = reading.store.get(CHECKPOINT, reading.families.state) or FIRST
    if first is not None and first < cursor:
        yield Finding(
            "due index",
            f"the due index is read from {cursor.hex()} on, and has entries from {first.hex()} on: they would never come due",
            changes=(RecordChange("state", CHECKPOINT, first),),
        )


def _check_idle(reading: CheckReading, watched: set[int]) -> Iterator[Finding]:
    for queue_id, record in reading.queues.items():
        idle_ms = record.options.idle_expiry_ms
        if idle_ms is not None and not record.gone and queue_id not in watched:
            key = entry_key(record.used_ms + idle_ms, DueKind.IDLE, pack_u32(queue_id))
            text = f"queue {record.name!r} is deleted when it is idle, and nothing would notice it"
            yield Finding("due index", text, record.name, changes=(RecordChange("schedule", key, b""),))


IDS_AT_ONCE: Final = 200_000
"""The ids that are held in memory. For each portion of them the due index is read once."""

_QUEUE_BYTES: Final = 4

_Ids: TypeAlias = dict[tuple[bytes, int], bytes]
"""Dedup ids for which no entry of the due index was found yet, by key and the end of the window on the grid of that index."""


def check_dedup(reading: CheckReading) -> Iterator[Finding]:
    """Check all dedup ids."""
    items = reading.scan("dedup")
    while True:
        ids: _Ids = {}
        portion = list(islice(items, IDS_AT_ONCE))
        if not portion:
            return
        for key, value in portion:
            if fault := _fault(reading, key, value):
                yield Finding("dedup", fault, changes=(RecordChange("dedup", key, None),))
            else:
                ids[key, on_the_grid(u64(value))] = value
        if ids:
            _cross_out(reading, ids)
            yield from _not_forgotten(reading, ids)


def _fault(reading: CheckReading, key: bytes, value: bytes) -> str | None:
    if (
        len(key) <= _QUEUE_BYTES
        or len(value) not in {RECORD_BYTES, PLACED_BYTES}
        or decoded(bytes.decode, key[_QUEUE_BYTES:]) is None
    ):
        return f"the dedup id {key.hex()} cannot be read"
    if u32(key) not in reading.queues and "queues" not in reading.incomplete:
        return f"the dedup id {key[_QUEUE_BYTES:].decode()!r} is of queue number {u32(key)}, which has no record"
    return None


def _cross_out(reading: CheckReading, ids: _Ids) -> None:
    """Remove the ids that an entry of the due index lists."""
    first = min(due_ms for _, due_ms in ids)
    begin = entry_key(first, DueKind.FORGET, b"")
    for key, note in reading.store.scan(begin, LAST, reading.families.schedule):
        if len(key) > 9 + _QUEUE_BYTES and key[8] == DueKind.FORGET:  # time and kind
            due_ms, prefix = u64(key), key[9 : 9 + _QUEUE_BYTES]
            for name in decoded(decode_ids, note) or ():
                ids.pop((prefix + name.encode(), due_ms), None)


def _not_forgotten(reading: CheckReading, ids: _Ids) -> Iterator[Finding]:
    for key, due_ms in ids:
        name, subject = key[_QUEUE_BYTES:].decode(), key[:_QUEUE_BYTES] + _free_number(key)
        change = RecordChange("schedule", entry_key(due_ms, DueKind.FORGET, subject), encode_ids([name]))
        yield Finding(
            "dedup",
            f"the dedup id {name!r} of {reading.name_of(u32(key))} would never be forgotten",
            reading.queue_name(u32(key)),
            changes=(change,),
        )


def _free_number(key: bytes) -> bytes:
    """Return the number for a dedup id's entry in the due index: eight bytes that no message can have as its number."""
    return b"\xff" + blake2b(key, digest_size=7).digest()
