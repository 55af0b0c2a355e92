"""Which way a call takes: straight to the worker that has its shard, or through the router.

The router names the doors of the workers (the *placement*). Calls for one shard go straight there. All others, and those
of a shard without a door that answers, go through the router. A connection is opened by the first call that needs it.

A shard changes ways only when none of its earlier calls is under way on the other one, because two ways keep no order.
Until then its calls wait, for ``TURNING_S`` at most; if that is not enough, they stay on their way for ``STAY_S``.

A connection's pipe keeps its order, so an answer to one frame shows that all frames before it have left the pipe.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from fila_cluster.client.requests.call import PendingCall
from fila_proto_zmq.commands import DoorView, Receive, Reserve
from fila_proto_zmq.frames import epoch_tag
from fila_proto_zmq.names import shard_of


class Way:
    """The way through the router.

    ``open``: it has greeted, and calls may be sent. ``held``: calls that may not be sent yet, in order. ``pipe_bytes`` is
    the size of the frames that may lie in the connection's pipe. ``calls``: the calls that were sent here and are not
    answered.
    """

    __slots__ = ("_pipe", "_read", "calls", "greeting", "held", "open", "outgoing", "pipe_bytes", "probe")

    def __init__(self) -> None:
        self.outgoing: deque[list[bytes]] = deque()
        self.held: dict[int, PendingCall] = {}
        self.open = False
        self.greeting: PendingCall | None = None
        self.probe: PendingCall | None = None
        """The question that finds out how much of the pipe was read."""
        self.pipe_bytes = 0
        self.calls = 0
        self._pipe: deque[int] = deque()
        """The sizes of the frames that may lie in the pipe, in order."""
        self._read = 0
        """Frames that have left the pipe: the place of the first in ``_pipe``."""

    def put(self, frames: list[bytes], size_bytes: int) -> int:
        """Add a frame to the outgoing ones; return its place among all frames of this connection."""
        place = self.put_before(size_bytes)
        self.outgoing.append(frames)  # last: an interrupt leaves no frame without a size
        return place

    def put_before(self, size_bytes: int) -> int:
        """Note a frame that was given to the socket already; return its place."""
        place = self._read + len(self._pipe)
        self._pipe.append(size_bytes)
        self.pipe_bytes += size_bytes
        return place

    def has_read(self, place: int) -> int:
        """Note that the frame in this place, and all before it, have left the pipe; return their bytes.

        An outgoing frame has not: the answer is to an earlier frame of the same call.
        """
        before = self.pipe_bytes
        while self._read <= place and len(self._pipe) > len(self.outgoing):
            self._read += 1
            self.pipe_bytes -= self._pipe.popleft()
        return before - self.pipe_bytes

    def take_unsent(self) -> set[int]:
        """Empty ``outgoing``, and return the identities of its frames: they have never left."""
        unsent = set(map(id, self.outgoing))
        while self.outgoing:
            self.outgoing.pop()
            self._pipe.pop()
        self.recount()
        return unsent

    def recount(self) -> None:
        """Count the bytes in the pipe anew: an interrupt may have come between a frame and its count."""
        self.pipe_bytes = sum(self._pipe)

    def take_pipe(self) -> int:
        """Note that nothing of the pipe will be read any more; return its bytes."""
        lost, self.pipe_bytes = self.pipe_bytes, 0
        self._read += len(self._pipe)
        self._pipe.clear()
        return lost

    def check(self) -> None:
        """Check the invariants, for tests."""
        assert self.pipe_bytes == sum(self._pipe)
        assert len(self.outgoing) <= len(self._pipe)
        assert self.greeting is None or self.greeting.way is self
        assert self.probe is None or self.probe.way is self


class WayState(IntEnum):
    """Where a direct way is in its life."""

    CLOSED = 0
    """There is no connection. The next call opens one, unless it is too early for that."""
    OPENING = 1
    """Its calls wait until it is open, or until it takes too long."""
    OPEN = 2
    RETIRED = 3
    """The worker closes its door, or has no longer this one: nothing more is sent here."""


class DirectWay(Way):
    """The way to a worker's own door. ``tags``: the epochs of its shards, as headers name them."""

    __slots__ = ("door", "endpoints", "failures", "give_up_at", "retry_at", "state", "tags")

    def __init__(self, view: DoorView) -> None:
        super().__init__()
        self.door = view.door
        self.endpoints = list(view.endpoints)
        self.tags: dict[int, int] = {}
        self.state = WayState.CLOSED
        self.failures = 0
        self.retry_at = -math.inf
        self.give_up_at = math.inf
        """When to stop opening it."""


OPENING_S: Final = 0.25
"""How long calls wait for a direct connection. On one host or in one network it takes a millisecond."""
LEAVING_S: Final = 1.0
"""How long the calls on a way that leads nowhere any more wait for their answers."""
RETRY_S_MIN: Final = 1.0
RETRY_S_MAX: Final = 60.0
"""When a door that could not be reached is tried again: after the first pause, doubled with each failure."""
TURNING_S: Final = 0.25
STAY_S: Final = 1.0
NAMES_MAX: Final = 10_000
"""Queue names whose shard is remembered; beyond it the cache is emptied."""

