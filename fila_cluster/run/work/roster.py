"""When a process is started, drained and killed: events and times in, actions out.

There are as many places as wanted processes. A place has one process that serves, and in a renewal also its successor: the
old process is drained only when the new one is ready. So a renewal never lowers the number of serving processes, and code
that does not start replaces nothing. Places are renewed one after the other.

A place's life::

    start ──▶ starting ──ready──▶ serving ──died──▶ waiting ──due──▶ starting
                                     │ renew
                                     ▼
                    serving + starting successor ──ready──▶ draining + serving ──ended──▶ serving
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from fila_cluster.run.supervisor.child import RestartBackoff

MARGIN_S: Final = 10.0
"""How long after its grace time a process may take to give back its messages and end, before it is killed."""

HURRY_S: Final = 5.0
"""The same after a second request to stop."""


class Start(NamedTuple):
    """Start a process with this number. Numbers are never used again."""

    number: int


class Drain(NamedTuple):
    """Send SIGTERM: the first one drains, a second one ends at once."""

    number: int


class Kill(NamedTuple):
    """Send SIGKILL."""

    number: int


class Died(NamedTuple):
    """Report that a process ended without a request; another one starts in ``restart_s``."""

    number: int
    code: int
    restart_s: float


class RenewalFailed(NamedTuple):
    """Report that a new process ended before it was ready, so the old ones stay."""

    number: int
    code: int


class Renewed(NamedTuple):
    """Report that all places have new processes."""


Action: TypeAlias = Start | Drain | Kill | Died | RenewalFailed | Renewed


@dataclass(slots=True, eq=False)
class ProcessState:
    """One process. ``ready_at`` None: it starts; ``kill_at`` None: it was not asked to end."""

    number: int
    ready_at: float | None = None
    kill_at: float | None = None


@dataclass(slots=True, eq=False)
class ProcessPlace:
    """Invariant: it has a process, or ``restart_at`` is when it will; or the roster stops."""

    backoff: RestartBackoff = field(default_factory=RestartBackoff)
    process: ProcessState | None = None
    successor: ProcessState | None = None
    restart_at: float | None = None


class Roster:
    """All places. Times are monotonic seconds."""

    def __init__(self, processes: int, grace_s: float) -> None:
        self._places = [ProcessPlace() for _ in range(processes)]
        self._end_s = grace_s + MARGIN_S
        self._started = 0
        self._to_renew: list[ProcessPlace] = []
        """Places that a renewal has still to do; the first one is under way."""
        self._again = False
        """Whether another renewal was asked for while one is under way: it may have started with the older code."""
        self.stops = 0
        """How often it was asked to stop."""
        self.failed = False
        """Whether the first start failed."""
        self.was_ready = False
        """Whether all processes of the first start were ready."""

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether it stops, and all processes have ended."""
        return self.stops > 0 and not self._processes()

    @property
    def serving(self) -> int:
        """The number of processes that serve and were not asked to end."""
        return sum(process.ready_at is not None and process.kill_at is None for process in self._processes())

    def due_at(self) -> float | None:
        """Return when :meth:`tick` has work; None: only after an event."""
        moments = [process.kill_at for process in self._processes() if process.kill_at is not None]
        moments += [place.restart_at for place in self._places if place.restart_at is not None]
        return min(moments, default=None)

    # --- what happens -------------------------------------------------------------------------------------------------

    def start(self) -> list[Action]:
        """Start all places."""
        return [self._start(place) for place in self._places]

    def ready(self, number: int, now: float) -> list[Action]:
        """Note that a process serves."""
        place, process = self._find(number)
        if place is None or process is None or process.kill_at is not None:
            return []
        process.ready_at = now
        self.was_ready = self.was_ready or self.serving >= len(self._places)
        if process is place.successor and place.process is not None:
            return [self._drain(place.process, now)]
        return self._renewed(place)

    def ended(self, number: int, code: int, now: float) -> list[Action]:
        """Note the end of a process; ``code`` is negative after a signal."""
        place, process = self._find(number)
        if place is None or process is None:
            return []
        if process is place.successor:
            place.successor = None
            return [] if self.stops else self._successor_ended(process, code)
        place.process, place.successor = place.successor, None
        if self.stops:
            return []
        if not self.was_ready and process.ready_at is None:
            self.failed = True
            return self.stop(now)
        if place.process is not None:  # its successor has taken its place; if that serves, this one was drained
            return self._renewed(place) if place.process.ready_at is not None else []
        return [self._restart(place, process, code, now)]

    def renew(self, now: float) -> list[Action]:
        """Renew all places, one after the other."""
        if self.stops:
            return []
        if not self._to_renew:
            self._to_renew = list(self._places)
            return self._renew_next()
        self._again = True
        successor = self._to_renew[0].successor
        return [] if successor is None or successor.ready_at is not None else [self._drain(successor, now)]

    def stop(self, now: float) -> list[Action]:
        """Drain all processes; asked again: end them at once; a third time: kill them."""
        self.stops += 1
        self._to_renew, self._again = [], False
        for place in self._places:
            place.restart_at = None
        if self.stops > 2:
            return [Kill(process.number) for process in self._processes()]
        within_s = self._end_s if self.stops == 1 else HURRY_S
        return [self._drain(process, now, within_s) for process in self._processes()]

    def tick(self, now: float) -> list[Action]:
        """Do what is due."""
        actions: list[Action] = []
        for process in self._processes():
            if process.kill_at is not None and process.kill_at <= now:
                process.kill_at = now + HURRY_S  # a process that sleeps in the kernel is killed again
                actions.append(Kill(process.number))
        due = [place for place in self._places if place.restart_at is not None and place.restart_at <= now]
        return [*actions, *map(self._start, due)]

    # --- inside -------------------------------------------------------------------------------------------------------

    def _processes(self) -> list[ProcessState]:
        return [process for place in self._places for process in (place.process, place.successor) if process is not None]

    def _find(self, number: int) -> tuple[ProcessPlace | None, ProcessState | None]:
        for place in self._places:
            for process in (place.process, place.successor):
                if process is not None and process.number == number:
                    return place, process
        return None, None

    def _next(self) -> ProcessState:
        self._started += 1
        return ProcessState(self._started)

    def _start(self, place: ProcessPlace) -> Start:
        place.process, place.restart_at = self._next(), None
        return Start(place.process.number)

    def _drain(self, process: ProcessState, now: float, within_s: float | None = None) -> Drain:
        process.kill_at = now + (self._end_s if within_s is None else within_s)
        return Drain(process.number)

    def _restart(self, place: ProcessPlace, process: ProcessState, code: int, now: float) -> Died:
        delay_s = place.backoff.delay_s(0.0 if process.ready_at is None else now - process.ready_at)
        place.restart_at = now + delay_s
        return Died(process.number, code, delay_s)

    def _renew_next(self) -> list[Action]:
        """Start the successor of the next place; a place whose process does not serve yet gets a new one when that ends."""
        if not self._to_renew:
            if self._again:
                self._again = False
                self._to_renew = list(self._places)
            else:
                return [Renewed()]
        place = self._to_renew[0]
        if place.process is None:  # it waits for its restart: that has the new code
            return [self._start(place)]
        place.successor = self._next()
        return [Start(place.successor.number)]

    def _renewed(self, place: ProcessPlace) -> list[Action]:
        """Renew the next place, if this one's renewal has ended."""
        if not self._to_renew or self._to_renew[0] is not place or place.successor is not None:
            return []
        self._to_renew.pop(0)
        return self._renew_next()

    def _successor_ended(self, process: ProcessState, code: int) -> list[Action]:
        """Start over if there was another change since; else leave the old processes in their places."""
        if self._again:
            self._again = False
            self._to_renew = list(self._places)
            return self._renew_next()
        self._to_renew = []
        return [RenewalFailed(process.number, code)]
