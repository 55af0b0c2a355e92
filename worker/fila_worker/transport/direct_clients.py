"""The clients at a worker's client socket: their connections, their frames, and the way of each answer.

A client has the session that the router gave it, and proves it with the session's secret, as it does to a router. It may use
both ways in turn: an answer goes the way on which its request came last. The pushes of a shard go the way of the client's
last Subscribe there.

A worker serves the socket only if its router has just confirmed it as live (:meth:`DirectClients.trusted`). A router that
takes a silent worker for lost may, for example, change the runtime config without it. Such a worker must get that change
before it takes frames from clients.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from fila_admission.acts import ACT_OPCODES, DONE, Audit
from fila_admission.in_flight import InFlight, asks_page
from fila_admission.keys import Key, KeyRing
from fila_admission.limits import TRUST_MS, RoomLimits
from fila_admission.refusals import interrupted, overloaded, too_busy
from fila_admission.requests import OF_A_QUEUE
from fila_proto_zmq.codec import decode_command, encode_body, encode_error, encode_reply
from fila_proto_zmq.commands import WORKER_BANNER, ApiKey, Hello, PutKeys, Subscribe, Welcome, WorkerBanner
from fila_proto_zmq.errors import FilaError, InvalidFrameError, UnauthenticatedError, UnsupportedVersionError
from fila_proto_zmq.frames import EPOCH_AT, HEADER_BYTES, REQUEST_AT, VERSIONS, pack_header, unpack_header
from fila_proto_zmq.ids import SESSION_BYTES, client_name, client_of
from fila_proto_zmq.version import VERSION
from fila_worker.core.effects import ANY_LINK, USUAL, Answer, DirectReply, Push

if TYPE_CHECKING:
    from fila_worker.core.effects import Effect
    from fila_worker.process.shard_process import ShardProcess
    from fila_worker.process.slots import Frame, Slot


@dataclass(frozen=True, slots=True)
class ClientSocketLimits(RoomLimits):
    """Bounds of what clients can make a worker keep at its client socket."""

    connections_max: int = 8192
    """Connections at a time; fewer if the process may not have so many descriptors. Beyond, the one that is idle longest is
    closed, if it is idle for ``spared_ms``; else the new one is closed, and its client goes through the router."""
    spared_ms: int = 10_000
    """A connection with a frame within this time is not idle."""
    greeting_ms: int = 5_000
    """A connection that has not greeted for so long is closed."""
    idle_ms: int = 600_000
    """A connection without a frame for so long is closed; a client with leases or subscriptions sends heartbeats."""
    greeting_bytes_max: int = 4096
    """The largest frame before the greeting."""
    read_bytes: int = 256 * 1024
    """Bytes read from one connection at a time: a bounded part of a turn."""
    unfinished_bytes_max: int = 256 * 1024 * 1024
    """Bytes of unfinished frames of all connections together. Beyond, the connection with most of them is closed."""
    unread_paused: int = 4 * 1024 * 1024
    """Unread bytes of one client from which on nothing more is read from it."""
    client_unread_max: int = 128 * 1024 * 1024
    """Unread bytes of one client beyond which its connection is closed: as much as the router keeps for it."""
    unread_max: int = 256 * 1024 * 1024
    """Unread bytes of all clients together. Beyond, the connection with most of them is closed."""

    acts_max: int = 250
    """Administrative acts, and as many refusals, that are kept for the next pulse to the router. The log has all."""


DEFAULTS = ClientSocketLimits()


def limits_here(connections_allowed: int) -> ClientSocketLimits:
    """Return the limits of a process that may have so many connections."""
    return ClientSocketLimits(connections_max=min(DEFAULTS.connections_max, connections_allowed))


SWEEP_MS: Final = 10_000
"""How often to search for overdue requests."""

QUIET_MS: Final = 250
"""How long a retired socket must be silent before it may be closed. A client that has not read for 50 ms reads before it
sends; the rest is for the network."""

DOOR_BYTES: Final = 16
"""The length of a socket's name."""

_HELLO: Final = pack_header(Hello.opcode)[:6]


ROUTES_MAX: Final = 64
"""Routes that are kept for one connection. With more, all are found again."""


class Route(NamedTuple):
    """Where usual requests for a queue go: found once, with a general request, for an opening of the queue's shard.

    It names the opening by its epoch: a reference would keep the memory of a failed shard, and its lock on the store.
    """

    queue: str
    slot: "Slot"
    epoch: int


