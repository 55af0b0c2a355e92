"""A whole broker in this process: the router's core and a host with two shards in memory, on a virtual clock.

Frames pass between the two as the loops would pass them; nothing is caught, so what leaves a core as an exception ends the run.
"""

from collections.abc import Iterator
from contextlib import suppress
from random import Random

from fila_proto_zmq.codec import decode_body, encode_command, from_fault
from fila_proto_zmq.commands import (
    BY_OPCODE,
    CLOSED,
    DELIVERY,
    MARK,
    PLACEMENT,
    Browsed,
    Command,
    CreateQueue,
    Delivered,
    Enqueue,
    Enqueued,
    Fault,
    Pulse,
    QueueOptions,
    Receive,
    Register,
    Registered,
    Reply,
    Settle,
    Verb,
    ViewBrowsed,
)
from fila_proto_zmq.errors import QueueExistsError
from fila_proto_zmq.frames import ERROR, REPLY, Header, unpack_header
from fila_proto_zmq.record import open_envelope, record_id, seal_envelope, unpack_record
from fila_router.core.feature import ClusterSettings
from fila_router.core.router import Router
from fila_worker.core.recovery import recover
from fila_worker.core.settings import Limits, ShardSettings
from fila_worker.lua import compile_hooks
from fila_worker.process.shard_process import Frame, ShardProcess
from fila_worker.process.slots import Slot
from fila_worker.storage.memory import MemoryStore
from tests.fuzz.values import Known

SHARDS = 2
WORKER = b"worker-0"
HONEST = b"honest client"
HONEST_QUEUE = "honest"
SETTINGS = ShardSettings(
    visibility_timeout_ms=2000,
    consumer_timeout_ms=5000,
    buffer_bytes=2000,
    dedup_window_ms=10_000,
    max_payload_bytes=100_000,
    limits=Limits(
        finished_leases_max=12,
        acked_messages_max=9,
        acked_bytes_max=2000,
        acked_leases_max=4,
        acked_lanes_max=6,
        range_messages_min=2,
        turn_expiries_max=3,
        ledger_counts_max=40,
        ledger_entries_max=20,
        lane_disorder_messages_max=6,
        refill_messages_max=3,
        refill_bytes_max=500,
        idle_lanes_max=4,
        priorities_max=4,
        turn_messages_max=20,
        queue_turn_messages_min=2,
        turn_due_max=4,
        due_note_bytes_max=100,
        due_read_bytes_max=500,
        due_read_messages_max=3,
        dedup_entry_ids_max=2,
        transfer_messages_max=2,
        purge_lanes_max=3,
        purge_messages_max=6,
        redrive_messages_max=3,
        redrive_look_messages_max=5,
        redrive_places_max=20,
        recovery_records_max=3,
        reserved_bytes_max=400,
        browse_cursors_max=3,
        views_max=2,
        view_examined_messages_max=5,
        view_keys_max=3,
        view_ranges_max=3,
    ),
)
"""Every bound so small that stories cross it."""
TURNS_MAX = 200
"""Turns without a new frame: a broker that wants more than these does not come to rest."""


_NOTHING_TO_REPEAT = {CLOSED, MARK, PLACEMENT}
"""Pushes of the router."""


class NeverRestsError(AssertionError):
    """A shard or the router always has something to do."""


