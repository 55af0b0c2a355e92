"""Visitors of pages, and the part of a cluster's counters that they may see. Without authentication there are none."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from msgspec.structs import replace

from fila_admission.permissions import Permissions
from fila_cluster import AsyncClient
from fila_cluster.errors import FilaError, UnauthenticatedError
from fila_proto_zmq.commands import Metrics, ShardMetrics

SCOPE_KEY: Final = "fila_visitor"
"""Where a request's ASGI scope has its :class:`Visitor`."""


CLICK_S_MAX: Final = 10.0
"""How long somebody who clicked waits for the broker."""


class KeyInUse(Protocol):
    """An API key that somebody is logged in with."""

    @property
    def client(self) -> AsyncClient:
        """A client that has the key: the broker decides what it may do."""
        ...

    @property
    def name(self) -> str:
        """The key's name."""
        ...

    @property
    def permissions(self) -> Permissions:
        """Its permissions by the router's last answer."""
        ...

    holds: int
    """Leases and requests of the HTTP door: its client must not be closed while there are any."""

    @property
    def ended(self) -> bool:
        """Whether it has been revoked, has expired, or nobody is logged in with it any more."""
        ...


class Visitor(Protocol):
    """One login."""

    @property
    def key(self) -> KeyInUse:
        """The key that it was made with."""
        ...

    async def check(self) -> None:
        """Raise :class:`UnauthenticatedError` once the login or its key has ended."""
        ...


async def end_of(visitor: Visitor, look_s: float) -> UnauthenticatedError:
    """Return when a login or its key has ended, with the error that says so. It looks every ``look_s`` seconds."""
    while True:
        await asyncio.sleep(look_s)
        try:
            await visitor.check()
        except UnauthenticatedError as error:
            return error
        except FilaError:  # the router is away: the pages show it
            continue


MaySee = Callable[[str], bool]
"""Whether somebody may see the queue of this name."""


def visible(metrics: Metrics, may_see: MaySee) -> Metrics:
    """Return the counters of the queues that may be seen, without the others' number, throttle keys and traffic."""
    workers = [replace(worker, shards=[_of_shard(shard, may_see) for shard in worker.shards]) for worker in metrics.workers]
    return Metrics(workers, metrics.status)


def _of_shard(shard: ShardMetrics, may_see: MaySee) -> ShardMetrics:
    queues = [queue for queue in shard.queues if may_see(queue.info.name)]
    return replace(shard, queues=queues, queues_left_out=0, throttles=[], refused={}, schedules=None, places=[])
