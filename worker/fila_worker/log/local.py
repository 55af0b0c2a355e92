"""The log of one machine: RocksDB's write-ahead log, into which a batch is written before it is visible.

A written batch survives the end of any process. To survive a power cut it must be synced, too, which takes a disk 0.2 to 10
ms. :class:`GroupLog` syncs in a thread: the batches that follow during a sync are synced together by the next one (group
commit: DeWitt et al., Implementation techniques for main memory database systems, 1984).
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from time import perf_counter_ns
from typing import Final

from fila_proto_zmq.errors import StorageError


class PlainLog:
    """Syncs each batch that needs it before it takes in the next one. For tools, which have nothing else to do meanwhile."""

    unconfirmed_bytes = 0
    failure: StorageError | None = None

    def __init__(self, sync: Callable[[], None], *, every: bool) -> None:
        """``sync``: makes all that was written durable; ``every``: whether to sync each batch."""
        self._sync = sync
        self._every = every
        self.appended = 0

    @property
    def confirmed(self) -> int:
        """The last batch."""
        return self.appended

    def append(self, size: int, *, sync: bool) -> None:
        """Append the next batch; return when it is durable. Raise :class:`StorageError`."""
        if sync or self._every:
            self._sync()
        self.appended += 1

    def push(self) -> bool:
        """Return True: no batch waits."""
        return True

    def close(self) -> None:
        """Do nothing."""


QUICK_NS_MAX: Final = 500_000
QUICK_BYTES_MAX: Final = 64 * 1024
"""Fewer bytes are synced at once, if the last sync took no longer than that: a thread costs 0.1 ms or more."""


class GroupLog:
    """Syncs in a thread, or at once if that is quick. A batch without a sync waits only for those before it."""

    def __init__(
        self, sync: Callable[[], None], wake: Callable[[], None], *, every: bool, quick_ns_max: int = QUICK_NS_MAX
    ) -> None:
        """``sync``: makes all that was written durable, in any thread; ``wake``: called in the thread after a sync."""
        self._sync = sync
        self._wake = wake
        self._every = every
        self._quick_ns_max = quick_ns_max
        self.appended = 0
        self._wanted = 0
        """The last batch that is to be synced."""
        self._requested = 0
        """The last batch that the thread was asked to sync."""
        self._synced = 0
        """The last batch that is known to be synced. Written by the thread while it has a request."""
        self._took_ns = 0
        """How long the last sync of few bytes took."""
        self.failure: StorageError | None = None
        self._sizes: deque[tuple[int, int]] = deque()
        """The batches since the last that was synced, each with its size."""
        self._bytes = 0
        self._requests: SimpleQueue[int | None] = SimpleQueue()
        self._thread: Thread | None = None

    @property
    def confirmed(self) -> int:
        """The last batch that is durable, with all before it."""
        return self.appended if self._synced >= self._wanted else self._synced

    @property
    def unconfirmed_bytes(self) -> int:
        """The size of the batches that are not confirmed."""
        synced = self._synced
        while self._sizes and self._sizes[0][0] <= synced:
            self._bytes -= self._sizes.popleft()[1]
        return self._bytes

    def append(self, size: int, *, sync: bool) -> None:
        """Take in the next batch."""
        self.appended += 1
        if sync or self._every:
            self._wanted = self.appended
            self._sizes.append((self.appended, size))
            self._bytes += size

    def push(self) -> bool:
        """Sync all batches that need it, now or in the thread. Return whether all are synced."""
        if self._synced >= self._wanted:
            return True
        if self._requested >= self._wanted:
            return False
        if (
            self._synced >= self._requested
            and self._took_ns <= self._quick_ns_max
            and self.unconfirmed_bytes <= QUICK_BYTES_MAX
        ):
            self._sync_up_to(self.appended, self._bytes)
            return self._synced >= self._wanted
        self._requested = self.appended
        self._requests.put(self.appended)
        if self._thread is None:
            self._thread = Thread(target=self._work, name="sync", daemon=True)
            self._thread.start()
        return False

    def close(self) -> None:
        """Sync what waits, and end the thread."""
        if self.failure is None:
            self.push()
        if self._thread is not None:
            self._requests.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while self.failure is None and (number := self._requests.get()) is not None:
            with suppress(Empty):
                while (later := self._requests.get_nowait()) is not None:
                    number = later
                self._requests.put(None)  # the end: after this sync
            self._sync_up_to(number, self._bytes)
            self._wake()

    def _sync_up_to(self, number: int, size: int) -> None:
        began_ns = perf_counter_ns()
        try:
            self._sync()
        except StorageError as error:
            self.failure = error
            return
        if size <= QUICK_BYTES_MAX:
            self._took_ns = perf_counter_ns() - began_ns
        self._synced = number
