"""The clients at a worker's own door without a socket: say something on a connection, see what comes out on which way."""

from typing import Any, NamedTuple

from fila_proto_zmq.codec import decode_body, encode_body, encode_command, from_fault
from fila_proto_zmq.commands import (
    BY_OPCODE,
    DELIVERY,
    WORKER_BANNER,
    Command,
    CreateQueue,
    Delivered,
    Enqueue,
    Fault,
    Hello,
    QueueOptions,
    Reply,
    WorkerBanner,
)
from fila_proto_zmq.errors import FilaError, StorageError
from fila_proto_zmq.frames import ERROR, epoch_tag, pack_header, unpack_header
from fila_proto_zmq.ids import client_of
from fila_proto_zmq.names import shard_of
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.settings import ShardSettings
from fila_worker.process.shard_process import ShardProcess
from fila_worker.process.slots import Slot
from fila_worker.transport.direct_clients import ClientSocketLimits, DirectClients, DirectConnection
from tests.support.shard.shard_process import HERE, NAMES, SHARDS_TOTAL, recovered

DOOR = bytes(range(16))
QUEUE = NAMES[0]
SECRET, OTHER = bytes(32), bytes([1]) * 32
ENVELOPE = seal_envelope(b"payload", None)


class Got(NamedTuple):
    """A frame for a client."""

    opcode: int
    request: int
    content: Reply | WorkerBanner | FilaError


class SocketPeers:
    """A host of the shards 0, 2 and 3 of four, and the connections of its clients."""

    def __init__(self, limits: ClientSocketLimits | None = None, settings: ShardSettings | None = None) -> None:
        self.now_ms = 1_000_000
        self.host = ShardProcess([Slot.of(recovered(index, settings)) for index in HERE], SHARDS_TOTAL)
        self.clients = DirectClients(self.host, DOOR, 15_000, 1 << 24, SHARDS_TOTAL, limits or ClientSocketLimits())
        self.clients.trust(self.now_ms)
        self.requests = 100

    def connect(self, secret: bytes | None = SECRET) -> DirectConnection:
        """A connection of a client that has greeted, unless there is no ``secret``."""
        connection = self.clients.connected(self.now_ms)
        assert connection is not None
        if secret is not None:
            assert self.got(connection) == [Got(WORKER_BANNER, 0, WorkerBanner(DOOR))]
            self.say(connection, Hello([1], "test", secret))
            assert [got.opcode for got in self.got(connection)] == [Hello.opcode]
        return connection

    def frame(self, command: Command, queue: str = "", request: int | None = None, epoch: int | None = None) -> list[bytes]:
        """The three parts of a request, with the present epoch of its shard."""
        if request is None:
            self.requests += 1
            request = self.requests
        if epoch is None:
            shard = self.host.shards.get(shard_of(queue, SHARDS_TOTAL)) if queue else None
            epoch = 0 if shard is None else epoch_tag(shard.epoch)
        return [pack_header(command.opcode, request, epoch=epoch), queue.encode(), encode_body(command)]

    def say(self, connection: DirectConnection, command: Command, queue: str = "", **header: Any) -> int:
        """Have a request arrive on a connection; return its id."""
        parts = self.frame(command, queue, **header)
        self.clients.arrived(connection, *parts, self.now_ms)
        self.clients.check()
        return unpack_header(parts[0]).request

    def say_by_router(self, secret: bytes, command: Command, queue: str, request: int) -> None:
        """Have a request of a client arrive from the router."""
        frame = [client_of(secret), *encode_command(command, request, queue)]
        if self.clients.busy:
            self.clients.came_by_router(frame)
        self.host.accept(frame, self.now_ms)
        self.clients.check()

    def turn(self) -> list[Got]:
        """Do a turn; return what goes out through the router."""
        self.clients.part_from_lost(self.now_ms)
        routed = [effect for effect in self.host.turn(self.now_ms) if self.clients.send(effect) is None]
        if self.host.failed:
            failed, self.host.failed = self.host.failed, []
            self.clients.interrupt(frozenset(failed))
        self.clients.check()
        return [read(effect.frames()) for effect in routed if effect.client]

    def got(self, connection: DirectConnection) -> list[Got]:
        """What was put out on a connection since this was last asked."""
        frames, connection.outgoing = connection.outgoing, []
        return [read(frame) for frame in frames]

    def ask(
        self, connection: DirectConnection, command: Command, queue: str = QUEUE, **header: Any
    ) -> Reply | FilaError | WorkerBanner:
        """Say something, do a turn, and return the only answer."""
        request = self.say(connection, command, queue, **header)
        self.turn()
        ((_, answered, content),) = self.got(connection)
        assert answered == request
        return content

    def create(self, *queues: str) -> None:
        """Create queues."""
        for queue in queues or (QUEUE,):
            self.host.accept([b"\x01maker", *encode_command(CreateQueue(QueueOptions()), 1, queue)], self.now_ms)
        self.host.turn(self.now_ms)

    def advance(self, milliseconds: int) -> None:
        """Let time pass, with pulses that the router answers."""
        self.now_ms += milliseconds
        self.clients.trust(self.now_ms)
        self.clients.tick(self.now_ms)
        self.clients.check()


def break_shard(peers: SocketPeers, index: int = 0) -> None:
    """Make a shard fail in its next turn."""

    def turn(now_ms: int) -> None:
        raise StorageError("the disk refuses")

    peers.host.shards[index].turn = turn  # type: ignore[method-assign, assignment]


def enqueue(count: int = 1) -> Enqueue:
    """An enqueue of some messages."""
    return Enqueue([ENVELOPE] * count)


def delayed() -> Enqueue:
    """An enqueue that is not usual, so that it counts as open until its turn ends."""
    return Enqueue([ENVELOPE], delay_ms=60_000)


def read(frame: list[bytes]) -> Got:
    header = unpack_header(frame[0])
    if header.opcode == WORKER_BANNER:
        return Got(WORKER_BANNER, 0, decode_body(WorkerBanner, frame[2]))
    if header.opcode == DELIVERY:
        return Got(DELIVERY, 0, decode_body(Delivered, frame[2]))
    if header.flags & ERROR:
        return Got(header.opcode, header.request, from_fault(decode_body(Fault, frame[2])))
    return Got(header.opcode, header.request, decode_body(BY_OPCODE[header.opcode].reply, frame[2]))
