"""What is ticked among dead letters, and the buttons that act on it: as jobs, because there may be thousands."""

from collections.abc import Callable, Sequence

from nicegui import ui

from fila_cluster import AsyncClient
from fila_cluster.dashboard.acting import complain, confirm
from fila_cluster.dashboard.letters.jobs import Jobs, TooManyJobsError
from fila_cluster.dashboard.letters.work import FullRedrive, PickedDeletion, PickedRedrive, Work
from fila_cluster.dashboard.parts.letter_questions import ask_speed
from fila_cluster.figures import counted


class LetterSelection:
    """``picked`` gives the ids that are ticked; ``started`` is called when a job was started with them."""

    def __init__(
        self, client: AsyncClient, jobs: Jobs, dlq: str, picked: Callable[[], Sequence[str]], started: Callable[[], None]
    ) -> None:
        self._client, self._jobs, self._dlq, self._picked, self._started = client, jobs, dlq, picked, started
        with ui.row().classes("w-full items-center gap-3"):
            self._count = ui.label().props("data-testid=selected")
            self._redrive = ui.button("Redrive selected", icon="replay", on_click=self._redrive_picked)
            self._redrive.props("outline dense no-caps data-testid=redrive-selected")
            self._delete = ui.button("Delete selected", icon="delete", on_click=self._delete_picked, color="negative")
            self._delete.props("outline dense no-caps data-testid=delete-selected")
        self._tell(0)

    def look(self) -> None:
        """Say what is ticked now."""
        self._tell(len(self._picked()))

    def _tell(self, count: int) -> None:
        self._count.text = (
            f"{letters(count)} selected" if count else "Nothing selected: tick kinds of errors, or single letters."
        )
        self._redrive.set_enabled(count > 0)
        self._delete.set_enabled(count > 0)

    async def redrive_all(self, depth: int) -> None:
        """Ask how fast, and send all back that are there now."""
        speed = await ask_speed(f"Send all {letters(depth)} of {self._dlq} back to where they came from?")
        if speed is not None:
            self._start(FullRedrive(self._client, self._dlq), "redrive", f"all {letters(depth)}", depth, speed.rate)

    async def _redrive_picked(self) -> None:
        ids = self._picked()
        speed = await ask_speed(f"Send {letters(len(ids))} of {self._dlq} back to where they came from?")
        if speed is not None:
            work = PickedRedrive(self._client, self._dlq, ids)
            self._start(work, "redrive", f"{letters(len(ids))} that were selected", len(ids), speed.rate)

    async def _delete_picked(self) -> None:
        ids = self._picked()
        question = f"Delete {letters(len(ids))} of {self._dlq} for good?\nLeased ones stay. This can't be undone."
        if await confirm(question, yes=f"Delete {letters(len(ids))}"):
            work = PickedDeletion(self._client, self._dlq, ids)
            self._start(work, "delete", f"{letters(len(ids))} that were selected", len(ids), None)

    def _start(self, work: Work, verb: str, what: str, total: int, rate: float | None) -> None:
        try:
            self._jobs.start(work, dlq=self._dlq, verb=verb, what=what, total=total, rate=rate)
        except TooManyJobsError as error:
            complain(str(error))
        else:
            self._started()


def letters(count: int) -> str:
    """So many, for people."""
    return counted(count, "letter")
