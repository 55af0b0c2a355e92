"""The thread that sends heartbeats while no caller waits."""

import threading
from itertools import count

from fila_cluster.client.io.pump import HeartbeatThread
from tests.support.cluster.cluster import eventually
from tests.unit.client.conftest import stray_threads
from tests.unit.client.interrupts import interrupted_at


class CountingPump:
    """A pump that counts its rounds, and is closed at will."""

    def __init__(self) -> None:
        self.rounds = 0
        self.closed = False

    def keep(self) -> float | None:
        self.rounds += 1
        return None if self.closed else 3600.0


def test_an_interrupt_at_any_line_leaves_a_thread_that_can_be_woken_and_ended() -> None:
    for line in count():
        pump = CountingPump()
        thread = HeartbeatThread(pump)

        def wake_twice(thread: HeartbeatThread = thread) -> None:
            thread.wake_at(1.0)
            thread.wake_at(2.0)

        interrupted = interrupted_at(line, wake_twice)
        thread.wake_at(3.0)
        eventually(lambda pump=pump: pump.rounds > 0, "a round")
        pump.closed = True
        thread.stop()
        if not interrupted:
            break
    assert line > 2


def test_a_thread_ends_when_its_pump_is_gone() -> None:
    pumps = [CountingPump()]
    thread = HeartbeatThread(pumps[0])
    thread.wake_at(1.0)
    eventually(lambda: pumps[0].rounds > 0, "a round")
    eventually(stray_threads, "its sleep")
    pumps.clear()
    thread.wake()
    eventually(lambda: not stray_threads(), "its end")


def test_a_pump_can_be_closed_in_its_own_thread() -> None:
    """A finalizer may run there."""
    stopped = threading.Event()

    class ClosesItself(CountingPump):
        def keep(self) -> None:
            thread.stop()
            stopped.set()

    pump = ClosesItself()
    thread = HeartbeatThread(pump)
    thread.wake_at(1.0)
    assert stopped.wait(10)
