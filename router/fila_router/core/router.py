"""The router's decisions about each frame, from either side.

A frame of a queue is forwarded unopened: its fixed header and its routing key are enough. A frame that can't be forwarded
is answered at once. The router also answers the open requests of a lost worker, so that no client waits in vain.

The caller forwards frames as the router decides, lets the router :meth:`~Router.serve` the accounts that wait for tokens, and
sends the frames in the outgoing. Those for workers have to go out before the next frame of a client is forwarded: the worker
may need them first.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias, get_args

from fila_admission.acts import ACT_OPCODES, ACTS
from fila_admission.in_flight import asks_page, relieves
from fila_admission.permissions import is_of_keys, pattern_of
from fila_admission.refusals import RETRY_S, overloaded, too_busy, unavailable
from fila_admission.requests import OF_A_QUEUE, OF_WORKERS
from fila_proto_zmq.clients import SESSION_BYTES, client_name
from fila_proto_zmq.codec import decode_command, encode_body, encode_error, encode_reply
from fila_proto_zmq.commands import (
    BY_OPCODE,
    CLOSED,
    ActList,
    BankLease,
    BeginBackup,
    ChangesConfig,
    CloseConnection,
    ClusterStatus,
    Command,
    CutBackup,
    DescribeClients,
    Done,
    DrainWorker,
    EndClient,
    FetchKeys,
    GetConfig,
    GetHosts,
    GetMetrics,
    GetOwnKey,
    GetPlacement,
    GetTemplate,
    Hello,
    HostList,
    KeepBackup,
    Leave,
    ListActs,
    ListConfig,
    ListConfigHistory,
    ListConnections,
    ListQueues,
    ListSchedules,
    ListTemplates,
    MoveShard,
    OwnKey,
    Park,
    PrepareShard,
    Pulse,
    Pulsed,
    PutConfig,
    QueueList,
    Register,
    ReleaseShard,
    Reply,
    RouterMetrics,
    ScheduleList,
    StoreKeys,
    Tokens,
    Welcome,
    joined,
    joined_schedules,
)
from fila_proto_zmq.errors import (
    FilaError,
    InvalidArgumentError,
    InvalidFrameError,
    ShardUnavailableError,
    UnauthenticatedError,
)
from fila_proto_zmq.events import ClientConnected, printable
from fila_proto_zmq.frames import HEADER_BYTES, REPLY, VERSIONS, Header, check_version, pack_header, unpack_header
from fila_proto_zmq.limits import ACTS_LISTED_MAX
from fila_router.core.answers import (
    Outgoing,
    no_common_version,
    not_greeted,
    other_version,
    request_of,
)
from fila_router.core.config_replication import OWNER
from fila_router.core.connections import ConnectionPage, Endings, session_named
from fila_router.core.counters import Counters
from fila_router.core.fan_in import BackupAnswers, FanIns, HostLists, Joining, Measurements, Pages
from fila_router.core.keys.access import Access
from fila_router.core.keys.key_replication import KeyReplication
from fila_router.core.limits import DEFAULTS, RouterLimits
from fila_router.core.membership import Membership
from fila_router.core.placements import Placements
from fila_router.core.routing import RELAYED, RoutingTable, addressee
from fila_router.core.sessions import RefusalLog, Sessions
from fila_router.core.tokens.holding import Holding
from fila_router.core.tokens.token_bank import TokenBank
from fila_router.core.unread import Connection, Session, Unread
from fila_router.core.worker_state import Worker

Body: TypeAlias = Any
"""Bytes, or a body as a socket gave it out, uncopied: only its length matters unless it is for the router itself."""

SWEEP_MS: Final = 10_000
"""How often to search for overdue requests and idle sessions."""

SOFTWARE_MAX: Final = 60
"""Characters of what a client calls itself."""

_ONE_WAY: Final = RELAYED | {Tokens.opcode, Park.opcode}
_CONFIG_CHANGES: Final = frozenset(command.opcode for command in get_args(ChangesConfig))
_CLOSED_FRAME: Final = (pack_header(CLOSED), b"", b"\x90")
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
        access: Access | None = None,
        several: bool = False,
    ) -> None:
        """``entropy(n)``: n bytes that can't be guessed, the secrets of sessions. ``access``: None without authentication.

        ``several``: whether the cluster has other routers, and a replicated log under each shard.
        """
        self.access = access
        self.unread = Unread(limits)
        silence_ms_max = max(limits.session_silence_ms, _SILENCE_TIMEOUTS * consumer_timeout_ms)
        self._sessions = Sessions(limits, silence_ms_max, entropy, self.unread)
        self._counters = Counters()
        self._refusals = RefusalLog(self._counters)
        self.outgoing = Outgoing(self._counters, limits)
        self._consumer_timeout_ms = consumer_timeout_ms
        self._max_payload_bytes = max_payload_bytes
        self._version = version
        self._table = RoutingTable(shards_total, limits)
        self._fan_ins = FanIns(limits.questions_max)
        self._bank = TokenBank()
        self._holding = Holding(self._bank, several=several)
        # On a replicated log each leader has the config of every confirmed change in its own log: only API keys are worth waiting for shard 0.
        waits = access is not None or not several
        self._members = Membership(
            self._table, self._bank, self._fan_ins, self.outgoing, limits, several=several, waits=waits
        )
        self._placements = Placements(self._table, self._sessions)
        self._shared_keys = (
            KeyReplication(access, self._table, self.outgoing, self._spread_keys) if access and several else None
        )
        """How the routers agree on the API keys; None for an only router."""
        self._swept_ms = 0

    # --- clients ------------------------------------------------------------------------------------------------------

    def from_client(
        self, connection: bytes, header: bytes, key: bytes, body: Body, now_ms: int, address: str = ""
    ) -> tuple[bytes, bytes] | None:
        """Return the worker to forward this frame to, and the client to name there; None if the router answered it.

        ``address``: where a greeting, or a request for an administrative act, comes from.
        """
        self._counters.from_clients += 1
        session = self._sessions.on(connection, now_ms)
        client, start = session.client, header[:6]
        try:
            if start in ACTS and len(header) == HEADER_BYTES:
                self._begin_act(session, header, key, address, now_ms)
            if start in OF_A_QUEUE and len(header) == HEADER_BYTES:
                if header[6:10] not in session.tags:
                    raise not_greeted()
                if self.access is not None:
                    self._check_access(session, header[3], key, body, now_ms)
                if session.connection.in_debt:
                    self._check_reads(session, header[3])
                shard = self._table.shard_of(key)
                worker = self._table.owners[shard]
                if worker is None or not worker.routable or not self._members.started:
                    raise self._table.unavailable(shard)
                return self._forward(worker, session, header, key, body, shard, now_ms)
            return self._serve_client(session, header, key, bytes(body), now_ms, address)
        except FilaError as error:
            self.outgoing.refuse(client, header, key, error)
        return None

    def _forward(
        self, worker: Worker, session: Session, header: bytes, key: bytes, body: Body, shard: int, now_ms: int
    ) -> tuple[bytes, bytes] | None:
        """Note a request that goes to ``worker``; None if it is open there already."""
        client, in_flight = session.client, worker.in_flight
        if asks_page(header[3]):
            self._check_pages(worker, session, header[3], now_ms)
        if not in_flight.has_room(client, header[3]):
            raise overloaded(worker.name, in_flight, client, header[3])
        if not in_flight.open(client, header, key, shard, len(body), session.connection.name, now_ms):
            return None
        if header[3] in ACT_OPCODES:
            self.outgoing.audit.read(client, header, body)
        self._counters.to_workers += 1
        return worker.identity, client

    def _begin_act(self, session: Session, header: bytes, key: bytes, address: str, now_ms: int) -> None:
        caller = (
            session.key.name if session.key else "",
            session.name or client_name(session.client),
            session.address or address,
        )
        self.outgoing.audit.begin(session.client, header, key, caller, self._wall_ms(now_ms))

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
        self, session: Session, header: bytes, key: bytes, body: bytes, now_ms: int, address: str
    ) -> tuple[bytes, bytes] | None:
        command = _own_command(unpack_header(header), body)
        if session.connection.in_debt:
            self._check_reads(session, command.opcode)
        if isinstance(command, Hello):
            self._greet(session.connection, header, key, command, now_ms, address)
            return None
        if command.opcode in ACT_OPCODES:
            self.outgoing.audit.describe(session.client, header, command)
        if header[6:10] not in session.tags:
            raise not_greeted()
        if self.access is not None:
            self._check_access(session, command.opcode, pattern_of(command).encode(), body, now_ms)
        return self._obey_client(session, header, key, body, command, now_ms)

    def _obey_client(
        self, session: Session, header: bytes, key: bytes, body: bytes, command: Command, now_ms: int
    ) -> tuple[bytes, bytes] | None:
        client = session.client
        if isinstance(command, ListQueues):
            command.within = session.key.permissions.patterns if session.key else None
            ask = self._ask_live if command.partial else self._ask_all_shards
            pages = Pages[QueueList](QueueList, joined, strict=not command.partial)
            ask(client, header, key, encode_body(command), pages, now_ms)
        elif isinstance(command, ListSchedules):
            command.within = session.key.permissions.patterns if session.key else None
            self._ask_all_shards(
                client, header, key, encode_body(command), Pages[ScheduleList](ScheduleList, joined_schedules), now_ms
            )
        elif isinstance(command, (BeginBackup, CutBackup, KeepBackup)):
            self._ask_all_shards(client, header, key, body, BackupAnswers(), now_ms)
            # The act ends here with the question, because the workers' answers are joined elsewhere.
            self.outgoing.note(self.outgoing.audit.end(client, header))
        elif isinstance(command, GetMetrics):
            self._ask_live(client, header, key, body, Measurements(self._metrics), now_ms)
        elif isinstance(command, GetHosts):
            self._ask_live(client, header, key, body, HostLists(self._known_hosts), now_ms)
        elif isinstance(command, ChangesConfig):
            self._check_started()
            command.by = session.key.name if session.key else ""
            self._members.config_replication.propose(client, header, key, command, now_ms)
        elif isinstance(command, (GetConfig, ListConfig, ListConfigHistory, GetTemplate, ListTemplates)):
            shard, worker = self._config_source(command)
            return self._forward(worker, session, header, key, body, shard, now_ms)
        elif isinstance(command, ListConnections):
            self._list_connections(client, header, key, command, now_ms)
        elif isinstance(command, CloseConnection):
            self._close_connection(session, header, key, command, now_ms)
        elif is_of_keys(command.opcode) and self._shared_keys is not None and session.key is not None:
            self._shared_keys.change(client, header, key, session.key, command, now_ms, self._wall_ms(now_ms))
        elif isinstance(command, MoveShard):
            self._check_started()
            self._members.moves.ask(client, header, key, command, now_ms)
        else:
            self.outgoing.answer(client, header, key, self._own_reply(session, command, now_ms))
        return None

    def _own_reply(self, session: Session, command: Command, now_ms: int) -> Reply:
        """Carry out a request that needs no worker's answer."""
        if is_of_keys(command.opcode):
            return self._change_keys(session, command, now_ms)
        if isinstance(command, GetOwnKey):
            return OwnKey(session.key.view() if session.key else None)
        if isinstance(command, ListActs):
            return self._latest_acts(command)
        if isinstance(command, DrainWorker):
            self._check_started()
            return self._members.moves.drain(command)
        return self._placements.current() if isinstance(command, GetPlacement) else self._status()

    def _latest_acts(self, command: ListActs) -> ActList:
        if not 1 <= command.limit <= ACTS_LISTED_MAX:
            raise InvalidArgumentError(f"limit of {command.limit} acts: use 1 to {ACTS_LISTED_MAX}")
        return ActList(self.outgoing.audit.latest(command.limit))

    def _list_connections(self, client: bytes, header: bytes, key: bytes, command: ListConnections, now_ms: int) -> None:
        page = ConnectionPage(self._sessions, command, self._members.wall_ahead_ms)
        asked = {worker.identity for worker in self._table.workers.values() if worker.routable} if page.clients else set()
        if not asked:
            self.outgoing.answer(client, header, key, page.whole())
            return
        request = self._fan_ins.ask(client, header, key, set(asked), page, now_ms)
        self._put_question(DescribeClients.opcode, asked, request, encode_body(DescribeClients(page.clients)))
        self.outgoing.to_clients += page.marks()

    def _close_connection(self, asking: Session, header: bytes, key: bytes, command: CloseConnection, now_ms: int) -> None:
        """End a session here and at all workers. The answer waits for the workers that are up, but not for the others."""
        session = session_named(command.client, self._sessions)
        if session is asking:
            raise InvalidArgumentError(f"{command.client!r} is the client that asks: end its program instead")
        asked = {worker.identity for worker in self._table.workers.values() if worker.routable}
        end = EndClient(session.client)
        if asked:
            request = self._fan_ins.ask(asking.client, header, key, set(asked), Endings(), now_ms)
            self._put_question(EndClient.opcode, asked, request, encode_body(end))
            self.outgoing.note(self.outgoing.audit.end(asking.client, header))
        else:
            self.outgoing.answer(asking.client, header, key, Done())
        self.outgoing.tell([identity for identity in self._table.workers if identity not in asked], end)
        self._sessions.forget(session)
        ungreeted = self._sessions.on(session.connection.name, now_ms)  # the connection's session until it greets again
        self.outgoing.to_clients.append([ungreeted.client, *_CLOSED_FRAME])

    def _greet(self, connection: Connection, header: bytes, key: bytes, hello: Hello, now_ms: int, address: str) -> None:
        """Welcome a client to the session whose secret it brings, or to a new one."""
        common = [version for version in VERSIONS if version in hello.versions]
        if not common:
            raise no_common_version(hello.versions)
        api_key = None
        if self.access is not None:
            try:
                api_key = self.access.greet(hello.api_key, self._wall_ms(now_ms))
            except UnauthenticatedError as error:
                if connection.session is not None and connection.session.key is not None:
                    self._sessions.forget(connection.session)
                if self.access.attempts.take(address, now_ms):
                    raise
                self._counters.refuse(error.code, b"")
                return
        secret = hello.session if len(hello.session) == SESSION_BYTES else self._sessions.new_secret()
        session = self._sessions.resume(connection.name, secret, api_key, now_ms)
        session.direct, client = hello.direct, session.client
        session.address, session.software = address, printable(hello.client[:SOFTWARE_MAX])
        shards = len(self._table.owners)
        doors = self._placements.current().doors if hello.direct else None
        welcome = Welcome(common[0], self._version, shards, self._consumer_timeout_ms, self._max_payload_bytes, secret, doors)
        self.outgoing.answer(client, header, key, welcome)
        self.outgoing.notes.append(ClientConnected(session.name))

    # --- access -------------------------------------------------------------------------------------------------------

    def _wall_ms(self, now_ms: int) -> int:
        """Return the time by which keys expire, Unix ms."""
        return now_ms + self._members.wall_ahead_ms

    def _check_access(self, session: Session, opcode: int, queue: bytes, body: Body, now_ms: int) -> None:
        """Raise unless the session's API key allows a request."""
        if session.key is None:
            raise UnauthenticatedError("this cluster needs an API key: say Hello with one first")
        if self._shared_keys is not None and self.access is not None and not self.access.is_internal(session.key):
            self._shared_keys.check_known()
        session.key.check(opcode, str(queue, "utf-8", "replace"), body, self._wall_ms(now_ms))

    def _change_keys(self, session: Session, command: Command, now_ms: int) -> Reply:
        if self.access is None or session.key is None:
            raise InvalidArgumentError(
                "this cluster has no authentication: run `fila-cluster auth init`, and start it with [auth] enabled = true"
            )
        reply = self.access.obey(session.key, command, self._wall_ms(now_ms))
        if self.access.changed:
            self.access.changed = False
            notes, self.access.notes = self.access.notes, []
            self.outgoing.notes += notes
            self._spread_keys(now_ms, session.client)
        return reply

    def _spread_keys(self, now_ms: int, changed_by: bytes = b"") -> None:
        """Have a change of the API keys hold here and at the workers' doors. ``changed_by``: the client that is answered after that."""
        self._sessions.forget_ended(self._wall_ms(now_ms), answered=changed_by)
        self._put_keys([worker.identity for worker in self._table.workers.values() if worker.routable])

    def _put_keys(self, workers: list[bytes]) -> None:
        """Send all API keys to workers, for their own doors, which are closed until then."""
        if self.access is not None and not (self._shared_keys is not None and self._shared_keys.waiting):
            self.outgoing.tell(workers, self.access.copies())

    def _status(self) -> ClusterStatus:
        return ClusterStatus(self._version, len(self._table.owners), self._table.status())

    def _metrics(self) -> tuple[ClusterStatus, RouterMetrics]:
        return self._status(), self._counters.metrics(self._table.workers.values())

    def _ask_all_shards(self, client: bytes, header: bytes, key: bytes, body: bytes, answers: Joining, now_ms: int) -> None:
        """Ask the workers of all shards; raise if one of those is down."""
        self._check_started()
        asked = {self._table.live_owner(shard).identity for shard in range(len(self._table.owners))}
        self._put_question(header[3], asked, self._fan_ins.ask(client, header, key, set(asked), answers, now_ms), body)

    def _known_hosts(self) -> HostList:
        served = [shard for shard, owner in enumerate(self._table.owners) if owner is not None and owner.routable]
        return HostList([], len(self._table.owners), sorted(worker.name for worker in self._table.workers.values()), served)

    def _ask_live(self, client: bytes, header: bytes, key: bytes, body: bytes, answers: Joining, now_ms: int) -> None:
        """Ask the workers that are up, also when other parts do not work: the answer shows what is wrong."""
        asked = {worker.identity for worker in self._table.workers.values() if worker.routable}
        if asked:
            self._put_question(header[3], asked, self._fan_ins.ask(client, header, key, set(asked), answers, now_ms), body)
        else:
            self.outgoing.answer(client, header, key, answers.whole())

    def _put_question(self, opcode: int, asked: set[bytes], request: int, body: bytes) -> None:
        question = pack_header(opcode, request)
        self.outgoing.to_workers.extend([identity, b"", question, b"", body] for identity in sorted(asked))

    def _config_source(self, command: Command) -> tuple[int, Worker]:
        """Return the worker that knows the runtime config: the owner of shard 0, else any live one. Only the owner has its history."""
        self._check_started()
        if isinstance(command, ListConfigHistory):
            return OWNER, self._table.live_owner(OWNER)
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
            self._put_keys([identity])
        if not client:
            self._for_router(worker, header, body, now_ms)
            return None
        if not (worker.in_flight.close(client, header) if header[5] & REPLY else self._owns(worker, key)):
            return None
        if header[3] in ACT_OPCODES:
            self.outgoing.note(self.outgoing.audit.answered(client, header, body))
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
            return self._table.holds(worker, self._table.shard_of(key))
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
        if header.opcode in _CONFIG_CHANGES:
            self._members.config_replication.judged(worker, header, body, now_ms)
        elif header.opcode == PutConfig.opcode:
            self._members.config_replication.taken(worker, header, body)
        elif header.opcode == Park.opcode:
            self._members.parked(worker, header.request)
        elif header.opcode in {StoreKeys.opcode, FetchKeys.opcode}:
            if self._shared_keys is not None:
                self._shared_keys.heard(worker, header, body, now_ms)
        elif header.opcode in {PrepareShard.opcode, ReleaseShard.opcode}:
            self._members.moves.heard(worker, header, body, now_ms)
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
        elif isinstance(command, Tokens) and self._table.owner_of(command.shard) is worker and self._holding.epoch(now_ms):
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
            registered = self._members.register(identity, command, now_ms)
            self._put_keys([identity])
            return registered
        worker = self._table.workers.get(identity)
        if worker is None:
            raise ShardUnavailableError(f"worker {identity!r} is not known here: register first")
        if isinstance(command, Pulse):
            worker.rss_bytes = command.rss_bytes
            worker.queues = command.queues
            worker.direct_clients, worker.direct_frames = command.direct_clients, command.direct_frames
            self.outgoing.audit.heard(command.acts)
            if self.access is not None and not self.access.are_known(command.keys_version):
                self._put_keys([identity])  # a frame with keys was lost with its connection
            if self._shared_keys is not None:
                self._shared_keys.pulsed(worker, command.stored_keys, now_ms)
            return self._pulsed(worker, command.bank, now_ms)
        if isinstance(command, Leave):
            self._members.leave(worker, now_ms)
            return Done()
        raise InvalidFrameError(f"opcode {command.opcode} is not for the router of this worker")

    def _pulsed(self, worker: Worker, lease: BankLease | None, now_ms: int) -> Pulsed:
        """Answer a pulse. The leader of shard 0, and no other worker, may lend the token bank with it."""
        if lease is not None and self._table.owners[OWNER] is worker:
            self._holding.lend(lease, now_ms)
        self._holding.told(now_ms)
        return Pulsed(now_ms, self._holding.epoch(now_ms))

    def measured(self, rss_bytes: int, cpu_ms: int) -> None:
        """Note the resident memory, and the CPU time so far."""
        self._counters.rss_bytes, self._counters.cpu_ms = rss_bytes, cpu_ms

    def dated(self, ahead_ms: int) -> None:
        """Note how far the wall clock, which workers use for dates, is ahead of ``now_ms`` (negative: behind)."""
        self._members.wall_ahead_ms = ahead_ms

    # --- time ---------------------------------------------------------------------------------------------------------

    def next_due(self, now_ms: int) -> int | None:
        """Return the milliseconds until :meth:`serve` or :attr:`unread` has work; None: not before a frame comes."""
        due_ms = self._bank.next_due(now_ms) if self._holding.epoch(now_ms) else None
        unread_due_ms = self.unread.due_ms
        if unread_due_ms is None:
            return due_ms
        wait_ms = max(0, unread_due_ms - now_ms)
        return wait_ms if due_ms is None else min(due_ms, wait_ms)

    def serve(self, now_ms: int) -> None:
        """Grant tokens to the accounts that wait for them. Call after each batch of workers' frames, and when it is due."""
        if not self._holding.epoch(now_ms) or self._bank.next_due(now_ms) != 0:
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
        if self.access is not None:
            self.access.tick(self._wall_ms(now_ms))
            if self._shared_keys is not None:
                self._shared_keys.tick(now_ms)
            self._sessions.forget_ended(self._wall_ms(now_ms))
        for worker in self._table.workers.values():
            worker.in_flight.measure(now_ms)
        if now_ms - self._swept_ms >= SWEEP_MS:
            self._swept_ms = now_ms
            self._bank.sweep(now_ms)
            self.outgoing.notes += self.outgoing.audit.forget_overdue(self._wall_ms(now_ms))
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