@dataclass(slots=True, eq=False)
class DirectConnection:
    """A connection of a client. ``client``: its identity once it has greeted.

    ``outgoing``: frames to be sent. ``pushing``: the shards whose last Subscribe of this client came here.
    """

    name: bytes
    heard_ms: int
    address: str = ""
    """The client's address; empty: through a socket file."""
    client: bytes = b""
    key: Key | None = None
    """Its API key, if the cluster has authentication."""
    routes: dict[bytes, Route] = field(default_factory=dict)
    """The routes of usual requests, by the header up to the request, and the routing key."""
    pushing: set[int] = field(default_factory=set)
    outgoing: list[list[bytes]] = field(default_factory=list)
    unread: int = 0
    """Bytes that the kernel has not taken; kept up to date by :class:`ClientSocket`."""
    open: bool = True


class DirectClients:
    """The connections at one client socket. ``door``: the socket's name, in its greeting."""

    def __init__(
        self,
        host: "ShardProcess",
        door: bytes,
        consumer_timeout_ms: int,
        max_payload_bytes: int,
        shards: int,
        limits: ClientSocketLimits = DEFAULTS,
        *,
        auth: bool = False,
    ) -> None:
        self.door = door
        self.limits = limits
        self.connections: dict[bytes, DirectConnection] = {}
        """Open connections by name, those without a frame for longest first."""
        self.frames = 0
        """Frames in both directions."""
        self._host, self._requests = host, host.direct
        self._welcome = Welcome(VERSIONS[0], VERSION, shards, consumer_timeout_ms, max_payload_bytes)
        self._by_client: dict[bytes, DirectConnection] = {}
        self._keys = KeyRing() if auth else None
        self._knows_keys = not auth
        self._keys_of: dict[int, PutKeys] = {}
        """The API keys that each router has sent last, by its link."""
        self._in_flight = InFlight(limits)
        self.audit = Audit(limits.acts_max)
        """Administrative acts that came here."""
        self._made = 0
        self._latest: DirectConnection | None = None
        """Whose frame came last."""
        self._trusted_until_ms = 0
        self._retired_ms: int | None = None
        self._swept_ms = 0
        self._lost: list[bytes] = []
        """Clients whose connection has closed, but not for the shards yet."""
        self.closing: list[DirectConnection] = []
        """The connections that :class:`ClientSocket` has to close."""
        host.last_frame_ms = self._heard

    # --- confirmation by the router --------------------------------------------------------------------------------------

    def trust(self, asked_ms: int) -> None:
        """Note that the router has answered a pulse that was sent at ``asked_ms``."""
        self._trusted_until_ms = max(self._trusted_until_ms, asked_ms + TRUST_MS)

    def trusted(self, now_ms: int) -> bool:
        """Return whether frames may be taken in."""
        return now_ms < self._trusted_until_ms and self._knows_keys

    def put_keys(self, put: PutKeys, link: int = 0) -> None:
        """Take over a router's API keys. A client without a valid key gets only refusals from now on.

        Of several routers, those with the latest version count, and of each the keys of its host's own processes.
        """
        self._keys_of[link] = put
        if self._keys is not None:
            latest = max(each.stored for each in self._keys_of.values())
            shared = [(link, put.keys) for link, put in self._keys_of.items() if put.stored == latest]
            for connection in self.connections.values():
                connection.routes.clear()
            self._keys.replace(_joined([*shared, *((link, put.own) for link, put in self._keys_of.items())]))
            self._knows_keys = True

    def keys_version(self, link: int = 0) -> int:
        """Return the version of the API keys that the router of a link has sent last; 0: none."""
        put = self._keys_of.get(link)
        return 0 if put is None else put.version

    # --- connections --------------------------------------------------------------------------------------------------

    def connected(self, now_ms: int, address: str = "") -> DirectConnection | None:
        """Return a new connection, with the greeting to send on it; None: too many. ``address``: of its client."""
        if len(self.connections) >= self.limits.connections_max and not self._make_room(now_ms):
            return None
        self._made += 1
        connection = DirectConnection(self._made.to_bytes(8, "big"), now_ms, address)
        connection.outgoing.append([pack_header(WORKER_BANNER), b"", encode_body(WorkerBanner(self.door))])
        self.connections[connection.name] = connection
        return connection

    def _make_room(self, now_ms: int) -> bool:
        idlest = next(iter(self.connections.values()), None)
        if idlest is None or now_ms - idlest.heard_ms < self.limits.spared_ms:
            return False
        self.close(idlest)
        return True

    def close(self, connection: DirectConnection) -> None:
        """Close a connection. :class:`ClientSocket` closes the descriptor."""
        self.closed(connection)
        self.closing.append(connection)

    def closed(self, connection: DirectConnection) -> None:
        """Note that a connection is gone. The answers to its open requests are dropped; its client asks again. Its receives end
        with :meth:`part_from_lost`."""
        self._end(connection)
        connection.outgoing.clear()

    def _end(self, connection: DirectConnection) -> None:
        """Take nothing more in from a connection, and send nothing more there than what is in its ``outgoing``."""
        connection.open = False
        self.connections.pop(connection.name, None)
        self._disown(connection)

    def _disown(self, connection: DirectConnection) -> None:
        """Separate a connection from its client, if it has one."""
        if self._by_client.get(connection.client) is connection:
            del self._by_client[connection.client]
            self._lost.append(connection.client)
        connection.pushing.clear()

    def part_from_lost(self, now_ms: int) -> None:
        """End the receives of clients whose connection has closed. Call it in each turn, after the frames were read."""
        while self._lost:
            self.lose(self._lost.pop(), ANY_LINK, now_ms)

    def lose(self, client: bytes, link: int, now_ms: int) -> None:
        """Push nothing more to a client by a link: it has no connection there. See :meth:`Shard.lose_way`."""
        for ended in self._host.each(now_ms, methodcaller("lose_way", client, link, now_ms)):
            for opcode, request in ended:
                self._in_flight.drop(client, pack_header(opcode, request))

    def _heard(self, client: bytes) -> int:
        connection = self._by_client.get(client)
        return 0 if connection is None else connection.heard_ms

    def end(self, client: bytes) -> None:
        """Close the connection of a client whose session has ended, if it has one."""
        connection = self._by_client.get(client)
        if connection is not None:
            self.close(connection)

    def retire(self, now_ms: int) -> None:
        """Ask all clients to send nothing more on their connections, and to close them once they have their answers."""
        self._retired_ms = now_ms
        for connection in self.connections.values():
            connection.outgoing.append([pack_header(WORKER_BANNER), b"", encode_body(WorkerBanner(b""))])

    def quiet(self, now_ms: int) -> bool:
        """Return whether no client uses a retired socket: all answers are sent, and no frame has come for a while.

        A busy client does not read that the socket is retired, but reads before it sends again. Waiting receives are asked
        again on another way.
        """
        retired_ms = self._retired_ms
        return (
            retired_ms is not None
            and self.trusted(now_ms)
            and not self._in_flight.at_work
            and all(
                now_ms - max(each.heard_ms, retired_ms) >= QUIET_MS and not each.unread and not each.outgoing
                for each in self.connections.values()
            )
        )

    def take_to_close(self) -> list[DirectConnection]:
        """Return the connections to close, once."""
        closing, self.closing = self.closing, []
        return closing

    @property
    def clients(self) -> int:
        """How many clients are connected."""
        return len(self._by_client)

    # --- frames in ----------------------------------------------------------------------------------------------------

    def arrived(self, connection: DirectConnection, header: bytes, key: bytes, body: Any, now_ms: int) -> None:
        """Process one frame: the process carries it out, or it is refused. Invalid frames close the connection."""
        self.frames += 1
        connection.heard_ms = now_ms
        if connection is not self._latest:
            self._latest = connection
            self.connections[connection.name] = self.connections.pop(connection.name)  # the idlest stays in front
        client = connection.client
        route = connection.routes.get(header[:REQUEST_AT] + key)
        if route is not None and (connection.key is None or not connection.key.end_in_time(now_ms)):
            queue, slot, epoch = route
            if self._requests.accept_usual(slot, epoch, connection, queue, [client, header, key, body], now_ms):
                return
        if not client or header[:6] == _HELLO:
            self._greet(connection, header, body, now_ms)
            return
        try:
            if header[:6] not in OF_A_QUEUE:
                raise InvalidFrameError(f"{header[:6].hex()} is not the beginning of a request that a worker takes directly")
            if header[3] in ACT_OPCODES:
                caller = connection.key.name if connection.key else "", client_name(client), connection.address
                self.audit.begin(client, header, key, caller, now_ms)
            queue = str(key, "utf-8")
            if connection.key is not None:
                connection.key.check(header[3], queue, body, now_ms)
            slot = self._host.slots.find_direct(queue)
            if not self._admit(connection, slot, header, key, body, now_ms):
                return
        except (FilaError, UnicodeDecodeError) as error:
            refusal = error if isinstance(error, FilaError) else InvalidFrameError(f"a routing key is UTF-8: {error}")
            self._refuse(connection, header, key, refusal)
            return
        if header[3] in ACT_OPCODES:
            self.audit.read(client, header, body)
        if header[3] == Subscribe.opcode:
            connection.pushing.add(slot.index)
        elif header[3] in USUAL:
            self._learn_route(connection, header[:REQUEST_AT] + key, queue, slot)
        self._requests.accept([client, header, key, body], queue, slot, now_ms)

    def _learn_route(self, connection: DirectConnection, head: bytes, queue: str, slot: "Slot") -> None:
        """Keep the way of later enqueues of this kind, if they may be carried out as things are."""
        if slot.shard is not None and self._requests.is_open(slot, int.from_bytes(head[EPOCH_AT:REQUEST_AT], "big")):
            if len(connection.routes) >= ROUTES_MAX:
                connection.routes.clear()
            connection.routes[head] = Route(queue, slot, slot.shard.epoch)

    def _admit(self, connection: DirectConnection, slot: "Slot", header: bytes, key: bytes, body: Any, now_ms: int) -> bool:
        """Note a request that is about to be carried out; False: it is already open on this connection."""
        client, in_flight = connection.client, self._in_flight
        if not in_flight.has_room(client, header[3]):
            raise overloaded("the worker", in_flight, client, header[3])
        if asks_page(header[3]) and in_flight.pages_of(client) >= self.limits.client_pages_max:
            raise too_busy(f"{in_flight.pages_of(client)} pages are open for this client")
        return in_flight.open(client, header, key, slot.index, body, connection.name, now_ms)

    def _greet(self, connection: DirectConnection, header: bytes, body: Any, now_ms: int) -> None:
        try:
            hello = decode_command(unpack_header(header), body)
            if not isinstance(hello, Hello) or len(hello.session) != SESSION_BYTES:
                raise InvalidFrameError(
                    "the first frame on a direct connection is Hello with the session that the router gave"
                )
            if not set(VERSIONS) & set(hello.versions):
                raise UnsupportedVersionError(
                    f"protocol versions {hello.versions[:10]} are not supported, only {list(VERSIONS)}"
                )
            api_key = None if self._keys is None else self._keys.find(hello.api_key, now_ms)
        except FilaError as error:
            self._refuse(connection, header, b"", error)
            self._close_after_answer(connection)
            return
        client = client_of(hello.session, api_key.digest if api_key else b"")
        earlier = self._by_client.get(client)
        if earlier is not connection:
            self._disown(connection)  # it has greeted for another session before
            if earlier is not None:
                self.close(earlier)
        self.part_from_lost(now_ms)  # before this client asks again
        connection.client, connection.key = client, api_key
        connection.routes.clear()
        self._by_client[client] = connection
        connection.outgoing.append(encode_reply(Hello.opcode, int.from_bytes(header[10:], "big"), self._welcome))

    def _close_after_answer(self, connection: DirectConnection) -> None:
        """Close a connection after an attempt to send the last answer."""
        self._end(connection)
        self.closing.append(connection)

    def _refuse(self, connection: DirectConnection, header: bytes, key: bytes, error: FilaError) -> None:
        readable = len(header) == HEADER_BYTES and header[:2] == _HELLO[:2]
        opcode, request = (header[3], int.from_bytes(header[10:], "big")) if readable else (0, 0)
        self._end_act(connection.client, header, error.code)
        connection.outgoing.append(encode_error(opcode, request, error, str(key, "utf-8", "replace")))

    def _end_act(self, client: bytes, header: bytes, result: str) -> None:
        event = self.audit.end(client, header, result)
        if event is not None:
            self._host.notes.append(event)

    # --- frames out ---------------------------------------------------------------------------------------------------

    def came_by_router(self, frame: "Frame") -> None:
        """Note a request that came through the router: its answer, and pushes after a Subscribe, go back there."""
        client, header, key, _ = frame
        self._in_flight.drop(client, header)
        self.audit.forget(client, header)
        if header[3] == Subscribe.opcode:
            connection = self._by_client.get(client)
            if connection is not None:
                with suppress(FilaError, UnicodeDecodeError):  # the host refuses such a name
                    connection.pushing.discard(self._host.slots.find_direct(str(key, "utf-8")).index)

    @property
    def busy(self) -> bool:
        """Whether an answer or a push may have to go out here."""
        return bool(self._by_client) or bool(len(self._in_flight))

    def send(self, effect: "Effect") -> DirectConnection | None:
        """Put a frame into its client's ``outgoing``, and return the connection; None: it goes through the router.

        An answer whose connection is gone is dropped: the client asks again, on another connection.
        """
        if type(effect) is DirectReply:
            return self._reply(effect, effect.way)
        client = effect.client
        connection = self._by_client.get(client)
        if isinstance(effect, Answer):
            header = pack_header(effect.opcode, effect.call.request)
            if not self._in_flight.close(client, header):
                return None
            if effect.opcode in ACT_OPCODES:
                self._end_act(client, header, effect.reply.code if isinstance(effect.reply, FilaError) else DONE)
        elif not isinstance(effect, Push) or connection is None or not self._pushes(connection, effect.queue):
            return None
        if connection is None:
            return _NOWHERE
        self.frames += 1
        if connection.key is not None and connection.key.ended:
            return self._withhold(connection, effect)
        connection.outgoing.append(effect.frames())
        return connection

    def _reply(self, reply: DirectReply, connection: DirectConnection) -> DirectConnection:
        if not connection.open:
            return _NOWHERE
        self.frames += 1
        if connection.key is not None and connection.key.ended:
            self._refuse(connection, reply.request, reply.key, _key_ended(connection.key))
        else:
            connection.outgoing.append(reply.frames())
        return connection

    def _withhold(self, connection: DirectConnection, effect: "Answer | Push") -> DirectConnection:
        """Send a refusal instead of an answer, and nothing instead of a push: the client's API key is not valid any more."""
        assert connection.key is not None
        if isinstance(effect, Answer):
            refusal = _key_ended(connection.key)
            connection.outgoing.append(encode_error(effect.opcode, effect.call.request, refusal, effect.call.queue))
        return connection

    def interrupt(self, shards: "frozenset[int]") -> list[DirectConnection]:
        """Answer the open requests for shards that have failed. Return the connections that have something to send."""
        changed = []
        dropped, self._host.unanswered = self._host.unanswered, []
        for shard, reply in dropped:
            if reply.way.open:
                self._refuse(reply.way, reply.request, reply.key, interrupted(shard))
                changed.append(reply.way)
        for client, header, key, shard, *_ in self._in_flight.take(shards):
            connection, error = self._by_client.get(client), interrupted(shard)
            self._end_act(client, header, error.code)
            if connection is not None:
                self._refuse(connection, header, key, error)
                changed.append(connection)
        return changed

    def _pushes(self, connection: DirectConnection, queue: str) -> bool:
        return bool(connection.pushing) and self._host.slots.find_direct(queue).index in connection.pushing

    def check(self) -> None:
        """Check the invariants, for tests."""
        for client, connection in self._by_client.items():
            assert connection.client == client
            assert self.connections.get(connection.name) is connection
        assert all(each.open and (not each.pushing or each.client) for each in self.connections.values())
        assert all(not each.client or self._by_client[each.client] is each for each in self.connections.values())
        assert len(self.connections) <= self.limits.connections_max
        self._in_flight.check()
        for shard in self._host.shards.values():
            for client, consumer in shard.consumers.by_client.items():
                if client not in self._by_client and client not in self._lost:
                    assert not consumer.takes_by(ANY_LINK), "messages would be leased to nobody"

    # --- time ---------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Close what is idle for too long, forget what no client waits for, and measure. Call it a few times a second."""
        self._in_flight.measure(now_ms)
        if now_ms - self._swept_ms >= SWEEP_MS:
            self._swept_ms = now_ms
            self._in_flight.forget_overdue(now_ms)
            self._host.notes += self.audit.forget_overdue(now_ms)
        for connection in list(self.connections.values()):
            silent_ms = now_ms - connection.heard_ms
            if silent_ms < self.limits.greeting_ms:
                break  # the frames of those behind it came later
            if not connection.client or silent_ms >= self.limits.idle_ms:
                self.close(connection)
        for key in self._keys or ():
            key.end_in_time(now_ms)


def _key_ended(key: Key) -> UnauthenticatedError:
    return UnauthenticatedError(f"the API key {key.name!r} has ended: ask an administrator for another one")


_NOWHERE: Final = DirectConnection(b"", 0, open=False)


def _joined(lists: list[tuple[int, list[ApiKey]]]) -> list[ApiKey]:
    """Return all keys, each once. Hosts may give own keys the same name; then the link's number distinguishes them."""
    joined: dict[bytes, ApiKey] = {}
    names: set[str] = set()
    for link, keys in lists:
        for key in keys:
            if key.digest not in joined:
                name = key.name if key.name not in names else f"{key.name}~{link}"
                joined[key.digest] = replace(key, name=name)
                names.add(name)
    return list(joined.values())
