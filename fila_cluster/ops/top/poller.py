"""Ask a cluster repeatedly: the last picture, for the screen and for programs, or why it is missing."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from fila_cluster.client import AsyncClient
from fila_cluster.client.calls.cluster import ask_metrics
from fila_cluster.client.views import QueueInfo, QueueStats, ThrottleStats
from fila_cluster.ops.analysis.attention import LOOK_BACK_S, Concern, attention
from fila_cluster.ops.analysis.hosts import shards_served
from fila_cluster.ops.analysis.partitions import with_whole_queues
from fila_cluster.ops.analysis.rates import ClusterRates, Rates, all_queues, rates
from fila_cluster.ops.analysis.rows import KeyRow, KnownQueues, QueueRow, WorkerRow, key_rows, queue_rows, worker_rows
from fila_proto_zmq.commands import Metrics
from fila_proto_zmq.errors import FilaError


@dataclass(frozen=True, slots=True)
class Summary:
    """The cluster. Sums are over the known queues without those of dead letters; ``rates`` None: unknown."""

    version: str
    uptime_s: float | None
    workers: int
    workers_up: int
    shards: int
    shards_up: int
    queues: int
    pending: int
    in_flight: int
    delayed: int
    depth: int
    dead_letters: int
    rates: Rates | None


def summary(now: Metrics, cluster_rates: ClusterRates, rows: list[QueueRow], now_ms: int) -> Summary:
    """Return the numbers at Unix time ``now_ms``."""
    workers = now.status.workers if now.status else []
    queues = [row for row in rows if not row.is_dead_letter]
    return Summary(
        version=now.status.version if now.status else "",
        uptime_s=max(0, now_ms - now.router.started_ms) / 1000 if now.router else None,
        workers=len(workers),
        workers_up=sum(worker.state == "up" for worker in workers),
        shards=now.status.shards if now.status else 0,
        shards_up=len(shards_served(now.status)),
        queues=len(queues),
        pending=sum(row.pending or 0 for row in queues),
        in_flight=sum(row.in_flight or 0 for row in queues),
        delayed=sum(row.delayed or 0 for row in queues),
        depth=sum(row.depth or 0 for row in queues),
        dead_letters=sum(row.depth or 0 for row in rows if row.is_dead_letter),
        rates=cluster_rates.total,
    )


ANSWER_S_MAX: Final = 3.0
"""How long to wait for an answer: the router gives the workers a second."""


@dataclass(frozen=True, slots=True)
class Picture:
    """The cluster at one moment."""

    summary: Summary
    concerns: list[Concern]
    queues: list[QueueRow]
    workers: list[WorkerRow]


@dataclass(frozen=True, slots=True)
class Close:
    """One queue in detail, or ``why_not``."""

    queue: str
    keys: list[KeyRow]
    throttles: list[ThrottleStats]
    why_not: str = ""


class _Seen(NamedTuple):
    at_s: float
    metrics: Metrics


KEEP_EVERY_S: Final = 5.0
"""The seconds between two snapshots that are kept to measure growth: each has megabytes where there are many queues."""


class Poller:
    """Asks when called. ``picture`` None: the cluster does not answer, for the reason ``why_not``; ``close``: the asked
    queue."""

    def __init__(self, client: AsyncClient, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.picture: Picture | None = None
        self.why_not = "it was not asked yet"
        self.close: Close | None = None
        self._client = client
        self._clock_s = clock_s
        self._last: _Seen | None = None
        self._kept: deque[_Seen] = deque()
        """Some snapshots of the last :data:`LOOK_BACK_S`."""
        self._known_queues = KnownQueues()
        self._stats: tuple[float, QueueStats] | None = None

    async def look(self, queue: str | None = None) -> None:
        """Ask for the cluster, and for one queue in detail. Errors become ``why_not``."""
        try:
            metrics = with_whole_queues(await ask_metrics(self._client))
        except FilaError as error:
            self.picture, self.close, self.why_not = None, None, str(error)
            self._last = self._stats = None
            self._kept.clear()
            return
        self.picture = self._draw(metrics, await self._left_out(metrics))
        self.close = None if queue is None else await self._look_closely(queue)

    async def _left_out(self, metrics: Metrics) -> list[QueueInfo]:
        """Return the queues that shards do not show; empty if they can't be listed now, so that the rest is shown."""
        if not any(shard.queues_left_out for worker in metrics.workers for shard in worker.shards):
            return []
        shown = {queue.info.name for queue in all_queues(metrics)}
        try:
            listed = await self._client.list_queues()
        except FilaError:
            return []
        return [row for row in listed if row.name not in shown]

    def _draw(self, metrics: Metrics, left_out: list[QueueInfo]) -> Picture:
        now_s, last = self._clock_s(), self._last
        cluster_rates = rates(metrics, last.metrics if last else None, now_s - last.at_s if last else 0.0)
        concerns = attention(metrics, self._kept[0].metrics if self._kept else None)
        self._keep(_Seen(now_s, metrics))
        self._known_queues.note(metrics, left_out)
        queues = queue_rows(metrics, left_out, cluster_rates, self._known_queues)
        numbers = summary(metrics, cluster_rates, queues, time.time_ns() // 1_000_000)
        return Picture(numbers, concerns, queues, worker_rows(metrics, cluster_rates))

    def _keep(self, seen: _Seen) -> None:
        self._last = seen
        if not self._kept or seen.at_s - self._kept[-1].at_s >= KEEP_EVERY_S:
            self._kept.append(seen)
        while len(self._kept) > 1 and self._kept[1].at_s <= seen.at_s - LOOK_BACK_S:
            self._kept.popleft()

    async def _look_closely(self, queue: str) -> Close:
        try:
            stats = await self._client.queue_stats(queue)
        except FilaError as error:
            self._stats = None
            return Close(queue, [], [], str(error))
        now_s, last = self._clock_s(), self._stats
        self._stats = now_s, stats
        if last is None or last[1].name != queue or last[1].delivered > stats.delivered:
            return Close(queue, key_rows(stats, None, 0.0), stats.throttles)
        return Close(queue, key_rows(stats, last[1], now_s - last[0]), stats.throttles)


async def snapshot(poller: Poller, interval_s: float, queue: str | None) -> dict[str, Any]:
    """Ask twice, ``interval_s`` apart, for rates. Raises :class:`FilaError` if the cluster does not answer."""
    await poller.look(queue)
    _checked(poller)
    await asyncio.sleep(interval_s)
    await poller.look(queue)
    _checked(poller)
    assert poller.picture is not None
    seen = asdict(poller.picture)
    return seen | ({} if poller.close is None else {"queue": _without_excuse(asdict(poller.close))})


def _checked(poller: Poller) -> None:
    if poller.picture is None:
        raise FilaError(f"no snapshot: {poller.why_not}")
    if poller.close is not None and poller.close.why_not:
        raise FilaError(poller.close.why_not)


def _without_excuse(close: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in close.items() if name != "why_not"}
