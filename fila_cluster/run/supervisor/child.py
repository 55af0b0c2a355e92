"""One child process: its start, its heartbeats and its restarts."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from fila_process.parent import BEAT_S, DEPOSED

FIRST_S = 0.1
"""The first pause; the first restart has none."""
LONGEST_S = 5.0
HEALTHY_S = 2.0
"""After serving for so long a child restarts without a pause."""


class RestartBackoff:
    """The delays of one child's restarts."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def delay_s(self, served_s: float) -> float:
        """Return the seconds to wait after a child died that had served for ``served_s``; its start does not count."""
        delay_s = 0.0 if served_s >= HEALTHY_S else self._next_s
        self._next_s = min(LONGEST_S, max(FIRST_S, 2 * delay_s))
        return delay_s


HUNG_S: Final = 10.0
"""A child that is silent for so long hangs. Its turns take milliseconds; a slow disk may delay a commit for seconds."""

GRACE_S: Final = 2.0
"""How long a hanging child may take to end before it is killed."""

PAUSE_S: Final = 3.0
"""The supervisor turns once a second; after a longer pause the silence was its own."""


class Liveness:
    """The signs of life of one child process. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._heard_at: float | None = None
        self._beats = 0

    def heard(self, now: float, beats: int = 1) -> None:
        """Note bytes that it has written."""
        self._heard_at = now
        self._beats += beats

    def excuse(self, now: float) -> None:
        """Ignore silence before now: it may have written while the supervisor did not read."""
        if self._heard_at is not None:
            self._heard_at = now

    @property
    def served_s(self) -> float:
        """The time from its first to its last byte; 0 before its second byte."""
        return max(0, self._beats - 1) * BEAT_S

    def silent_s(self, now: float) -> float:
        """Return the time since its last byte; 0 before its first byte."""
        return 0.0 if self._heard_at is None else now - self._heard_at


KILL_S = 1.0
"""How long to wait for the end of a killed process: it may sleep in the kernel, at a disk that does not answer."""

PRIVATE = 0o077
"""The umask of children: logs, tables and sockets are private, whatever mode the data directory has."""


SECRET_VARIABLES = ("FILA_API_KEY", "FILA_WORKER_TOKEN", "FILA_REPLICATION__PROPERTIES")
"""Secrets of clients and commands in a user's environment. Parts of a cluster get theirs on their standard input."""


def without_secrets() -> dict[str, str]:
    """Return this process's environment without secrets, for its children."""
    return {name: value for name, value in os.environ.items() if name.upper() not in SECRET_VARIABLES}


class Child:
    """A part of the cluster, through all its processes. Invariant: it runs, or ``restart_at`` is when it will."""

    def __init__(self, name: str, module: str, settings: bytes, cwd: Path, lock_fd: int) -> None:
        self.name = name
        self.restart_at: float | None = None
        """When to start it again, monotonic seconds; None while it runs."""
        self.starts = 0
        self._module = module
        self.settings = settings
        """The settings of its next start."""
        self._cwd = cwd
        self._lock_fd = lock_fd
        self._backoff = RestartBackoff()
        self._started_at = 0.0
        self._running: subprocess.Popen[bytes] | None = None
        self._input: socket.socket | None = None
        """The supervisor's end of its standard input."""
        self.liveness = Liveness()
        """The signs of life of its current process."""
        self.asked_to_end = False
        """Whether it was asked to end because it hangs."""

    @property
    def pid(self) -> int:
        """The id of its current or last process."""
        return self._running.pid if self._running else 0

    def start(self, now: float) -> None:
        """Start it in a group of its own, so that a terminal's Ctrl-C reaches the supervisor alone."""
        self.restart_at = None
        self.starts += 1
        self._started_at = now
        self._let_go()
        self.liveness, self.asked_to_end = Liveness(), False
        self._input, theirs = socket.socketpair()
        with theirs:
            self._running = subprocess.Popen(
                [sys.executable, "-P", "-m", self._module, self.name],  # the name is for lists of processes
                stdin=theirs.fileno(),
                stdout=sys.stderr.fileno(),  # standard output is for the line "ready: …" alone
                cwd=self._cwd,
                pass_fds=[self._lock_fd],
                process_group=0,
                umask=PRIVATE,
                env=without_secrets(),
            )
        with suppress(BrokenPipeError, ConnectionResetError):  # it has died already; the next turn handles that
            self._input.sendall(self.settings)
        self._input.setblocking(False)

    def _let_go(self) -> None:
        """Close the last process's standard input."""
        if self._input is not None:
            self._input.close()

    def listen(self, now: float) -> None:
        """Read its signs of life."""
        if self._input is not None:
            with suppress(OSError):  # nothing to read, or its end, which the next turn handles
                if beats := self._input.recv(4096):
                    self.liveness.heard(now, len(beats))

    def lived_s(self, now: float) -> float:
        """Return how long its current or last process has lived at ``now``, monotonic seconds."""
        return now - self._started_at

    def exit_code(self) -> int | None:
        """Return how it ended (negative: by that signal), None while it runs or waits for its restart."""
        return None if self._running is None or self.restart_at is not None else self._running.poll()

    def schedule_restart(self, now: float, *, deposed: bool = False) -> float:
        """Schedule its next start; return the seconds until then. ``deposed``: it has ended in a regular way."""
        delay_s = 0.0 if deposed else self._backoff.delay_s(self.liveness.served_s)
        self.restart_at = now + delay_s
        return delay_s

    def send(self, number: signal.Signals) -> None:
        """Send a signal if it runs."""
        if self.is_running():
            assert self._running is not None
            self._running.send_signal(number)

    def kill(self) -> None:
        """Kill it, and wait until it is gone: it holds the lock of the data directory until then."""
        self.send(signal.SIGKILL)
        if self._running is not None:
            with suppress(subprocess.TimeoutExpired):
                self._running.wait(KILL_S)

    def is_running(self) -> bool:
        """Return whether the process is there."""
        return self._running is not None and self._running.poll() is None


def describe_exit(code: int) -> str:
    """Return an exit code in words."""
    if code == DEPOSED:
        return "was deposed: another host leads a shard that it led"
    if code >= 0:
        return f"exited with code {code}"
    return f"was killed by signal {-code} ({signal.strsignal(-code)})"
