"""The routers' side of a worker's wires, over real sockets inside this process."""

import itertools

import zmq

from fila_proto_zmq.codec import decode_command, encode_reply
from fila_proto_zmq.commands import Command, Pulse, Register, Registered
from fila_proto_zmq.frames import unpack_header
from fila_worker.core.recovery import recover
from fila_worker.core.settings import ShardSettings
from fila_worker.log.kafka.settings import KafkaSettings
from fila_worker.lua import compile_hooks
from fila_worker.process.shard_process import ShardProcess
from fila_worker.process.slots import Frame, Slot
from fila_worker.settings import Replication, WorkerSettings
from fila_worker.storage.memory import MemoryStore
from fila_worker.transport.direct_clients import DirectClients
from fila_worker.transport.link import Intake, RouterSocket
from fila_worker.transport.router_links import RouterLinks

_addresses = itertools.count()
IDENTITY = b"worker-7"


class Wire:
    """What one router sees of a worker, and how it answers."""

    def __init__(self, endpoint: str = "", *, away: bool = False) -> None:
        """``away``: it is not there until ``open()``."""
        self.endpoint = endpoint or f"inproc://router-{next(_addresses)}"
        self.socket: zmq.Socket[bytes]
        self.link: RouterSocket
        if not away:
            self.open()

    def open(self) -> None:
        """Be there."""
        self.socket = zmq.Context.instance().socket(zmq.ROUTER)
        self.socket.bind(self.endpoint)

    def frames(self) -> list[list[bytes]]:
        """What has come, each as ``[client, header, key, body]``."""
        frames: list[list[bytes]] = []
        while self.socket.poll(50 if not frames else 0):
            identity, *frame = self.socket.recv_multipart()
            assert identity == IDENTITY
            frames.append(frame)
        return frames

    def said(self) -> list[Command]:
        """The commands that have come from the worker itself."""
        commands = []
        for client, header, key, body in self.frames():
            assert (client, key) == (b"", b"")
            commands.append(decode_command(unpack_header(header), body))
        return commands

    def send(self, client: bytes, *frame: bytes) -> None:
        self.socket.send_multipart([IDENTITY, client, *frame])
        assert self.link.socket.poll(1000)

    def receive(self, now_ms: int) -> list[Frame]:
        """What the link takes in of that."""
        intake = Intake()
        intake.begin_turn()
        return list(self.link.receive(now_ms, intake))

    def admit(self, now_ms: int = 0) -> None:
        """Answer the last registration that has come."""
        (request,) = [
            header.request for _, raw, *_ in self.frames() if (header := unpack_header(raw)).opcode == Register.opcode
        ][-1:]
        self.send(b"", *encode_reply(Register.opcode, request, Registered()))
        assert self.receive(now_ms) == []

    def pulse(self, now_ms: int) -> int:
        """Let the worker pulse; return its request."""
        self.link.pulse(Pulse(1, 1), now_ms)
        return self.link._requests

    def close(self) -> None:
        self.socket.close(0)


class Worker:
    """A worker with shard 2 of four, on some wires."""

    def __init__(self, wires: list[Wire], doors: list[str] | None = None, *, replicated: bool = False) -> None:
        """``replicated``: its shards are on a log that other hosts have, too."""
        kafka = KafkaSettings(bootstrap_servers="k:9092", topic="fila.log", partitions=5)
        settings = WorkerSettings(
            name=IDENTITY.decode(), router=wires[0].endpoint, other_routers=[wire.endpoint for wire in wires[1:]],
            data_dir="unused", shards=[2], shards_total=4,
            replication=Replication(kafka=kafka, host="a") if replicated else None,
        )  # fmt: skip
        shard = recover(MemoryStore(), ShardSettings(), compile_hooks, index=2, shards=4, now_ms=0)
        self.host = ShardProcess([Slot.of(shard)], 4)
        self.shard = self.host.shards[2]
        self.clients = DirectClients(self.host, bytes(16), 15_000, 1 << 24, 4)
        self.links = RouterLinks(settings, self.host, self.clients, doors or [], lambda: 0)
        for wire, link in zip(wires, self.links.all, strict=True):
            wire.link = link


class RouterSide(Wire):
    """The only router, and its worker."""

    def __init__(self, doors: list[str] | None = None) -> None:
        super().__init__()
        worker = Worker([self], doors)
        self.clients, self.links = worker.clients, worker.links

    def close(self) -> None:
        self.links.close()
        super().close()
