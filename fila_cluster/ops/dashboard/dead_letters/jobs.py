"""Work on many dead letters, step by step: send them back, or delete them. Every open page lists these jobs."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from nicegui import ui

from fila_cluster import AsyncClient
from fila_cluster.client.calls.backlog import redrive_selected
from fila_cluster.errors import FilaError, MessageNotFoundError
from fila_cluster.figures import counted
from fila_cluster.ops.dashboard.shell.frame import link


class JobStep(NamedTuple):
    """Of ``seen`` letters, ``moved`` were sent back or deleted. ``seen`` 0: there are no letters left."""

    seen: int
    moved: int


class LetterWork(Protocol):
    """Sends back or deletes the next letters. After an error it can be called again."""

    async def advance(self, count: int) -> JobStep:
        """Work on up to ``count`` of them."""
        ...


class PickedRedrive:
    """Sends picked letters back."""

    def __init__(self, client: AsyncClient, dlq: str, ids: Sequence[str]) -> None:
        self._client, self._dlq, self._left = client, dlq, list(ids)

    async def advance(self, count: int) -> JobStep:
        """Send some back; those that are leased, gone, or have nowhere to go stay."""
        ids = self._left[:count]
        moved = await redrive_selected(self._client, self._dlq, ids) if ids else 0
        del self._left[: len(ids)]
        return JobStep(len(ids), moved)


class FullRedrive:
    """Sends all letters back, in the order of the queue."""

    def __init__(self, client: AsyncClient, dlq: str) -> None:
        self._client, self._dlq = client, dlq

    async def advance(self, count: int) -> JobStep:
        """Send some back, until all pending letters with a source queue are gone."""
        moved = await self._client.redrive(self._dlq, count)
        return JobStep(moved, moved)


class PickedDeletion:
    """Deletes picked letters."""

    def __init__(self, client: AsyncClient, dlq: str, ids: Sequence[str]) -> None:
        self._client, self._dlq, self._left = client, dlq, list(ids)

    async def advance(self, count: int) -> JobStep:
        """Delete some; leased ones stay, and those that are gone already don't count."""
        ids = self._left[:count]
        removed = await asyncio.gather(*(self._remove(each) for each in ids))
        del self._left[: len(ids)]
        return JobStep(len(ids), sum(removed))

    async def _remove(self, message_id: str) -> bool:
        try:
            return await self._client.cancel(self._dlq, message_id)
        except MessageNotFoundError:
            return False


AT_ONCE: Final = 500
"""Letters in one step: a job can be stopped in between."""

RUNNING_MAX: Final = 8
REMEMBERED_MAX: Final = 50
REMEMBERED_S: Final = 3600.0

RETRY_S: Final = 1.0
GIVE_UP_S: Final = 60.0
"""How long a broker may be away before a job ends with its error."""