_UNORDERED: Final = (Receive, Reserve)
"""Calls that may wait for long, and whose order with others means nothing."""


@dataclass(slots=True, eq=False)
class ShardRoute:
    """The route to one shard.

    ``direct``: its worker's door, None if there is none. ``used``: the way on which a call was sent last. ``routed``:
    ordered calls that are under way through the router. ``turn_by``: until when calls wait to change ways; ``stay_until``:
    when they may next.
    """

    number: int
    direct: DirectWay | None = None
    used: Way | None = None
    routed: int = 0
    turn_by: float = math.inf
    stay_until: float = -math.inf


class Routes:
    """The ways of one client. ``router``: the one that is always there.

    ``wanted``: ways to be connected, and ``unwanted``: ways to be closed, by the shell. ``direct_frames`` counts the
    frames that were given to direct ways: the shell need not search the ways for them before it has grown.
    ``on_move(shard)`` is called when a shard's calls take another way than before.
    """

    def __init__(self, on_move: Callable[[int], None]) -> None:
        self.router = Way()
        self.wanted: deque[DirectWay] = deque()
        self.unwanted: deque[DirectWay] = deque()
        self.doors: dict[bytes, DirectWay] = {}
        self.leaving: list[DirectWay] = []
        """Ways that get nothing more, and whose calls may still be answered."""
        self.direct_frames = 0
        self.due_at = math.inf
        """When to call :meth:`overdue`, or earlier."""
        self._on_move = on_move
        self._shards: list[ShardRoute] = []
        self.names: dict[str, ShardRoute] = {}
        """The shards of queues that were used."""

    # --- the placement ------------------------------------------------------------------------------------------------

    def placed(self, views: Iterable[DoorView], shards: int) -> list[DirectWay]:
        """Follow the router's placement of ``shards`` shards; return the ways that are gone."""
        if len(self._shards) != shards:
            self._shards = [ShardRoute(number) for number in range(shards)]
            self.names.clear()
        ways = {view.door: self.doors.get(view.door) or DirectWay(view) for view in views}
        gone = [way for door, way in self.doors.items() if door not in ways]
        self.doors = ways
        directs: dict[int, DirectWay] = {}
        for view in views:
            way = ways[view.door]
            way.tags = {number: epoch_tag(epoch) for number, epoch in view.shards}
            directs.update(dict.fromkeys(way.tags, way))
        for shard in self._shards:
            self.place(shard, directs.get(shard.number))
        return gone

    def place(self, shard: ShardRoute, way: DirectWay | None) -> None:
        """Note where a shard is; None: not where the placement says."""
        if shard.direct is not way:
            shard.direct = way
            shard.turn_by = math.inf

    def shard(self, queue: str) -> ShardRoute | None:
        """Return the shard of a queue; None if there is no placement."""
        shard = self.names.get(queue)
        if shard is None and self._shards:
            if len(self.names) >= NAMES_MAX:
                self.names.clear()
            shard = self.names[queue] = self._shards[shard_of(queue, len(self._shards))]
        return shard

    # --- calls --------------------------------------------------------------------------------------------------------

    def way_of(self, shard: ShardRoute, now: float) -> Way:
        """Return the way of a shard's next call. Its calls are held there while it opens, or while the shard changes ways."""
        way = shard.direct
        if way is None:
            return self.router
        if way.open or way.state == WayState.OPENING:
            return way if now >= shard.stay_until else self.router
        if way.state == WayState.CLOSED and now >= way.retry_at:
            way.state = WayState.OPENING
            way.give_up_at = now + OPENING_S
            self.due_at = min(self.due_at, way.give_up_at)
            self.wanted.append(way)
            return way
        return self.router

    def may_send(self, call: PendingCall, way: Way, now: float) -> bool:
        """Return whether the shard's other calls let this one go this way now."""
        shard = call.shard
        if shard is None or way is self.router or not shard.routed or type(call.command) in _UNORDERED:
            return True
        if shard.turn_by == math.inf:
            shard.turn_by = now + TURNING_S
            self.due_at = min(self.due_at, shard.turn_by)
        return False

    def gives_up_turning(self, call: PendingCall, now: float) -> bool:
        """Return whether a held call has waited long enough for its shard to change ways."""
        shard = call.shard
        if shard is None or now < shard.turn_by:
            return False
        shard.turn_by = math.inf
        shard.stay_until = now + STAY_S
        return True

    def sent(self, call: PendingCall, way: Way) -> None:
        """Note that a call was sent on ``way``."""
        call.under_way = True
        way.calls += 1
        self.direct_frames += way is not self.router
        shard = call.shard
        if shard is None:
            return
        if way is self.router:
            if type(call.command) not in _UNORDERED:
                shard.routed += 1
                call.routed = True
        else:
            shard.turn_by = math.inf
        if shard.used is not way:
            moved, shard.used = shard.used is not None, way
            if moved:
                self._on_move(shard.number)

    def over(self, call: PendingCall) -> Way | None:
        """Note that a call that was sent is under way no more. Return a way whose held calls may be sent now."""
        way, shard = call.way, call.shard
        call.under_way = False
        if way is not None:
            way.calls -= 1
            if not (way.calls or way.open) and isinstance(way, DirectWay) and way.state == WayState.RETIRED:
                self.unwanted.append(way)
        if call.routed and shard is not None:
            call.routed = False
            shard.routed -= 1
            if not shard.routed and shard.direct is not None and shard.direct.held:
                return shard.direct
        return None

    # --- doors --------------------------------------------------------------------------------------------------------

    @property
    def opening(self) -> bool:
        """Whether some way is being opened. Then it has a time to give up at: most calls find none without a search."""
        return self.due_at < math.inf and any(way.state == WayState.OPENING for way in self.doors.values())

    def opened(self, way: DirectWay) -> None:
        """Note that a worker has welcomed this client."""
        way.open, way.state, way.failures, way.give_up_at = True, WayState.OPEN, 0, math.inf
        self.due_at = min(each.give_up_at for each in (*self.doors.values(), *self.leaving))
        self.due_at = min(self.due_at, *(shard.turn_by for shard in self._shards))

    def retire(self, way: DirectWay, now: float) -> None:
        """Send nothing more on a way, and close it when its calls are answered, or after a while."""
        way.open, way.state = False, WayState.RETIRED
        if not way.calls:
            self.unwanted.append(way)
        elif way not in self.leaving:
            self.leaving.append(way)
            way.give_up_at = now + LEAVING_S
            self.due_at = min(self.due_at, way.give_up_at)

    @property
    def ways(self) -> "Iterator[Way]":
        """All ways."""
        yield self.router
        yield from self.doors.values()
        yield from (way for way in self.leaving if self.doors.get(way.door) is not way)

    def left(self, way: Way) -> None:
        """Note that pushes may have been lost on ``way``."""
        for shard in self._shards:
            if shard.used is way:
                shard.used = None
                self._on_move(shard.number)

    def closed(self, way: DirectWay, now: float) -> None:
        """Note that a connection is gone, or could not be made."""
        if way.state == WayState.OPENING:
            way.failures += 1
        way.open = False
        if way.state != WayState.RETIRED:
            way.state = WayState.CLOSED
        way.retry_at = now + min(RETRY_S_MAX, RETRY_S_MIN * 2.0 ** max(0, way.failures - 1))
        way.give_up_at = math.inf
        self.unwanted.append(way)
        if way in self.leaving:
            self.leaving.remove(way)

    def recount(self, calls: "Iterable[PendingCall]") -> None:
        """Count the calls that are under way anew."""
        for way in self.ways:
            way.calls = 0
        for shard in self._shards:
            shard.routed = 0
        for call in calls:
            if call.under_way and call.way is not None:
                call.way.calls += 1
                if call.routed and call.shard is not None:
                    call.shard.routed += 1

    def check(self, under_way: "Collection[PendingCall]") -> None:
        """Check the invariants, for tests. ``under_way``: the calls that were sent and are not answered."""
        for way in self.ways:
            way.check()
            assert way.calls == sum(call.way is way for call in under_way), (way.calls, len(under_way))
            if isinstance(way, DirectWay):
                assert way.open is (way.state == WayState.OPEN)
                assert way.state in {WayState.OPEN, WayState.OPENING} or not way.held
                assert way.state not in {WayState.CLOSED} or not (way.calls or way.pipe_bytes)
        assert all(way.state == WayState.RETIRED for way in self.leaving)
        for shard in self._shards:
            assert shard.routed == sum(call.shard is shard and call.routed for call in under_way)
            assert shard.direct is None or self.doors.get(shard.direct.door) is shard.direct
        assert self.opening is any(way.state == WayState.OPENING for way in self.doors.values())
        assert len(self.names) <= NAMES_MAX

    def overdue(self, now: float) -> tuple[list[DirectWay], list[DirectWay]]:
        """Return the ways that take too long to open or to leave, and those whose held calls may have waited long enough."""
        self.due_at = math.inf
        late: list[DirectWay] = []
        turning: list[DirectWay] = []
        for way in {*self.doors.values(), *self.leaving}:
            if way.give_up_at <= now:
                late.append(way)
            else:
                self.due_at = min(self.due_at, way.give_up_at)
        for shard in self._shards:
            if shard.turn_by > now:
                self.due_at = min(self.due_at, shard.turn_by)
            elif shard.direct is not None and shard.direct.held:
                turning.append(shard.direct)
            else:
                shard.turn_by = math.inf  # its calls have ended while they waited
        return late, turning
