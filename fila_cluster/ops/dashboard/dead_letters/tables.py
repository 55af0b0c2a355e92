"""Dead letters in tables, by kind of error and letter by letter; the dialogs and buttons that act on them."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from nicegui import ui
from nicegui.events import GenericEventArguments

from fila_cluster import AsyncClient, QueueInfo
from fila_cluster.client.calls.backlog import redrive_selected
from fila_cluster.client.calls.queues import ListingQueues
from fila_cluster.client.message import MessageView
from fila_cluster.client.views import queue_infos
from fila_cluster.errors import FilaError
from fila_cluster.figures import aged, counted
from fila_cluster.ops.analysis.rates import all_queues
from fila_cluster.ops.dashboard.dead_letters.groups import DeadLetter, Group, LetterReader, kind_shares, most_frequent
from fila_cluster.ops.dashboard.dead_letters.jobs import (
    FullRedrive,
    LetterJobs,
    LetterWork,
    PickedDeletion,
    PickedRedrive,
    TooManyJobsError,
)
from fila_cluster.ops.dashboard.messages import ID_SLOT, STATE_SLOT, MessageAction, MessageDialog, find_message, short
from fila_cluster.ops.dashboard.shell.context import CONSUME, Context
from fila_cluster.ops.dashboard.shell.frame import link
from fila_cluster.ops.dashboard.shell.live import attempt, confirm, notify, notify_error
from fila_cluster.ops.dashboard.widgets.paged_table import PagedTable, TableColumn, linked, short_time

RATE_DEFAULT: Final = 50.0
RATE_MIN: Final = 0.1
RATE_MAX: Final = 100_000.0


class Speed(NamedTuple):
    """Messages a second; None: at once."""

    rate: float | None


async def ask_speed(question: str) -> Speed | None:
    """Return the chosen speed; None: do nothing."""
    with ui.dialog().props('aria-label="How fast?"') as dialog, ui.card().classes("max-w-lg").props("data-testid=speed"):
        ui.label(question).classes("whitespace-pre-line")
        ui.label("They are enqueued like new messages: hooks run again, attempts start at 0.").classes("fila-quiet")
        with ui.row().classes("items-center gap-3"):
            mode = ui.toggle({"rate": "At a rate", "at_once": "At once"}, value="rate").props("no-caps unelevated")
            rate = (
                ui.number(
                    "Messages a second",
                    value=RATE_DEFAULT,
                    min=RATE_MIN,
                    max=RATE_MAX,
                    validation={f"from {RATE_MIN:g} to {RATE_MAX:,.0f}": _is_rate},
                )
                .props("dense outlined data-testid=rate")
                .classes("w-44")
            )
            rate.bind_enabled_from(mode, "value", backward=lambda it: it == "rate")
        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=lambda: dialog.submit(None)).props("flat")
            ui.button("Redrive", on_click=lambda: _submit(dialog, mode.value, rate)).props("data-testid=start-redrive")
    answer = await dialog
    dialog.delete()
    return answer if isinstance(answer, Speed) else None


def _submit(dialog: ui.dialog, mode: str, rate: ui.number) -> None:
    if mode == "at_once":
        dialog.submit(Speed(None))
    elif _is_rate(rate.value):
        dialog.submit(Speed(float(rate.value)))


def _is_rate(value: float | None) -> bool:
    return value is not None and RATE_MIN <= value <= RATE_MAX


TellAddress = Callable[[str | None, str | None], None]


class LetterDialog:
    """``changed`` is awaited when the letter is gone; ``tell_address`` gets the open letter's id and its predecessor's."""

    def __init__(
        self,
        client: AsyncClient,
        dlq: str,
        changed: Callable[[], Awaitable[None]],
        tell_address: TellAddress,
        *,
        may_change: bool,
    ) -> None:
        self._client, self._dlq, self._changed, self._tell_address = client, dlq, changed, tell_address
        actions = [
            MessageAction("Redrive", "replay", "redrive", self._redrive),
            MessageAction("Delete", "delete", "delete", self._delete, is_danger=True),
        ]
        self._dialog = MessageDialog(actions if may_change else [], lambda: tell_address(None, None))

    async def open(self, message_id: str, after: str | None) -> None:
        """Show one letter as it is now; ``after`` is the id of the one before it, if known."""
        found = await attempt(find_message(self._client, self._dlq, message_id, after=after))
        if found is None:
            return
        if found.message is None:
            notify_error(found.why_not)
            return
        self._dialog.show(found.message)
        self._tell_address(message_id, after)

    async def _redrive(self, message: MessageView) -> None:
        count = await attempt(redrive_selected(self._client, self._dlq, [message.id]))
        if count is None:
            return
        if count:
            notify(f"{message.id} went back to {message.source_queue}")
        else:
            notify_error(f"{message.id} stayed: it is leased or gone, or {message.source_queue} is not there any more")
        await self._close()

    async def _delete(self, message: MessageView) -> None:
        if not await confirm(f"Delete dead letter {message.id} for good?\nThis can't be undone.", yes="Delete it"):
            return
        removed = await attempt(self._client.cancel(self._dlq, message.id))
        if removed is None:
            return
        if removed:
            notify(f"{message.id} was deleted")
        else:
            notify_error(f"{message.id} stayed: it is leased")
        await self._close()

    async def _close(self) -> None:
        self._dialog.close()
        await self._changed()


_ERROR: Final = '<div class="whitespace-normal break-words fila-mono min-w-[16rem]">{{ props.value }}</div>'

_KIND: Final = (
    _ERROR
    + """
