"""The supervisor's loop: start all, restart what dies, say when it serves, stop in order.

A child that cannot even start the first time will not learn it by repetition: then the whole gives up, and the child's own
line on standard error has said why. Later deaths are restarted for ever, with growing pauses.
"""

import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from fila_cluster.supervisor.child import Child, describe_exit
from fila_cluster.supervisor.failure import CannotStartError
from fila_cluster.supervisor.readiness import ASK_AGAIN_S, Readiness
from fila_cluster.supervisor.wakeups import Wakeups

WORKERS_STOP_S = 7.0
"""How long workers may take to commit and flush before they are killed."""

ROUTER_STOP_S = 1.0


class Supervisor:
    """Watches one router, its workers, and who observes them."""

    def __init__(
        self,
        router: Child,
        workers: Sequence[Child],
        observers: Sequence[Child],
        readiness: Readiness,
        announce: Callable[[], None],
    ) -> None:
        self._router = router
        self._workers = workers
        self._observers = observers
        self._children = [router, *workers, *observers]
        self._readiness: Readiness | None = readiness
        self._announce = announce
        self._wakeups = Wakeups()

    def run(self) -> int:
        """Run until told to stop; returns the exit code. :class:`CannotStartError` if there is nothing to run."""
        self._start_all()
        exit_code: int | None = None
        while exit_code is None:
            exit_code = self._turn()
        self._stop()
        return exit_code

    def _turn(self) -> int | None:
        """Sleep, then do what is due; an exit code when it is time to stop."""
        if self._wakeups.sleep(self._until_due_s(time.monotonic())):
            return 0
        now = time.monotonic()
        for child in self._children:
            if not self._look_after(child, now):
                return 1
        if self._readiness is not None and self._readiness.check(now):
            self._readiness.close()
            self._readiness = None
            self._announce()
        return None

    def _until_due_s(self, now: float) -> float | None:
        restarts = [child.restart_at for child in self._children if child.restart_at is not None]
        due = [*restarts, *([now + ASK_AGAIN_S] if self._readiness else [])]
        return max(0.0, min(due) - now) if due else None

    def _start_all(self) -> None:
        try:
            for child in self._children:
                child.start(time.monotonic())
        except OSError as error:
            self._stop()
            raise CannotStartError(f"cannot run {sys.executable}: {error.strerror}") from None

    def _restart(self, child: Child, now: float) -> None:
        try:
            child.start(now)
        except OSError as error:  # no memory, no process ids: both may pass
            _log(f"cannot restart {child.name}: {error.strerror}; trying again in {child.schedule_restart(now):g} s")

    def _look_after(self, child: Child, now: float) -> bool:
        """Restart a child when it is due; False if there is no hope for it."""
        if child.restart_at is not None and child.restart_at <= now:
            self._restart(child, now)
        code = child.exit_code()
        if code is None:
            return True
        if code > 0 and child.starts == 1 and self._readiness is not None:
            return False
        pid, delay_s = child.pid, child.schedule_restart(now)
        _log(f"{child.name} (pid {pid}) {describe_exit(code)}; restarting it in {delay_s:g} s")
        return True

    def _stop(self) -> None:
        """The router last, so that the workers' last answers still find a way out."""
        if self._readiness is not None:
            self._readiness.close()
        self._stop_together([*self._workers, *self._observers], WORKERS_STOP_S)
        self._stop_together([self._router], ROUTER_STOP_S)

    def _stop_together(self, children: Sequence[Child], within_s: float) -> None:
        for child in children:
            child.send(signal.SIGTERM)
        give_up_at = time.monotonic() + within_s
        while any(child.is_running() for child in children):
            remaining_s = give_up_at - time.monotonic()
            if remaining_s <= 0:
                break
            self._wakeups.sleep(remaining_s)
        for child in children:
            if child.is_running():
                _log(f"{child.name} (pid {child.pid}) did not stop within {within_s:g} s; killing it")
                child.send(signal.SIGKILL)


def _log(line: str) -> None:
    with suppress(OSError):  # nobody reads it; that is no reason to stop serving
        print(f"fila-cluster: {line}", file=sys.stderr, flush=True)
