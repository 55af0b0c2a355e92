"""Space on the disk for what was removed, while memtables must not be flushed.

RocksDB's call for it, ``compact_range``, flushes the memtables first, at a moment that nobody knows. So RocksDB's own rewriting is
provoked instead: for a while it rewrites each flushed file at once, together with the files below that it overlaps.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from rocksdict import Rdict

from fila_worker.storage.database import figure
from fila_worker.storage.options import FILES_BEFORE_COMPACTION

_TRIGGER: Final = "level0_file_num_compaction_trigger"


class Tidying:
    """Rewrites the flushed files of some families, one family after the other."""

    def __init__(self, readers: Iterable[Rdict]) -> None:
        self._left = [reader for reader in readers if figure(reader, "num-files-at-level0")]
        self._current: Rdict | None = None

    def step(self) -> bool:
        """Go on, some 8 ms for a family that is begun or done; return whether all is done. RocksDB's own threads do the work."""
        if self._current is not None:
            if figure(self._current, "compaction-pending") or figure(self._current, "num-running-compactions"):
                return False
            self._set(self._current, FILES_BEFORE_COMPACTION)
        self._current = self._left.pop() if self._left else None
        if self._current is not None:
            self._set(self._current, 1)
        return self._current is None

    @staticmethod
    def _set(reader: Rdict, files: int) -> None:
        with suppress(Exception):  # a disk that refuses, which the next flush will report
            reader.set_options({_TRIGGER: str(files)})