<div v-if="props.row.example != props.value"
 class="whitespace-normal break-words fila-quiet">for example: {{ props.row.example }}</div>"""
)

_KEYS: Final = '<div class="whitespace-normal max-w-[14rem]">{{ props.value }}</div>'

_GROUP_COLUMNS: Final = (
    TableColumn("kind", "Error", slot=_KIND),
    TableColumn("count", "Letters", counted, is_number=True),
    TableColumn("reasons", "Reason", slot=_KEYS.replace("14rem", "10rem")),
    TableColumn("fairness_keys", "Fairness keys", slot=_KEYS),
    TableColumn("first_at", "First (UTC)", short_time),
    TableColumn("last_at", "Last (UTC)", short_time),
)

_LETTER_COLUMNS: Final = (
    TableColumn("id", "Id", short, slot=ID_SLOT),
    TableColumn("fairness_key", "Fairness key"),
    TableColumn("state", "State", slot=STATE_SLOT),
    TableColumn("reason", "Reason"),
    TableColumn("attempts", "Attempts", counted, is_number=True),
    TableColumn("dead_lettered_at", "Since (UTC)", short_time),
    TableColumn("source_queue", "Came from"),
    TableColumn("error", "Error", slot=_ERROR),
)

Opened = Callable[[Any], Awaitable[None]]


class _TickedTable:
    """Rows with ticks. ``opened`` is awaited with the key of the clicked row, ``ticked`` called when the selection changed."""

    def __init__(self, table: PagedTable, key: str, opened: Opened, ticked: Callable[[], None]) -> None:
        self._table = table

        async def click(event: GenericEventArguments) -> None:
            await opened(event.args[1][key])

        table.table.on("rowClick", click)
        table.table.on_select(lambda _: ticked())
        table.table.classes("fila-rows").props("hide-selected-banner")

    @property
    def selected(self) -> list[str]:
        """The keys of the selected rows."""
        return [str(key) for key in self._table.selected]

    def untick(self) -> None:
        """Select nothing."""
        self._table.table.selected = []


class GroupTable(_TickedTable):
    """A row for each kind of error."""

    def __init__(self, opened: Opened, ticked: Callable[[], None], *, selection: bool) -> None:
        table = PagedTable(
            _GROUP_COLUMNS,
            key="kind",
            sort_by="count",
            descending=True,
            mark="groups",
            search_in=["kind", "example"],
            selection=selection,
            empty="No dead letters.",
            page_size=25,
        )
        super().__init__(table, "kind", opened, ticked)

    def show(self, groups: Sequence[Group]) -> None:
        """Replace the rows."""
        self._table.show([_group_row(group) for group in groups])


class LetterTable(_TickedTable):
    """A row for each letter of a kind."""

    def __init__(self, dlq: str, opened: Opened, ticked: Callable[[], None], *, selection: bool) -> None:
        self._dlq = dlq
        table = PagedTable(
            _LETTER_COLUMNS,
            key="key",
            sort_by="dead_lettered_at",
            descending=True,
            mark="letters",
            search_in=["id", "fairness_key", "error"],
            selection=selection,
            more=self._more,
            empty="No such dead letter.",
            page_size=25,
        )
        super().__init__(table, "key", opened, ticked)

    def show(self, letters: Sequence[DeadLetter]) -> None:
        """Replace the rows."""
        self._table.show(letters)

    def _more(self, letter: DeadLetter) -> dict[str, str]:
        return {"key": letter.id, "href": link("/dead-letters", queue=self._dlq, id=letter.id, after=letter.before)}


def _group_row(group: Group) -> dict[str, Any]:
    return {
        "kind": group.kind,
        "count": len(group.letters),
        "reasons": most_frequent(group.reasons()),
        "fairness_keys": most_frequent(group.fairness_keys(), 2),
        "first_at": group.first_at,
        "last_at": group.last_at,
        "example": group.example,
    }


class LetterSelection:
    """``picked`` returns the selected ids; ``started`` is called when a job was started with them."""

    def __init__(
        self,
        client: AsyncClient,
        jobs: LetterJobs,
        dlq: str,
        picked: Callable[[], Sequence[str]],
        started: Callable[[], None],
    ) -> None:
        self._client, self._jobs, self._dlq, self._picked, self._started = client, jobs, dlq, picked, started
        with ui.row().classes("w-full items-center gap-3") as self.row:
            self._count = ui.label().props("data-testid=selected")
            self._redrive = ui.button("Redrive selected", icon="replay", on_click=self._redrive_picked)
            self._redrive.props("outline dense no-caps data-testid=redrive-selected")
            self._delete = ui.button("Delete selected", icon="delete", on_click=self._delete_picked, color="negative")
            self._delete.props("outline dense no-caps data-testid=delete-selected")
        self._tell(0)

    def look(self) -> None:
        """Show the selection."""
        self._tell(len(self._picked()))

    def _tell(self, count: int) -> None:
        self._count.text = (
            f"{letters(count)} selected" if count else "Nothing selected: tick kinds of errors, or single letters."
        )
        self._redrive.set_enabled(count > 0)
        self._delete.set_enabled(count > 0)

    async def redrive_all(self, depth: int) -> None:
        """Ask for the speed, and send all letters back that are there now."""
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

    def _start(self, work: LetterWork, verb: str, what: str, total: int, rate: float | None) -> None:
        try:
            self._jobs.start(work, dlq=self._dlq, verb=verb, what=what, total=total, rate=rate)
        except TooManyJobsError as error:
            notify_error(str(error))
        else:
            self._started()


def letters(count: int) -> str:
    """Return a number of letters, for people."""
    return counted(count, "letter")


SAMPLED: Final = 100
"""Letters of a queue whose errors are shown in the list."""

QUEUES_SAMPLED: Final = 20
"""Only the fullest queues show errors."""

_COLUMNS: Final = (
    TableColumn("name", "Dead letter queue", slot=linked("href")),
    TableColumn("depth", "Letters", counted, is_number=True),
    TableColumn("in_flight", "Leased", counted, is_number=True),
    TableColumn("oldest_s", "Oldest", aged, is_number=True),
    TableColumn(
        "errors", f"Errors of the first {SAMPLED}", slot='<div class="whitespace-normal fila-mono">{{ props.value }}</div>'
    ),
)


class LetterQueues:
    """The list. Queues that others chose as ``dead_letter`` are not in it: ``/dead-letters?queue=…`` shows those, too."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._missing = ""
        self._part = ui.label().classes("text-negative").props("data-testid=part")
        self._part.set_visibility(False)
        self._sampled: dict[str, tuple[QueueInfo, str]] = {}
        self._table = PagedTable(
            _COLUMNS,
            key="name",
            sort_by="depth",
            descending=True,
            mark="letter-queues",
            search_in=["name", "errors"],
            empty="No dead letters anywhere.",
        )

    async def look(self) -> None:
        """Ask for the queues, and for the letters of those that changed."""
        infos = [
            info for info in await self._active_queues() if info.is_dead_letter and self._context.may(CONSUME, info.name)
        ]
        infos.sort(key=lambda info: -info.depth)
        self._show(infos)
        self._sampled = {info.name: (info, await self._errors(info)) for info in infos[:QUEUES_SAMPLED]}
        self._show(infos)

    async def _active_queues(self) -> list[QueueInfo]:
        """Return those of the shards that answer, and note the others."""
        listing = ListingQueues("", active=True, partial=True)
        while (request := listing.next_request()) is not None:
            listing.answered(await self._context.client.request(request))
        latest, answered = self._context.latest, listing.shards or set()
        total = latest.status.shards if latest and latest.status else len(answered)
        self._missing = "" if len(answered) >= total else f"{len(answered)} of {total} shards"
        return queue_infos(listing.result)

    async def _errors(self, info: QueueInfo) -> str:
        before = self._sampled.get(info.name)
        if before is not None and before[0] == info:
            return before[1]
        reading = LetterReader(self._context.client, info.name, SAMPLED)
        try:
            async for _ in reading.steps():
                pass
        except FilaError as error:
            return str(error)
        return kind_shares(reading.letters)

    def _show(self, infos: list[QueueInfo]) -> None:
        latest = self._context.latest
        oldest = {queue.info.name: queue.oldest_pending_ms for queue in all_queues(latest)} if latest else {}
        self._table.show(
            [
                {
                    "name": info.name,
                    "href": link("/dead-letters", queue=info.name),
                    "depth": info.depth,
                    "in_flight": info.in_flight,
                    "oldest_s": oldest[info.name] / 1000 if oldest.get(info.name) else None,
                    "errors": self._sampled[info.name][1] if info.name in self._sampled else "",
                }
                for info in infos
            ],
            self._missing,
        )
        self._part.text = f"{self._missing}: the dead letters of the others are unknown" if self._missing else ""
        self._part.set_visibility(bool(self._missing))
