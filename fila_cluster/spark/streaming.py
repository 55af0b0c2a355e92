"""``readStream.format("fila")``: batches of a query as reservations, and their parts joined to larger Arrow batches.

Spark and Arrow cost as much for 500 rows as for thousands: 1.9 µs a row for batches of 500, 1.1 for 4,000 and more
(measured).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from math import ceil
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from fila_cluster.client.calls.reservations import Reservations
from fila_cluster.client.forwarding import CommandsAhead
from fila_cluster.spark import options as spark_options
from fila_cluster.spark.options import RETRY_FOR_S, BrokerAccess
from fila_cluster.spark.planner import Offset, Planner, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow, rows_of
from fila_cluster.spark.pushdown import Selection
from fila_proto_zmq.commands import LeaseBatch
from fila_proto_zmq.names import whole_queue

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

ROWS_AT_ONCE: Final = 4000
BYTES_AT_ONCE: Final = 8 * 1024 * 1024
"""The most bytes of records in a joined batch: large records make a batch sooner."""

T = TypeVar("T", str, int)


def joined(batches: Iterable[LeaseBatch]) -> Iterator[LeaseBatch]:
    """Yield the same messages in the same order in fewer batches, which are for reading only: they have no lease."""
    waiting: list[LeaseBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += len(batch.records)
        size += sum(map(len, batch.records))
        if rows >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield _as_one(waiting)
            waiting, rows, size = [], 0, 0
    if rows:
        yield _as_one(waiting)


def _as_one(batches: Sequence[LeaseBatch]) -> LeaseBatch:
    counts = [len(batch.records) for batch in batches]
    return LeaseBatch(
        lease=0,
        leased_ms=0,
        expires_ms=0,
        fairness_key=_column([batch.fairness_key for batch in batches], counts),
        weight=_column([batch.weight for batch in batches], counts),
        records=list(chain.from_iterable(batch.records for batch in batches)),
        throttle_keys=_keys([batch.throttle_keys for batch in batches], counts),
    )


def _column(columns: Sequence[list[T] | T], counts: Sequence[int]) -> list[T] | T:
    """Return a joined column; a value that is the same for all stays one value."""
    first = columns[0]
    if not isinstance(first, list) and all(column == first for column in columns):
        return first
    spread = (
        column if isinstance(column, list) else repeat(column, count) for column, count in zip(columns, counts, strict=True)
    )
    return list(chain.from_iterable(spread))


def _keys(columns: Sequence[list[list[str]]], counts: Sequence[int]) -> list[list[str]]:
    """Return joined throttle keys: one element is for all rows; without elements no row has any."""
    first = columns[0]
    if len(first) <= 1 and all(column == first for column in columns):
        return first
    spread = (
        column if len(column) == count else repeat(column[0] if column else [], count)
        for column, count in zip(columns, counts, strict=True)
    )
    return list(chain.from_iterable(spread))


ROWS_PER_BATCH: Final = 10_000
RESERVATION_TIMEOUT_S: Final = 60.0
ROWS_PER_PARTITION: Final = 20_000
"""Rows of a task, which costs as much as 1,000 to 2,000 rows."""

TASKS_MIN: Final = 4
ROWS_PER_PARTITION_MIN: Final = 2_500
"""A smaller batch is divided all the same, so that a few processors share it."""


@dataclass(frozen=True)
class ReservedPart(InputPartition):
    """The input of one task: parts of a batch's reservation, by queue."""

    connection: BrokerAccess
    reservation: str
    pieces: tuple[tuple[str, tuple[int, ...]], ...]


class ReservationReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Takes messages out of the queues that the option ``queue`` selects. Other options: ``max_rows_per_batch`` (10,000),
    ``reservation_timeout`` (60 s), and ``max_rows`` in a run with ``trigger(availableNow=True)`` (all that wait)."""

    def __init__(self, options: Mapping[str, str], schema: "StructType") -> None:
        self._connection = BrokerAccess.of(options)
        self._selection = Selection.of(spark_options.queue_of(options))
        self._rows = spark_options.count_of(options, "max_rows_per_batch", ROWS_PER_BATCH)
        self._rows_of_run = spark_options.count_of(options, "max_rows", spark_options.COUNT_MAX)
        self._timeout_s = spark_options.seconds_of(options, "reservation_timeout", RESERVATION_TIMEOUT_S)
        self._made: Planner | None = None
        self._left: int | None = None
        """The rows that a run with an end may still take."""
        self._last = Offset()
        self._planned: tuple[Offset, Offset] | None = None
        """Start and end of a batch that Spark has not asked for yet."""

    @property
    def _planner(self) -> Planner:
        if self._made is None:  # not before: this object is pickled to the executors without it
            self._made = Planner(self._connection, self._selection, self._timeout_s)
        return self._made

    # --- on the driver ------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offset before the first batch."""
        return Offset().kept()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit in the options."""
        return ReadMaxRows(self._rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take as many messages as wait now, in the broker's fair order."""
        self._left = min(self._planner.pending(), self._rows_of_run)

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """Reserve the next batch; ``start`` again if nothing is ready. All up to ``start`` is complete."""
        begin = self._last if start is None else Offset.of(start)  # PySpark before 4.2 does not pass it
        if self._planned and self._planned[0] == begin:
            return self._planned[1].kept()
        if start is not None:
            self._planner.complete(begin)
        end = self._plan(begin, rows_of(limit, self._rows))
        if end is None:
            return begin.kept()
        self._planned, self._last = (begin, end), end
        return end.kept()

    def _plan(self, begin: Offset, rows_max: int | None) -> Offset | None:
        if rows_max is None:
            rows_max = self._planner.pending()
        if self._left is None:
            return self._planner.plan(begin, rows_max, patient=True)
        end = self._planner.plan(begin, min(rows_max, self._left), patient=False)
        self._left -= min(self._left, sum(end.queues.values()) if end else self._left)
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Divide a batch among tasks."""
        batch = Offset.of(end)
        self._planned = None
        if start == end or not batch.queues:
            return []
        held = self._planner.hold(batch)
        return [ReservedPart(self._connection, batch.reservation, pieces) for pieces in divide(held)]

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge a batch that is complete."""
        self._planner.complete(Offset.of(end))

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the lag of the stream; Spark shows it as the source's ``latestOffset``."""
        return dict(self._planner.lag())

    def stop(self) -> None:
        """Stop renewing. The reservation stays until its timeout, for a restart."""
        if self._made is not None:
            self._made.close()

    # --- on the executors ---------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> "Iterator[RecordBatch]":
        """Fetch the input of a task."""
        pass
        from fila_cluster.spark.schema import record_batch  # noqa: PLC0415

        assert isinstance(partition, ReservedPart)
        with partition.connection.client(timeout_s=RETRY_FOR_S) as client:
            for queue, parts in partition.pieces:
                for batch in joined(Reservations(CommandsAhead(client)).fetch(partition.reservation, queue, parts)):
                    yield record_batch(
                        whole_queue(queue), "leased", batch.fairness_key, batch.weight, batch.throttle_keys, 0, batch.records
                    )


def divide(held: Mapping[str, list[tuple[int, int]]]) -> list[tuple[tuple[str, tuple[int, ...]], ...]]:
    """Divide parts of queues into tasks of about the same size: few large ones, but several for enough rows."""
    parts = [(queue, part, count) for queue, pieces in sorted(held.items()) for part, count in pieces]
    total = sum(count for _, _, count in parts)
    wanted = max(ceil(total / ROWS_PER_PARTITION), min(TASKS_MIN, ceil(total / ROWS_PER_PARTITION_MIN)))
    tasks = max(1, min(len(parts), wanted))
    divided: list[dict[str, list[int]]] = [{} for _ in range(tasks)]
    done = 0
    for queue, part, count in parts:
        divided[min(tasks - 1, done * tasks // max(1, total))].setdefault(queue, []).append(part)
        done += count
    return [tuple((queue, tuple(numbers)) for queue, numbers in pieces.items()) for pieces in divided if pieces]
