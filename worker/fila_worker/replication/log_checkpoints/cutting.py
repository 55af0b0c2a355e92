"""The checkpoints of a shard that this process leads, and the trimming of its log.

A leader makes a checkpoint when its log has grown by so much, or after so much time. It has confirmed changes only: the copy
is flushed while the shard works, then the shard pauses until nothing is unconfirmed, some milliseconds. When the target has
it, it is removed here, and the log drops what the *checkpoint before it* does not need. So a target always has two
checkpoints, in case one is damaged, and a standby that is a little behind can read on. One that is further behind begins from
a checkpoint, which is faster.

The log keeps the record of the older checkpoint's position, and is never emptied. The marker of the leader may be older: a
position has its epoch.

Rejected: to wait for the slowest standby. If it hung, the log would grow without a bound, and checkpoints serve it, too.
"""

from threading import Lock
from typing import Final

from fila_worker.log.partition import Partition
from fila_worker.replication.log_checkpoints.exchange import Exchange, Made
from fila_worker.settings import CheckpointSettings
from fila_worker.storage.replica import Replica

LOOK_MS: Final = 1000
"""Between two looks at whether a checkpoint is due, or kept."""
CUT_MS_MAX: Final = 2000
"""How long a shard may pause for a checkpoint. Then it continues without one."""
RETRY_MS: Final = 30_000
"""After a checkpoint that came to nothing."""


class Cutting:
    """The checkpoints of one open copy. ``log``: the log's name. ``one_at_a_time``: shared by the shards of a process."""

    def __init__(
        self,
        copy: Replica,
        partition: Partition,
        exchange: Exchange,
        settings: CheckpointSettings,
        log: str,
        shards: int,
        one_at_a_time: Lock,
        now_ms: int,
    ) -> None:
        self._copy, self._partition, self._exchange = copy, partition, exchange
        self._settings, self._log, self._shards = settings, log, shards
        self._one_at_a_time, self._is_busy = one_at_a_time, False
        self._since_ms = self._look_ms = now_ms
        self._bytes, self._offset = copy.taken_bytes, copy.position.offset
        """Of the last checkpoint, or of when the copy was opened."""
        self._cut_by_ms: int | None = None
        """When to give the cut up; None: the flush before it is under way."""
        self._pending = exchange.made()

    @property
    def pauses(self) -> bool:
        """Whether the shard has to commit nothing for the moment."""
        return self._cut_by_ms is not None

    def step(self, now_ms: int, *, serves: bool) -> None:
        """Take a step. ``serves``: whether this process leads the shard, and serves it.

        Raise :class:`StorageError` or :class:`OSError` if a checkpoint failed. It is tried again later.
        """
        if not serves:
            self._abandon()
        if self._is_busy:
            self._cut(now_ms)
        elif now_ms >= self._look_ms:
            self._look_ms = now_ms + LOOK_MS
            if self._pending is not None:
                self._release_if_kept(self._pending)
            elif serves and self._is_due(now_ms) and not self._exchange.removing:
                self._begin()

    def close(self) -> None:
        """End, before the copy is closed. A whole checkpoint stays: the keeper may be copying it."""
        self._abandon()

    def _abandon(self) -> None:
        if self._is_busy:
            self._is_busy, self._cut_by_ms = False, None
            self._one_at_a_time.release()

    def _is_due(self, now_ms: int) -> bool:
        grown, records = self._copy.taken_bytes - self._bytes, self._copy.position.offset - self._offset
        if grown >= self._settings.bytes:
            return True
        is_old = now_ms - self._since_ms >= self._settings.every_ms
        return is_old and (grown > 0 or records >= self._settings.idle_records)

    def _begin(self) -> None:
        if self._one_at_a_time.acquire(blocking=False):
            self._is_busy = True
            self._copy.flush()

    def _cut(self, now_ms: int) -> None:
        """Make the checkpoint as soon as the copy has nothing that is unconfirmed."""
        copy = self._copy
        if self._cut_by_ms is None:
            if copy.flushing:
                return
            self._cut_by_ms = now_ms + CUT_MS_MAX
        if copy.confirmed == copy.committed:
            self._look_ms = now_ms + RETRY_MS
            try:
                self._make(now_ms)
            finally:
                self._abandon()
        elif now_ms >= self._cut_by_ms:
            self._look_ms = now_ms + RETRY_MS
            self._abandon()

    def _make(self, now_ms: int) -> None:
        copy, position = self._copy, self._copy.position
        made = Made(self._log, self._exchange.shard, self._shards, position.offset, position.epoch, position.number)
        self._exchange.make(made, copy.checkpoint)
        self._pending, self._look_ms = made, now_ms + LOOK_MS
        self._since_ms, self._bytes, self._offset = now_ms, copy.taken_bytes, position.offset

    def _release_if_kept(self, pending: Made) -> None:
        kept = self._exchange.kept()
        if pending.log == self._log:
            if kept is None or kept.log != self._log or kept.offset < pending.offset:
                return
            if kept.needed_from >= 0:
                self._partition.trim(min(kept.needed_from, pending.offset))
        self._exchange.release()  # a checkpoint of another log is of no use
        self._pending = None
