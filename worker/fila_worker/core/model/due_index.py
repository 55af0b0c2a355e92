"""The due index, one durable index in the order of time of everything that waits for the clock; and delayed messages.

An entry ``due · kind · subject`` means only "check this subject then": a delayed message to release, a message that may be
too old, dedup ids to forget, a queue that may be idle. The subject decides whether anything is to be done. A cancelled,
purged or again delayed message leaves an entry behind, which is dropped when its time comes. So the index is never searched,
and a million delayed messages cost nothing while none is due.

Memory holds one number, the earliest due time. The family is not read from its start, where the tombstones of removed entries
are, but from a cursor that moves with time (the checkpoint of Facebook's FOQS). The cursor is exact, because many entries may
be due in one millisecond and are taken in many turns. A checkpoint of the cursor is durable, so a restart begins there, too.
"""

from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from fila_proto_zmq.record import HAS_TTL
from fila_worker.core.due_time import DueTime
from fila_worker.core.keys import FIRST, LAST, after, pack_u64, u64
from fila_worker.core.model.lanes import extension_of
from fila_worker.core.settings import DEFAULTS, Limits

if TYPE_CHECKING:
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.state import State
    from fila_worker.core.store import Store, StoreBatch

CHECKPOINT: Final = b"due index"

GRID_MS: Final = 1000
"""Entries that need no exact millisecond are due together at the end of their second."""


