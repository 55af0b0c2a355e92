"""What travels: a command for the cluster or for a queue, and calls that take several of them."""

from typing import Any, NamedTuple, Protocol, TypeVar

from fila_cluster.client import checks
from fila_cluster.client.protocol.call import Call
from fila_proto_zmq import commands
from fila_proto_zmq.errors import InvalidArgumentError

COUNT_MAX = 2**31 - 1


class Request(NamedTuple):
    """A command of the protocol, and the queue that it is for ("" for the whole cluster)."""

    queue: str
    command: commands.Command


def as_request(command: Any) -> Request:
    """Return what a caller wants to have asked, checked."""
    if isinstance(command, commands.Command):
        return Request("", command)
    if isinstance(command, Request) and isinstance(command.command, commands.Command):
        return command if command.queue == "" else Request(checks.queue_name(command.queue), command.command)
    raise InvalidArgumentError(
        f"command={command!r}: pass a command of fila_proto_zmq.commands, or Request(queue, command) for a queue"
    )


class AsksLater(Protocol):
    """An asyncio client, as far as calls need it that are not among its methods."""

    async def request(self, command: Request) -> Any:
        """Send a command and return its reply."""


class AsksAhead(Protocol):
    """A blocking client, as far as readers need it that keep several commands on their way."""

    def start(self, command: Request) -> Call:
        """Send a command."""

    def outcome(self, call: Call) -> Any:
        """Wait for the reply to it."""


R_co = TypeVar("R_co", covariant=True)


class Steps(Protocol[R_co]):
    """A call that goes in bounded steps, so that it keeps no shard busy, and fills no frame, without end.

    It gives out its next request, takes in the answer, and has its ``result`` when there is no next one.
    """

    @property
    def result(self) -> R_co:
        """What came of it so far."""

    def next_request(self) -> Request | None:
        """Return what to ask next; None when it is done."""

    def answered(self, reply: Any) -> None:
        """Take in the answer to it."""
