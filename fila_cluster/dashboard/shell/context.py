"""What every page works with: the last answer of the cluster, the half hour before, and a client to ask and to act with."""

from dataclasses import dataclass, field
from typing import Final

from fila_cluster import AsyncClient, QueueInfo
from fila_cluster.analysis.attention import LOOK_BACK_S, Concern, attention
from fila_cluster.analysis.history import History
from fila_cluster.analysis.known_queues import KnownQueues
from fila_cluster.analysis.rates import ClusterRates, all_queues, rates
from fila_cluster.analysis.rows import QueueRow, queue_rows
from fila_cluster.analysis.watch import Watch
from fila_proto_zmq.commands import Metrics

RATES_S: Final = 5.0
"""Rates are measured over about this long: over one second they would jump."""

_NO_RATES: Final = ClusterRates(None, {}, {})


@dataclass(slots=True)
class Context:
    """Invariant: ``watch`` asks ``client``'s broker, and ``history`` is fed from ``watch``.

    The conclusions from an answer are drawn once, however many pages are open.
    """

    watch: Watch
    history: History
    client: AsyncClient
    endpoint: str
    """The router's endpoint, as people know it."""
    known_queues: KnownQueues = field(default_factory=KnownQueues, init=False)
    _concluded: Metrics | None = field(default=None, init=False)
    _rates: ClusterRates = field(default=_NO_RATES, init=False)
    _concerns: list[Concern] = field(default_factory=list, init=False)
    _listed: Metrics | None = field(default=None, init=False)
    _rows: list[QueueRow] = field(default_factory=list, init=False)

    def rates(self) -> ClusterRates:
        """Return rates of the last seconds; nothing is known while the broker is down."""
        self._conclude()
        return self._rates

    def concerns(self) -> list[Concern]:
        """Return what needs attention, the most urgent first."""
        self._conclude()
        return self._concerns

    async def queue_rows(self) -> list[QueueRow]:
        """Return a row for each queue of the cluster; queues that shards leave out are asked for."""
        self._conclude()
        latest = self._concluded
        if latest is None:
            return []
        if latest is not self._listed:
            self._listed = latest
            left_out = await self._left_out(latest)
            self.known_queues.note(latest, left_out)
            self._rows = queue_rows(latest, left_out, self._rates, self.known_queues)
        return self._rows

    async def _left_out(self, latest: Metrics) -> list[QueueInfo]:
        if not any(shard.queues_left_out for worker in latest.workers for shard in worker.shards):
            return []
        shown = {queue.info.name for queue in all_queues(latest)}
        return [queue for queue in await self.client.list_queues() if queue.name not in shown]

    def _conclude(self) -> None:
        latest = self.watch.latest
        if latest is self._concluded:
            return
        self._concluded, self._rates, self._concerns = latest, _NO_RATES, []
        if latest is None:
            return
        now_s = self.watch.heard_s
        if (recent := self.history.look_back(now_s, RATES_S)) is not None:
            self._rates = rates(latest, recent.metrics, now_s - recent.at_s)
        earlier = self.history.look_back(now_s, LOOK_BACK_S)
        self._concerns = attention(latest, earlier.metrics if earlier else None)
