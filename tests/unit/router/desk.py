"""A router core on a test's desk: say something as a client or a worker, see what comes out, on a clock of one's own."""

from random import Random
from typing import Any, NamedTuple, TypeVar

from fila_proto_zmq.codec import decode_body, decode_command, encode_body, encode_error, encode_reply, from_fault
from fila_proto_zmq.commands import BY_OPCODE, Command, Done, Enqueue, Fault, Leave, Pulse, Register, Reply
from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.events import Event
from fila_proto_zmq.frames import ERROR, REPLY, pack_header, unpack_header
from fila_router.core.feature import ClusterSettings, RouterFeature
from fila_router.core.keys.access import Access
from fila_router.core.limits import DEFAULTS, RouterLimits
from fila_router.core.membership import START_MS_MAX
from fila_router.core.router import Router

Feature = TypeVar("Feature", bound=RouterFeature)
CLIENT = b"\0conn1"
"""The connection that speaks unless a test says otherwise."""
PID = 42
QUEUE = b"orders"
KNOCK = pack_header(Pulse.opcode, 0, REPLY)


class Answer(NamedTuple):
    """A reply that the router gave itself."""

    client: bytes
    request: int
    key: bytes
    content: Reply | FilaError


class Desk:
    def __init__(
        self,
        shards: int = 1,
        *,
        started: bool = True,
        limits: RouterLimits = DEFAULTS,
        access: Access | None = None,
        several: bool = False,
    ) -> None:
        """``started``: long ago, so that the router does not wait for the owner of shard 0 any more."""
        cluster = ClusterSettings(shards, 15_000, 1 << 24, "9.9", several)
        self.router = Router(cluster, entropy=Random(7).randbytes, limits=limits, access=access)
        self.now_ms = 0
        for now_ms in (-START_MS_MAX, 0) if started else ():
            self.router.tick(now_ms)
        self.knocked: set[str] = set()
        """Workers that the last tick knocked at."""
        self._requests = 0

    def feature(self, kind: type[Feature]) -> Feature:
        """The router's feature of this kind."""
        (feature,) = (each for each in self.router._state.features if isinstance(each, kind))
        return feature

    # --- as a client --------------------------------------------------------------------------------------------------

    def ask(self, command: Command, key: bytes = QUEUE, client: bytes = CLIENT, version: int = 1) -> bytes | None:
        """Send a request; returns the worker that it is to be forwarded to. Its id is ``last_request``."""
        self._requests += 1
        return self.frame(pack_header(command.opcode, self._requests, version=version), key, encode_body(command), client)

    def enqueue(self, key: bytes = QUEUE, client: bytes = CLIENT) -> bytes | None:
        return self.ask(Enqueue([b"\0\0\0\0"]), key, client)

    def frame(self, header: bytes, key: bytes = QUEUE, body: bytes = b"", client: bytes = CLIENT) -> bytes | None:
        way = self.router.from_client(client, header, key, body, self.now_ms)
        return None if way is None else way[0]

    def questions(self, opcode: int) -> dict[str, int]:
        """The workers that were asked this by the router itself, each with the request id to answer."""
        frames, self.router.outgoing.to_workers = self.router.outgoing.to_workers, []
        headers = [(worker.decode(), client, unpack_header(header), key) for worker, client, header, key, _ in frames]
        assert all((client, header.opcode, key) == (b"", opcode, b"") for _, client, header, key in headers)
        return {worker: header.request for worker, _, header, _ in headers}

    def client_on(self, connection: bytes = CLIENT) -> bytes:
        """The client that workers see when this connection speaks."""
        session = self.router._sessions.by_name[connection].session
        assert session is not None
        return session.client

    def _connection_of(self, client: bytes) -> bytes:
        session = self.router._sessions.by_client.get(client)
        return b"" if session is None else session.connection.name

    @property
    def last_request(self) -> int:
        return self._requests

    def answers(self) -> list[Answer]:
        """What the router answered since this was last asked."""
        outbox = self.router.outgoing
        frames, outbox.to_clients = outbox.to_clients, []
        return [_answer(self._connection_of(client), *frame) for client, *frame in frames]

    def error(self) -> FilaError:
        """The only answer, which is an error."""
        (answer,) = self.answers()
        assert isinstance(answer.content, FilaError)
        return answer.content

    # --- as a worker --------------------------------------------------------------------------------------------------

    def say(self, worker: str, command: Command) -> Reply | FilaError:
        """A worker's own frame, and the router's answer."""
        self.router.from_worker(worker.encode(), b"", pack_header(command.opcode, 1), b"", encode_body(command), self.now_ms)
        identity, client, header, key, body = self.router.outgoing.to_workers.pop()
        assert (identity, client, key) == (worker.encode(), b"", b"")
        return _content(header, body)

    def mention(self, worker: str, command: Command) -> None:
        """A worker's one-way frame."""
        header = pack_header(command.opcode, 0)
        self.router.from_worker(worker.encode(), b"", header, b"", encode_body(command), self.now_ms)

    def told(self) -> list[tuple[str, Command]]:
        """What the router sent to workers, without answers and forwarded questions, since this was last asked."""
        frames, self.router.outgoing.to_workers = self.router.outgoing.to_workers, []
        return [
            (identity.decode(), decode_command(unpack_header(header), bytes(body)))
            for identity, _, header, _, body in frames
            if not unpack_header(header).flags
        ]

    def said(self, *, keep: bool = False) -> list[tuple[str, Command, int]]:
        """Like :meth:`told`, with the request ids. ``keep``: as if this was not asked."""
        frames = list(self.router.outgoing.to_workers)
        told = self.told()
        requests = [unpack_header(header).request for _, _, header, _, _ in frames if not unpack_header(header).flags]
        if keep:
            self.router.outgoing.to_workers = frames
        return [(name, command, request) for (name, command), request in zip(told, requests, strict=True)]

    def notes(self, kind: type[Event] = Event) -> list[Event]:
        """What the router noted for the operator, of one kind only if that is wanted."""
        return [note for note in self.router.outgoing.notes if isinstance(note, kind)]

    def confirm(self, worker: str, command: Command, request: int, reply: Reply | FilaError | None = None) -> None:
        """A worker's answer to a question of the router's own."""
        if isinstance(reply, FilaError):
            header, _, body = encode_error(command.opcode, request, reply)
        else:
            header, _, body = encode_reply(command.opcode, request, reply or Done())
        assert not self.router.from_worker(worker.encode(), b"", header, b"", body, self.now_ms)

    def register(
        self, worker: str = "worker-0", *, epoch: int = 1, shards: tuple[int, ...] = (0,), pid: int = PID, **known: Any
    ) -> Reply | FilaError:
        """``known``: what it brings of config and parks."""
        return self.say(worker, Register(worker, pid, "9.9", [(shard, epoch) for shard in shards], **known))

    def unreachable(self, worker: str) -> None:
        self.router.unreachable(worker.encode(), self.now_ms)

    def pulse(self, worker: str = "worker-0") -> Reply | FilaError:
        return self.say(worker, Pulse(1000, 3))

    def leave(self, worker: str = "worker-0") -> Reply | FilaError:
        return self.say(worker, Leave())

    def reply(self, request: int, worker: str = "worker-0", client: bytes = CLIENT, opcode: int = Enqueue.opcode) -> bool:
        """Whether a worker's answer to a request would be forwarded."""
        header = pack_header(opcode, request, REPLY)
        return (
            self.router.from_worker(worker.encode(), self.client_on(client), header, QUEUE, b"\x90", self.now_ms) is not None
        )

    # --- time ---------------------------------------------------------------------------------------------------------

    def pass_ms(self, span_ms: int, *pulsing: str) -> None:
        """Let time pass in steps of 250 ms, the workers ``pulsing`` every second."""
        for step in range(span_ms // 250):
            self.now_ms += 250
            if step % 4 == 3:
                for worker in pulsing:
                    self.pulse(worker)
            self.router.tick(self.now_ms)
            self.knocked = {frame[0].decode() for frame in self.router.outgoing.to_workers if frame[2] == KNOCK}
            self.router.outgoing.to_workers = [frame for frame in self.router.outgoing.to_workers if frame[2] != KNOCK]


def _answer(client: bytes, header: bytes, key: bytes, body: bytes) -> Answer:
    return Answer(client, unpack_header(header).request, key, _content(header, body))


def _content(header: bytes, body: bytes) -> Reply | FilaError:
    parsed = unpack_header(header)
    assert parsed.flags & REPLY
    if parsed.flags & ERROR:
        return from_fault(decode_body(Fault, body))
    return decode_body(BY_OPCODE[parsed.opcode].reply, body)
