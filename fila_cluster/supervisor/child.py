"""One child process: how it is started, whether it lives, and when it is started again."""

import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from fila_process.parent import BEAT_S

FIRST_S = 0.1
"""The first pause that is one."""
LONGEST_S = 5.0
HEALTHY_S = 2.0
"""A child that served this long was well; what ended it is news."""


class Backoff:
    """The delays of one child's restarts."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def delay_s(self, served_s: float) -> float:
        """Seconds to wait after a child died that had served for ``served_s``; its start does not count."""
        delay_s = 0.0 if served_s >= HEALTHY_S else self._next_s
        self._next_s = min(LONGEST_S, max(FIRST_S, 2 * delay_s))
        return delay_s


HUNG_S: Final = 10.0
"""Silence after which a child hangs. Its turns take milliseconds; a slow disk may hold up a commit for seconds."""

GRACE_S: Final = 2.0
"""How long one that hangs may take to end by itself before it is killed."""

PAUSE_S: Final = 3.0
"""The supervisor turns once a second; a longer pause was its own."""


class Liveness:
    """What is known of one child's life. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._heard_at: float | None = None
        self._beats = 0

    def heard(self, now: float, beats: int = 1) -> None:
        """It has written so many bytes."""
        self._heard_at = now
        self._beats += beats

    def excuse(self, now: float) -> None:
        """It may have written, and nobody listened."""
        if self._heard_at is not None:
            self._heard_at = now

    @property
    def served_s(self) -> float:
        """For how long its main loop has turned, whenever that was heard; 0 before its second byte."""
        return max(0, self._beats - 1) * BEAT_S

    def silent_s(self, now: float) -> float:
        """For how long nothing was heard of it; 0 before its first byte."""
        return 0.0 if self._heard_at is None else now - self._heard_at


PRIVATE = 0o077
"""The umask of children: logs, tables and sockets are nobody else's business, whatever mode the data directory has."""


class Child:
    """A part of the cluster, through all its lives. Invariant: it runs, or ``restart_at`` says when it will."""

    def __init__(self, name: str, module: str, settings: bytes, cwd: Path, lock_fd: int) -> None:
        self.name = name
        self.restart_at: float | None = None
        """When to start it again, monotonic seconds; None while it runs."""
        self.starts = 0
        self._module = module
        self._settings = settings
        self._cwd = cwd
        self._lock_fd = lock_fd
        self._backoff = Backoff()
        self._started_at = 0.0
        self._running: subprocess.Popen[bytes] | None = None
        self._input: socket.socket | None = None
        """Our end of its standard input."""
        self.liveness = Liveness()
        """Of its current life."""
        self.told_to_end = False
        """Whether it was told to end because it hangs."""

    @property
    def pid(self) -> int:
        """Of its current or last life."""
        return self._running.pid if self._running else 0

    def start(self, now: float) -> None:
        """Start it in a group of its own, so that a terminal's Ctrl-C reaches the supervisor alone."""
        self.restart_at = None
        self.starts += 1
        self._started_at = now
        self._let_go()
        self.liveness, self.told_to_end = Liveness(), False
        self._input, theirs = socket.socketpair()
        with theirs:
            self._running = subprocess.Popen(
                [sys.executable, "-P", "-m", self._module, self.name],  # the name is for those who list processes
                stdin=theirs.fileno(),
                stdout=sys.stderr.fileno(),  # ours is for the one line that says "ready"
                cwd=self._cwd,
                pass_fds=[self._lock_fd],
                process_group=0,
                umask=PRIVATE,
            )
        with suppress(BrokenPipeError, ConnectionResetError):  # it died already; the next look at it says so
            self._input.sendall(self._settings)
        self._input.setblocking(False)

    def _let_go(self) -> None:
        """Close the last life's standard input."""
        if self._input is not None:
            self._input.close()

    def listen(self, now: float) -> None:
        """Take in what it wrote."""
        if self._input is not None:
            with suppress(OSError):  # nothing, or its end, which is seen elsewhere
                if beats := self._input.recv(4096):
                    self.liveness.heard(now, len(beats))

    def lived_s(self, now: float) -> float:
        """Return how long its current or last life is at ``now``, monotonic seconds."""
        return now - self._started_at

    def exit_code(self) -> int | None:
        """Return how it ended (negative: by that signal), None while it runs or waits for its restart."""
        return None if self._running is None or self.restart_at is not None else self._running.poll()

    def schedule_restart(self, now: float) -> float:
        """After its end: returns the seconds until its next start."""
        delay_s = self._backoff.delay_s(self.liveness.served_s)
        self.restart_at = now + delay_s
        return delay_s

    def send(self, number: signal.Signals) -> None:
        """Send a signal if it runs."""
        if self.is_running():
            assert self._running is not None
            self._running.send_signal(number)

    def is_running(self) -> bool:
        """Return whether the process is there."""
        return self._running is not None and self._running.poll() is None


def describe_exit(code: int) -> str:
    """Return an exit code in words."""
    if code >= 0:
        return f"exited with code {code}"
    return f"was killed by signal {-code} ({signal.strsignal(-code)})"
