"""What the router says in its own name, until the loop sends it: complete multipart frames, address first."""

from typing import Any, TypeAlias

from fila_proto_zmq.codec import encode_body
from fila_proto_zmq.commands import Command, Reply
from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.events import Event
from fila_proto_zmq.frames import pack_header
from fila_router.core.answers import error_frame, reply_frame
from fila_router.core.tally import Tally

Frame: TypeAlias = list[Any]
"""Bytes; the body of what is passed on perhaps as a socket gave it out."""


class Outbox:
    """Frames for both sides, in order. ``notes``: what happened, for the operator."""

    def __init__(self, tally: Tally | None = None) -> None:
        self._tally = tally or Tally()
        self.to_clients: list[Frame] = []
        self.to_workers: list[Frame] = []
        self.notes: list[Event] = []

    def take(self) -> tuple[list[Frame], list[Frame], list[Event]]:
        """All that there is: for workers, for clients, for the operator."""
        taken = self.to_workers, self.to_clients, self.notes
        self.to_workers, self.to_clients, self.notes = [], [], []
        return taken

    def answer(self, client: bytes, header: bytes, key: bytes, reply: Reply) -> None:
        """Answer the request of ``header``."""
        self.to_clients.append(reply_frame(client, header, key, reply))

    def refuse(self, client: bytes, header: bytes, key: bytes, error: FilaError) -> None:
        """Answer the request of ``header`` with an error."""
        self._tally.refuse(error.code, client)
        self.to_clients.append(error_frame(client, header, key, error))

    def tell(self, workers: list[bytes], command: Command, request: int = 0) -> None:
        """Say the same to some workers. Request 0: nobody answers."""
        frame = [b"", pack_header(command.opcode, request), b"", encode_body(command)]
        self.to_workers.extend([identity, *frame] for identity in workers)
