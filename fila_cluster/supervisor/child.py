"""One child process: started with its settings on standard input, which stays open for as long as its parent lives.

That input is a socket, on which the child's main loop writes in return that it lives.
"""

import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from fila_cluster.supervisor.backoff import Backoff
from fila_cluster.supervisor.liveness import Liveness

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
        """How long its current or last life is at ``now``, monotonic seconds."""
        return now - self._started_at

    def exit_code(self) -> int | None:
        """How it ended (negative: by that signal), None while it runs or waits for its restart."""
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
        """Whether the process is there."""
        return self._running is not None and self._running.poll() is None


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exited with code {code}"
    return f"was killed by signal {-code} ({signal.strsignal(-code)})"
