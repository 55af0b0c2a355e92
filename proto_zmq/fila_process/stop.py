"""When to stop: SIGTERM, SIGINT, or the end of the pipe from the process that started this one.

All three are file descriptors here, so that the loop's one poll sees them; nothing runs inside a signal handler.
"""

import os
import signal
import socket
from collections.abc import Container
from types import FrameType


class StopRequests:
    """The descriptors to watch, and what their being readable means. Made once, in the main thread."""

    def __init__(self, parent_fd: int) -> None:
        """``parent_fd``: a pipe whose end says that the parent is gone."""
        self._parent_fd = parent_fd
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _let_poll_wake)

    @property
    def fds(self) -> list[int]:
        """What to poll for reading."""
        return [self._reader.fileno(), self._parent_fd]

    def requested(self, readable: Container[object]) -> bool:
        """Whether what a poll found readable means the end; a parent may also just have said something."""
        if self._reader.fileno() in readable:
            return True
        return self._parent_fd in readable and not os.read(self._parent_fd, 4096)


def _let_poll_wake(number: int, frame: FrameType | None) -> None:
    """Do nothing: the interpreter has written to the wake-up descriptor by now."""
