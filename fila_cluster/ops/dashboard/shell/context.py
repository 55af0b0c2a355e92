"""The context of every page: the part of the cluster that its visitor may see, and a client with the visitor's rights."""

import asyncio
from collections.abc import Mapping
from typing import Final

from nicegui import ui

from fila_admission.permissions import ADMIN, CONSUME, EVERYTHING, PRODUCE
from fila_cluster import AsyncClient, QueueInfo
from fila_cluster.client.views import HostList
from fila_cluster.errors import UnauthenticatedError
from fila_cluster.ops.analysis.attention import LOOK_BACK_S, Concern, attention
from fila_cluster.ops.analysis.history import History, LastMinuteShare
from fila_cluster.ops.analysis.hosts import Obstacle, hosts_in
from fila_cluster.ops.analysis.rates import ClusterRates, all_queues, rates
from fila_cluster.ops.analysis.rows import KnownQueues, QueueRow, coverage, queue_rows
from fila_cluster.ops.analysis.visitor import SCOPE_KEY, KeyInUse, Visitor, visible
from fila_cluster.ops.analysis.watch import Watch
from fila_proto_zmq.commands import Metrics

__all__ = ["ADMIN", "CONSUME", "EVERYTHING", "PRODUCE", "Context", "Visits"]

RATES_S: Final = 5.0
"""Rates are measured over about this long: over one second they would jump."""

_NO_RATES: Final = ClusterRates(None, {}, {})


