"""Several commands under way over a blocking client, for readers and writers that do not wait for each reply.

Not part of the client's everyday surface.
"""

from typing import Any

from fila_cluster.client.blocking import Client
from fila_cluster.client.calls.request import Request, as_request
from fila_cluster.client.requests.call import PendingCall
from fila_proto_zmq.commands import Command


class CommandsAhead:
    """Sends commands of a client, and waits for each reply later."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def start(self, command: Command | Request) -> PendingCall:
        """Send a command as :meth:`Client.request` does."""
        return self._client._start(*as_request(command))

    def outcome(self, call: PendingCall) -> Any:
        """Wait for the reply to a command that :meth:`start` sent, and return it, or raise its error."""
        self._client._io.wait(call)
        return call.outcome()
