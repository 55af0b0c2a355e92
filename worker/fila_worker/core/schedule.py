"""What comes due: delayed messages, in order of their times.

A delayed message lies in the ``schedule`` family under ``due · message key``; when it is due it moves to ``messages`` and
takes its place in line. In memory is one number, the earliest due time: a million delayed messages cost nothing while none
is due. The family is never read from its start, where the tombstones of all that was due before lie, but from a cursor
that moves with time (the checkpoint of Facebook's FOQS).
"""

from itertools import islice
from typing import TYPE_CHECKING, Final

from fila_worker.core.keys import FIRST, LAST, due_of, pack_u64

if TYPE_CHECKING:
    from fila_worker.core.store import Store

RELEASE_MAX: Final = 1000
"""Messages that may come due in one turn; the rest follow in the next, so that no turn is long."""


class Schedule:
    """The cursor over the ``schedule`` family.

    Invariants: no scheduled message is due before ``next_due_ms``; none has a key below ``cursor``.
    """

    def __init__(self, store: "Store") -> None:
        self._store = store
        self.cursor = FIRST
        self.next_due_ms: int | None = None

    def recover(self) -> None:
        """Find the earliest due time."""
        self._look_from(FIRST)

    def expect(self, due_ms: int) -> None:
        """A message was scheduled for ``due_ms``."""
        if self.next_due_ms is None or due_ms < self.next_due_ms:
            self.next_due_ms = due_ms
            self.cursor = min(self.cursor, pack_u64(due_ms))

    def due(self, now_ms: int) -> list[tuple[bytes, bytes]]:
        """Up to :data:`RELEASE_MAX` items that are due, in order; the cursor moves behind them."""
        end = pack_u64(now_ms + 1)
        items = list(islice(self._store.scan(self.cursor, end, self._store.families.schedule), RELEASE_MAX))
        self._look_from(end if len(items) < RELEASE_MAX else items[-1][0] + b"\0")
        return items

    def _look_from(self, cursor: bytes) -> None:
        following = next(self._store.scan(cursor, LAST, self._store.families.schedule), None)
        self.next_due_ms = due_of(following[0]) if following else None
        self.cursor = pack_u64(self.next_due_ms) if self.next_due_ms is not None else cursor  # others may share its time
