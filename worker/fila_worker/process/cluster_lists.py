"""The lists that the router joins from all workers: queues, schedules, throttles, and what clients have."""

from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Final, TypeVar

from fila_proto_zmq.commands import (
    ClientsDescribed,
    ClientWork,
    DescribeClients,
    ListQueues,
    ListSchedules,
    ListThrottles,
    Reply,
    joined,
    joined_schedules,
    joined_throttles,
)
from fila_proto_zmq.names import whole_queue
from fila_worker.core.effects import ClientCall
from fila_worker.core.manage.queue_commands import list_queues
from fila_worker.core.manage.throttles import list_throttles
from fila_worker.core.model.consumers import Consumer, Demand
from fila_worker.core.model.leases import Lease
from fila_worker.core.schedules.schedules import list_schedules
from fila_worker.core.shard import Shard
from fila_worker.process.feature import ProcessFeature

_Page = TypeVar("_Page")


class ClusterLists(ProcessFeature):
    """This process's part of each list, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.commands = {
            ListQueues: self._queues,
            ListSchedules: self._schedules,
            ListThrottles: self._throttles,
            DescribeClients: self._clients,
        }

    def _queues(self, call: ClientCall, command: ListQueues) -> Reply:
        return joined(self._pages(call, lambda shard: list_queues(shard, call, command), partial=command.partial))

    def _schedules(self, call: ClientCall, command: ListSchedules) -> Reply:
        return joined_schedules(self._pages(call, lambda shard: list_schedules(shard, call, command)))

    def _throttles(self, call: ClientCall, command: ListThrottles) -> Reply:
        return joined_throttles(self._pages(call, lambda shard: list_throttles(shard, call, command)))

    def _pages(self, call: ClientCall, page: Callable[[Shard], _Page], *, partial: bool = False) -> list[_Page]:
        """Return the pages of all shards here; unless ``partial``, raise if the router counts on a shard that was lost."""
        pages = self.process.each(call.now_ms, page)
        if not partial:
            self.process.check_known(call)
        return pages

    def _clients(self, call: ClientCall, command: DescribeClients) -> Reply:
        process = self.process
        return ClientsDescribed(work_of(command.clients, process.shards.values(), process.last_frame_ms))


LEASES_COUNTED_MAX: Final = 20_000
"""Leases that are read to count the messages of all these clients, which takes a millisecond."""

DEMANDS_LOOKED_AT_MAX: Final = 100
"""Demands of a client that are searched for names of queues."""

QUEUES_SHOWN_MAX: Final = 10
"""Queues that are listed for one client."""


def work_of(clients: list[bytes], shards: Collection[Shard], last_frame_ms: Callable[[bytes], int]) -> list[ClientWork]:
    """Return the work of each client here, without clients that have none.

    ``last_frame_ms``: returns when the last frame of a client came to the client socket, Unix ms; 0: it is not connected
    there.
    """
    work, left = [], LEASES_COUNTED_MAX
    for client in clients:
        consumers = [found for shard in shards if (found := shard.consumers.by_client.get(client)) is not None]
        heard_ms = max([last_frame_ms(client), *(consumer.seen_ms for consumer in consumers)])
        if not heard_ms:
            continue
        leases = list(islice(_leases(consumers), left))
        left -= len(leases)
        queues = sorted({whole_queue(demand.queue.name) for demand in islice(_demands(consumers), DEMANDS_LOOKED_AT_MAX)})
        demands = sum(len(consumer.subscriptions) + len(consumer.waiters) for consumer in consumers)
        unsettled = sum(lease.open for lease in leases)
        work.append(ClientWork(client, heard_ms, queues[:QUEUES_SHOWN_MAX], demands, unsettled))
    return work


def _demands(consumers: list[Consumer]) -> Iterator[Demand]:
    for consumer in consumers:
        yield from consumer.subscriptions.values()
        yield from consumer.waiters.values()


def _leases(consumers: list[Consumer]) -> Iterator[Lease]:
    for consumer in consumers:
        yield from consumer.leases.values()
