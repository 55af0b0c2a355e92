"""What a supervisor sleeps for: signals, as bytes on a socket, so that nothing runs inside a handler."""

import select
import signal
import socket
from types import FrameType


class Wakeups:
    """Made once, in the main thread. From then on SIGTERM, SIGINT and SIGCHLD wake :meth:`sleep` and do nothing else."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, _only_wake)

    def sleep(self, seconds: float | None) -> bool:
        """Wait for a signal, for ``seconds`` at most (None: for ever); True if it says: stop."""
        select.select([self._reader], [], [], seconds)
        try:
            numbers = self._reader.recv(4096)
        except BlockingIOError:
            return False
        return signal.SIGTERM in numbers or signal.SIGINT in numbers

    def close(self) -> None:
        """It is all over: who is impatient now must not spoil the exit code while the interpreter ends.

        Signals are blocked, because a change of handlers would be a race with those that are under way, which Python reports.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})


def _only_wake(number: int, frame: FrameType | None) -> None:
    """Do nothing: the interpreter has written to the socket by now."""
