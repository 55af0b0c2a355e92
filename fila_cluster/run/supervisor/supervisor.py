"""The supervisor's loop: start all parts, restart those that die, announce when all serve, stop in order."""

import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from fila_cluster.run.supervisor import CannotStartError
from fila_cluster.run.supervisor.child import GRACE_S, HUNG_S, PAUSE_S, Child, describe_exit
from fila_cluster.run.supervisor.ready_probe import ASK_AGAIN_S, ReadyProbe
from fila_process.journal import Journal
from fila_process.parent import DEPOSED, UNFIT, shut_out_signals
from fila_proto_zmq.events import (
    ChildDied,
    ChildHung,
    ChildKilled,
    ChildRenewed,
    ChildStarted,
    ChildUnstartable,
    ClusterStopped,
    ClusterStopping,
)


class Signals:
    """Made once, in the main thread. From then on SIGTERM, SIGINT and SIGCHLD wake :meth:`sleep` and do nothing else."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, _only_wake)

    def sleep(self, seconds: float | None) -> bool:
        """Wait for a signal, for ``seconds`` at most (None: for ever); return whether it asks to stop."""
        select.select([self._reader], [], [], seconds)
        try:
            numbers = self._reader.recv(4096)
        except BlockingIOError:
            return False
        return signal.SIGTERM in numbers or signal.SIGINT in numbers

    def close(self) -> None:
        """Ignore signals at the end of this process."""
        shut_out_signals()


def _only_wake(number: int, frame: FrameType | None) -> None:
    """Do nothing: the interpreter has written to the socket by now."""


WORKERS_STOP_S = 7.0
"""How long workers may take to commit and flush before they are killed."""

TURN_S = 1.0
"""The longest sleep: how often the supervisor checks whether children live."""

ROUTER_STOP_S = 2.0
"""The router commits nothing; with the workers' time this is less than the ten seconds that a stop may take."""


class Supervisor:
    """Watches one router, its workers, and the observer."""

    def __init__(
        self,
        router: Child,
        workers: Sequence[Child],
        observers: Sequence[Child],
        readiness: ReadyProbe,
        announce: Callable[[], None],
        journal: Journal,
        renewed: Callable[[], Mapping[str, bytes]] = dict,
    ) -> None:
        """``renewed``: settings of children, by name, that may have changed; asked once a second."""
        self._router = router
        self._workers = workers
        self._observers = observers
        self._children = [router, *workers, *observers]
        self._readiness: ReadyProbe | None = readiness
        self._announce = announce
        self._journal = journal
        self._renewed = renewed
        self._wakeups = Signals()
        self._turned_at = time.monotonic()

    def run(self) -> int:
        """Run until asked to stop; return the exit code. :class:`CannotStartError` if the first start of a part fails."""
        self._start_all()
        exit_code: int | None = None
        while exit_code is None:
            exit_code = self._turn()
        self._stop()
        return exit_code

    def _turn(self) -> int | None:
        """Sleep, then do what is due; return an exit code when it is time to stop."""
        if self._wakeups.sleep(self._until_due_s(time.monotonic())):
            return 0
        now = time.monotonic()
        paused, self._turned_at = now - self._turned_at > PAUSE_S, now
        settings = self._renewed()
        for child in self._children:
            self._renew(child, settings.get(child.name, child.settings))
            child.listen(now)
            if paused:
                child.liveness.excuse(now)
            if not self._look_after(child, now):
                return 1
        if self._readiness is not None and self._readiness.check(now):
            self._readiness.close()
            self._readiness = None
            self._announce()
        return None

    def _until_due_s(self, now: float) -> float:
        restarts = [child.restart_at for child in self._children if child.restart_at is not None]
        due = [now + TURN_S, *restarts, *([now + ASK_AGAIN_S] if self._readiness else [])]
        return max(0.0, min(due) - now)

    def _start_all(self) -> None:
        try:
            for child in self._children:
                self._start(child, time.monotonic())
        except OSError as error:
            self._stop()
            raise CannotStartError(f"cannot run {sys.executable}: {error.strerror}") from None

    def _start(self, child: Child, now: float) -> None:
        child.start(now)
        self._journal.tell([ChildStarted(child.name, child.pid, child.starts)])

    def _restart(self, child: Child, now: float) -> None:
        try:
            self._start(child, now)
        except OSError as error:  # no memory, no process ids: both may pass
            restart_ms = round(1000 * child.schedule_restart(now))
            self._journal.tell([ChildUnstartable(child.name, str(error.strerror), restart_ms)])

    def _renew(self, child: Child, settings: bytes) -> None:
        """Restart a child if its settings have changed."""
        if settings != child.settings:
            child.settings = settings
            self._journal.tell([ChildRenewed(child.name, child.pid)])
            child.send(signal.SIGTERM)

    def _look_after(self, child: Child, now: float) -> bool:
        """Restart a child when it is due; return False if it can't be started, or must not be."""
        if child.restart_at is not None and child.restart_at <= now:
            self._restart(child, now)
        code = child.exit_code()
        if code is None:
            self._end_if_hung(child, now)
            return True
        if code == UNFIT or (code > 0 and code != DEPOSED and child.starts == 1 and self._readiness is not None):
            return False
        delay_s = child.schedule_restart(now, deposed=code == DEPOSED)
        lived_ms, restart_ms = round(1000 * child.lived_s(now)), round(1000 * delay_s)
        self._journal.tell([ChildDied(child.name, child.pid, describe_exit(code), lived_ms, restart_ms)])
        return True

    def _end_if_hung(self, child: Child, now: float) -> None:
        silent_s = child.liveness.silent_s(now)
        if child.restart_at is not None or silent_s < HUNG_S:
            return
        if not child.asked_to_end:
            child.asked_to_end = True
            self._journal.tell([ChildHung(child.name, child.pid, round(1000 * silent_s))])
            child.send(signal.SIGTERM)
        elif silent_s >= HUNG_S + GRACE_S:
            child.send(signal.SIGKILL)

    def _stop(self) -> None:
        """Stop the workers, then the router, so that the workers' last answers reach clients."""
        began = time.monotonic()
        self._journal.tell([ClusterStopping()])
        if self._readiness is not None:
            self._readiness.close()
        self._stop_together([*self._workers, *self._observers], WORKERS_STOP_S)
        self._stop_together([self._router], ROUTER_STOP_S)
        self._journal.tell([ClusterStopped(round(1000 * (time.monotonic() - began)))])
        self._wakeups.close()

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
                self._journal.tell([ChildKilled(child.name, child.pid, round(1000 * within_s))])
                child.kill()
