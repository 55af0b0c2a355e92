"""The changes that can be made in ``top``: each returns one line about it, or raises :class:`FilaError`."""

from typing import NamedTuple

from fila_cluster.client import AsyncClient
from fila_cluster.ops.top.formats import printable
from fila_proto_zmq.names import dead_letter_name, is_dead_letter


class Target(NamedTuple):
    """A queue, or one of its fairness keys."""

    queue: str
    fairness_key: str | None = None

    def __str__(self) -> str:
        key = "" if self.fairness_key is None else f"fairness key {printable(self.fairness_key)!r} of "
        return f"{key}{printable(self.queue)}"


async def pause(client: AsyncClient, target: Target) -> str:
    """Stop deliveries."""
    await client.pause(target.queue, fairness_key=target.fairness_key)
    return f"{target} is paused: r resumes it"


async def resume(client: AsyncClient, target: Target) -> str:
    """Let deliveries go on."""
    await client.resume(target.queue, fairness_key=target.fairness_key)
    return f"{target} goes on"


def dead_letters_of(queue: str) -> str:
    """Return the name of a queue's dead letter queue; its own, if it is one."""
    return queue if is_dead_letter(queue) else dead_letter_name(queue)


async def redrivable(client: AsyncClient, dead_letters: str) -> int:
    """Return how many dead letters could go back: the pending ones. 0 where there is no such queue."""
    rows = await client.list_queues(dead_letters)
    return next((row.pending for row in rows if row.name == dead_letters), 0)


async def redrive(client: AsyncClient, dead_letters: str) -> str:
    """Send all dead letters back to the queues they came from."""
    count = await client.redrive(dead_letters)
    return f"redriven: {count:,} of {dead_letters} went back to where they came from"


async def why(client: AsyncClient, target: Target) -> str:
    """Return the explanation of why it waits."""
    return str(await client.why(target.queue, fairness_key=target.fairness_key))
