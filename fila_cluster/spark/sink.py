"""Rows of a partition into a queue: ``df.foreachPartition(enqueue_partition(…))``."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fila_cluster.spark import columns
from fila_cluster.spark.columns import Columns
from fila_cluster.spark.feed import Intake
from fila_proto_zmq.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class PartitionSink:
    """Enqueues the rows of one partition when it is called with them. Picklable: Spark sends it to its executors."""

    intake: Intake
    columns: Columns

    def __call__(self, rows: Iterable[Any]) -> None:
        """Enqueue rows, ``Row`` or dict; return when all are durable."""
        self.intake.store(columns.of_rows(rows, self.columns))


def enqueue_partition(
    *,
    queue: str,
    endpoint: str | None = None,
    payload: str = "payload",
    headers: str | None = None,
    fairness_key: str | None = None,
    weight: str | None = None,
    throttle_keys: str | None = None,
    priority: str | None = None,
    cost: str | None = None,
    delay_ms: str | None = None,
    ttl_ms: str | None = None,
    dedup_id: str | None = None,
    dedup_mode: str | None = None,
    max_attempts: str | None = None,
    api_key: str | None = None,
    server_key: str | None = None,
    timeout: str | float | None = None,
    dedup_window: str | float | None = None,
    retry_for: str | float | None = None,
    job: str | None = None,
) -> PartitionSink:
    """Make the function for ``foreachPartition`` of a DataFrame, or an RDD of ``Row`` or dict, that enqueues its rows.

    From ``payload`` to ``max_attempts`` the arguments name columns (``payload="*"``: the whole row as JSON); other columns of
    a row are left alone, and null means the default. The rest are the options of ``format("fila")``; durations are text
    (``"5m"``) or a number of milliseconds.

    A task that Spark runs again stores nothing twice within the dedup window, nor does a micro-batch that is replayed, if
    this is called inside ``foreachBatch``: once for each write. ``job`` names the job, so that doing all of it again stores
    nothing either. Raises :class:`InvalidArgumentError`.
    """
    named = {
        "payload": payload,
        "headers": headers,
        "fairness_key": fairness_key,
        "weight": weight,
        "throttle_keys": throttle_keys,
        "priority": priority,
        "cost": cost,
        "delay_ms": delay_ms,
        "ttl_ms": ttl_ms,
        "dedup_id": dedup_id,
        "dedup_mode": dedup_mode,
        "max_attempts": max_attempts,
    }
    rest = {
        "endpoint": endpoint,
        "queue": queue,
        "api_key": api_key,
        "server_key": server_key,
        "timeout": timeout,
        "dedup_window": dedup_window,
        "retry_for": retry_for,
        "job": job,
    }
    intake = Intake.of({name: _text(name, value) for name, value in rest.items() if value is not None})
    return PartitionSink(
        intake, Columns.named({name: _text(name, column) for name, column in named.items() if column is not None})
    )


def _text(name: str, value: Any) -> str:
    if isinstance(value, str) and value:
        return value
    if name in _DURATIONS and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    raise InvalidArgumentError(f"{name}={value!r}: pass {'a duration' if name in _DURATIONS else 'a str'}")


_DURATIONS = ("timeout", "dedup_window", "retry_for")
