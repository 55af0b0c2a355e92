"""The router's decisions about each frame, from either side.

A frame of a queue is forwarded unopened: its fixed header and its routing key are enough. A frame that can't be forwarded
is answered at once. The router also answers the open requests of a lost worker, so that each request gets an answer.

Requests that are for no queue, and the frames that workers send to the router itself, belong to features
(:mod:`core.feature`).

The caller forwards frames as the router decides, lets the router :meth:`~Router.serve` the accounts that wait for tokens, and
sends the frames in the outgoing. Those for workers have to go out before the next frame of a client is forwarded: the worker
may need them first.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from fila_admission.acts import ACT_OPCODES, ACTS
from fila_admission.in_flight import asks_page, relieves
from fila_admission.permissions import pattern_of
from fila_admission.refusals import RETRY_S, overloaded, too_busy, unavailable
from fila_admission.requests import OF_A_QUEUE, OF_WORKERS
from fila_proto_zmq.codec import decode_command, encode_error, encode_reply
from fila_proto_zmq.commands import BY_OPCODE, Command, Done, EndClient, Hello, Leave, Pulse, Register, Reply, Welcome
from fila_proto_zmq.errors import FilaError, InvalidFrameError, ShardUnavailableError, UnauthenticatedError
from fila_proto_zmq.events import ClientConnected, printable
from fila_proto_zmq.frames import HEADER_BYTES, REPLY, VERSIONS, Header, check_version, pack_header, unpack_header
from fila_proto_zmq.ids import SESSION_BYTES, client_name
from fila_router.core.answers import ReturnAddress, no_common_version, not_greeted, other_version, request_of
from fila_router.core.config_replication import ConfigReplication
from fila_router.core.connections import ConnectedClients
from fila_router.core.fan_in import FanIns
from fila_router.core.feature import ClientRequest, ClusterSettings, Forward, RouterFeature, RouterState
from fila_router.core.keys.access import Access
from fila_router.core.keys.key_commands import ApiKeys
from fila_router.core.limits import DEFAULTS, RouterLimits
from fila_router.core.membership import Membership
from fila_router.core.moves import Moves
from fila_router.core.placements import Placements
from fila_router.core.routing import RELAYED, addressee
from fila_router.core.tokens.parks import ThrottleParks
from fila_router.core.tokens.token_bank import TokenBank
from fila_router.core.tokens.token_grants import TokenGrants
from fila_router.core.unread import ClientConnection, RouterSession
from fila_router.core.worker_state import WorkerState

Body: TypeAlias = Any
"""Bytes, or a body as an object of the socket: only its length matters unless it is for the router itself."""

SWEEP_MS: Final = 10_000
"""How often features are swept."""

SOFTWARE_MAX: Final = 60
"""Characters of the name that a client gives for its software."""

_PREFIX: Final = pack_header(0)[:3]


class Router:
    """The whole state of a router. Of a client it keeps only the session and the open requests."""

    def __init__(
        self,
        settings: ClusterSettings,
        *,
        entropy: Callable[[int], bytes],
        limits: RouterLimits = DEFAULTS,
        access: Access | None = None,
    ) -> None:
        """``entropy(n)``: returns n bytes for secrets, which can't be guessed. ``access``: None without authentication."""
        self.access = access
        self._settings = settings
        state = self._state = RouterState(settings, entropy, limits)
        self.unread, self.outgoing = state.unread, state.outgoing
        self._sessions, self._counters, self._table = state.sessions, state.counters, state.table
        # With several routers each leader of a shard has all confirmed config in its log: only API keys are worth the wait.
        state.started = settings.several and access is None
        self._bank = TokenBank()
        self._members = Membership(state)
        self._tokens = TokenGrants(state, self._bank)
        self._placements = Placements(state)
        self._keys = ApiKeys(state, access)
        fan_ins = FanIns(state)
        features: tuple[RouterFeature, ...] = (
            self._members,
            self._tokens,
            ConfigReplication(state, self._bank),
            ThrottleParks(state, self._bank),
            Moves(state, self._bank),
            fan_ins,
            self._placements,
            ConnectedClients(state, fan_ins),
            self._keys,
        )
        state.features = features
        self._timed = [feature for feature in features if type(feature).tick is not RouterFeature.tick]
        self._commands = {command.opcode: take for feature in features for command, take in feature.commands.items()}
        self._messages = {command.opcode: take for feature in features for command, take in feature.messages.items()}
        self._answers = {command.opcode: take for feature in features for command, take in feature.answers.items()}
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
                    self._keys.check_access(session, header[3], key, body, now_ms)
                if session.connection.in_debt:
                    self._check_reads(session, header[3])
                shard = self._table.shard_of(key)
                worker = self._table.owners[shard]
                if worker is None or not worker.routable or not self._state.started:
                    raise self._table.unavailable(shard)
                return self._forward(worker, session, header, key, body, shard, now_ms)
            return self._serve_client(session, header, key, bytes(body), now_ms, address)
        except FilaError as error:
            self.outgoing.refuse(ReturnAddress(client, header, key), error)
        return None

    def _forward(
        self, worker: WorkerState, session: RouterSession, header: bytes, key: bytes, body: Body, shard: int, now_ms: int
    ) -> tuple[bytes, bytes] | None:
        """Note a request that goes to ``worker``; None if it is open there already."""
        client, in_flight = session.client, worker.in_flight
        if asks_page(header[3]):
            self._check_pages(worker, session, header[3], now_ms)
        if not in_flight.has_room(client, header[3]):
            raise overloaded(worker.name, in_flight, client, header[3])
        if not in_flight.open(client, header, key, shard, body, session.connection.name, now_ms):
            return None
        if header[3] in ACT_OPCODES:
            self.outgoing.audit.read(client, header, body)
        self._counters.to_workers += 1
        return worker.identity, client

    def _begin_act(self, session: RouterSession, header: bytes, key: bytes, address: str, now_ms: int) -> None:
        caller = (
            session.key.name if session.key else "",
            session.name or client_name(session.client),
            session.address or address,
        )
        self.outgoing.audit.begin(session.client, header, key, caller, self._state.wall_ms(now_ms))

    def malformed(self, connection: bytes, header: bytes, now_ms: int) -> None:
        """Answer a frame that has less or more than three parts."""
        error = InvalidFrameError("a frame has exactly 3 parts: header, routing key, body")
        self.outgoing.refuse(ReturnAddress(self._sessions.on(connection, now_ms).client, header, b""), error)

    def unsent(self, identity: bytes, client: bytes, header: bytes, key: bytes, now_ms: int) -> None:
        """Undo the decision of :meth:`from_client`: the worker's connection is gone."""
        shard = self._table.workers[identity].in_flight.withdraw(client, header)
        self.outgoing.refuse(ReturnAddress(client, header, key), unavailable(shard))
        self.unreachable(identity, now_ms)

    def connection_of(self, client: bytes, body_bytes: int, now_ms: int) -> ClientConnection | None:
        """Return where to send an answer of this size; None: its client is gone, or does not read."""
        session = self._sessions.by_client.get(client)
        if session is None or not self.unread.take(session.connection, body_bytes, now_ms):
            return None
        return session.connection

    def ended(self, connection: ClientConnection) -> None:
        """Note that a client's connection has ended: what is pushed through this router would be leased to nobody."""
        session = connection.session
        self._sessions.ended(connection)
        if session is not None:
            self.outgoing.send(list(self._table.workers), EndClient(session.client, unreached=True))

    def _check_reads(self, session: RouterSession, opcode: int) -> None:
        """Raise for a request of a client that has to read first."""
        if not relieves(opcode) and not self.unread.may_ask(session.connection):
            raise too_busy(f"{session.connection.unread} bytes of answers and deliveries wait for this client to read them")

    def _check_pages(self, worker: WorkerState, session: RouterSession, opcode: int, now_ms: int) -> None:
        """Raise for a page of a client that has to read first, or to wait for its open pages."""
        workers, client, connection = self._table.workers.values(), session.client, session.connection
        own = sum(each.in_flight.pages_of(client) for each in workers)
        if not self.unread.may_ask_page(connection, own, sum(each.in_flight.pages for each in workers), now_ms):
            why = f"{own} pages are open for this client and {connection.unread} bytes wait for it to read them"
            raise too_busy(why, worker.in_flight.retry_ms(client, opcode) / 1000 if own else RETRY_S)

    # --- requests for the router itself -------------------------------------------------------------------------------

    def _serve_client(
        self, session: RouterSession, header: bytes, key: bytes, body: bytes, now_ms: int, address: str
    ) -> tuple[bytes, bytes] | None:
        """Carry out a request for no queue. Return where to forward it; None if it is answered here, now or later."""
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
            self._keys.check_access(session, command.opcode, pattern_of(command).encode(), body, now_ms)
        request = ClientRequest(session, header, key, body, now_ms)
        outcome = self._commands[command.opcode](request, command)
        if isinstance(outcome, Forward):
            return self._forward(outcome.worker, session, header, key, body, outcome.shard, now_ms)
        if outcome is not None:
            self.outgoing.answer(request.address, outcome)
        return None

    def _greet(
        self, connection: ClientConnection, header: bytes, key: bytes, hello: Hello, now_ms: int, address: str
    ) -> None:
        """Welcome a client to the session whose secret it brings, or to a new one."""
        common = [version for version in VERSIONS if version in hello.versions]
        if not common:
            raise no_common_version(hello.versions)
        api_key = None
        if self.access is not None:
            try:
                api_key = self.access.greet(hello.api_key, self._state.wall_ms(now_ms))
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
        cluster = self._settings
        welcome = Welcome(
            common[0],
            cluster.version,
            cluster.shards_total,
            cluster.consumer_timeout_ms,
            cluster.max_payload_bytes,
            secret,
            self._placements.current().doors if hello.direct else None,
        )
        self.outgoing.answer(ReturnAddress(client, header, key), welcome)
        self.outgoing.notes.append(ClientConnected(session.name))

    # --- workers ------------------------------------------------------------------------------------------------------

    def from_worker(
        self, identity: bytes, client: bytes, header: bytes, key: bytes, body: Body, now_ms: int
    ) -> ClientConnection | None:
        """Return the connection to forward this frame to. None: there is no connection for it.

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
            self._members.frame_arrived(worker, now_ms, registers=header[3] == Register.opcode)
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

    def _owns(self, worker: WorkerState, key: bytes) -> bool:
        try:
            return self._table.holds(worker, self._table.shard_of(key))
        except FilaError:
            return False

    def _for_router(self, worker: WorkerState, raw_header: bytes, body: Body, now_ms: int) -> None:
        header = unpack_header(raw_header)
        opcode = header.opcode
        if header.flags & REPLY:
            if opcode in self._answers:
                self._answers[opcode](worker, header, bytes(body), now_ms)
        elif opcode in RELAYED:
            self._relay(raw_header, body)
        elif opcode in self._messages:
            try:
                message = decode_command(header, bytes(body))
            except FilaError:
                return  # it has no answer, even if it is malformed
            self._messages[opcode](worker, message, header.request, now_ms)
        else:
            self._answer(worker.identity, header, bytes(body), now_ms)

    def _relay(self, raw_header: bytes, body: Body) -> None:
        """Pass a message of a shard on to the worker of another shard."""
        try:
            owner = self._table.owner_of(addressee(memoryview(body)))
        except FilaError:
            return
        if owner is not None and owner.routable:
            self.outgoing.to_workers.append([owner.identity, b"", raw_header, b"", body])

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
        """Register an unknown worker; drop its other frames, which it sends again once it has registered."""
        if not header.flags & REPLY and header.opcode not in RELAYED and header.opcode not in self._messages:
            self._answer(identity, header, body, now_ms)

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
            return self._members.pulsed(worker, command, now_ms)
        if isinstance(command, Leave):
            self._members.leave(worker, now_ms)
            return Done()
        raise InvalidFrameError(f"opcode {command.opcode} is not for the router of this worker")

    # --- time ---------------------------------------------------------------------------------------------------------

    def measured(self, rss_bytes: int, cpu_ms: int) -> None:
        """Note the resident memory, and the CPU time so far."""
        self._counters.rss_bytes, self._counters.cpu_ms = rss_bytes, cpu_ms

    def dated(self, ahead_ms: int) -> None:
        """Note how far the wall clock, which workers use for dates, is ahead of ``now_ms`` (negative: behind)."""
        self._state.wall_ahead_ms = ahead_ms

    def next_due(self, now_ms: int) -> int | None:
        """Return the milliseconds until :meth:`serve` or :attr:`unread` has work; None: not before a frame comes."""
        due_ms = self._tokens.next_due(now_ms)
        unread_due_ms = self.unread.due_ms
        if unread_due_ms is None:
            return due_ms
        wait_ms = max(0, unread_due_ms - now_ms)
        return wait_ms if due_ms is None else min(due_ms, wait_ms)

    def serve(self, now_ms: int) -> None:
        """Grant tokens to the accounts that wait for them. Call after each batch of workers' frames, and when it is due."""
        self._tokens.serve(now_ms)

    def tick(self, now_ms: int) -> None:
        """Do the work that is due. Call a few times a second, after the frames that have arrived."""
        self._counters.started_ms = self._counters.started_ms or now_ms
        for feature in self._timed:
            if now_ms >= feature.due_ms:
                feature.due_ms = feature.tick(now_ms)
        if now_ms - self._swept_ms >= SWEEP_MS:
            self._swept_ms = now_ms
            for feature in self._state.features:
                feature.sweep(now_ms)


def _own_command(header: Header, body: bytes) -> Command:
    """Return the command for the router itself; raise for an opcode that is not a client's."""
    if header.opcode != Hello.opcode:  # the one frame that may come in any version
        check_version(header)
    if header.flags:
        raise InvalidFrameError(f"flags {header.flags} in a request: clients send none")
    if header.opcode in BY_OPCODE and header.opcode >= OF_WORKERS:
        raise InvalidFrameError(f"opcode {header.opcode} is for workers, not for clients")
    return decode_command(header, body)
