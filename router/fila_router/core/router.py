"""The router's decisions: what becomes of a frame, from either side.

A frame of a queue is forwarded unopened: its fixed header and its routing key say everything. What can't be forwarded
is answered here, at once. A request that a worker took with it is answered too, so that no client waits for the dead.

The caller forwards what it is told to and then sends ``to_clients`` and ``to_workers``: complete multipart frames,
address first. ``notices`` are lines for the operator.
"""

from typing import Any, Final, TypeAlias

from fila_proto_zmq.codec import decode_command, encode_error, encode_reply
from fila_proto_zmq.commands import (
    BY_OPCODE,
    ClusterStatus,
    Command,
    Done,
    GetClusterStatus,
    Hello,
    Leave,
    ListQueues,
    Pulse,
    Register,
    Registered,
    Reply,
    Welcome,
)
from fila_proto_zmq.errors import FilaError, InvalidFrameError, ShardUnavailableError
from fila_proto_zmq.frames import HEADER_BYTES, REPLY, VERSIONS, Header, check_version, pack_header, unpack_header
from fila_router.core.answers import (
    error_frame,
    interrupted,
    no_common_version,
    overloaded,
    reply_frame,
    unavailable,
)
from fila_router.core.fan_in import FanIns
from fila_router.core.routing import RoutingTable
from fila_router.core.worker import Worker

Body: TypeAlias = Any
"""Bytes, or what a socket gave out uncopied: only its length matters unless it is for the router itself."""

SWEEP_MS: Final = 10_000
"""How often overdue requests are looked for."""

TICK_GAP_MS_MAX: Final = 1000
"""A longer pause between ticks was the router's own: its machine slept, or it was stopped."""

_OWN: Final = frozenset(command.opcode for command in (Hello, ListQueues, GetClusterStatus))
_OF_WORKERS: Final = frozenset(command.opcode for command in (Register, Pulse, Leave))
_FORWARDED: Final = frozenset(pack_header(opcode)[:6] for opcode in BY_OPCODE.keys() - _OWN - _OF_WORKERS)
"""First six bytes (magic, version, opcode, flags) of all headers that are forwarded: one look-up judges them all."""
_PREFIX: Final = pack_header(0)[:3]

_KNOCK: Final = [b"", *encode_reply(Pulse.opcode, 0, Done())]
"""An answer to a pulse that nobody sent: a worker ignores it, but sending it shows whether there is a connection."""


