"""Files into a queue: read by Spark, written by ``format("fila")``.

Each run is a job of its own, so loading a file twice enqueues it twice. With a job's name the writer's dedup ids come out the
same again, and what is in already stays in once. For that, rows must get to the same partitions in every run, whatever the
number of cores cut the files into: they are shuffled by their payload into a fixed number of partitions first.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # as everybody calls it

from fila_cluster import Client
from fila_cluster.errors import FilaError
from fila_cluster.spark.pipelines.failure import told_plainly
from fila_cluster.spark.pipelines.messages import Mapped
from fila_cluster.spark.pipelines.sources import Source

PARTITIONS_OF_JOB = 16
"""Of a named job, unless it says otherwise. Part of its identity, so never a machine's number of cores."""
LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Load:
    """What to load, where to. ``dedup_window_s``: how long the broker remembers the rows; None: its setting."""

    source: Source
    queue: str
    mapped: Mapped = field(default_factory=Mapped)
    job: str | None = None
    dedup_window_s: float | None = None
    partitions: int | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """What became of it. ``rows`` were confirmed by the broker, those included that it had from an earlier run of the job."""

    rows: int
    seconds: float

    @property
    def rows_per_second(self) -> float:
        """How fast it was."""
        return self.rows / self.seconds if self.seconds else 0.0


Look = Callable[[int, int, int], None]
"""Told now and then: tasks done, tasks in all, rows that the queue took in meanwhile."""


def load(spark: SparkSession, plan: Load, client: Client, look: Look = lambda *_: None) -> Loaded:
    """Run it. ``client`` is of the same broker, for the queue's counters. Raises :class:`PipelineError`."""
    with told_plainly():
        messages = _spread(plan.mapped.messages(plan.source.read(spark), plan.source.format), plan)
        counted = Observation("load")
        writer = messages.observe(counted, F.count(F.lit(1)).alias("rows")).write.format("fila").mode("append")
        began = time.monotonic()
        with _watched(spark, client, plan.queue, look):
            writer.options(**_options(plan, client)).save()
        return Loaded(int(counted.get["rows"]), time.monotonic() - began)


def _spread(messages: DataFrame, plan: Load) -> DataFrame:
    """Over the partitions that were asked for."""
    if plan.job is not None:
        return messages.repartition(plan.partitions or PARTITIONS_OF_JOB, "payload")
    return messages.repartition(plan.partitions) if plan.partitions else messages


def _options(plan: Load, client: Client) -> dict[str, str]:
    options = {"endpoint": client.endpoint, "queue": plan.queue}
    if plan.job is not None:
        options["job"] = plan.job
    if plan.dedup_window_s is not None:
        options["dedup_window"] = f"{round(plan.dedup_window_s * 1000)}ms"
    return options


@contextmanager
def _watched(spark: SparkSession, client: Client, queue: str, look: Look) -> Iterator[None]:
    """Tell ``look`` how far the job is, from a thread beside it."""
    over = Event()
    thread = Thread(target=_watch, args=(spark, _Intake(client, queue), look, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _watch(spark: SparkSession, intake: "_Intake", look: Look, over: Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not over.wait(LOOK_EVERY_S):
        stages = [stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number))]
        if stages:
            look(sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages), intake.rows())


class _Intake:
    """Messages that came into a queue since this was made, by its own count, whoever sent them."""

    def __init__(self, client: Client, queue: str) -> None:
        self._client = client
        self._queue = queue
        self._rows = 0
        self._last = self._counter() or 0

    def rows(self) -> int:
        counter = self._counter()
        if counter is not None:  # it starts again at 0 with its worker
            self._rows += counter - self._last if counter >= self._last else counter
            self._last = counter
        return self._rows

    def _counter(self) -> int | None:
        try:
            return self._client.queue_stats(self._queue).enqueued
        except FilaError:
            return None  # its worker is away: the job waits for it, and so does this
