"""Jobs on dead letters: the progress of each, and a way to stop it.

Every open page shows them, not only the one that started them.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from nicegui import ui

from fila_cluster.figures import counted
from fila_cluster.ops.dashboard.dead_letters.jobs import Job
from fila_cluster.ops.dashboard.shell.links import link

LOOK_S: Final = 0.5

_COLOURS: Final = {"running": "primary", "waiting": "warning", "done": "positive", "stopped": "grey", "failed": "negative"}

_DONE: Final = {"redrive": "went back", "delete": "deleted"}


def progress(job: Job) -> str:
    """Return its progress, in a line."""
    stayed = f" · {counted(job.stayed)} stayed (leased, gone or with nowhere to go)" if job.stayed else ""
    short = job.total - job.seen if job.state == "done" else 0
    missing = f" · {counted(short)} were gone or have nowhere to go" if short else ""
    trouble = f" · {job.trouble}" if job.trouble else ""
    return f"{counted(job.moved)} of {counted(job.total)} {_DONE[job.verb]}{stayed}{missing}{trouble}"


class JobList:
    """The jobs that ``jobs`` returns, drawn again when others are there.

    ``ended`` is awaited once for each that ends while the page is open.
    """

    def __init__(self, jobs: Callable[[], Sequence[Job]], ended: Callable[[Job], Awaitable[None]] | None = None) -> None:
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
    def __init__(self, job: Job) -> None:
        self._job = job
        rate = "at once" if job.rate is None else f"{job.rate:g} a second"
        with ui.row().classes("w-full items-center gap-3 no-wrap").props(f"data-testid=job-{job.number}"):
            self._badge = ui.badge()
            ui.link(job.dlq, link("/dead-letters", queue=job.dlq)).classes("whitespace-nowrap")
            ui.label(f"{job.verb} {job.what}" + (f", {rate}" if job.verb == "redrive" else "")).classes(
                "truncate max-w-[24rem]"
            )
            self._progress = ui.linear_progress(value=0, show_value=False).props("rounded size=8px").classes("w-40 grow")
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
