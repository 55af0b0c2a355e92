"""A daemon thread for what must be sent in time while no caller waits: heartbeats."""

import math
import threading
import weakref
from typing import Protocol


class HasHeartbeat(Protocol):
    """What a keeper keeps alive."""

    def keep(self) -> float | None:
        """Do what is due; return the seconds until the next time, or None to end the keeper."""


class HeartbeatThread:
    """Starts its thread when there is first something to do. Does not keep its pump alive."""

    def __init__(self, pump: HasHeartbeat) -> None:
        self.wakes_at = math.inf
        self._pump = weakref.ref(pump)
        self.alarm = threading.Event()
        self._thread: threading.Thread | None = None

    def wake_at(self, when: float) -> None:
        """Be awake then, or earlier. Called with the pump's lock held."""
        self.wakes_at = when
        if self._thread is None:
            arguments = (self._pump, self.alarm)
            self._thread = threading.Thread(target=_keep, args=arguments, name="fila-cluster-keeper", daemon=True)
            self._thread.start()
        else:
            self.alarm.set()

    def stop(self) -> None:
        """End the thread, and wait until it has ended."""
        self.alarm.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


def _keep(reference: "weakref.ref[HasHeartbeat]", alarm: threading.Event) -> None:
    while True:
        pump = reference()
        sleep_s = None if pump is None else pump.keep()
        if sleep_s is None:
            return
        del pump  # so that the pump can be collected during the sleep
        alarm.wait(sleep_s)
        alarm.clear()
