"""The effects of a turn: frames that leave the process only after the batch that they depend on is committed."""

from typing import Any, Final

from msgspec import Struct

from fila_proto_zmq.codec import encode_body, encode_command, encode_delivery, encode_error, encode_reply
from fila_proto_zmq.commands import Command, Delivered, Enqueue, Reply, Settle
from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.frames import REPLY, REQUEST_AT, pack_header

USUAL: Final[dict[int, type[Enqueue | Settle]]] = {Enqueue.opcode: Enqueue, Settle.opcode: Settle}
"""The commands of usual requests, by opcode."""
_HEADS: Final = {opcode: pack_header(opcode, flags=REPLY)[:REQUEST_AT] for opcode in USUAL}
"""The headers of their replies, up to the request."""

ANY_LINK: Final = -1
"""For what did not come by the link to a router."""


class ClientCall(Struct):
    """A command's envelope: the client, the request to answer, the queue, the time when it was read, and its link."""

    client: bytes
    request: int
    queue: str
    now_ms: int
    link: int = 0


class Answer(Struct):
    """The reply to a call, or its error."""

    call: ClientCall
    opcode: int
    reply: Reply | FilaError

    @property
    def client(self) -> bytes:
        """The client to send it to."""
        return self.call.client

    def frames(self) -> list[bytes]:
        """Return header, routing key and body."""
        if isinstance(self.reply, FilaError):
            return encode_error(self.opcode, self.call.request, self.reply, self.call.queue)
        return encode_reply(self.opcode, self.call.request, self.reply, self.call.queue)


class DirectReply(Struct):
    """The reply to a usual request, which came on a client's connection, ``way``, and goes back there. None: not carried out
    yet."""

    way: Any
    request: bytes
    """The header of the request."""
    key: bytes
    reply: Reply | None = None

    @property
    def client(self) -> bytes:
        """The client to send it to."""
        client: bytes = self.way.client
        return client

    def frames(self) -> list[bytes]:
        """Return header, routing key and body."""
        return [_HEADS[self.request[3]] + self.request[REQUEST_AT:], self.key, encode_body(self.reply)]


class Push(Struct):
    """Leased messages for a subscription. ``link``: the one of its last heartbeat."""

    client: bytes
    queue: str
    delivered: Delivered
    link: int = 0

    def frames(self) -> list[bytes]:
        """Return header, routing key and body."""
        return encode_delivery(self.queue, self.delivered)


class Post(Struct):
    """A command for the router or another shard. It gets no direct answer."""

    command: Command

    @property
    def client(self) -> bytes:
        """Empty: it is not for a client."""
        return b""

    def frames(self) -> list[bytes]:
        """Return header, routing key and body."""
        return encode_command(self.command, 0)


Effect = Answer | DirectReply | Push | Post


def answer(call: ClientCall, command: Command | type[Command], reply: Reply | FilaError) -> Answer:
    """Return the answer to ``command``."""
    return Answer(call, command.opcode, reply)