class Context:
    """The part of the cluster that the holder of one API key may see; without authentication, all of it.

    Invariant: ``watch`` asks the broker of ``client``, and ``history`` is fed from ``watch``. Each answer is
    evaluated once, however many pages are open. :meth:`may` decides about buttons, and the broker about their actions.
    """

    def __init__(self, watch: Watch, history: History, client: AsyncClient, endpoint: str, key: KeyInUse | None) -> None:
        self.client = client
        self.endpoint = endpoint
        """The router's endpoint, for people."""
        self.known_queues = KnownQueues()
        self._watch = watch
        self._history = history
        self._key = key
        self._seen: tuple[Metrics | None, Metrics | None] = None, None
        """An answer of the cluster, and the part that may be seen."""
        self._concluded: Metrics | None = None
        self._rates: ClusterRates = _NO_RATES
        self._concerns: list[Concern] = []
        self._listed: Metrics | None = None
        self._rows: list[QueueRow] = []
        self._sums: tuple[list[float], Mapping[str, list[float]]] = [], {}

    # --- rights -------------------------------------------------------------------------------------------------------

    def may(self, kind: str, queue: str) -> bool:
        """Return whether the visitor may do this kind of work on a queue. ``*`` is the whole cluster."""
        if self._key is None:
            return True
        permissions = self._key.permissions
        return permissions.govern(EVERYTHING) if (kind, queue) == (ADMIN, EVERYTHING) else permissions.allow(kind, queue)

    def may_some(self, kind: str) -> bool:
        """Return whether the visitor may do this kind of work on any queue."""
        return self._key is None or self._key.permissions.allow_some(kind)

    def may_see(self, queue: str) -> bool:
        """Return whether the visitor may see that a queue exists."""
        return self._key is None or self._key.permissions.know(queue)

    @property
    def sees_all(self) -> bool:
        """Whether the visitor may see every queue, and so the load of the processes."""
        return self._key is None or self._key.permissions.know_all()

    # --- now ----------------------------------------------------------------------------------------------------------

    @property
    def latest(self) -> Metrics | None:
        """The visible part of the last answer; None: there is no answer, or the visitor's key has ended."""
        answer = self._watch.latest
        if answer is None or (self._key is not None and self._key.ended):
            return None
        if self.sees_all:
            return answer
        if self._seen[0] is not answer:
            self._seen = answer, visible(answer, self.may_see)
        return self._seen[1]

    @property
    def coverage(self) -> str:
        """The part of the shards in the last answer; empty: all of them."""
        return coverage(self.latest) if self.latest else ""

    @property
    def why_not(self) -> str:
        """Why there is no answer."""
        return self._watch.why_not

    def obstacles(self) -> list[Obstacle]:
        """Return why the cluster is not ready; empty: it is."""
        return self._watch.obstacles()

    def hosts(self) -> HostList | None:
        """Return the hosts with their copies of shards; None: the cluster has no replicated log, or there is no answer."""
        return hosts_in(self.latest)

    def rates(self) -> ClusterRates:
        """Return rates of the last seconds; unknown ones while the broker is down."""
        self._conclude()
        return self._rates

    def concerns(self) -> list[Concern]:
        """Return the concerns, the most urgent first."""
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
        answer = self._watch.latest or latest
        if not any(shard.queues_left_out for worker in answer.workers for shard in worker.shards):
            return []
        shown = {queue.info.name for queue in all_queues(latest)}
        return [queue for queue in await self.client.list_queues() if queue.name not in shown]

    def _conclude(self) -> None:
        latest = self.latest
        if latest is self._concluded:
            return
        self._concluded, self._rates, self._concerns = latest, _NO_RATES, []
        if latest is None:
            return
        now_s = self._watch.heard_s
        if (recent := self._history.look_back(now_s, RATES_S)) is not None:
            self._rates = rates(latest, self._visible(recent.metrics), now_s - recent.at_s)
        earlier = self._history.look_back(now_s, LOOK_BACK_S)
        self._concerns = attention(latest, self._visible(earlier.metrics) if earlier else None)

    def _visible(self, metrics: Metrics) -> Metrics:
        return metrics if self.sees_all else visible(metrics, self.may_see)

    # --- the last half hour -------------------------------------------------------------------------------------------

    def times(self) -> list[float]:
        """Return when the points of all series were, oldest first, Unix seconds."""
        return self._history.times()

    def series_of(self, queue: str) -> Mapping[str, list[float]]:
        """Return the series of a queue; empty for an unknown one."""
        return self._history.of_queue(queue) if self.may_see(queue) else {}

    def shares_of(self, queue: str) -> list[LastMinuteShare]:
        """Return the shares of a queue's keys in the last minute."""
        return self._history.shares(queue) if self.may_see(queue) else []

    async def series_of_all(self) -> tuple[list[float], Mapping[str, list[float]]]:
        """Return the times, and the sums over all queues that may be seen."""
        times = self._history.times()
        if self.sees_all:
            return times, self._history.of_all()
        if self._sums[0] != times:
            self._sums = times, await asyncio.to_thread(self._history.of_some(self.may_see))
        return self._sums


class Visits:
    """Gives each page the context of its visitor."""

    def __init__(self, watch: Watch, history: History, endpoint: str, client: AsyncClient | None) -> None:
        """``client`` is for all visitors of a cluster without authentication; None: each one brings a key."""
        self._watch, self._history, self._endpoint = watch, history, endpoint
        self._of_all = None if client is None else Context(watch, history, client, endpoint, None)
        self._contexts: dict[KeyInUse, Context] = {}

    def context(self) -> Context:
        """Return the context of the page that is being made."""
        if self._of_all is not None:
            return self._of_all
        visitor = visitor_of_page()
        if visitor is None:
            raise UnauthenticatedError("a page of this cluster was asked for without a key")
        key = visitor.key
        if key not in self._contexts:
            self._contexts = {each: context for each, context in self._contexts.items() if not each.ended}
            self._contexts[key] = Context(self._watch, self._history, key.client, self._endpoint, key)
        return self._contexts[key]


def visitor_of_page() -> Visitor | None:
    """Return the visitor of the page that is being made; None: the cluster has no authentication."""
    request = ui.context.client.request
    visitor: Visitor | None = request.scope.get(SCOPE_KEY)
    return visitor
