"""The frames and events that a router makes itself, kept until the caller sends them."""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from fila_admission.acts import Audit
from fila_proto_zmq.codec import decode_body, encode_body, from_fault, to_fault
from fila_proto_zmq.commands import Command, Fault, Reply
from fila_proto_zmq.errors import FilaError, InvalidFrameError, ShardUnavailableError, UnsupportedVersionError
from fila_proto_zmq.events import Event
from fila_proto_zmq.frames import ERROR, HEADER_BYTES, REPLY, VERSIONS, pack_header
from fila_router.core.counters import RouterCounters
from fila_router.core.limits import DEFAULTS, RouterLimits

Frame: TypeAlias = list[Any]
"""The parts of a frame, as bytes. The body of a forwarded frame may be an object of the socket."""


@dataclass(slots=True)
class ReturnAddress:
    """The client that waits for an answer, with the header and the routing key of its request."""

    client: bytes
    header: bytes
    key: bytes


class OutgoingFrames:
    """Frames for clients and workers, in order.

    ``notes``: events for the log. ``audit``: the administrative acts, each of which ends with its answer.
    """

    def __init__(self, counters: RouterCounters | None = None, limits: RouterLimits = DEFAULTS) -> None:
        self._counters = counters or RouterCounters()
        self.audit = Audit(limits.acts_max)
        self.to_clients: list[Frame] = []
        self.to_workers: list[Frame] = []
        self.notes: list[Event] = []

    def take(self) -> tuple[list[Frame], list[Frame], list[Event]]:
        """Remove and return everything that is kept: for workers, for clients, for the log."""
        taken = self.to_workers, self.to_clients, self.notes
        self.to_workers, self.to_clients, self.notes = [], [], []
        return taken

    def answer(self, address: ReturnAddress, reply: Reply) -> None:
        """Answer a request."""
        self.note(self.audit.end(address.client, address.header))
        self.to_clients.append(reply_frame(address, reply))

    def refuse(self, address: ReturnAddress, error: FilaError) -> None:
        """Answer a request with an error."""
        self._counters.refuse(error.code, address.client)
        self.note(self.audit.end(address.client, address.header, error.code))
        self.to_clients.append(error_frame(address, error))

    def note(self, event: Event | None) -> None:
        """Add an event for the log, if there is one."""
        if event is not None:
            self.notes.append(event)

    def send(self, workers: list[bytes], command: Command, request: int = 0) -> None:
        """Send the same command to some workers. Request 0: no answer is expected."""
        self.send_body(workers, command.opcode, encode_body(command), request)

    def send_body(self, workers: list[bytes], opcode: int, body: bytes, request: int = 0) -> None:
        """Send the same packed command to some workers. Request 0: no answer is expected."""
        frame = [b"", pack_header(opcode, request), b"", body]
        self.to_workers.extend([identity, *frame] for identity in workers)


_UNREADABLE: Final = pack_header(0)


def reply_frame(address: ReturnAddress, reply: Reply) -> Frame:
    """Return the answer to a request: a whole multipart frame, the client first."""
    header = pack_header(address.header[3], request_of(address.header), REPLY)
    return [address.client, header, address.key, encode_body(reply)]


def error_frame(address: ReturnAddress, error: FilaError) -> Frame:
    """Return an error as the answer to a request; to request 0 and opcode 0 if its header can't be read."""
    header = address.header
    if len(header) != HEADER_BYTES or header[:2] != _UNREADABLE[:2]:
        header = _UNREADABLE
    answer = pack_header(header[3], request_of(header), REPLY | ERROR)
    return [address.client, answer, address.key, encode_body(to_fault(error))]


def request_of(header: bytes) -> int:
    """Return the request id of a packed header."""
    return int.from_bytes(header[10:], "big")


def error_in(body: bytes) -> FilaError:
    """Return the error of a worker's answer. If the answer can't be read, return the error that says so."""
    try:
        return from_fault(decode_body(Fault, body))
    except InvalidFrameError as unreadable:
        return unreadable


def not_greeted() -> ShardUnavailableError:
    """Return the error for a request whose session is not on its connection: one of the two, or the router, is new."""
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
