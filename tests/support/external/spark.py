"""What Spark tests share: writes, what became of them, and tasks that fail where a test wants them to."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from fila_cluster import Client, Message, MessageView
from tests.support.cluster.cluster import Cluster, eventually

ERROR_MARK = "fila_proto_zmq.errors."


def write(frame: DataFrame, cluster: Cluster, queue: str, /, **options: str) -> None:
    """Write a DataFrame into a queue."""
    options = {"endpoint": cluster.endpoint, "queue": queue} | options
    frame.write.format("fila").mode("append").options(**options).save()


def messages(client: Client, queue: str) -> list[MessageView]:
    """Everything that is in a queue."""
    return client.browse(queue, limit=1_000_000)


def payloads(client: Client, queue: str) -> Counter[bytes]:
    """How often each payload is in a queue."""
    return Counter(message.payload for message in messages(client, queue))


def error_line(fails: Callable[[], object]) -> str:
    """What a person reads: the one line under the traceback of whatever Spark raises, without the error's name."""
    with pytest.raises(Exception, match=ERROR_MARK) as caught:
        fails()
    lines = {line.partition(ERROR_MARK)[2] for line in str(caught.value).splitlines() if line.startswith(ERROR_MARK)}
    (line,) = lines
    return line.partition(": ")[2]


class Gate:
    """Lets the first rows of each task pass, and does something before the others: wait for a file, or fail.

    Goes before a write; see :meth:`before`. ``attempts_that_fail``: of each task; each attempt sees its rows in another order.
    """

    def __init__(
        self, endpoint: str, queue: str, rows_first: int, *, attempts_that_fail: int = 0, wait_for: Path | None = None
    ) -> None:
        self._endpoint = endpoint
        self._queue = queue
        self._rows_first = rows_first
        self._attempts_that_fail = attempts_that_fail
        self._wait_for = wait_for

    def before(self, frame: DataFrame) -> DataFrame:
        """The rows of ``frame``, through this gate, in the task that writes them."""
        return frame.sparkSession.createDataFrame(frame.rdd.mapPartitions(self), frame.schema)

    def __call__(self, rows: Iterable[Row]) -> Iterator[Row]:
        """What a task does."""
        context = TaskContext.get()
        assert context is not None
        attempt = context.attemptNumber()
        shuffled = list(rows)
        Random(attempt).shuffle(shuffled)
        yield from shuffled[: self._rows_first]
        self._when_some_are_stored(attempt)
        yield from shuffled[self._rows_first :]

    def _when_some_are_stored(self, attempt: int) -> None:
        with Client(self._endpoint) as client:
            eventually(lambda: client.queue_stats(self._queue).enqueued > 0, "rows that are stored")
        if attempt < self._attempts_that_fail:
            raise RuntimeError("this attempt fails")
        if self._wait_for is not None:
            eventually(self._wait_for.exists, str(self._wait_for))


BATCH = "select concat('row ', id div 2) payload, concat('t', id % 3) tenant from range(0, 100, 1, 2)"
"""A hundred rows in two partitions."""

ONCE = Counter({f"row {number}".encode(): 2 for number in range(50)})
"""The payloads of :data:`BATCH`, each of them twice."""


class Stream:
    """A query over files that ends when it has read them, again and again from one checkpoint."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        self._spark = spark
        self._source = str(home / "source")
        self._checkpoint = home / "checkpoint"

    def add(self, frame: DataFrame) -> None:
        """More rows for its next run."""
        frame.write.mode("append").parquet(self._source)

    @property
    def rows(self) -> DataFrame:
        """What it reads."""
        return self._spark.readStream.schema("payload string").parquet(self._source)

    def run(self, writer: DataStreamWriter) -> None:
        """Run it to the end of what there is."""
        options = writer.option("checkpointLocation", str(self._checkpoint)).trigger(availableNow=True)
        query: StreamingQuery = options.start()
        query.awaitTermination()

    def forget_last_commit(self) -> None:
        """As if the driver had died before it noted that the batch was done."""
        commits = self._checkpoint / "commits"
        last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)


def fail_some(client: Client, queue: str) -> None:
    """Twelve dead letters of three tenants, four waiting messages, three deliveries that were acked."""
    for number in range(12):
        client.enqueue(queue, b"secret", fairness_key=f"t{number % 3}")
    for number, delivery in enumerate(client.receive(queue, 12)):
        delivery.fail(f"took {number} ms" if delivery.fairness_key != "t2" else "")
    client.enqueue_many(queue, [Message(b"secret", fairness_key="busy", weight=3) for _ in range(3)])
    client.ack(client.receive(queue, 3))
    client.enqueue_many(queue, [Message(b"secret", fairness_key="t1") for _ in range(4)])
