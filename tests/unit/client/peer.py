"""The other side, in two sizes: a scripted peer for a bare session, and a real ROUTER socket for a whole client."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import zmq

from fila_cluster.client.message import Message
from fila_cluster.client.protocol.delivery import Delivery
from fila_cluster.client.protocol.encoding import Row, seal_message
from fila_cluster.client.protocol.lease import ClientLease
from fila_cluster.client.protocol.producing import Bulk
from fila_cluster.client.protocol.session import ClientSession
from fila_proto_zmq import codec
from fila_proto_zmq.commands import (
    Command,
    Delivered,
    Done,
    Enqueue,
    Enqueued,
    Hello,
    LeaseBatch,
    Reply,
    Settle,
    Settled,
    Welcome,
)
from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.frames import Header, unpack_header
from fila_proto_zmq.ids import high_half, low_half
from fila_proto_zmq.record import Extension, Record, pack_record, seal_envelope

ENDPOINT = "tcp://broker:5555"
WELCOME = Welcome(1, "0.0", 4, 15_000, 16 * 1024 * 1024)
BORN_MS = 1_700_000_000_000


class Owner:
    """What a session needs of its client."""

    def __init__(self) -> None:
        self.closed = False
        self.forgotten_leases: list[ClientLease] = []

    def forgotten(self, lease: ClientLease) -> None:
        self.forgotten_leases.append(lease)

    def settle_one(self, delivery: Any, settlement: Any) -> Any:
        raise NotImplementedError

    def extend_one(self, delivery: Any, duration_ms: int) -> Any:
        raise NotImplementedError


@dataclass
class Sent:
    """One frame of the client."""

    header: Header
    key: str
    command: Any


def row(payload: Any = b"x", headers: Any = None, **options: Any) -> Row:
    """A message sealed by itself."""
    return seal_message(Message(payload, headers, **options))


def read(parts: list[bytes]) -> Sent:
    header = unpack_header(parts[0])
    return Sent(header, parts[1].decode(), codec.decode_command(header, parts[2]))


class Peer:
    """A session, and everything that can be done to it. Time is ``now``."""

    def __init__(self, timeout_s: float = 5.0, *, connected: bool = True, **limits: int) -> None:
        self.now = 1000.0
        self.owner = Owner()
        self.session = ClientSession(
            ENDPOINT, self.owner, Delivery, timeout_s=timeout_s, client_version="test", random=Random(1), **limits
        )
        self.session.connect(self.now)
        if connected:
            self.welcome()

    def welcome(self) -> list[Sent]:
        """Answer the greeting; what the session sends then."""
        *_, hello = [sent for sent in self.sent() if isinstance(sent.command, Hello)]
        self.reply(hello, WELCOME)
        return self.sent()

    def sent(self, *kinds: type[Command]) -> list[Sent]:
        """Flush, and take what the session sends (of some kinds only)."""
        self.session.flush(self.now)
        frames = [read(parts) for parts in self.session.outgoing]
        self.session.outgoing.clear()
        return [frame for frame in frames if not kinds or isinstance(frame.command, kinds)]

    def one(self, kind: type[Command]) -> Sent:
        """The only frame of that kind that it sends."""
        (frame,) = self.sent(kind)
        return frame

    def reply(self, sent: Sent, reply: Reply) -> None:
        self.session.arrived(codec.encode_reply(sent.header.opcode, sent.header.request, reply, sent.key), self.now)

    def refuse(self, sent: Sent, error: FilaError) -> None:
        self.session.arrived(codec.encode_error(sent.header.opcode, sent.header.request, error, sent.key), self.now)

    def push(self, queue: str, subscription: int, *batches: LeaseBatch, incarnation: int = 0) -> None:
        self.session.arrived(codec.encode_delivery(queue, Delivered(subscription, list(batches), incarnation)), self.now)

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def enqueue(self, queue: str, payload: bytes = b"x", **options: Any) -> Any:
        return self.session.enqueue(queue, row(payload, **options))

    def send_all(self, bulk: Bulk) -> None:
        """Send the chunks of a batch to the queue ``q``."""
        line = self.session.sender("q")
        for chunk in bulk.chunks():
            self.session.send(line, chunk, self.now)

    def receive(self, queue: str, *batches: LeaseBatch) -> list[Delivery]:
        """Receive these batches."""
        receiving = self.session.receive({queue: 100}, 0, self.now)
        (sent,) = self.sent()
        self.reply(sent, Delivered(0, list(batches)))
        return receiving.outcome()


def record(payload: bytes = b"x", sequence: int = 1, *, attempts: int = 0, priority: int = 0, **extension: Any) -> bytes:
    envelope = seal_envelope(payload, {"h": payload.decode(errors="replace")})
    place = high_half(BORN_MS, 3), low_half(sequence)
    return pack_record(Record(attempts, priority, *place, Extension(**extension), envelope))


def batch(
    lease: int, count: int = 1, *, duration_ms: int = 30_000, payload: bytes = b"x", at_most_once: bool = False
) -> LeaseBatch:
    leased_ms = BORN_MS + 1000
    records = [record(payload, lease * 1000 + index) for index in range(count)]
    return LeaseBatch(lease, leased_ms, leased_ms + duration_ms, "default", 1, records, [], at_most_once)


def give_up(*deliveries: Delivery) -> None:
    """Let deliveries of a bare session go without a warning."""
    for delivery in deliveries:
        delivery._settled = True


# --- a real socket ----------------------------------------------------------------------------------------------------

Answer = Reply | FilaError | None


def usual_answer(sent: Sent) -> Answer:
    """What a broker without anything in it would say."""
    if isinstance(sent.command, Hello):
        return WELCOME
    if isinstance(sent.command, Enqueue):
        return Enqueued(high_half(BORN_MS, 3), low_half(1), len(sent.command.envelopes))
    if isinstance(sent.command, Settle):
        return Settled()
    return Done()


class Broker:
    """A ROUTER socket in a thread that answers as ``answer`` says; None: not at all."""

    def __init__(self, answer: Callable[[Sent], Answer], port: int | None) -> None:
        self.answer = answer
        self.seen: list[Sent] = []
        self.clients: set[bytes] = set()
        self._context = zmq.Context()
        self._orders = self._context.socket(zmq.PAIR)
        self._orders.bind("inproc://orders")
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.set(zmq.LINGER, 0)
        self._socket.set(zmq.ROUTER_HANDOVER, 1)
        self._socket.bind(f"tcp://127.0.0.1:{port or '*'}")
        self.endpoint = self._socket.get(zmq.LAST_ENDPOINT).decode().rstrip("\0")
        self._thread = threading.Thread(target=self._run, name="broker")
        self._thread.start()

    def _run(self) -> None:
        orders = self._context.socket(zmq.PAIR)
        orders.connect("inproc://orders")
        while True:
            ready = dict(zmq.zmq_poll([(orders, zmq.POLLIN), (self._socket, zmq.POLLIN)], -1))
            if orders in ready:
                order = orders.recv_multipart()
                if not order[0]:
                    break
                self._socket.send_multipart(order)
            if self._socket in ready:
                self._serve(*self._socket.recv_multipart())
        orders.close(0)
        self._socket.close(0)

    def _serve(self, client: bytes, *parts: bytes) -> None:
        sent = read(list(parts))
        self.seen.append(sent)
        self.clients.add(client)
        answer = self.answer(sent)
        if answer is None:
            return
        header = sent.header
        if isinstance(answer, FilaError):
            frame = codec.encode_error(header.opcode, header.request, answer, sent.key)
        else:
            assert isinstance(answer, Reply)
            frame = codec.encode_reply(header.opcode, header.request, answer, sent.key)
        self._socket.send_multipart([client, *frame])

    def send(self, *parts: bytes) -> None:
        """Send parts to the only client."""
        (client,) = self.clients
        self._orders.send_multipart([client, *parts])

    def push(self, queue: str, subscription: int, *batches: LeaseBatch) -> None:
        self.send(*codec.encode_delivery(queue, Delivered(subscription, list(batches))))

    def seen_of(self, kind: type[Command]) -> list[Sent]:
        return [sent for sent in self.seen if isinstance(sent.command, kind)]

    def close(self) -> None:
        if self._thread.is_alive():
            self._orders.send(b"")
            self._thread.join()
        self._orders.close(0)
        self._context.term()


@contextmanager
def broker(answer: Callable[[Sent], Answer] = usual_answer, port: int | None = None) -> Iterator[Broker]:
    """A broker on ``port``, or on a free one."""
    peer = Broker(answer, port)
    try:
        yield peer
    finally:
        peer.close()


def answering(**answers: Any) -> Callable[[Sent], Answer]:
    """The usual answers, but for the commands named: a value, or a function of the frame."""

    def answer(sent: Sent) -> Answer:
        special = answers.get(type(sent.command).__name__, usual_answer)
        return special(sent) if callable(special) else special

    return answer


def free_port() -> int:
    """A port where no process listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
