"""The requests that one worker has to answer, so that each is answered exactly once, also if the worker is lost.

A request is named by its *ticket*: client id + request id, as bytes. There are four rooms, each bounded in requests and in
bytes, because the requests lie in a socket's queue, which would otherwise grow without limit while a worker is busy:

- what loads a worker (enqueues, deliveries, questions);
- what relieves it (settling, heartbeats): it is admitted however full the first room is;
- pages, whose answers are large and take long: a few of them are much work;
- what waits by design, perhaps for hours (receives, reservations): it costs memory, not time.

A room is shared fairly. As long as half of it is free, a client may take any free part; beyond that, a client may hold as
much as it would if all clients in the room, and one more, held the same. So there is always room for a new client.

A client that lost its connection repeats its open requests, under the same ids, on its next one. A worker may have to see
them again, and one answer serves both. A repetition on the same connection is dropped, because a worker would do it again and
again for the place of one request.

An entry that is never answered, because it was lost on its way to the worker, is dropped when no client can be waiting for
it any more: those that wait by design say in their bodies how long. No error is sent, since its client gave up long before.
"""

from collections.abc import Callable, Collection
from typing import Any, Final, Protocol, TypeAlias

from fila_admission.limits import DEFAULTS, RoomLimits
from fila_proto_zmq import commands as wire
from fila_proto_zmq.codec import decode_body
from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.limits import WAIT_MS_MAX

OVERHEAD_BYTES: Final = 128
"""The size of a frame beside its body: a flood of empty frames is not free."""

CALL_MS_MAX: Final = 60_000
"""No call may take this long; a client's timeout is seconds."""

RETRY_MS_MIN: Final = 50
RETRY_MS_MAX: Final = 5000
"""When to try again after a refusal: no sooner than a worker's turn takes, and no later than any client's timeout."""

REPEATS_MAX: Final = 4
"""How often an open request is forwarded again, for a client that comes back on connection after connection."""

WAIT_BYTES_MAX: Final = 4096
"""A larger request to wait is not read: its worker refuses it."""

_LOADING, _RELIEVING, _WAITING, _PAGING = range(4)
_RELIEF: Final = (
    wire.Settle,
    wire.Extend,
    wire.Subscribe,
    wire.Unsubscribe,
    wire.Heartbeat,
    wire.Goodbye,
    wire.CancelReceive,
    wire.RenewReservation,
    wire.EndReservation,
)
_WAITS: Final[dict[int, type[wire.Receive | wire.Reserve]]] = {each.opcode: each for each in (wire.Receive, wire.Reserve)}
_KINDS = {command.opcode: _RELIEVING for command in _RELIEF} | dict.fromkeys(_WAITS, _WAITING)
_KINDS |= {command.opcode: _PAGING for command in (wire.Browse, wire.BrowseView, wire.FetchReserved)}
_ROOM_OF: Final = bytes(_KINDS.get(opcode, _LOADING) for opcode in range(256))
"""The room of each opcode."""

Call: TypeAlias = tuple[bytes, bytes, bytes, int, int, int, bytes, int]
"""Client id, header, routing key, shard, bytes, when to forget it (ms), the last connection it came on, how often it was
repeated. A plain tuple: one is made per frame."""


def relieves(opcode: int) -> bool:
    """Return whether a request relieves its worker: such a request is always admitted."""
    return _ROOM_OF[opcode] == _RELIEVING


def asks_page(opcode: int) -> bool:
    """Return whether a request is for a page: little to ask, much to answer and to read."""
    return _ROOM_OF[opcode] == _PAGING


def _wait_ms(opcode: int, body: Any) -> int:
    """Return how long a request of the waiting room may wait; 0 if its worker refuses it."""
    if len(body) > WAIT_BYTES_MAX:
        return 0
    try:
        return min(max(decode_body(_WAITS[opcode], body).wait_ms, 0), WAIT_MS_MAX)
    except InvalidFrameError:
        return 0


class OpenQuestion(Protocol):
    """A question that a client waits for."""

    client: bytes


