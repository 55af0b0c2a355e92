"""Which job a row belongs to: what tells it from the same row of another one, and is the same when a task runs again.

Inside a streaming query that is the query, its micro-batch and which write of this batch it is: all are the same when Spark
replays the batch from its checkpoint. Elsewhere it is a random id made with the job, or a name that the user gave it.
"""

from dataclasses import dataclass
from typing import Final, Self
from uuid import uuid4

from pyspark import SparkContext, TaskContext

from fila_cluster.spark.row_ids import scope_of

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_RUN: Final = "spark.jobGroup.id"
"""Spark's own names for what its tasks, and the driver's thread in ``foreachBatch``, are a part of."""


@dataclass(frozen=True, slots=True)
class Job:
    """One write. Made on the driver, and goes to the tasks with it.

    ``name`` is the user's, ``token`` random, ``write`` the number of the write within its micro-batch.
    """

    name: str
    token: str
    write: int = 0

    @classmethod
    def new(cls, name: str | None) -> Self:
        """A job of that name, or one that is like no other."""
        return cls(name or "", uuid4().hex, _writes.number())

    def scope(self) -> bytes:
        """What tells the rows of the task that asks from all others; outside of tasks, there is one partition."""
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
    order. A run of a query never makes a batch twice, so a count is of a run and a batch.
    """

    def __init__(self) -> None:
        self._counts: dict[str, tuple[str, int]] = {}

    def number(self) -> int:
        """How many writes of the micro-batch that this thread is in came before; 0 outside of any."""
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
