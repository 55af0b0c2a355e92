"""The due index: its entries can be read, none is before its cursor, and what waits for the clock has one."""

from collections.abc import Iterator
from typing import Final

from fila_worker.check.findings import Change, Finding
from fila_worker.check.reading import Reading, decoded
from fila_worker.core.enqueue.dedup import decode_ids
from fila_worker.core.keys import FIRST, MESSAGE_KEY_BYTES, pack_u32
from fila_worker.core.model.due_index import CHECKPOINT, Kind, entry_key
from fila_worker.core.model.shard_transfers import OUTBOX_KEY_BYTES, decode_outbox

_LOOKED_UP_MAX: Final = 512
_SUBJECT_BYTES: Final = {
    Kind.RELEASE: MESSAGE_KEY_BYTES,
    Kind.EXPIRE: MESSAGE_KEY_BYTES,
    Kind.IDLE: 4,
    Kind.FORGET: 12,
    Kind.ENQUEUE: OUTBOX_KEY_BYTES,
}
_HEAD_BYTES: Final = 9


class Expected:
    """Entries that must be in the due index, looked up many at a time."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._findings: dict[bytes, Finding] = {}

    def entry(self, due_ms: int, kind: Kind, subject: bytes, text: str, queue: str | None) -> Iterator[Finding]:
        """Expect an entry. ``text`` says what is wrong if there is none."""
        key = entry_key(due_ms, kind, subject)
        self._findings[key] = Finding("due index", text, queue, changes=(Change("schedule", key, b""),))
        if len(self._findings) >= _LOOKED_UP_MAX:
            yield from self.check()

    def check(self) -> Iterator[Finding]:
        """Yield the findings of those that are not there."""
        findings, self._findings = self._findings, {}
        found = self._reading.store.get_many(list(findings), self._reading.families.schedule)
        for finding, note in zip(findings.values(), found, strict=True):
            if note is None:
                yield finding


def check_schedule(reading: Reading) -> Iterator[Finding]:
    """Check the entries, the cursor, and that queues that are deleted when they are idle have an entry."""
    first: bytes | None = None
    watched: set[int] = set()
    for key, note in reading.scan("schedule"):
        first = key if first is None else first
        if _well_formed(key, note):
            if key[8] == Kind.IDLE:
                watched.add(int.from_bytes(key[_HEAD_BYTES:], "big"))
            continue
        yield Finding(
            "due index", f"the entry {key.hex()} of the due index cannot be read", changes=(Change("schedule", key, None),)
        )
    yield from _check_cursor(reading, first)
    if "queues" not in reading.incomplete:
        yield from _check_idle(reading, watched)


def _well_formed(key: bytes, note: bytes) -> bool:
    if len(key) < _HEAD_BYTES or key[8] not in _SUBJECT_BYTES:
        return False
    if len(key) - _HEAD_BYTES != _SUBJECT_BYTES[Kind(key[8])]:
        return False
    if key[8] == Kind.ENQUEUE:
        return decoded(decode_outbox, note) is not None
    return key[8] != Kind.FORGET or decoded(decode_ids, note) is not None


def _check_cursor(reading: Reading, first: bytes | None) -> Iterator[Finding]:
    cursor = reading.store.get(CHECKPOINT, reading.families.state) or FIRST
    if first is not None and first < cursor:
        yield Finding(
            "due index",
            f"the due index is read from {cursor.hex()} on, and has entries from {first.hex()} on: they would never come due",
            changes=(Change("state", CHECKPOINT, first),),
        )


def _check_idle(reading: Reading, watched: set[int]) -> Iterator[Finding]:
    for queue_id, record in reading.queues.items():
        idle_ms = record.options.idle_expiry_ms
        if idle_ms is not None and not record.gone and queue_id not in watched:
            key = entry_key(record.used_ms + idle_ms, Kind.IDLE, pack_u32(queue_id))
            text = f"queue {record.name!r} is deleted when it is idle, and nothing would notice it"
            yield Finding("due index", text, record.name, changes=(Change("schedule", key, b""),))
