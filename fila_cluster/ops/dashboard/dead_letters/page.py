"""``/dead-letters`` and ``/dead-letters?queue=…``: dead letters by their errors, and the ways back."""

from collections import Counter
from datetime import UTC, datetime
from typing import Annotated, Final

from fastapi import Query
from nicegui import ui

from fila_cluster.client.calls.queues import describe_queue
from fila_cluster.errors import FilaError, QueueNotFoundError
from fila_cluster.figures import counted
from fila_cluster.ops.dashboard.dead_letters.groups import Group, LetterReader, grouped
from fila_cluster.ops.dashboard.dead_letters.jobs import JobList, LetterJob, LetterJobs
from fila_cluster.ops.dashboard.dead_letters.tables import (
    GroupTable,
    LetterDialog,
    LetterQueues,
    LetterSelection,
    LetterTable,
    letters,
)
from fila_cluster.ops.dashboard.shell.context import ADMIN, CONSUME, Context, Visits
from fila_cluster.ops.dashboard.shell.frame import frame, lacks, link, queue_page
from fila_cluster.ops.dashboard.shell.live import attempt, confirm_by_name, keep_live, notify
from fila_proto_zmq.commands import QueueDescription
from fila_proto_zmq.names import dead_letter_name, root_name

ALL: Final = ""

SHOWN_EVERY: Final = 2500
"""While letters are read, groups are drawn each time this many more are there; drawing takes longer than a step."""


def register(visits: Visits) -> None:
    """Add the page. Its jobs live as long as the observer."""
    jobs = LetterJobs()

    @ui.page("/dead-letters")
    def dead_letters(
        queue: str = "",
        reason: str = ALL,
        kind: str = "",
        message_id: Annotated[str, Query(alias="id")] = "",
        after: str | None = None,
    ) -> None:
        context = visits.context()
        with frame(context, f"Dead letters of {queue}" if queue else "Dead letters", "/dead-letters"):
            if not queue:
                _overview(context, jobs)
                return
            if not context.may(CONSUME, queue):
                lacks(f"{CONSUME}:{queue}")
                return
            page = _Letters(context, jobs, queue, reason, kind)
            page.wanted = message_id, after
        keep_live(context, page.look, page.trouble)


def _overview(context: Context, jobs: LetterJobs) -> None:
    trouble = ui.label().classes("text-negative").props("data-testid=trouble")
    JobList(lambda: [job for job in jobs.all() if context.may(ADMIN, job.dlq)])
    keep_live(context, LetterQueues(context).look, trouble)