def has_share(client: bytes, open_now: Collection[OpenQuestion], calls_max: int) -> bool:
    """Return whether ``client`` may have one more of few places. Counts all of them when half of the places are taken."""
    if len(open_now) < calls_max // 2:
        return True
    clients = [asked.client for asked in open_now]
    own = clients.count(client)
    return len(clients) < calls_max and (not own or own < calls_max // (len(set(clients)) + 1))


class Room:
    """Open requests of one kind.

    Invariants: ``size_bytes`` is the sum of the sizes of all entries; ``held`` has, for each client with an entry, how many
    requests and bytes they are.
    """

    __slots__ = (
        "answered",
        "answers_per_s",
        "bytes_max",
        "calls",
        "calls_max",
        "client_max",
        "held",
        "size_bytes",
    )

    def __init__(self, calls_max: int, bytes_max: int, client_max: int) -> None:
        self.calls: dict[bytes, Call] = {}
        self.held: dict[bytes, list[int]] = {}
        self.size_bytes = 0
        self.calls_max = calls_max
        self.bytes_max = bytes_max
        self.client_max = client_max
        self.answered = 0
        """Answers since the rate was last measured."""
        self.answers_per_s = 0.0

    def has_room(self, client: bytes) -> bool:
        """Return whether ``client`` may have one more request here."""
        calls, held_bytes = len(self.calls), self.size_bytes
        if calls < self.calls_max // 2 and held_bytes < self.bytes_max // 2 and calls < self.client_max:
            return True
        own = self.held.get(client)
        if own is None:
            return calls < self.calls_max and held_bytes < self.bytes_max
        sharers = len(self.held) + 1
        return (
            own[0] < min(self.client_max, max(self.calls_max // sharers, 1))
            and calls < self.calls_max
            and (held_bytes < self.bytes_max // 2 or own[1] < self.bytes_max // sharers)
            and held_bytes < self.bytes_max
        )

    def add(
        self, client: bytes, header: bytes, key: bytes, shard: int, size_bytes: int, connection: bytes, forget_ms: int
    ) -> bool:
        """Note a request that is about to be forwarded; False: it is open already, and must not be."""
        ticket = client + header[10:]
        held_bytes, repeats = size_bytes + OVERHEAD_BYTES, 0
        earlier = self.calls.get(ticket)
        if earlier is not None:
            if earlier[6] == connection or earlier[7] >= REPEATS_MAX:
                return False
            repeats = earlier[7] + 1
        self.size_bytes += held_bytes
        own = self.held.get(client)
        if own is None:
            own = self.held[client] = [0, 0]
        own[1] += held_bytes
        if earlier is None:
            own[0] += 1
        else:
            held_bytes += earlier[4]
        self.calls[ticket] = (client, header, key, shard, held_bytes, forget_ms, connection, repeats)
        return True

    def pop(self, ticket: bytes) -> Call | None:
        """Remove a request; None if it is not there (any more)."""
        call = self.calls.pop(ticket, None)
        if call is not None:
            self.size_bytes -= call[4]
            own = self.held[call[0]]
            own[0] -= 1
            own[1] -= call[4]
            if not own[0]:
                del self.held[call[0]]
        return call

    def measure(self, span_ms: int) -> None:
        """Measure how fast these requests are answered, over a time in which there were some."""
        if self.answered or self.calls:
            self.answers_per_s = (self.answers_per_s + self.answered * 1000 / span_ms) / 2
        self.answered = 0


class InFlight:
    """Open requests of one worker, by room."""

    __slots__ = ("_measured_ms", "rooms")

    def __init__(self, limits: RoomLimits = DEFAULTS) -> None:
        bytes_max = limits.in_flight_bytes_max
        self.rooms = (
            Room(limits.calls_max, bytes_max, limits.calls_max),
            Room(limits.relieving_calls_max, bytes_max, limits.relieving_calls_max),
            Room(limits.waits_max, bytes_max, limits.client_waits_max),
            Room(limits.pages_max, bytes_max, limits.client_pages_max),
        )
        self._measured_ms: int | None = None

    def __len__(self) -> int:
        return sum(len(room.calls) for room in self.rooms)

    @property
    def size_bytes(self) -> int:
        """The size of all of them."""
        return sum(room.size_bytes for room in self.rooms)

    @property
    def at_work(self) -> bool:
        """Whether a request is open that does not wait by design."""
        return any(room.calls for room in self.rooms if room is not self.rooms[_WAITING])

    @property
    def pages(self) -> int:
        """How many pages are open."""
        return len(self.rooms[_PAGING].calls)

    def pages_of(self, client: bytes) -> int:
        """Return how many pages are open for one client."""
        held = self.rooms[_PAGING].held.get(client)
        return held[0] if held is not None else 0

    def has_room(self, client: bytes, opcode: int) -> bool:
        """Return whether one more request of ``opcode`` may go from ``client`` to this worker."""
        return self.rooms[_ROOM_OF[opcode]].has_room(client)

    def open(self, client: bytes, header: bytes, key: bytes, shard: int, body: Any, connection: bytes, now_ms: int) -> bool:
        """Note a request that is about to be forwarded; False: it is open already, and must not be."""
        room, forget_ms = _ROOM_OF[header[3]], now_ms + CALL_MS_MAX
        if room == _WAITING:
            forget_ms += _wait_ms(header[3], body)
        return self.rooms[room].add(client, header, key, shard, len(body), connection, forget_ms)

    def close(self, client: bytes, header: bytes) -> bool:
        """Note an answer; False if no client waits for it (any more)."""
        room = self.rooms[_ROOM_OF[header[3]]]
        room.answered += 1
        return room.pop(client + header[10:]) is not None

    def drop(self, client: bytes, header: bytes) -> None:
        """Remove a request that will be answered elsewhere, if it is open here."""
        self.rooms[_ROOM_OF[header[3]]].pop(client + header[10:])

    def withdraw(self, client: bytes, header: bytes) -> int:
        """Remove a request that was opened and could not be sent; return its shard."""
        call = self.rooms[_ROOM_OF[header[3]]].pop(client + header[10:])
        assert call is not None
        return call[3]

    def take(self, shards: frozenset[int]) -> list[Call]:
        """Remove and return the open requests of ``shards``."""
        return self._remove(lambda call: call[3] in shards)

    def forget_overdue(self, now_ms: int) -> None:
        """Drop requests that no client can wait for any more."""
        self._remove(lambda call: call[5] <= now_ms)

    def measure(self, now_ms: int) -> None:
        """Measure how fast the worker answers. Call it a few times a second."""
        if self._measured_ms is not None and now_ms > self._measured_ms:
            for room in self.rooms:
                room.measure(now_ms - self._measured_ms)
        self._measured_ms = now_ms

    def retry_ms(self, client: bytes, opcode: int) -> int:
        """Return when there will be room: when half of the requests in the way are answered, at the rate of such requests."""
        room = self.rooms[_ROOM_OF[opcode]]
        if room is self.rooms[_WAITING] or not room.answers_per_s:
            return RETRY_MS_MAX if room is self.rooms[_WAITING] else 4 * RETRY_MS_MIN
        in_front = len(room.calls) / 2
        return round(min(max(in_front * 1000 / room.answers_per_s, RETRY_MS_MIN), RETRY_MS_MAX))

    def check(self) -> None:
        """Check the invariants, for tests."""
        for room in self.rooms:
            held: dict[bytes, list[int]] = {}
            for client, *_, size_bytes, _, _, _ in room.calls.values():
                own = held.setdefault(client, [0, 0])
                own[0] += 1
                own[1] += size_bytes
            assert room.held == held
            assert room.size_bytes == sum(own[1] for own in held.values())
            assert len(room.calls) <= room.calls_max

    def _remove(self, condition: Callable[[Call], bool]) -> list[Call]:
        removed: list[Call] = []
        for room in self.rooms:
            tickets = [ticket for ticket, call in room.calls.items() if condition(call)]
            removed += [call for ticket in tickets if (call := room.pop(ticket)) is not None]
        return removed
