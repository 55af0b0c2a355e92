"""The due index: one durable index, in the order of time, of everything that waits for the clock.

An entry ``due · kind · subject`` means only "check this subject then": a delayed message to release, a message that may be
too old, dedup ids to forget, a queue that may be idle. The subject decides whether anything is to be done. A message that was
cancelled, purged or delayed again leaves an entry behind, which is dropped when its time comes. So the index is never
searched, and a million delayed messages cost nothing while none is due.

Memory holds one number, the earliest due time. The family is not read from its start, where the tombstones of removed entries
are, but from a cursor that moves with time (the checkpoint of Facebook's FOQS). The cursor is exact, because many entries may
be due in one millisecond and are taken in many turns. A checkpoint of the cursor is durable, so a restart begins there too.
"""

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from fila_worker.core.keys import FIRST, LAST, after, pack_u64, u64
from fila_worker.core.settings import DEFAULTS, Limits
from fila_worker.core.timer import Timer

if TYPE_CHECKING:
    from fila_worker.core.store import Batch, Store

_CHECKPOINT: Final = b"due index"


GRID_MS: Final = 1000
"""Entries that need no exact millisecond are due together at the end of their second."""


def on_the_grid(due_ms: int) -> int:
    """Return the end of the second that a time falls into."""
    return -(-due_ms // GRID_MS) * GRID_MS


class Kind(IntEnum):
    """The kind of an entry's subject."""

    RELEASE = 1
    """The message key of a delayed message that comes to its place in line."""
    EXPIRE = 2
    """The message key of a message with a time to live."""
    FORGET_ONE = 3
    """The key of a dedup id whose window ends, one entry for each id."""
    IDLE = 4
    """The id of a queue that may have been idle for too long."""
    FORGET = 5
    """A queue id and a number. The note lists the dedup ids whose window ends."""


class Entry(NamedTuple):
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
        self.timer = Timer()

    def recover(self) -> None:
        """Find the earliest due time."""
        self.checkpoint = self._store.get(_CHECKPOINT, self._store.families.state) or FIRST
        self._look_from(self.checkpoint)

    def add(self, due_ms: int, kind: int, subject: bytes, batch: "Batch", note: bytes = b"") -> None:
        """Add an entry for ``subject`` at ``due_ms``."""
        key = pack_u64(due_ms) + bytes((kind,)) + subject
        batch.put(key, note, self._family)
        if self.next_due_ms is None or due_ms < self.next_due_ms:
            self.next_due_ms = due_ms
            self.timer.by(due_ms)
        if key < self.cursor:
            self.cursor = key
            if key < self.checkpoint:
                self._save(key, batch)

    def take_due(self, now_ms: int, batch: "Batch") -> list[Entry]:
        """Take out the due entries for one turn, and return them in order. Only committed entries are seen."""
        limits = self._limits
        end = pack_u64(now_ms + 1)
        entries: list[Entry] = []
        note_bytes = 0
        for key, note in self._store.scan(self.cursor, end, self._family):
            batch.delete(key, self._family)
            entries.append(Entry(u64(key), key[8], key[9:], note))
            note_bytes += len(note)
            if len(entries) >= limits.turn_due_max or note_bytes >= limits.due_note_bytes_max:
                end = after(key)
                break
        self._save(end, batch)
        self._look_from(self.checkpoint)
        return entries

    def put_back(self, entry: Entry, batch: "Batch") -> None:
        """Put an entry that was taken out back, for a later turn."""
        self.add(entry.due_ms, entry.kind, entry.subject, batch, entry.note)

    def _save(self, checkpoint: bytes, batch: "Batch") -> None:
        self.checkpoint = checkpoint
        batch.put(_CHECKPOINT, checkpoint, self._store.families.state)

    def _look_from(self, cursor: bytes) -> None:
        """Move to the first entry from ``cursor`` on. All entries before it are gone."""
        following = next(self._store.scan(cursor, LAST, self._family), None)
        self.next_due_ms = u64(following[0]) if following else None
        self.timer.by(self.next_due_ms)
        self.cursor = following[0] if following else cursor