class _Letters:
    """One dead letter queue. Its letters stay on the page until the user reads again, or a job that changed the queue ends."""

    def __init__(self, context: Context, jobs: LetterJobs, dlq: str, reason: str, kind: str) -> None:
        self._context = context
        self._dlq = dlq
        self._reason = reason
        self._kind = kind
        self.wanted: tuple[str, str | None] = "", None
        """The letter in the address, and the id of the one before it."""
        self._depth = 0
        self._has_begun = False
        self._reading: LetterReader | None = None
        self._groups: dict[str, Group] = {}
        self.trouble = ui.label().classes("text-negative").props("data-testid=trouble")
        with ui.column().classes("w-full gap-3") as self._body:
            self._build(jobs)
        self._body.set_visibility(False)
        self._dialog = LetterDialog(context.client, dlq, self.read, self._tell_address, may_change=context.may(ADMIN, dlq))

    # --- layout -------------------------------------------------------------------------------------------------------

    def _build(self, jobs: LetterJobs) -> None:
        self._build_head()
        may_change = self._context.may(ADMIN, self._dlq)
        if may_change:
            JobList(lambda: jobs.of(self._dlq), self._ended)
        with ui.row().classes("w-full items-center gap-3"):
            self._progress = ui.linear_progress(value=0, show_value=False).props("size=6px aria-label=read").classes("w-48")
            self._read = ui.label().classes("fila-quiet").props("data-testid=read")
            ui.button("Read again", icon="refresh", on_click=self.read).props("flat dense no-caps data-testid=read-again")
            ui.space()
            self._reasons = ui.toggle({ALL: "All"}, value=ALL, on_change=lambda it: self._choose_reason(it.value))
            self._reasons.props('no-caps unelevated dense padding="2px 10px" data-testid=reasons')
        self._selection = LetterSelection(self._context.client, jobs, self._dlq, self._picked, self._untick)
        self._selection.row.set_visibility(may_change)
        self._group_table = GroupTable(self._open_group, self._selection.look, selection=may_change)
        with ui.column().classes("w-full gap-2") as self._opened:
            self._opened_title = ui.label().classes("font-semibold fila-mono break-all").props("data-testid=opened")
            self._letter_table = LetterTable(self._dlq, self._open_letter, self._selection.look, selection=may_change)
        self._opened.set_visibility(False)

    def _build_head(self) -> None:
        with ui.row().classes("w-full items-center gap-3"):
            ui.label(self._dlq).classes("text-xl font-semibold break-all")
            self._held = ui.label().classes("fila-quiet").props("data-testid=held")
            ui.space()
            ui.link("All dead letters", "/dead-letters")
            ui.link("Queue", queue_page(root_name(self._dlq)))
            ui.link("Messages", link("/messages", queue=self._dlq))
            if self._context.may(ADMIN, self._dlq):
                self._build_buttons()

    def _build_buttons(self) -> None:
        ui.button("Redrive all", icon="replay", on_click=lambda: self._selection.redrive_all(self._depth)).props(
            "outline dense no-caps data-testid=redrive-all"
        )
        ui.button("Purge", icon="delete_sweep", on_click=self._purge, color="negative").props(
            "outline dense no-caps data-testid=purge"
        )

    async def look(self) -> None:
        """Ask how many letters there are now; the first time, find the dead letter queue, and read it."""
        try:
            description = await describe_queue(self._context.client, self._dlq)
        except QueueNotFoundError:
            self._body.set_visibility(False)
            raise
        if not description.redrivable:
            self._lead_on(description)
            return
        self._body.set_visibility(True)
        info = description.info
        self._depth = info.depth
        leased = f", {counted(info.in_flight)} of them leased" if info.in_flight else ""
        self._held.text = f"{letters(self._depth)} now{leased}"
        if not self._has_begun:
            self._has_begun = True
            with self._body:  # in a task of its own: reading may take a while
                ui.timer(0, self._begin, once=True)

    async def _begin(self) -> None:
        if self.wanted[0]:
            await self._dialog.open(*self.wanted)
        await self.read()

    def _lead_on(self, description: QueueDescription) -> None:
        """Open the page of the queue that has this one's dead letters."""
        where = description.options.dead_letter or "dlq"
        if where == "discard":
            raise QueueNotFoundError(f"{self._dlq!r} has no dead letters: it discards them (dead_letter='discard')")
        there = dead_letter_name(self._dlq) if where == "dlq" else where
        ui.navigate.to(link("/dead-letters", queue=there, id=self.wanted[0] or None))

    # --- reading ------------------------------------------------------------------------------------------------------

    async def read(self) -> None:
        """Read the letters, or read them again, and show them step by step; a later call replaces an earlier one."""
        self._reading = reading = LetterReader(self._context.client, self._dlq)
        self._untick()
        due = 0
        try:
            async for count in reading.steps():
                if self._reading is not reading:
                    return
                self._progress.value = 1.0 if reading.is_complete else min(1.0, count / max(1, self._depth))
                self._read.text = _read_text(reading, count, self._depth)
                if count >= due:
                    self._show()
                    due = count + SHOWN_EVERY
        except FilaError as error:
            self._read.text = str(error)
        self._show()

    def _show(self) -> None:
        read = self._reading.letters if self._reading else []
        counts = Counter(letter.reason for letter in read)
        self._groups = grouped(read, self._reason or None)
        options = {ALL: f"All {counted(len(read))}"} | {
            name: f"{name} {counted(count)}" for name, count in counts.most_common()
        }
        self._reasons.set_options(
            options | ({self._reason: self._reason} if self._reason not in options else {}), value=self._reason
        )
        self._group_table.show(list(self._groups.values()))
        self._show_group()
        self._selection.look()

    def _show_group(self) -> None:
        group = self._groups.get(self._kind)
        self._opened.set_visibility(group is not None)
        if group is not None:
            self._opened_title.text = group.kind
            self._letter_table.show(group.letters)

    # --- choosing -----------------------------------------------------------------------------------------------------

    def _choose_reason(self, reason: str) -> None:
        if reason == self._reason:
            return
        self._reason = reason
        self._untick()
        self._show()
        self._tell_address(None, None)

    async def _open_group(self, kind: str) -> None:
        self._kind = "" if kind == self._kind else kind
        self._letter_table.untick()
        self._show_group()
        self._selection.look()
        self._tell_address(None, None)

    def _picked(self) -> list[str]:
        groups = [self._groups[kind] for kind in self._group_table.selected if kind in self._groups]
        return list(dict.fromkeys([*(each for group in groups for each in group.ids), *self._letter_table.selected]))

    def _untick(self) -> None:
        self._group_table.untick()
        self._letter_table.untick()
        self._selection.look()

    def _tell_address(self, message_id: str | None, after: str | None) -> None:
        where = {"queue": self._dlq, "reason": self._reason or None, "kind": self._kind or None}
        ui.navigate.history.replace(link("/dead-letters", **where, id=message_id, after=after))

    # --- acting -------------------------------------------------------------------------------------------------------

    async def _open_letter(self, message_id: str) -> None:
        """Show a letter that was read."""
        read = self._reading.letters if self._reading else []
        await self._dialog.open(message_id, next((letter.before for letter in read if letter.id == message_id), None))

    async def _purge(self) -> None:
        question = f"Delete all {letters(self._depth)} of {self._dlq} for good?\nLeased ones stay. This can't be undone."
        if not await confirm_by_name(question, self._dlq, yes="Delete all of them"):
            return
        count = await attempt(self._context.client.purge_queue(self._dlq))
        if count is not None:
            notify(f"{letters(count)} deleted")
            await self.read()

    async def _ended(self, _: LetterJob) -> None:
        await self.read()


def _read_text(reading: LetterReader, count: int, depth: int) -> str:
    """Return the progress of reading, for people; ``depth`` is the depth of the queue, if known."""
    of = count if reading.is_complete else max(count, depth)
    bound = f"; no more than {counted(reading.most)} are read" if count >= reading.most and not reading.is_complete else ""
    unreadable = f"; {counted(reading.unreadable)} are unreadable" if reading.unreadable else ""
    return f"{counted(count)} of {counted(of)} read, as of {datetime.now(UTC):%H:%M:%S} UTC{bound}{unreadable}"
