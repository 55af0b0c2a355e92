"""The router's decisions about each frame, from either side.

A frame of a queue is forwarded unopened: its fixed header and its routing key are enough. A frame that can't be forwarded
is answered at once. The router also answers the open requests of a lost worker, so that no client waits in vain.

The caller forwards frames as the router decides, lets the router :meth:`~Router.serve` the accounts that wait for tokens, and
sends the frames in the outgoing. Those for workers have to go out before the next frame of a client is forwarded: the worker
may need them first.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from fila_admission.in_flight import asks_page, relieves
from fila_admission.refusals import RETRY_S, overloaded, too_busy, unavailable
from fila_admission.requests import OF_A_QUEUE, OF_WORKERS
from fila_proto_zmq.clients import SESSION_BYTES, client_name
from fila_proto_zmq.codec import decode_command, encode_error, encode_reply
from fila_proto_zmq.commands import (
    BY_OPCODE,
    ClusterStatus,
    Command,
    Done,
    GetConfig,
    GetMetrics,
    GetPlacement,
    Hello,
    Leave,
    ListConfig,
    ListQueues,
    Park,
    Pulse,
    PutConfig,
    Register,
    Reply,
    RouterMetrics,
    SetConfig,
    Tokens,
    Welcome,
)
from fila_proto_zmq.errors import FilaError, InvalidFrameError, ShardUnavailableError
from fila_proto_zmq.events import ClientConnected
from fila_proto_zmq.frames import HEADER_BYTES, REPLY, VERSIONS, Header, check_version, pack_header, unpack_header
from fila_router.core.answers import (
    Outgoing,
    no_common_version,
    not_greeted,
    other_version,
    request_of,
)
from fila_router.core.counters import Counters
from fila_router.core.fan_in import FanIns, Measurements, QueueLists
from fila_router.core.limits import DEFAULTS, RouterLimits
from fila_router.core.membership import Membership
from fila_router.core.placements import Placements
from fila_router.core.routing import RELAYED, RoutingTable, addressee
from fila_router.core.sessions import RefusalLog, Sessions
from fila_router.core.token_bank import TokenBank
from fila_router.core.unread import Connection, Session, Unread
from fila_router.core.worker_state import Worker

Body: TypeAlias = Any
"""Bytes, or a body as a socket gave it out, uncopied: only its length matters unless it is for the router itself."""

SWEEP_MS: Final = 10_000
"""How often to search for overdue requests and idle sessions."""

_ONE_WAY: Final = RELAYED | {Tokens.opcode, Park.opcode}
_PREFIX: Final = pack_header(0)[:3]
_SILENCE_TIMEOUTS: Final = 10
"""A session lives for at least this many consumer timeouts: by then it holds nothing at any worker."""


class Router:
    """The whole state of a router. Of a client it keeps only the session and the open requests."""

    def __init__(
        self,
        shards_total: int,
        consumer_timeout_ms: int,
        max_payload_bytes: int,
        version: str,
        *,
        entropy: Callable[[int], bytes],
        limits: RouterLimits = DEFAULTS,
    ) -> None:
        """``entropy(n)``: n bytes that can't be guessed, the secrets of sessions."""
        self.unread = Unread(limits)
        silence_ms_max = max(limits.session_silence_ms, _SILENCE_TIMEOUTS * consumer_timeout_ms)
        self._sessions = Sessions(limits, silence_ms_max, entropy, self.unread)
        self._counters = Counters()
        self._refusals = RefusalLog(self._counters)
        self.outgoing = Outgoing(self._counters)
        self._consumer_timeout_ms = consumer_timeout_ms
        self._max_payload_bytes = max_payload_bytes
        self._version = version
        self._table = RoutingTable(shards_total, limits)
        self._fan_ins = FanIns(limits.questions_max)
        self._bank = TokenBank()
        self._members = Membership(self._table, self._bank, self._fan_ins, self.outgoing, limits)
        self._placements = Placements(self._table, self._sessions)
        self._swept_ms = 0

    # --- clients ------------------------------------------------------------------------------------------------------

    def from_client(
        self, connection: bytes, header: bytes, key: bytes, body: Body, now_ms: int
    ) -> tuple[bytes, bytes] | None:
        """Return the worker to forward this frame to, and the client to name there; None if the router answered it."""
        self._counters.from_clients += 1
        session = self._sessions.on(connection, now_ms)
        client = session.client
        try:
            if header[:6] in OF_A_QUEUE and len(header) == HEADER_BYTES:
                if header[6:10] not in session.tags:
                    raise not_greeted()
                if session.connection.in_debt:
                    self._check_reads(session, header[3])
                shard = self._table.shard_of(key)
                worker = self._table.owners[shard]
                if worker is None or not worker.routable or not self._members.started:
                    raise self._table.unavailable(shard)
                return self._forward(worker, session, header, key, shard, len(body), now_ms)
            return self._serve_client(session, header, key, bytes(body), now_ms)
        except FilaError as error:
            self.outgoing.refuse(client, header, key, error)
        return None

    def _forward(
        self, worker: Worker, session: Session, header: bytes, key: bytes, shard: int, size_bytes: int, now_ms: int
    ) -> tuple[bytes, bytes] | None:
        """Note a request that goes to ``worker``; None if it is open there already."""
        client, in_flight = session.client, worker.in_flight
        if asks_page(header[3]):
            self._check_pages(worker, session, header[3], now_ms)
        if not in_flight.has_room(client, header[3]):
            raise overloaded(worker.name, in_flight, client, header[3])
        if not in_flight.open(client, header, key, shard, size_bytes, session.connection.name, now_ms):
            return None
        self._counters.to_workers += 1
        return worker.identity, client

    def malformed(self, connection: bytes, header: bytes, now_ms: int) -> None:
        """Answer a frame that has less or more than three parts."""
        error = InvalidFrameError("a frame has exactly 3 parts: header, routing key, body")
        self.outgoing.refuse(self._sessions.on(connection, now_ms).client, header, b"", error)

    def unsent(self, identity: bytes, client: bytes, header: bytes, key: bytes, now_ms: int) -> None:
        """Undo the decision of :meth:`from_client`: the worker's connection is gone."""
        shard = self._table.workers[identity].in_flight.withdraw(client, header)
        self.outgoing.refuse(client, header, key, unavailable(shard))
        self.unreachable(identity, now_ms)

    def connection_of(self, client: bytes, body_bytes: int, now_ms: int) -> Connection | None:
        """Return where to send an answer of this size; None: its client is gone, or does not read."""
        session = self._sessions.by_client.get(client)
        if session is None or not self.unread.take(session.connection, body_bytes, now_ms):
            return None
        return session.connection

    def ended(self, connection: Connection) -> None:
        """Note that a client's connection has ended."""
        self._sessions.ended(connection)

    def _check_reads(self, session: Session, opcode: int) -> None:
        """Raise for a request of a client that has to read first."""
        if not relieves(opcode) and not self.unread.may_ask(session.connection):
            raise too_busy(f"{session.connection.unread} bytes of answers and deliveries wait for this client to read them")

    def _check_pages(self, worker: Worker, session: Session, opcode: int, now_ms: int) -> None:
        """Raise for a page of a client that has to read first, or to wait for its open pages."""
        workers, client, connection = self._table.workers.values(), session.client, session.connection
        own = sum(each.in_flight.pages_of(client) for each in workers)
        if not self.unread.may_ask_page(connection, own, sum(each.in_flight.pages for each in workers), now_ms):
            why = f"{own} pages are open for this client and {connection.unread} bytes wait for it to read them"
            raise too_busy(why, worker.in_flight.retry_ms(client, opcode) / 1000 if own else RETRY_S)

    def _serve_client(
        self, session: Session, header: bytes, key: bytes, body: bytes, now_ms: int
    ) -> tuple[bytes, bytes] | None:
        command, client = _own_command(unpack_header(header), body), session.client
        if header[6:10] not in session.tags and not isinstance(command, Hello):
            raise not_greeted()
        if session.connection.in_debt:
            self._check_reads(session, command.opcode)
        if isinstance(command, Hello):
            self._greet(session.connection.name, header, key, command, now_ms)
        elif isinstance(command, ListQueues):
            self._ask_for_queues(client, header, key, body, now_ms)
        elif isinstance(command, GetMetrics):
            self._ask_for_metrics(client, header, key, body, now_ms)
        elif isinstance(command, SetConfig):
            self._check_started()
            self._members.config_replication.propose(client, header, key, command, now_ms)
        elif isinstance(command, (GetConfig, ListConfig)):
            shard, worker = self._config_source()
            return self._forward(worker, session, header, key, shard, len(body), now_ms)
        elif isinstance(command, GetPlacement):
            self.outgoing.answer(client, header, key, self._placements.current())
        else:
            self.outgoing.answer(client, header, key, self._status())
        return None

    def _greet(self, connection: bytes, header: bytes, key: bytes, hello: Hello, now_ms: int) -> None:
        """Welcome a client to the session whose secret it brings, or to a new one."""
        common = [version for version in VERSIONS if version in hello.versions]
        if not common:
            raise no_common_version(hello.versions)
        secret = hello.session if len(hello.session) == SESSION_BYTES else self._sessions.new_secret()
        session = self._sessions.resume(connection, secret, now_ms)
        session.direct, client = hello.direct, session.client
        shards = len(self._table.owners)
        doors = self._placements.current().doors if hello.direct else None
        welcome = Welcome(common[0], self._version, shards, self._consumer_timeout_ms, self._max_payload_bytes, secret, doors)
        self.outgoing.answer(client, header, key, welcome)
        self.outgoing.notes.append(ClientConnected(client_name(client)))

    def _status(self) -> ClusterStatus:
        return ClusterStatus(self._version, len(self._table.owners), self._table.status())

    def _metrics(self) -> tuple[ClusterStatus, RouterMetrics]:
        return self._status(), self._counters.metrics(self._table.workers.values())

    def _ask_for_queues(self, client: bytes, header: bytes, key: bytes, body: bytes, now_ms: int) -> None:
        self._check_started()
        asked = {self._table.live_owner(shard).identity for shard in range(len(self._table.owners))}
        self._put_question(header, asked, self._fan_ins.ask(client, header, key, set(asked), QueueLists(), now_ms), body)

    def _ask_for_metrics(self, client: bytes, header: bytes, key: bytes, body: bytes, now_ms: int) -> None:
        """Ask the workers that are up, also when other parts do not work: the answer shows what is wrong."""
        asked = {worker.identity for worker in self._table.workers.values() if worker.routable}
        answers = Measurements(self._metrics)
        if asked:
            self._put_question(header, asked, self._fan_ins.ask(client, header, key, set(asked), answers, now_ms), body)
        else:
            self.outgoing.answer(client, header, key, answers.whole())

    def _put_question(self, header: bytes, asked: set[bytes], request: int, body: bytes) -> None:
        question = pack_header(header[3], request)
        self.outgoing.to_workers.extend([identity, b"", question, b"", body] for identity in sorted(asked))

    def _config_source(self) -> tuple[int, Worker]:
        """Return the worker that knows the runtime config: the owner of shard 0, else any live one."""
        self._check_started()
        for shard, worker in enumerate(self._table.owners):
            if worker is not None and worker.routable:
                return shard, worker
        raise unavailable(0)

    def _check_started(self) -> None:
        if not self._members.started:
            raise unavailable(0)

    # --- workers ------------------------------------------------------------------------------------------------------

    def from_worker(
        self, identity: bytes, client: bytes, header: bytes, key: bytes, body: Body, now_ms: int
    ) -> Connection | None:
        """Return the connection to forward this frame to; None if there is none.

        The frame was for the router, or from an outdated worker, or its client is gone or does not read.
        """
        if header[:3] != _PREFIX or len(header) != HEADER_BYTES:
            if not client:
                self._refuse_other_version(identity, header)
            return None
        self._counters.from_workers += 1
        worker = self._table.workers.get(identity)
        if worker is None:
            if not client:
                self._from_unknown(identity, unpack_header(header), bytes(body), now_ms)
            return None
        if worker.routable:
            worker.seen_ms = now_ms
        else:
            self._members.heard(worker, now_ms, registers=header[3] == Register.opcode)
        if not client:
            self._for_router(worker, header, body, now_ms)
            return None
        if not (worker.in_flight.close(client, header) if header[5] & REPLY else self._owns(worker, key)):
            return None
        session = self._sessions.by_client.get(client)
        if session is None or not self.unread.take(session.connection, len(body), now_ms):
            return None
        if asks_page(header[3]):
            self.unread.page_sent(session.connection, now_ms)
        self._counters.to_clients += 1
        return session.connection

    def unreachable(self, identity: bytes, now_ms: int) -> None:
        """Note that a worker's connection is gone."""
        worker = self._table.workers.get(identity)
        if worker is not None:
            self._members.lose(worker, "its connection is gone", now_ms)

    def _owns(self, worker: Worker, key: bytes) -> bool:
        try:
            return self._table.owners[self._table.shard_of(key)] is worker
        except FilaError:
            return False

    def _for_router(self, worker: Worker, raw_header: bytes, body: Body, now_ms: int) -> None:
        header = unpack_header(raw_header)
        if header.flags & REPLY:
            self._hear_answer(worker, header, bytes(body), now_ms)
        elif header.opcode in _ONE_WAY:
            self._one_way(worker, header, raw_header, body, now_ms)
        else:
            self._answer(worker.identity, header, bytes(body), now_ms)

    def _refuse_other_version(self, identity: bytes, header: bytes) -> None:
        """Refuse a worker that registers in another version of the protocol. Without an answer it would wait for ever."""
        if (
            len(header) == HEADER_BYTES
            and header[:2] == _PREFIX[:2]
            and header[3] == Register.opcode
            and not header[5] & REPLY
        ):
            error = other_version(header[2])
            self.outgoing.to_workers.append([identity, b"", *encode_error(Register.opcode, request_of(header), error)])

    def _from_unknown(self, identity: bytes, header: Header, body: bytes, now_ms: int) -> None:
        """Let an unknown worker register; drop its other frames, which it sends again once it has registered."""
        if not header.flags & REPLY and header.opcode not in _ONE_WAY:
            self._answer(identity, header, body, now_ms)

    def _hear_answer(self, worker: Worker, header: Header, body: bytes, now_ms: int) -> None:
        if header.opcode == SetConfig.opcode:
            self._members.config_replication.judged(worker, header, body, now_ms)
        elif header.opcode == PutConfig.opcode:
            self._members.config_replication.taken(worker, header, body)
        elif header.opcode == Park.opcode:
            self._members.parked(worker, header.request)
        else:
            self.outgoing.to_clients += self._fan_ins.join(worker.identity, header, body)

    def _one_way(self, worker: Worker, header: Header, raw_header: bytes, body: Body, now_ms: int) -> None:
        """Take in a frame that gets no answer, not even if it is malformed."""
        try:
            if header.opcode in RELAYED:
                self._relay(raw_header, body)
                return
            command = decode_command(header, bytes(body))
        except FilaError:
            return
        if isinstance(command, Park):
            self._members.park(worker, command.parks, now_ms, header.request)
        elif isinstance(command, Tokens) and self._table.owner_of(command.shard) is worker:
            self._bank.ask(command, self._table.epochs[command.shard], now_ms)

    def _relay(self, raw_header: bytes, body: Body) -> None:
        owner = self._table.owner_of(addressee(memoryview(body)))
        if owner is not None and owner.routable:
            self.outgoing.to_workers.append([owner.identity, b"", raw_header, b"", body])

    def _answer(self, identity: bytes, header: Header, body: bytes, now_ms: int) -> None:
        try:
            reply = self._obey(identity, decode_command(header, body), now_ms)
            answer = encode_reply(header.opcode, header.request, reply)
        except FilaError as error:
            answer = encode_error(header.opcode, header.request, error)
        self.outgoing.to_workers.append([identity, b"", *answer])

    def _obey(self, identity: bytes, command: Command, now_ms: int) -> Reply:
        if isinstance(command, Register):
            return self._members.register(identity, command, now_ms)
        worker = self._table.workers.get(identity)
        if worker is None:
            raise ShardUnavailableError(f"worker {identity!r} is not known here: register first")
        if isinstance(command, Pulse):
            worker.rss_bytes = command.rss_bytes
            worker.queues = command.queues
            worker.direct_clients, worker.direct_frames = command.direct_clients, command.direct_frames
        elif isinstance(command, Leave):
            self._members.leave(worker, now_ms)
        else:
            raise InvalidFrameError(f"opcode {command.opcode} is not for the router of this worker")
        return Done()

    def measured(self, rss_bytes: int, cpu_ms: int) -> None:
        """Note the resident memory, and the CPU time so far."""
        self._counters.rss_bytes, self._counters.cpu_ms = rss_bytes, cpu_ms

    def dated(self, ahead_ms: int) -> None:
        """Note how far the wall clock, which workers use for dates, is ahead of ``now_ms`` (negative: behind)."""
        self._members.wall_ahead_ms = ahead_ms

    # --- time ---------------------------------------------------------------------------------------------------------

    def next_due(self, now_ms: int) -> int | None:
        """Return the milliseconds until :meth:`serve` or :attr:`unread` has work; None: not before a frame comes."""
        due_ms, unread_due_ms = self._bank.next_due(now_ms), self.unread.due_ms
        if unread_due_ms is None:
            return due_ms
        wait_ms = max(0, unread_due_ms - now_ms)
        return wait_ms if due_ms is None else min(due_ms, wait_ms)

    def serve(self, now_ms: int) -> None:
        """Grant tokens to the accounts that wait for them. Call after each batch of workers' frames, and when it is due."""
        if self._bank.next_due(now_ms) != 0:
            return
        for grants in self._bank.serve(now_ms):
            owner = self._table.owner_of(grants.shard)
            if owner is not None and owner.routable:
                self.outgoing.tell([owner.identity], grants)

    def tick(self, now_ms: int) -> None:
        """Do what is due. Call a few times a second, after the frames that have arrived."""
        self._counters.started_ms = self._counters.started_ms or now_ms
        self._members.tick(now_ms)
        self.unread.look_at_debtors(now_ms)
        self.outgoing.to_clients += self._fan_ins.give_up(now_ms)
        self.outgoing.to_clients += self._placements.tick(now_ms)
        self.outgoing.notes += self._refusals.to_log(now_ms)
        for worker in self._table.workers.values():
            worker.in_flight.measure(now_ms)
        if now_ms - self._swept_ms >= SWEEP_MS:
            self._swept_ms = now_ms
            self._bank.sweep(now_ms)
            self._sessions.sweep(now_ms)
            for worker in self._table.workers.values():
                worker.in_flight.forget_overdue(now_ms)


def _own_command(header: Header, body: bytes) -> Command:
    """Return the command for the router itself; raise for opcodes that it does not know."""
    if header.opcode != Hello.opcode:  # the one frame that may come in any version
        check_version(header)
    if header.flags:
        raise InvalidFrameError(f"flags {header.flags} in a request: clients send none")
    if header.opcode in BY_OPCODE and header.opcode >= OF_WORKERS:
        raise InvalidFrameError(f"opcode {header.opcode} is for workers, not for clients")
    return decode_command(header, body)