def on_the_grid(due_ms: int) -> int:
    """Return the end of the second that a time falls into."""
    return -(-due_ms // GRID_MS) * GRID_MS


class DueKind(IntEnum):
    """The kind of an entry's subject."""

    RELEASE = 1
    """The message key of a delayed message that comes to its place in line."""
    EXPIRE = 2
    """The message key of a message with a time to live."""
    IDLE = 4
    """The id of a queue that may have been idle for too long."""
    FORGET = 5
    """A queue id and a number. The note lists the dedup ids whose window ends."""
    ENQUEUE = 6
    """The key that it had in the outbox. The note is an enqueue by the broker that is tried again; see
    :mod:`core.settle.remote_enqueues`."""


def entry_key(due_ms: int, kind: int, subject: bytes) -> bytes:
    """Return the key of an entry."""
    return pack_u64(due_ms) + bytes((kind,)) + subject


class DueEntry(NamedTuple):
    """One entry that is due."""

    due_ms: int
    kind: int
    subject: bytes
    note: bytes


class DueIndex:
    """The cursor over the ``schedule`` family.

    Invariants: no entry is due before ``next_due_ms``. No entry has a key below ``cursor``, nor below ``checkpoint``. The
    checkpoint is durable.
    """

    def __init__(self, store: "Store", limits: Limits = DEFAULTS) -> None:
        self._store = store
        self._limits = limits
        self._family = store.families.schedule
        self.checkpoint = FIRST
        self.cursor = FIRST
        self.next_due_ms: int | None = None
        self.timer = DueTime()

    def recover(self) -> None:
        """Find the earliest due time."""
        self.checkpoint = self._store.get(CHECKPOINT, self._store.families.state) or FIRST
        self._look_from(self.checkpoint)

    def add(self, due_ms: int, kind: int, subject: bytes, batch: "StoreBatch", note: bytes = b"") -> None:
        """Add an entry for ``subject`` at ``due_ms``."""
        key = entry_key(due_ms, kind, subject)
        batch.put(key, note, self._family)
        if self.next_due_ms is None or due_ms < self.next_due_ms:
            self.next_due_ms = due_ms
            self.timer.by(due_ms)
        if key < self.cursor:
            self.cursor = key
            if key < self.checkpoint:
                self._save(key, batch)

    def remove(self, due_ms: int, kind: int, subject: bytes, batch: "StoreBatch") -> None:
        """Remove an entry that may be there and has become void, so that void entries can't pile up."""
        batch.delete(entry_key(due_ms, kind, subject), self._family)

    def take_due(self, now_ms: int, batch: "StoreBatch") -> list[DueEntry]:
        """Take out the due entries for one turn, and return them in order. Only committed entries are seen."""
        limits = self._limits
        end = pack_u64(now_ms + 1)
        entries: list[DueEntry] = []
        note_bytes = 0
        for key, note in self._store.scan(self.cursor, end, self._family):
            batch.delete(key, self._family)
            entries.append(DueEntry(u64(key), key[8], key[9:], note))
            note_bytes += len(note)
            if len(entries) >= limits.turn_due_max or note_bytes >= limits.due_note_bytes_max:
                end = after(key)
                break
        self._save(end, batch)
        self._look_from(self.checkpoint)
        return entries

    def put_back(self, entry: DueEntry, batch: "StoreBatch") -> None:
        """Put an entry that was taken out back, for a later turn."""
        self.add(entry.due_ms, entry.kind, entry.subject, batch, entry.note)

    def _save(self, checkpoint: bytes, batch: "StoreBatch") -> None:
        self.checkpoint = checkpoint
        batch.put(CHECKPOINT, checkpoint, self._store.families.state)

    def _look_from(self, cursor: bytes) -> None:
        """Move to the first entry from ``cursor`` on. All entries before it are gone."""
        following = next(self._store.scan(cursor, LAST, self._family), None)
        self.next_due_ms = u64(following[0]) if following else None
        self.timer.by(self.next_due_ms)
        self.cursor = following[0] if following else cursor


# --- delayed messages ---------------------------------------------------------------------------------------------------
#
# A delayed message is out of line until its due time, then in line again at its place. It is in the ``delayed`` family under
# the key of its place, with its due time in front, and has an entry in the due index. Where the two disagree (the message was
# cancelled, purged, or delayed again) the message is right.

_HEAD: Final = Struct(">QB")
DELAYED_HEAD_BYTES: Final = _HEAD.size
"""The bytes in front of the record, in a value of the ``delayed`` family."""

_RETRYING: Final = 1
_DEFERRED: Final = 2


class Delayed(NamedTuple):
    """A delayed message.

    ``retrying``: it was delivered before, and its key still counts it as in flight. ``deferred``: likewise, and its consumer
    deferred it.
    """

    due_ms: int
    retrying: bool
    deferred: bool
    record: bytes


def parse_delayed(value: bytes) -> Delayed:
    """Return the delayed message in a value of the ``delayed`` family."""
    due_ms, flags = _HEAD.unpack_from(value)
    return Delayed(due_ms, bool(flags & _RETRYING), bool(flags & _DEFERRED), value[_HEAD.size :])


def delay(
    state: "State", lane: "Lane", key: bytes, record: bytes, due_ms: int, *, retrying: bool = False, deferred: bool = False
) -> None:
    """Delay a message of ``lane``, counted nowhere, until ``due_ms``. Its place in line is ``key``."""
    state.ledger.touch(lane)
    flags = _RETRYING * retrying | _DEFERRED * deferred
    state.batch.put(key, _HEAD.pack(due_ms, flags) + record, state.store.families.delayed)
    state.due_index.add(due_ms, DueKind.RELEASE, key, state.batch)
    lane.put_off(len(record), retrying=retrying)
    state.ledger.touch_queue(lane.key.queue)
    if lane.key.paused:
        state.hold_if_moving(lane.key)


def lift(state: "State", lane: "Lane", key: bytes, delayed: Delayed) -> None:
    """Take a message out of the delayed ones. The caller puts it elsewhere, and releases its slot if it had one."""
    state.ledger.touch(lane)
    state.batch.delete(key, state.store.families.delayed)
    lane.lift(len(delayed.record), retrying=delayed.retrying)
    state.ledger.touch_queue(lane.key.queue)


def too_old(record: bytes, now_ms: int) -> bool:
    """Return whether a message's time to live is over."""
    if not record[1] & HAS_TTL:
        return False
    expires_ms = extension_of(record).expires_ms
    return expires_ms is not None and expires_ms <= now_ms