class FuzzedBroker:
    """Frames in, answers out."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms
        self.known = Known()
        self.received: list[tuple[bytes, bytes, bytes]] = []
        """What clients were sent since the last look: client, header and body."""
        self._requests = 0
        self._stores = [MemoryStore() for _ in range(SHARDS)]
        cluster = ClusterSettings(SHARDS, SETTINGS.consumer_timeout_ms, SETTINGS.max_payload_bytes, "fuzzed")
        self.router = Router(cluster, entropy=Random(1).randbytes)
        self.host = self._open_host()
        self.register()

    def _open_host(self) -> ShardProcess:
        shards = [
            recover(store, SETTINGS, compile_hooks, index=index, shards=SHARDS, now_ms=self.now_ms)
            for index, store in enumerate(self._stores)
        ]
        return ShardProcess(map(Slot.of, shards), SHARDS, self.now_ms, WORKER.decode())

    def register(self) -> None:
        """Let the worker make itself known."""
        self.host.new_session(self.now_ms)
        shards = [(shard.index, shard.epoch) for shard in self.host.shards.values()]
        config = self.host.config
        offer = Register(WORKER.decode(), 1, "fuzzed", shards, config.version, config.values, config.parks())
        self.from_worker(WORKER, b"", encode_command(offer, 1))
        self.run()

    # --- frames -------------------------------------------------------------------------------------------------------

    def from_client(self, connection: bytes, header: bytes, key: bytes, body: bytes) -> None:
        """What the router's loop does with a frame of three parts."""
        way = self.router.from_client(connection, header, key, body, self.now_ms)
        if way is not None:
            self.host.accept([way[1], header, key, body], self.now_ms)

    def from_worker(self, identity: bytes, client: bytes, frame: list[bytes]) -> None:
        """What the router's loop does with a worker's frame."""
        header, key, body = frame
        connection = self.router.from_worker(identity, client, header, key, body, self.now_ms)
        if connection is not None:
            self._reaches_client(connection.name, header, body)

    def _answer(self, client: bytes, header: bytes, body: bytes) -> None:
        connection = self.router.connection_of(client, len(body), self.now_ms)
        if connection is not None:
            self._reaches_client(connection.name, header, body)

    def _read_all(self) -> None:
        """Clients here read what they are sent: pipes are never full."""
        unread = self.router.unread
        for connection in unread.due(self.now_ms):
            while connection.in_debt:
                unread.marked(connection)
            unread.done(connection)

    def say(self, client: bytes, command: Command, queue: str = "") -> int:
        """Send a client's command; returns its request id."""
        self._requests += 1
        header, _, body = encode_command(command, self._requests)
        self.from_client(client, header, queue.encode(), body)
        return self._requests

    def ask(self, client: bytes, command: Command, queue: str = "") -> Reply:
        """The answer to a command; raises the error that refuses it."""
        request = self.say(client, command, queue)
        self.received.clear()
        self.run()
        for receiver, raw_header, body in self.received:
            header = unpack_header(raw_header)
            if receiver == client and header.request == request and header.flags & REPLY:
                if header.flags & ERROR:
                    raise from_fault(decode_body(Fault, body))
                return decode_body(command.reply, body)
        raise AssertionError(f"{type(command).__name__} was not answered")

    def _reaches_client(self, client: bytes, header: bytes, body: bytes) -> None:
        self.received.append((client, header, body))
        self._learn(unpack_header(header), body)

    def _learn(self, header: Header, body: bytes) -> None:
        """Remember what a client may repeat."""
        if header.flags & ERROR or header.opcode in _NOTHING_TO_REPEAT:
            return
        reply = decode_body(Delivered if header.opcode == DELIVERY else BY_OPCODE[header.opcode].reply, body)
        if isinstance(reply, Enqueued) and reply.count:
            self.known.ids.extend((reply.id_high, reply.id_low + index) for index in range(min(reply.count, 3)))
        elif isinstance(reply, Delivered):
            self.known.leases.extend(batch.lease for batch in reply.batches)
            self.known.records.extend(record for batch in reply.batches for record in batch.records[:1])
            self.known.ids.extend(record_id(record) for batch in reply.batches for record in batch.records[:1])
        elif isinstance(reply, (Browsed, ViewBrowsed)):
            self.known.records.extend(view.record for view in getattr(reply, "messages", [])[:1])

    # --- turns --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Turns and frames between router and worker until both rest."""
        for _ in range(TURNS_MAX):
            self.router.serve(self.now_ms)
            to_workers, to_clients, notes = self.router.outgoing.take()
            for note in notes:
                note.fields()
            for client, header, _, body in to_clients:
                self._answer(client, header, body)
            self._read_all()
            for identity, *frame in to_workers:
                if identity == WORKER:
                    self._at_worker(frame)
            self._turn()
            if (
                not (to_workers or to_clients)
                and self.host.next_due(self.now_ms) != 0
                and self.router.next_due(self.now_ms) != 0
            ):
                return
        raise NeverRestsError(f"{TURNS_MAX} turns without an end")

    def _turn(self) -> None:
        for effect in self.host.turn(self.now_ms):
            self.from_worker(WORKER, effect.client, effect.frames())
        for note in self.host.notes:
            note.fields()
        self.host.notes.clear()

    def _at_worker(self, frame: Frame) -> None:
        """What the worker's link does with what comes: answers are for itself, questions for its host."""
        header = unpack_header(frame[1])
        if frame[0] or not header.flags & REPLY:
            self.host.accept(frame, self.now_ms)
        elif header.opcode == Register.opcode and not header.flags & ERROR:
            self.host.registered(decode_body(Registered, frame[3]), self.now_ms)
        elif header.opcode == Pulse.opcode and header.flags & ERROR:
            self.register()

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass, with the worker's pulse."""
        self.now_ms += milliseconds
        self.from_worker(WORKER, b"", encode_command(Pulse(0, 0), 2))
        self.router.tick(self.now_ms)
        self.run()

    def restart(self) -> None:
        """Recover all shards from what they have committed."""
        self.host = self._open_host()
        self.register()

    # --- what must hold -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """The invariants of all shards."""
        for shard in self.host.shards.values():
            shard.check()

    def serve_an_honest_client(self) -> None:
        """Somebody else's message goes in, comes out and is acked."""
        with suppress(QueueExistsError):
            self.ask(HONEST, CreateQueue(QueueOptions()), HONEST_QUEUE)
        payload = str(self._requests).encode()
        enqueued = self.ask(HONEST, Enqueue([seal_envelope(payload)]), HONEST_QUEUE)
        assert isinstance(enqueued, Enqueued)
        assert enqueued.count == 1
        delivered = self.ask(HONEST, Receive(10), HONEST_QUEUE)
        assert isinstance(delivered, Delivered)
        assert list(payloads(delivered)) == [payload]
        self.ask(HONEST, Settle(Verb.ACK, [(batch.lease, []) for batch in delivered.batches]), HONEST_QUEUE)


def payloads(delivered: Delivered) -> Iterator[bytes]:
    """What was delivered, opened."""
    for batch in delivered.batches:
        for record in batch.records:
            yield open_envelope(unpack_record(record).envelope)[1]
