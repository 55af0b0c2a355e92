"""Dedup ids for rows, by their jobs and contents."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import repeat
from typing import Final, Self
from uuid import uuid4

from pyspark import SparkContext, TaskContext

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_RUN: Final = "spark.jobGroup.id"
"""Spark's own names for the run of its tasks, and of the driver's thread in ``foreachBatch``."""


@dataclass(frozen=True, slots=True)
class WriteJob:
    """One write. Made on the driver, and goes to the tasks with it.

    ``name`` is the user's, ``token`` random, ``write`` the number of the write within its micro-batch.
    """

    name: str
    token: str
    write: int = 0

    @classmethod
    def new(cls, name: str | None) -> Self:
        """Return a job of that name; without a name, one with a random token."""
        return cls(name or "", uuid4().hex, _writes.number())

    def scope(self) -> bytes:
        """Return the identity of the calling task's rows; without a task there is one partition."""
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        batch = None if context is None else context.getLocalProperty(_BATCH)
        if context is None or batch is None:
            return scope_of("job", self.name or self.token, str(partition))
        query = context.getLocalProperty(_QUERY) or ""
        return scope_of("query", query, batch, self.name, str(self.write), str(partition))


class _Writes:
    """Counts the writes of each micro-batch, as ``foreachBatch`` makes them one after the other.

    Two writes of a batch into one queue may have equal rows that are both meant; a replay makes the same writes in the same
    order. A run of a query makes each batch once, so a count belongs to a run and a batch.
    """

    def __init__(self) -> None:
        self._counts: dict[str, tuple[str, int]] = {}

    def number(self) -> int:
        """Return how many writes of this thread's micro-batch came before; 0 outside of any."""
        context = SparkContext._active_spark_context
        batch = None if context is None else context.getLocalProperty(_BATCH)
        if context is None or batch is None:
            return 0
        run = f"{context.getLocalProperty(_QUERY)} {context.getLocalProperty(_RUN)}"
        counted_batch, count = self._counts.get(run, (batch, 0))
        if counted_batch != batch:
            count = 0
        self._counts[run] = batch, count + 1
        return count


_writes = _Writes()


_REPEATED: Final = b"a repeated row"


def scope_of(*parts: str) -> bytes:
    """Return the identity of one partition of one job, as 32 bytes."""
    return blake2b("\0".join(parts).encode(), digest_size=32).digest()


class RowIds:
    """Gives out the dedup ids of one partition's rows."""

    def __init__(self, scope: bytes) -> None:
        self._empty = blake2b(digest_size=16, salt=scope[:16], person=scope[16:])
        self._seen: set[bytes] = set()
        self._copies: dict[bytes, int] = {}

    def of(self, options: Sequence[bytes] | bytes, envelopes: Sequence[bytes]) -> list[str]:
        """Return the ids of rows, given their options (one for all, or each its own) and envelopes.

        Options must have an end of their own, whatever follows: msgpack has one.
        """
        start, seen, ids = self._empty.copy, self._seen, []
        for option, envelope in zip(repeat(options) if isinstance(options, bytes) else options, envelopes, strict=False):
            hasher = start()
            hasher.update(option)
            hasher.update(envelope)
            digest = hasher.digest()
            if digest in seen:
                digest = self._of_copy(digest)
            else:
                seen.add(digest)
            ids.append(digest.hex())
        return ids

    def _of_copy(self, digest: bytes) -> bytes:
        before = self._copies[digest] = self._copies.get(digest, 0) + 1
        return blake2b(digest + before.to_bytes(8, "big"), digest_size=16, person=_REPEATED).digest()
