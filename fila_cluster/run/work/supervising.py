"""The shell around the roster: it starts and signals processes, reads their reports, and shows the progress."""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from fila_cluster.run.supervisor import CannotStartError
from fila_cluster.run.supervisor.child import describe_exit
from fila_cluster.run.work import logs, wire
from fila_cluster.run.work.process import Process
from fila_cluster.run.work.progress import ProgressBoard, Write, shown
from fila_cluster.run.work.roster import Action, Died, Drain, Kill, RenewalFailed, Renewed, Roster, Start


def require_watchfiles() -> None:
    """Raise :class:`CannotStartError` unless the library for ``--reload`` is installed."""
    try:
        import watchfiles  # noqa: F401, PLC0415
    except ImportError:
        raise CannotStartError("--reload needs the extra `reload`: pip install 'fila-cluster[reload]'") from None


async def watch(folder: Path, changed: Callable[[list[str]], None], stop: asyncio.Event) -> None:
    """Call ``changed`` with changed Python files below ``folder``, until ``stop``. Changes of a moment come together."""
    from watchfiles import PythonFilter, awatch  # noqa: PLC0415  # an extra

    async for changes in awatch(folder, watch_filter=PythonFilter(), stop_event=stop, recursive=True):
        changed(sorted({path for _, path in changes}))


DRAW_EVERY_S: Final = 0.5

_log = logging.getLogger("fila_cluster.run.work")


@dataclass(frozen=True, slots=True)
class Crew:
    """The processes to run. ``serves`` is called once, with their number and queues, when all of the first start serve."""

    app: str
    folder: Path
    processes: int
    grace_s: float
    reload: bool
    endpoint: str | None
    serves: Callable[[int, Sequence[str]], None]


def supervise(crew: Crew) -> None:
    """Run the processes until asked to stop. :class:`CannotStartError` if one of the first start ends before it serves."""
    if crew.reload:
        require_watchfiles()
    asyncio.run(HandlerSupervisor(crew).run())


class HandlerSupervisor:
    """Carries out the roster's actions."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._roster = Roster(crew.processes, crew.grace_s)
        self._board = ProgressBoard()
        self._running: dict[int, Process] = {}
        self._unsent: dict[int, signal.Signals] = {}
        """The last signal to each process that is being started."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        """Set when something happened, so that the next deadline may be another one."""
        self._stopping = asyncio.Event()
        self._write: Write | None = None
        self._announced = False

    async def run(self) -> None:
        """Run until all processes have ended."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._renew, "SIGHUP")
        console = Console(stderr=True, highlight=False, markup=False)
        with ExitStack() as stack:
            draw = self._nothing
            if sys.stderr.isatty():
                self._write, draw = stack.enter_context(shown(console, self._line))
            _log_above(self._write)
            if self._crew.reload:
                self._task(watch(self._crew.folder, self._changed, self._stopping))
            self._do(self._roster.start())
            while not self._roster.finished:
                await self._until_due()
                self._do(self._roster.tick(time.monotonic()))
                draw()
            self._stopping.set()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._roster.failed:
            raise CannotStartError(f"{self._crew.app} does not work: a process ended before it served; the reason is above")

    @staticmethod
    def _nothing() -> None:
        """Draw no line: standard error is not a terminal."""

    def _line(self) -> str:
        return self._board.text(self._roster.serving)

    async def _until_due(self) -> None:
        due_at = self._roster.due_at()
        seconds = None if due_at is None else max(0.0, due_at - time.monotonic())
        if self._write is not None:
            seconds = min(DRAW_EVERY_S, DRAW_EVERY_S if seconds is None else seconds)
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            pass
        self._news.clear()

    # --- events -------------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        _log.info(("draining", "ending at once", "killing")[min(self._roster.stops, 2)])
        self._happened(self._roster.stop(time.monotonic()))

    def _renew(self, why: str) -> None:
        _log.info("restarting the processes, one after the other: %s", why)
        self._happened(self._roster.renew(time.monotonic()))

    def _changed(self, paths: list[str]) -> None:
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        self._renew(f"{os.path.relpath(paths[0], self._crew.folder)}{more} changed")

    def _heard(self, number: int, line: wire.Line) -> None:
        now = time.monotonic()
        if isinstance(line, wire.TallyReport):
            self._board.counted(number, line.tallies, now)
            return
        self._happened(self._roster.ready(number, now))
        if self._roster.was_ready and not self._announced:
            self._announced = True
            self._crew.serves(self._crew.processes, line.queues)

    # --- actions ------------------------------------------------------------------------------------------------------

    def _happened(self, actions: list[Action]) -> None:
        """Carry out the actions of an event, and update the deadlines."""
        self._do(actions)
        self._news.set()

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Start(number):
                    self._task(self._run_process(number))
                case Drain(number):
                    self._signal(number, signal.SIGTERM)
                case Kill(number):
                    _log.warning("process %d does not end: killing it", number)
                    self._signal(number, signal.SIGKILL)
                case Died(number, code, restart_s):
                    _log.error("process %d %s; another one starts in %g s", number, describe_exit(code), restart_s)
                case RenewalFailed(number, code):
                    _log.error(
                        "the new process %d %s before it served: the others stay as they are", number, describe_exit(code)
                    )
                case Renewed():
                    _log.info("all processes are new")

    def _task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a part of the supervisor has failed: %s", error, exc_info=error)

    def _signal(self, number: int, what: signal.Signals) -> None:
        process = self._running.get(number)
        if process is None:
            self._unsent[number] = what
        else:
            process.send(what)

    async def _run_process(self, number: int) -> None:
        """Run a process from its start to its end."""
        crew = self._crew

        def settings(fd: int) -> wire.ProcessSettings:
            return wire.ProcessSettings(crew.app, str(crew.folder), fd, crew.grace_s, crew.endpoint, self._write is not None)

        try:
            process = await Process.start(settings, piped=self._write is not None)
        except OSError as error:  # no memory, no process ids: both may pass
            _log.error("cannot run %s: %s", sys.executable, error.strerror)
            self._over(number, 1)
            return
        self._running[number] = process
        if (unsent := self._unsent.pop(number, None)) is not None:
            process.send(unsent)
        code = await process.ended(partial(self._heard, number), self._write)
        del self._running[number]
        self._board.ended(number)
        self._over(number, code)

    def _over(self, number: int, code: int) -> None:
        self._happened(self._roster.ended(number, code, time.monotonic()))


class _Lines:
    """A stream for a log handler that writes whole lines."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def write(self, text: str) -> int:
        """Write lines; their ends are made by the writer."""
        if text.strip("\n"):
            self._write(text.rstrip("\n"))
        return len(text)

    def flush(self) -> None:
        """Do nothing."""


def _log_above(write: Write | None) -> None:
    """Log the supervisor's events beside the processes' own; above the progress line if there is one."""
    stream = None if write is None else _Lines(write)
    logs.set_up_logs("supervisor", for_people=write is not None, pid=os.getpid(), stream=stream)  # type: ignore[arg-type]