class Router:
    """Everything a router knows. Nothing is kept of a client but its open requests."""

    def __init__(self, shards_total: int, consumer_timeout_ms: int, max_payload_bytes: int, version: str) -> None:
        self.to_clients: list[list[bytes]] = []
        self.to_workers: list[list[bytes]] = []
        self.notices: list[str] = []
        self._consumer_timeout_ms = consumer_timeout_ms
        self._max_payload_bytes = max_payload_bytes
        self._version = version
        self._table = RoutingTable(shards_total)
        self._fan_ins = FanIns()
        self._ticked_ms: int | None = None
        self._swept_ms = 0

    # --- clients ------------------------------------------------------------------------------------------------------

    def from_client(self, client: bytes, header: bytes, key: bytes, body: Body, now_ms: int) -> bytes | None:
        """The identity of the worker to forward this frame to; None if it was answered here."""
        try:
            if header[:6] in _FORWARDED and len(header) == HEADER_BYTES:
                return self._route(client, header, key, len(body), now_ms)
            self._serve(client, header, key, bytes(body), now_ms)
        except FilaError as error:
            self.to_clients.append(error_frame(client, header, key, error))
        return None

    def malformed(self, client: bytes, header: bytes) -> None:
        """Answer a frame that has less or more than three parts."""
        error = InvalidFrameError("a frame has exactly 3 parts: header, routing key, body")
        self.to_clients.append(error_frame(client, header, b"", error))

    def unsent(self, identity: bytes, client: bytes, header: bytes, key: bytes) -> None:
        """Take back what :meth:`from_client` decided: the worker's connection is gone."""
        self._table.workers[identity].in_flight.close(client, header)
        self.to_clients.append(error_frame(client, header, key, unavailable(self._table.shard_of(key))))
        self.unreachable(identity)

    def _route(self, client: bytes, header: bytes, key: bytes, size_bytes: int, now_ms: int) -> bytes:
        shard = self._table.shard_of(key)
        worker = self._table.owners[shard]
        if worker is None or not worker.routable:
            raise unavailable(shard)
        if not worker.in_flight.has_room(header[3]):
            raise overloaded(worker)
        worker.in_flight.open(client, header, key, shard, size_bytes, now_ms)
        return worker.identity

    def _serve(self, client: bytes, header: bytes, key: bytes, body: bytes, now_ms: int) -> None:
        command = _own_command(unpack_header(header), body)
        if isinstance(command, ListQueues):
            self._ask_all(client, header, key, body, now_ms)
        else:
            self.to_clients.append(reply_frame(client, header, key, self._own_reply(command)))

    def _own_reply(self, command: Command) -> Reply:
        if isinstance(command, Hello):
            return self._welcome(command)
        return ClusterStatus(self._version, len(self._table.owners), self._table.status())

    def _welcome(self, hello: Hello) -> Welcome:
        common = [version for version in VERSIONS if version in hello.versions]
        if not common:
            raise no_common_version(hello.versions)
        shards = len(self._table.owners)
        return Welcome(common[0], self._version, shards, self._consumer_timeout_ms, self._max_payload_bytes)

    def _ask_all(self, client: bytes, header: bytes, key: bytes, body: bytes, now_ms: int) -> None:
        asked = {self._live_owner(shard).identity for shard in range(len(self._table.owners))}
        question = pack_header(header[3], self._fan_ins.ask(client, header, key, asked, now_ms))
        self.to_workers.extend([identity, b"", question, b"", body] for identity in sorted(asked))

    def _live_owner(self, shard: int) -> Worker:
        owner = self._table.owners[shard]
        if owner is None or not owner.routable:
            raise unavailable(shard)
        return owner

    # --- workers ------------------------------------------------------------------------------------------------------

    def from_worker(self, identity: bytes, client: bytes, header: bytes, key: bytes, body: Body, now_ms: int) -> bool:
        """Whether to forward this frame to ``client``; if not, it was for the router, or from a ghost."""
        if header[:3] != _PREFIX or len(header) != HEADER_BYTES:
            return False
        if not client:
            self._heed(identity, unpack_header(header), bytes(body), now_ms)
            return False
        worker = self._table.workers.get(identity)
        if worker is None:
            return False
        worker.seen(now_ms)
        if header[5] & REPLY:
            return worker.in_flight.close(client, header)
        return self._owns(worker, key)

    def unreachable(self, identity: bytes) -> None:
        """Note that a worker's connection is gone."""
        worker = self._table.workers.get(identity)
        if worker is not None:
            self._lose(worker, "its connection is gone")

    def _owns(self, worker: Worker, key: bytes) -> bool:
        try:
            return self._table.owners[self._table.shard_of(key)] is worker
        except FilaError:
            return False

    def _heed(self, identity: bytes, header: Header, body: bytes, now_ms: int) -> None:
        if header.flags & REPLY:
            self.to_clients += self._fan_ins.join(identity, header, body)
            return
        try:
            reply = self._obey(identity, decode_command(header, body), now_ms)
            answer = encode_reply(header.opcode, header.request, reply)
        except FilaError as error:
            answer = encode_error(header.opcode, header.request, error)
        self.to_workers.append([identity, b"", *answer])

    def _obey(self, identity: bytes, command: Command, now_ms: int) -> Reply:
        if isinstance(command, Register):
            return self._register(identity, command, now_ms)
        worker = self._table.workers.get(identity)
        if worker is None:
            raise ShardUnavailableError(f"worker {identity!r} is not known here: register first")
        worker.seen(now_ms)
        if isinstance(command, Pulse):
            worker.rss_bytes = command.rss_bytes
            worker.queues = command.queues
        elif isinstance(command, Leave):
            worker.leave()
        else:
            raise InvalidFrameError(f"opcode {command.opcode} is for clients, not for workers")
        return Done()

    def _register(self, identity: bytes, offer: Register, now_ms: int) -> Registered:
        try:
            superseded = self._table.register(identity, offer, now_ms)
        except FilaError as error:
            self.notices.append(f"refused worker {identity!r}: {error}")
            raise
        for worker, shards in superseded:
            self._abandon(worker, shards)
        return Registered()

    # --- loss ---------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Do what is due. Call a few times a second, after what has arrived was taken in."""
        if self._ticked_ms is None or now_ms - self._ticked_ms > TICK_GAP_MS_MAX:
            self._table.forgive_silence(now_ms)
        self._ticked_ms = now_ms
        for worker in self._table.workers.values():
            if worker.routable or worker.in_flight:
                self._look_after(worker, now_ms)
        self.to_clients += self._fan_ins.give_up(now_ms)
        if now_ms - self._swept_ms >= SWEEP_MS:
            self._sweep(now_ms)

    def _look_after(self, worker: Worker, now_ms: int) -> None:
        if worker.is_silent(now_ms):
            self._lose(worker, f"silent for {(now_ms - worker.seen_ms) / 1000:.1f} s")
        else:
            self.to_workers.append([worker.identity, *_KNOCK])

    def _sweep(self, now_ms: int) -> None:
        self._swept_ms = now_ms
        for worker in self._table.workers.values():
            worker.in_flight.forget_overdue(now_ms)

    def _lose(self, worker: Worker, why: str) -> None:
        shards = self._table.shards_of(worker)
        if worker.routable:
            worker.routable = False
            self.notices.append(f"lost {worker.name} (pid {worker.pid}): {why}; until it is back, shards {shards} are down")
        self._abandon(worker, frozenset(shards))

    def _abandon(self, worker: Worker, shards: frozenset[int]) -> None:
        """Answer for ``worker`` what it can't answer any more of ``shards``."""
        for client, header, key, shard, _, _ in worker.in_flight.take(shards):
            self.to_clients.append(error_frame(client, header, key, interrupted(shard)))
        self.to_clients += self._fan_ins.lose(worker.identity, min(shards))


def _own_command(header: Header, body: bytes) -> Command:
    """What the router itself is asked; raises for everything that nobody here answers."""
    if header.opcode != Hello.opcode:  # the one frame that may come in any version
        check_version(header)
    if header.flags:
        raise InvalidFrameError(f"flags {header.flags} in a request: clients send none")
    if header.opcode in _OF_WORKERS:
        raise InvalidFrameError(f"opcode {header.opcode} is for workers, not for clients")
    return decode_command(header, body)
