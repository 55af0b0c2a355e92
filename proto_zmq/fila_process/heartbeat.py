"""A sign of life for the process that started this one: a byte a second on standard input, which is a socket then.

Written by the main loop and by nothing else, so that a loop that hangs is silent. Whoever starts a part by hand gives it a pipe or a
terminal there; then nothing is written.
"""

import os
import socket
import stat
import time
from contextlib import suppress
from typing import Final

BEAT_S: Final = 1.0


class Heartbeat:
    """The writer. Call :meth:`beat` in every turn of the loop."""

    def __init__(self, parent_fd: int) -> None:
        self._socket = socket.socket(fileno=os.dup(parent_fd)) if stat.S_ISSOCK(os.fstat(parent_fd).st_mode) else None
        self._next_s = 0.0

    def beat(self) -> None:
        """Write a byte, if the last one is a second old. Never waits."""
        now_s = time.monotonic()
        if self._socket is None or now_s < self._next_s:
            return
        self._next_s = now_s + BEAT_S
        with suppress(OSError):  # the parent is gone, or hangs itself
            self._socket.send(b".", socket.MSG_DONTWAIT)

    def close(self) -> None:
        """Write no more."""
        if self._socket is not None:
            self._socket.close()
