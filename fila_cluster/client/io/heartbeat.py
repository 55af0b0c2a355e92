"""A daemon thread for what must be sent in time while no caller waits: heartbeats.

An interrupt (Ctrl-C) may hit a caller's thread at any moment, and a finalizer may run in any. So both use only primitives
that are one call into C: ``threading.Event`` keeps its lock for ever if an interrupt hits it while it takes the lock, and
``Thread.start`` then raises RuntimeError ("release unlocked lock") or leaves a thread that never runs.
"""

import math
import threading
import weakref
from _thread import start_new_thread
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol


class HasHeartbeat(Protocol):
    """The pump, as this thread needs it."""

    def keep(self) -> float | None:
        """Send the heartbeats that are due; return the seconds until the next time, or None to end the thread."""


class HeartbeatThread:
    """Starts its thread when there is first something to do. Does not keep its pump alive."""

    def __init__(self, pump: HasHeartbeat) -> None:
        self.wakes_at = math.inf
        self._pump = weakref.ref(pump)
        self._alarm: SimpleQueue[None] = SimpleQueue()
        self._running = threading.Lock()
        """The thread holds it while it runs. A second thread, which an interrupt may cause, ends at once."""
        self._ident: int | None = None

    def wake_at(self, when: float) -> None:
        """Wake the thread then, or earlier. Called with the pump's lock held."""
        self.wakes_at = when
        if self._running.locked():
            self._alarm.put(None)
        else:
            start_new_thread(self._run, ())

    def wake(self) -> None:
        """Wake the thread: it looks whether it is to end. Safe in a finalizer."""
        self._alarm.put(None)

    def stop(self, wait_s: float = -1) -> None:
        """End the thread of a closed pump, and wait until it has ended; -1: for as long as it takes."""
        self._alarm.put(None)
        if self._ident != threading.get_ident() and self._running.acquire(timeout=wait_s):
            self._running.release()

    def _run(self) -> None:
        if not self._running.acquire(blocking=False):
            return
        self._ident = threading.get_ident()
        try:
            while True:
                pump = self._pump()
                sleep_s = None if pump is None else pump.keep()
                if sleep_s is None:
                    return
                del pump  # so that the pump can be collected during the sleep
                with suppress(Empty):
                    self._alarm.get(timeout=sleep_s)
        finally:
            self._ident = None
            self._running.release()
