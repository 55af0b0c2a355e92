"""The bond of a process to its parent: settings at its start, a sign of life, when to stop, and signals in general."""

import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final, TypeVar

import msgspec

STDIN: Final = 0

DEPOSED: Final = 3
"""The exit code of a process that ends because another host has taken its place. Its parent starts it again at once."""

UNFIT: Final = 4
"""The exit code of a process that another host's name or data keeps from its work: to start it again would not help."""

_Settings = TypeVar("_Settings", bound=msgspec.Struct)


def read_settings(kind: type[_Settings]) -> _Settings:
    """Wait for the settings and read them; :class:`msgspec.MsgspecError` if they are not of this kind."""
    with open(STDIN, "rb", buffering=0, closefd=False) as stdin:  # unbuffered: its end is watched later
        return msgspec.json.decode(stdin.readline(), type=kind)


BEAT_S: Final = 1.0


class ParentHeartbeat:
    """Writes the sign of life. Call :meth:`beat` in every turn of the loop."""

    def __init__(self, parent_fd: int) -> None:
        self._socket = socket.socket(fileno=os.dup(parent_fd)) if stat.S_ISSOCK(os.fstat(parent_fd).st_mode) else None
        self._next_s = 0.0

    def beat(self) -> None:
        """Write a byte, if the last one is a second old. Never waits."""
        now_s = time.monotonic()
        if self._socket is None or now_s < self._next_s:
            return
        self._next_s = now_s + BEAT_S
        with suppress(OSError):  # the parent is gone, or hangs
            self._socket.send(b".", socket.MSG_DONTWAIT)

    def close(self) -> None:
        """Write no more."""
        if self._socket is not None:
            self._socket.close()


class StopRequests:
    """The descriptors to watch, and what it means when they are readable. Made once, in the main thread."""

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
        """The file descriptors to poll for reading."""
        return [self._reader.fileno(), self._parent_fd]

    def requested(self, readable: Container[object]) -> bool:
        """Return whether the readable descriptors mean the end; data from the parent does not."""
        if self._reader.fileno() in readable:
            return True
        return self._parent_fd in readable and not os.read(self._parent_fd, 4096)

    def close(self) -> None:
        """Block signals from now on: this process is about to end."""
        shut_out_signals()


def shut_out_signals() -> None:
    """Block signals from here to the end of the process: one that comes now must change neither its exit code nor its output.

    They are blocked, because a change of handlers would be a race with signals under way, which Python reports. SIGCHLD is
    among them, because Python reports a wake-up descriptor that is closed when a late one comes.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})


def _let_poll_wake(number: int, frame: FrameType | None) -> None:
    """Do nothing: the interpreter has written to the wake-up descriptor by now."""


ENDINGS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def handling(handler: "Callable[[int, FrameType | None], object] | signal.Handlers", *numbers: int) -> Iterator[None]:
    """Call ``handler`` for signals (``ENDINGS`` unless ``numbers`` are given) until the end of the block, then the handlers
    before.

    Only the main thread can do that: in any other one, nothing changes.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in numbers or ENDINGS} if is_main else {}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
