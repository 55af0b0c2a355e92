"""What every task that writes does: its rows to frames, its frames into the broker, once."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final, Self

from fila_cluster.spark import options as reading
from fila_cluster.spark.columns import NAMEABLE
from fila_cluster.spark.feed import Feed
from fila_cluster.spark.frames import Framing, Values
from fila_cluster.spark.job import Job
from fila_cluster.spark.options import Connection
from fila_cluster.spark.row_ids import RowIds

OPTIONS: Final = (*reading.EVERYWHERE, "dedup_window", "retry_for", "job", *NAMEABLE)
"""What a write may be told."""

FRAME_TIMEOUT_S: Final = 30.0
"""How long one answer may take: many tasks at once fill the broker's inbox with seconds of work."""


@dataclass(frozen=True, slots=True)
class Intake:
    """One write: where to, as which job, and how patiently. ``dedup_window_ms`` 0: as the broker says."""

    connection: Connection
    queue: str | None
    job: Job
    dedup_window_ms: int
    retry_for_s: float

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Read it from options; raises :class:`InvalidArgumentError`."""
        reading.refuse_unknown(options, OPTIONS)
        return cls(
            Connection.of(options),
            reading.one_queue_of(options),
            Job.new(reading.text_of(options, "job")),
            ceil(reading.seconds_of(options, "dedup_window", 0.0) * 1000),
            reading.seconds_of(options, "retry_for", reading.RETRY_FOR_S),
        )

    def store(self, batches: Iterable[Values]) -> int:
        """Enqueue the rows of the task that calls, and return how many there were."""
        framing = Framing(self.queue, RowIds(self.job.scope()), self.dedup_window_ms)
        with self.connection.client(timeout_s=max(FRAME_TIMEOUT_S, self.connection.timeout_s)) as client:
            feed = Feed(client, self.retry_for_s)
            feed.send_all(frame for values in batches for frame in framing.frames(values))
        return feed.accepted
