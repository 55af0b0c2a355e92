"""A pump whose descriptors are lent to an event loop of another library.

The loop watches one descriptor: an epoll of the links' descriptors, and of an alarm. The alarm is there because any thread
may take in frames (one that waits for an answer, the heartbeat's): then the links' descriptors are quiet, and the loop
would sleep on deliveries that have come.
"""

import select
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from fila_cluster.client.io.link import Bell
from fila_cluster.client.io.pump import EVENTS, Pump
from fila_cluster.client.protocol.session import ClientSession
from fila_cluster.client.requests.endpoints import EndpointRounds
from fila_proto_zmq.errors import FilaError

if TYPE_CHECKING:
    from collections.abc import Collection

_LINKS_MAX = 64
"""Descriptors that are taken from the epoll at a time; the others stay ready."""


class LentPump(Pump):
    """A pump, for any number of threads and one event loop.

    ``before`` is called before each exchange with the session, under the lock, in whatever thread does it; ``has_news``
    says whether there is something for the loop.
    """

    def __init__(
        self,
        session: ClientSession,
        rounds: EndpointRounds,
        server_keys: tuple[str, ...],
        before: Callable[[], object],
        has_news: Callable[[], bool],
    ) -> None:
        self._before = before
        self._has_news = has_news
        self._epoll: select.epoll | None = None
        self._alarm: Bell | None = None
        self._taking = False
        """The loop's own thread takes in, and looks for news by itself."""
        super().__init__(session, rounds, server_keys)

    def fileno(self) -> int:
        """Return the descriptor to watch. It is made at the first call: not every program has such a loop, or epoll."""
        with self._lock:
            self._check_open()
            if self._epoll is None:
                self._epoll, self._alarm = select.epoll(), Bell()
                self._epoll.register(self._alarm.descriptor, select.EPOLLIN)
                for descriptor, writable in self._links.descriptors:
                    self._epoll.register(descriptor, EVENTS[writable])
                self._ring()
            return self._epoll.fileno()

    def take_in(self) -> None:
        """Read the frames that have come, and send the collected ones, without waiting."""
        with self._lock:
            self._check_open()
            ready = None
            if self._epoll is not None and self._alarm is not None:
                ready = [descriptor for descriptor, _ in self._epoll.poll(0, _LINKS_MAX)]
                self._alarm.silence()
            self._taking = True
            try:
                self._exchange(self._now(), ready)
            finally:
                self._taking = False

    def call_again(self) -> None:
        """Keep the descriptor readable: there is more for the loop to handle."""
        with self._lock:
            self._ring()

    def disown(self, error: FilaError) -> None:
        """Leave the descriptors to the parent, in the child of a fork: a change of the child in an epoll is one for both."""
        self._epoll = self._alarm = None
        super().disown(error)

    def watch(self, descriptor: int, *, writable: bool) -> None:
        """Look at a descriptor from now on."""
        super().watch(descriptor, writable=writable)
        if self._epoll is not None:
            try:
                self._epoll.register(descriptor, EVENTS[writable])
            except FileExistsError:
                self._epoll.modify(descriptor, EVENTS[writable])

    def unwatch(self, descriptor: int) -> None:
        """Do not look at a descriptor any more."""
        super().unwatch(descriptor)
        if self._epoll is not None:
            with suppress(OSError, ValueError):  # it was closed: then it is not in the epoll any more
                self._epoll.unregister(descriptor)

    def _exchange(self, now: float, ready: "Collection[int] | None" = ()) -> None:
        self._before()
        super()._exchange(now, ready)
        self._ring()

    def _ring(self) -> None:
        if self._alarm is not None and self._refusal is None and not self._taking and self._has_news():
            self._alarm.ring()

    def _release(self) -> None:
        super()._release()
        if self._epoll is not None and self._alarm is not None:
            self._epoll.close()
            self._alarm.close()
