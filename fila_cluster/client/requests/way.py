"""One connection of a client as its calls see it: the frames on their way, and the calls that wait for room there.

A connection's pipe keeps its order, so an answer to one frame shows that all frames before it have left the pipe.
"""

import math
from collections import deque
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fila_cluster.client.requests.call import PendingCall
    from fila_proto_zmq.commands import DoorView


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
        place = self._read + len(self._pipe)
        self._pipe.append(size_bytes)
        self.pipe_bytes += size_bytes
        self.outgoing.append(frames)  # last: an interrupt leaves no frame without a size
        return place

    def has_read(self, place: int) -> int:
        """Note that the frame in this place, and all before it, have left the pipe; return their bytes."""
        before = self.pipe_bytes
        while self._read <= place and self._pipe:
            self._read += 1
            self.pipe_bytes -= self._pipe.popleft()
        return before - self.pipe_bytes

    def take_unsent(self) -> set[int]:
        """Empty ``outgoing``, and return the identities of its frames: they have never left."""
        unsent = set(map(id, self.outgoing))
        while self.outgoing:
            self.outgoing.pop()
            self._pipe.pop()
        self.pipe_bytes = sum(self._pipe)  # anew: an interrupt may have come between a frame and its count
        return unsent

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

    def __init__(self, view: "DoorView") -> None:
        super().__init__()
        self.door = view.door
        self.endpoints = list(view.endpoints)
        self.tags: dict[int, int] = {}
        self.state = WayState.CLOSED
        self.failures = 0
        self.retry_at = -math.inf
        self.give_up_at = math.inf
        """When to stop opening it."""