@dataclass(slots=True)
class LetterJob:
    """One job's progress.

    ``state``: ``running``, ``waiting`` (for the broker), ``done``, ``stopped`` or ``failed``; ``trouble`` is the reason.

    Counts may be off by one step where an answer of the broker was lost.
    """

    number: int
    dlq: str
    verb: str
    """``redrive`` or ``delete``."""
    what: str
    """Which letters, for people."""
    total: int
    """The number of letters that it is about."""
    rate: float | None
    """Letters a second; None: at once."""
    state: str = "running"
    moved: int = 0
    stayed: int = 0
    trouble: str = ""
    started_s: float = 0.0
    ended_s: float | None = None
    _stop: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    _away_since: float | None = field(default=None, repr=False)

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.ended_s is not None

    @property
    def seen(self) -> int:
        """The number of letters that it has worked on."""
        return self.moved + self.stayed

    def stop(self) -> None:
        """Stop after the letters under way."""
        self._stop.set()

    async def run(self, work: LetterWork, clock: Callable[[], float] = time.monotonic) -> None:
        """Do the work."""
        budget = Budget(self.rate, clock())
        while not (self.is_over or self._stop.is_set() or self.seen >= self.total):
            count = min(budget.granted(clock()), self.total - self.seen)
            if count == 0:
                await self._rest(budget.wait_s())
            elif (step := await self._advance(work, count, clock)) is not None:
                budget.spend(step.seen)
                self.moved += step.moved
                self.stayed += step.seen - step.moved
                if step.seen == 0:
                    break
        if not self.is_over:
            self._end("stopped" if self._stop.is_set() and self.seen < self.total else "done", "")

    async def _advance(self, work: LetterWork, count: int, clock: Callable[[], float]) -> JobStep | None:
        """Do one step; None if the broker did not do it: then wait a little, or end."""
        try:
            step = await work.advance(count)
        except FilaError as error:
            self._away_since = clock() if self._away_since is None else self._away_since
            if not error.retryable or clock() - self._away_since > GIVE_UP_S:
                self._end("failed", str(error))
            else:
                self.state, self.trouble = "waiting", str(error)
                await self._rest(RETRY_S)
            return None
        self._away_since = None
        self.state, self.trouble = "running", ""
        return step

    async def _rest(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    def _end(self, state: str, trouble: str) -> None:
        self.state, self.trouble, self.ended_s = state, trouble, time.time()


class Budget:
    """The letters that may go now. A rate allows as many as one second brings, also after a standstill."""

    def __init__(self, rate: float | None, now: float) -> None:
        self._rate = rate
        self._allowed = 1.0
        self._at = now

    def granted(self, now: float) -> int:
        """Return whole letters, at most :data:`AT_ONCE`."""
        if self._rate is None:
            return AT_ONCE
        self._allowed = min(self._allowed + self._rate * (now - self._at), max(1.0, self._rate))
        self._at = now
        return min(AT_ONCE, int(self._allowed))

    def spend(self, count: int) -> None:
        """Take letters off the budget."""
        self._allowed -= count

    def wait_s(self) -> float:
        """Return the time until the next letter, or a tenth of a second's letters, may go."""
        return 0.1 if self._rate is None else max(0.1, (1.0 - self._allowed) / self._rate)


class TooManyJobsError(Exception):
    """Too many jobs run: more would only slow each other down."""


class LetterJobs:
    """All jobs of an observer. Invariant: at most :data:`RUNNING_MAX` run."""

    def __init__(self) -> None:
        self._jobs: dict[int, tuple[LetterJob, asyncio.Task[None]]] = {}
        self._number = 0

    def start(self, work: LetterWork, *, dlq: str, verb: str, what: str, total: int, rate: float | None = None) -> LetterJob:
        """Begin a job; :class:`TooManyJobsError` if too many are under way."""
        self._forget()
        if sum(not job.is_over for job in self.all()) >= RUNNING_MAX:
            raise TooManyJobsError(f"{RUNNING_MAX} jobs are under way: wait for one of them, or stop one")
        self._number += 1
        job = LetterJob(self._number, dlq, verb, what, total, rate, started_s=time.time())
        self._jobs[job.number] = job, asyncio.ensure_future(job.run(work))
        return job

    def all(self) -> list[LetterJob]:
        """Return the jobs that are remembered, the newest first."""
        self._forget()
        return [job for job, _ in reversed(self._jobs.values())]

    def of(self, dlq: str) -> list[LetterJob]:
        """Return the jobs of one queue, the newest first."""
        return [job for job in self.all() if job.dlq == dlq]

    def _forget(self) -> None:
        over = [job for job, _ in self._jobs.values() if job.ended_s is not None]
        old = [job for job in over if time.time() - (job.ended_s or 0) > REMEMBERED_S]
        for job in {job.number: job for job in (*old, *over[: max(0, len(over) - REMEMBERED_MAX)])}.values():
            del self._jobs[job.number]


LOOK_S: Final = 0.5

_COLOURS: Final = {"running": "primary", "waiting": "warning", "done": "positive", "stopped": "grey", "failed": "negative"}

_DONE: Final = {"redrive": "went back", "delete": "deleted"}


def progress(job: LetterJob) -> str:
    """Return its progress, in a line."""
    stayed = f" · {counted(job.stayed)} stayed (leased, gone or with nowhere to go)" if job.stayed else ""
    short = job.total - job.seen if job.state == "done" else 0
    missing = f" · {counted(short)} were gone or have nowhere to go" if short else ""
    trouble = f" · {job.trouble}" if job.trouble else ""
    return f"{counted(job.moved)} of {counted(job.total)} {_DONE[job.verb]}{stayed}{missing}{trouble}"


class JobList:
    """The jobs that ``jobs`` returns. ``ended`` is awaited once for each that ends while the page is open."""

    def __init__(
        self, jobs: Callable[[], Sequence[LetterJob]], ended: Callable[[LetterJob], Awaitable[None]] | None = None
    ) -> None:
        self._jobs = jobs
        self._ended = ended
        self._over = {job.number for job in jobs() if job.is_over}
        self._rows: dict[int, _Row] = {}
        with ui.card().classes("w-full p-3 gap-2").props("data-testid=jobs") as self._card:
            ui.label("Jobs").classes("font-semibold")
            self._list = ui.column().classes("w-full gap-2")
        self._card.set_visibility(False)
        ui.timer(LOOK_S, self._look)

    async def _look(self) -> None:
        jobs = self._jobs()
        self._card.set_visibility(bool(jobs))
        if [job.number for job in jobs] != list(self._rows):
            self._list.clear()
            with self._list:
                self._rows = {job.number: _Row(job) for job in jobs}
        for row in self._rows.values():
            row.look()
        for job in jobs:
            if job.is_over and job.number not in self._over:
                self._over.add(job.number)
                if self._ended is not None:
                    await self._ended(job)


class _Row:
    def __init__(self, job: LetterJob) -> None:
        self._job = job
        rate = "at once" if job.rate is None else f"{job.rate:g} a second"
        with ui.row().classes("w-full items-center gap-3 no-wrap").props(f"data-testid=job-{job.number}"):
            self._badge = ui.badge()
            ui.link(job.dlq, link("/dead-letters", queue=job.dlq)).classes("whitespace-nowrap")
            ui.label(f"{job.verb} {job.what}" + (f", {rate}" if job.verb == "redrive" else "")).classes(
                "truncate max-w-[24rem]"
            )
            self._progress = ui.linear_progress(value=0, show_value=False).props("rounded size=8px aria-label=done")
            self._progress.classes("w-40 grow")
            self._text = ui.label().classes("fila-quiet").props("data-testid=job-text")
            self._stop = ui.button("Stop", icon="stop", on_click=job.stop).props("outline dense no-caps data-testid=job-stop")

    def look(self) -> None:
        """Show its progress."""
        job = self._job
        self._badge.text = job.state
        self._badge.props(f"color={_COLOURS[job.state]}")
        self._progress.value = 1.0 if job.state == "done" else job.seen / max(1, job.total)
        self._text.text = progress(job)
        self._stop.set_visibility(not job.is_over)
