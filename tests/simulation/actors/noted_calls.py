"""The calls of a client process's programs: each is noted, and how it ended."""

from collections.abc import Awaitable, Callable
from typing import Any

from fila_cluster.client.calls.request import Request
from fila_proto_zmq.errors import FilaError
from tests.simulation.actors.clients import ClientProcess
from tests.simulation.history import Done, History
from tests.simulation.options import Options

SENT_ONCE = frozenset(("receive", "ack", "nack", "retry", "fail", "defer", "extend", "leave"))
"""Calls that have one time limit, however many partitions their queue has."""


class NotedCalls:
    """One client process, with a note of each call."""

    def __init__(self, process: ClientProcess, history: History, options: Options) -> None:
        self.process = process
        self.client = process.client
        self.history = history
        self.options = options
        self.has = options.features.__contains__
        self.consumers: dict[str, Any] = {}
        self.quiet = False
        """From now on everything that comes is acked at once."""
        self.kept: list[Any] = []
        """What the program has in hand, and what it has settled: nothing is collected before the end of the run."""
        self.holds: dict[tuple[str, str, int], int] = {}

    async def call(
        self, kind: str, queue: str, ask: Callable[[], Awaitable[Any]], *, wait_s: float = 0.0, asks: int = 1, **said: Any
    ) -> Any:
        """Make a call and note it; returns its record."""
        partitions = self.history.spread_of(queue)[0]
        if partitions > 1 and kind not in SENT_ONCE:  # each is asked in turn, after the refusal that names them
            asks *= 2 + partitions
        limit_us = round((self.options.timeout_s * asks + wait_s) * 1e6)
        record = self.history.began(self.process.name, kind, queue, limit_us, **said)
        try:
            value = await ask()
        except FilaError as error:
            self.history.ended(record, error=error)
        else:
            self.history.ended(record, shortened(value))
            record.value = value
        return record

    async def command(self, kind: str, queue: str, command: Any, *, wait_s: float = 0.0, **said: Any) -> Done:
        """Send a command that the client has no method for, and note it. ``place``: a partition, if it is for one."""
        record: Done = await self.call(
            kind,
            queue,
            lambda: self.client.request(Request(said.get("place", queue), command)),
            wait_s=wait_s,
            command=str(command),
            **said,
        )
        return record


def at_place(delivery: Any) -> dict[str, str]:
    """What a call says of the partition that a delivery is from; nothing if its queue has none."""
    place = delivery._lease.queue
    return {} if place == delivery.queue else {"place": place}


def shortened(value: Any) -> Any:
    """Return a result as it is noted: a long list by its length."""
    if isinstance(value, list) and len(value) > 4:
        return f"{len(value)} things"
    return value
