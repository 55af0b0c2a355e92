"""The router's own frames: answers and errors with their reasons, kept until the loop sends them."""

from typing import Any, Final, TypeAlias

from fila_admission.acts import Audit
from fila_proto_zmq.codec import decode_body, encode_body, from_fault, to_fault
from fila_proto_zmq.commands import Command, Fault, Reply
from fila_proto_zmq.errors import (
    FilaError,
    InvalidFrameError,
    ShardUnavailableError,
    UnsupportedVersionError,
)
from fila_proto_zmq.events import Event
from fila_proto_zmq.frames import ERROR, HEADER_BYTES, REPLY, VERSIONS, pack_header
from fila_router.core.counters import Counters
from fila_router.core.limits import DEFAULTS, RouterLimits

Frame: TypeAlias = list[Any]
"""A frame's parts as bytes; the body of a forwarded frame may be as a socket gave it out."""


class Outgoing:
    """Frames for both sides, in order. ``notes``: events for the log; ``audit``: the administrative acts, which answers end."""

    def __init__(self, counters: Counters | None = None, limits: RouterLimits = DEFAULTS) -> None:
        self._counters = counters or Counters()
        self.audit = Audit(limits.acts_max)
        self.to_clients: list[Frame] = []
        self.to_workers: list[Frame] = []
        self.notes: list[Event] = []

    def take(self) -> tuple[list[Frame], list[Frame], list[Event]]:
        """Return everything that is kept: for workers, for clients, for the log."""
        taken = self.to_workers, self.to_clients, self.notes
        self.to_workers, self.to_clients, self.notes = [], [], []
        return taken

    def answer(self, client: bytes, header: bytes, key: bytes, reply: Reply) -> None:
        """Answer the request of ``header``."""
        self.note(self.audit.end(client, header))
        self.to_clients.append(reply_frame(client, header, key, reply))

    def refuse(self, client: bytes, header: bytes, key: bytes, error: FilaError) -> None:
        """Answer the request of ``header`` with an error."""
        self._counters.refuse(error.code, client)
        self.note(self.audit.end(client, header, error.code))
        self.to_clients.append(error_frame(client, header, key, error))

    def note(self, event: Event | None) -> None:
        """Add an event for the log, if there is one."""
        if event is not None:
            self.notes.append(event)

    def tell(self, workers: list[bytes], command: Command, request: int = 0) -> None:
        """Send the same command to some workers. Request 0: no answer is expected."""
        frame = [b"", pack_header(command.opcode, request), b"", encode_body(command)]
        self.to_workers.extend([identity, *frame] for identity in workers)


_UNREADABLE: Final = pack_header(0)


def reply_frame(client: bytes, header: bytes, key: bytes, reply: Reply) -> list[bytes]:
    """Answer the request of ``header``: a whole multipart frame, address first."""
    return [client, pack_header(header[3], request_of(header), REPLY), key, encode_body(reply)]


def error_frame(client: bytes, header: bytes, key: bytes, error: FilaError) -> list[bytes]:
    """Refuse the request of ``header``; of request 0 and opcode 0 if that header can't be read."""
    if len(header) != HEADER_BYTES or header[:2] != _UNREADABLE[:2]:
        header = _UNREADABLE
    answer = pack_header(header[3], request_of(header), REPLY | ERROR)
    return [client, answer, key, encode_body(to_fault(error))]


def request_of(header: bytes) -> int:
    """Return the request id of a packed header."""
    return int.from_bytes(header[10:], "big")


def error_in(body: bytes) -> FilaError:
    """Return the error of a worker's answer, or an error that the answer can't be read."""
    try:
        return from_fault(decode_body(Fault, body))
    except InvalidFrameError as unreadable:
        return unreadable


def not_greeted() -> ShardUnavailableError:
    """Return the error for a session that the connection does not have: the router is new, or has forgotten it, or the
    connection is new."""
    return ShardUnavailableError(
        "this connection has not greeted for the session that the request names: say Hello with it, then ask again",
        details={"refused": True, "greet": True},
    )


def no_common_version(versions: list[int]) -> UnsupportedVersionError:
    """Return the error for a greeting without a version in common."""
    return UnsupportedVersionError(
        f"protocol versions {versions[:10]} are not supported, only {list(VERSIONS)}: install a matching client",
        details={"versions": list(VERSIONS)},
    )


def other_version(version: int) -> UnsupportedVersionError:
    """Return the error for a worker that registers in another version."""
    return UnsupportedVersionError(
        f"this worker speaks protocol version {version}, its router {list(VERSIONS)}: install the same release for both",
        details={"versions": list(VERSIONS)},
    )
