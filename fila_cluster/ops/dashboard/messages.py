"""``/messages?queue=…``: the messages of a queue, page by page in line order, and the dialog of one."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, NamedTuple

from fastapi import Query
from nicegui import ui
from nicegui.events import GenericEventArguments

from fila_cluster import AsyncClient
from fila_cluster.client.calls.backlog import Page, browse_page
from fila_cluster.client.message import MessageView
from fila_cluster.errors import FilaError, MessageNotFoundError
from fila_cluster.figures import counted, distance, moment, sized
from fila_cluster.ops.dashboard.shell.context import ADMIN, CONSUME, Context, Visits
from fila_cluster.ops.dashboard.shell.frame import frame, lacks, link, queue_page
from fila_cluster.ops.dashboard.shell.live import LOADING, attempt, confirm, notify, notify_error
from fila_cluster.ops.dashboard.widgets.forms import QueueChoice
from fila_cluster.ops.dashboard.widgets.paged_table import ago
from fila_cluster.ops.dashboard.widgets.payload_view import payload_view

STATE_COLOURS: Final = {"pending": "primary", "delayed": "secondary", "leased": "warning"}

STATE_SLOT: Final = f'<q-badge :color="({STATE_COLOURS!r})[props.value]">{{{{ props.value }}}}</q-badge>'
"""The inside of a table's cell."""


class MessageAction(NamedTuple):
    """A button; ``act`` is awaited with the message."""

    title: str
    icon: str
    mark: str
    act: Callable[[MessageView], Awaitable[None]]
    is_danger: bool = False


class MessageDialog:
    """The dialog over a page. ``closed`` is called when the user closes it."""

    def __init__(self, actions: Sequence[MessageAction], closed: Callable[[], None]) -> None:
        self._actions = actions
        with ui.dialog() as self._dialog, ui.card().classes("p-4 gap-3 w-[62rem]").style("max-width: 95vw") as self._card:
            pass
        self._dialog.props("aria-label=Message")
        self._card.props("data-testid=message")
        self._dialog.on("hide", closed)

    def show(self, message: MessageView) -> None:
        """Open it."""
        self._card.clear()
        with self._card:
            self._head(message)
            try:
                _facts(message_facts(message, datetime.now(UTC)))
                _headers(message.headers)
                payload_view(message.payload, message.id)
                if message.metadata:
                    payload_view(
                        message.metadata, f"{message.id}-metadata", title="Metadata of the last attempt", mark="metadata"
                    )
            except FilaError as error:  # a malformed record of a foreign producer
                ui.label(str(error)).classes("text-negative").props("data-testid=message-trouble")
        self._dialog.open()

    def close(self) -> None:
        """Close it."""
        self._dialog.close()

    def _head(self, message: MessageView) -> None:
        with ui.row().classes("w-full items-center gap-3"):
            ui.label(message.id).classes("fila-mono text-base font-semibold").props("data-testid=message-id")
            ui.badge(message.state, color=STATE_COLOURS[message.state]).props("data-testid=message-state")
            ui.space()
            ui.link("Why?", link("/why", queue=message.queue, id=message.id))
            for action in self._actions:
                self._button(action, message)
            ui.button(icon="close", on_click=self.close).props(
                'flat round dense aria-label="Close" data-testid=message-close'
            )

    def _button(self, action: MessageAction, message: MessageView) -> None:
        colour = "negative" if action.is_danger else "primary"
        button = ui.button(action.title, icon=action.icon, on_click=lambda: action.act(message), color=colour)
        button.props(f"outline dense no-caps data-testid={action.mark}").classes("px-2")


def message_facts(message: MessageView, now: datetime) -> dict[str, str]:
    """Return the fields of a message that apply, by name, without its id, state, headers and payload."""
    at = {
        "Enqueued": message.enqueued_at,
        "Due": message.due_at,
        "Leased": message.leased_at,
        "Lease ends": message.lease_expires_at,
        "Dead-lettered": message.dead_lettered_at,
    }
    facts = {
        "Queue": message.queue,
        "Fairness key": message.fairness_key,
        "Weight": counted(message.weight),
        "Priority": str(message.priority),
        "Cost": f"{message.cost:g}",
        "Throttle keys": ", ".join(message.throttle_keys),
        "Attempts": counted(message.attempts),
        "Reason": message.reason,
        "Came from": message.source_queue,
        **{name: f"{moment(it)} ({distance(it, now)})" for name, it in at.items() if it is not None},
        "Consumer": message.consumer,
        "Error": message.error,
        "Size": sized(len(message.payload)),
    }
    return {name: text for name, text in facts.items() if text}


def _facts(facts: Mapping[str, str]) -> None:
    with (
        ui.grid(columns="auto 1fr auto 1fr")
        .classes("w-full gap-x-4 gap-y-1 items-baseline")
        .props("data-testid=message-facts")
    ):
        for name, text in facts.items():
            if name == "Error":
                continue
            ui.label(name).classes("fila-quiet")
            if name in {"Queue", "Came from"}:
                ui.link(text, queue_page(text)).classes("break-all")
            else:
                ui.label(text).classes("break-all")
    if "Error" in facts:
        ui.label("Error").classes("font-semibold")
        ui.label(facts["Error"]).classes("fila-mono fila-text whitespace-pre-wrap w-full").props("data-testid=message-error")


def _headers(headers: Mapping[str, str]) -> None:
    if not headers:
        ui.label("Headers: none").classes("fila-quiet")
        return
    ui.label("Headers").classes("font-semibold")
    with (
        ui.grid(columns="auto 1fr").classes("gap-x-6 gap-y-0 fila-mono fila-text w-full").props("data-testid=message-headers")
    ):
        for name, text in sorted(headers.items()):
            ui.label(name).classes("opacity-70 break-all")
            ui.label(text).classes("whitespace-pre-wrap break-all")


ID_SLOT: Final = """<a :href="props.row.href" class="fila-mono text-primary" :title="props.row.key"
 @click.exact.prevent>{{ props.value }}</a>"""
"""A link to the message, for clicks with a key held. A plain click goes to the row."""

_COLUMNS: Final = {
    "id": "Id",
    "fairness_key": "Fairness key",
    "state": "State",
    "priority": "Priority",
    "attempts": "Attempts",
    "enqueued": "Enqueued",
    "next": "Next",
    "size": "Size",
    "consumer": "Consumer",
}

_NUMBERS: Final = {"priority", "attempts", "size"}


def short(message_id: str) -> str:
    """Return the part of an id that differs from its neighbours."""
    return f"{message_id[:8]}…{message_id[-8:]}"


class MessageTable:
    """A page of messages in line order, unsorted as it is not complete. ``opened`` gets the id of the clicked row."""

    def __init__(self, opened: Callable[[str], Any]) -> None:
        columns = [
            {"name": name, "label": label, "field": name, "align": "right" if name in _NUMBERS else "left"}
            for name, label in _COLUMNS.items()
        ]
        self._table = ui.table(rows=[], columns=columns, row_key="key")
        self._table.props("flat bordered dense").props(f'no-data-label="{LOADING}"').classes("w-full fila-rows")
        self._table.props("data-testid=messages")
        self._table.add_slot("body-cell-id", f'<q-td :props="props">{ID_SLOT}</q-td>')
        self._table.add_slot("body-cell-state", f'<q-td :props="props">{STATE_SLOT}</q-td>')

        async def click(event: GenericEventArguments) -> None:
            await opened(event.args[1]["key"])

        self._table.on("rowClick", click)

    def unknown(self, reason: str) -> None:
        """Show that the messages are unknown."""
        self._table.rows = []
        self._say(f"Unknown: {reason}")

    def _say(self, text: str) -> None:
        self._table.props["no-data-label"] = text
        self._table.update()

    def show(self, messages: Sequence[MessageView], before: str | None) -> None:
        """Replace the page; ``before`` is the id of the message before its first one."""
        now = datetime.now(UTC)
        self._say("No such message here.")
        befores = [before, *(message.id for message in messages)]
        self._table.rows = [_row(message, it, now) for message, it in zip(messages, befores, strict=False)]


def _row(message: MessageView, before: str | None, now: datetime) -> dict[str, Any]:
    return {
        "key": message.id,
        "href": link("/messages", queue=message.queue, id=message.id, after=before),
        "id": short(message.id),
        "fairness_key": message.fairness_key,
        "state": message.state,
        "priority": message.priority,
        "attempts": counted(message.attempts),
        "enqueued": ago((now - message.enqueued_at).total_seconds()),
        "next": next_of(message, now),
        "size": _size(message),
        "consumer": (message.consumer or "")[:12],
    }


def next_of(message: MessageView, now: datetime) -> str:
    """Return its next change without an action, and the time."""
    if message.due_at is not None:
        return f"due {distance(message.due_at, now)}"
    if message.lease_expires_at is not None:
        return f"lease ends {distance(message.lease_expires_at, now)}"
    return ""


def _size(message: MessageView) -> str:
    try:
        return sized(len(message.payload))
    except FilaError:  # a malformed record of a foreign producer
        return "unreadable"


READ_MAX: Final = 10_000
PAGES_MAX: Final = 100
PAGE: Final = 1000

_BROWSABLE: Final = ("pending", "delayed", "leased")


class FoundMessage(NamedTuple):
    """The message, or why it cannot be shown; ``is_letter``: it is in its dead letter queue."""

    message: MessageView | None
    why_not: str = ""
    is_letter: bool = False


async def find_message(
    client: AsyncClient, queue: str, message_id: str, *, after: str | None = None, fairness_key: str | None = None
) -> FoundMessage:
    """Search for a message, first behind the id ``after``, then page by page. Raises the broker's errors.

    The broker can browse behind a message, not at one. The answer of ``why`` narrows the search. A message behind ten
    thousand others of its state is not found; the user gets a text with the remedy.
    """
    if (there := await _behind(client, queue, message_id, after)) is not None:
        return FoundMessage(there)
    try:
        state = (await client.why(queue, message_id=message_id)).state
    except MessageNotFoundError as error:
        return FoundMessage(None, str(error))
    if state == "dead_lettered" and not queue.endswith(".dlq"):
        return FoundMessage(None, f"message {message_id} is a dead letter of queue {queue!r} now", is_letter=True)
    return await _walk(client, queue, message_id, fairness_key, state if state in _BROWSABLE else None)


async def _behind(client: AsyncClient, queue: str, message_id: str, after: str | None) -> MessageView | None:
    try:
        messages = (await browse_page(client, queue, 1, after=after)).messages
    except MessageNotFoundError:
        return None
    return messages[0] if messages and messages[0].id == message_id else None


async def _walk(
    client: AsyncClient, queue: str, message_id: str, fairness_key: str | None, state: str | None
) -> FoundMessage:
    after, read = None, 0
    for _ in range(PAGES_MAX):
        page = await browse_page(client, queue, PAGE, after=after, fairness_key=fairness_key, state=state)
        for message in page.messages:
            if message.id == message_id:
                return FoundMessage(message)
        read += len(page.messages)
        if not page.more or not page.messages:
            return FoundMessage(None, f"message {message_id} moved during the search: search again")
        if read >= READ_MAX:
            break
        after = page.messages[-1].id
    return FoundMessage(
        None, f"message {message_id} is there, but behind the first {read:,}: name its fairness key, or ask why it waits"
    )


PAGE_MESSAGES: Final = 50

STATES: Final = {"": "All", "pending": "Pending", "delayed": "Delayed", "leased": "Leased"}


def register(visits: Visits) -> None:
    """Add the page."""

    @ui.page("/messages")
    def messages(
        queue: str = "",
        state: str = "",
        key: str | None = None,
        message_id: Annotated[str, Query(alias="id")] = "",
        after: str | None = None,
    ) -> None:
        context = visits.context()
        with frame(context, f"Messages of {queue}" if queue else "Messages", "/messages"):
            page = _Messages(context, queue, state, key)
            if queue and not context.may(CONSUME, queue):
                lacks(f"{CONSUME}:{queue}")
                return
        if queue:
            ui.timer(0, lambda: page.begin(message_id, after), once=True)


class _Messages:
    """Invariant: ``trail`` has, for each page up to the one shown, the message that it follows; None is the beginning."""

    def __init__(self, context: Context, queue: str, state: str, key: str | None) -> None:
        self._context = context
        self._queue = queue
        self._state = state or None
        self._key = key
        self._trail: list[str | None] = [None]
        self._shown: list[MessageView] = []
        cancel = MessageAction("Cancel message", "delete", "cancel", self._cancel, is_danger=True)
        self._dialog = MessageDialog([cancel] if context.may(ADMIN, queue) else [], self._closed)
        self._build_choice(state)
        self._trouble = ui.label().classes("text-negative").props("data-testid=trouble")
        self._trouble.set_visibility(False)
        if not queue:
            ui.label("Choose a queue to look at its messages.").classes("fila-quiet")
            return
        self._table = MessageTable(self._open_shown)
        self._build_foot()

    def _complain(self, trouble: str) -> None:
        self._trouble.text = trouble
        self._trouble.set_visibility(bool(trouble))

    def _build_choice(self, state: str) -> None:
        with ui.row().classes("w-full items-center gap-3"):
            QueueChoice(self._context, self._queue, lambda name: self._go(queue=name), mark="queue")
            ui.toggle(
                STATES, value=state if state in STATES else None, on_change=lambda it: self._go(state=it.value or None)
            ).props("no-caps unelevated data-testid=states")
            key = (
                ui.input("Fairness key", value=self._key or "")
                .props("dense outlined clearable data-testid=key")
                .classes("w-56")
            )
            key.on("keydown.enter", lambda: self._go(key=key.value or None))
            key.on("clear", lambda: self._go(key=None))
            wanted = ui.input("Message id").props("dense outlined data-testid=id").classes("w-72")
            wanted.on("keydown.enter", lambda: self.open((wanted.value or "").strip(), None))

    def _build_foot(self) -> None:
        with ui.row().classes("w-full items-center gap-3"):
            self._previous = ui.button("Previous", icon="chevron_left", on_click=self._go_back).props(
                "outline dense no-caps data-testid=previous"
            )
            self._next = ui.button("Next", on_click=self._go_on).props(
                "outline dense no-caps icon-right=chevron_right data-testid=next"
            )
            self._place = ui.label().classes("fila-quiet").props("data-testid=place")
            ui.space()
            self._asked = ui.label().classes("fila-quiet")
            ui.button("Look again", icon="refresh", on_click=self.look).props("flat dense no-caps data-testid=look")

    def _go(self, **changes: str | None) -> None:
        """Open the address of another choice."""
        query = {"queue": self._queue or None, "state": self._state, "key": self._key} | changes
        ui.navigate.to(link("/messages", **query))

    async def begin(self, message_id: str, after: str | None) -> None:
        """Show the first page, and the message in the address."""
        await self.look()
        if message_id:
            await self.open(message_id, after)

    async def look(self) -> None:
        """Ask for the shown page once more."""
        try:
            page = await self._page()
        except FilaError as error:
            self._show_unknown(str(error))
        else:
            self._show(page)

    async def _page(self) -> Page:
        client, behind = self._context.client, self._trail[-1]
        try:
            return await browse_page(
                client, self._queue, PAGE_MESSAGES, after=behind, fairness_key=self._key, state=self._state
            )
        except MessageNotFoundError:
            if behind is None:
                raise
        notify_error("The message before this page is gone, and so is its place: this is the first page.")
        self._trail = [None]
        return await self._page()

    def _show_unknown(self, trouble: str) -> None:
        self._shown = []
        self._table.unknown(trouble)
        self._next.set_enabled(False)
        self._place.text = f"page {len(self._trail)}, unknown"
        self._complain(trouble)

    def _show(self, page: Page) -> None:
        self._shown = page.messages
        self._table.show(page.messages, self._trail[-1])
        self._previous.set_enabled(len(self._trail) > 1)
        self._next.set_enabled(page.more and bool(page.messages))
        self._place.text = f"page {len(self._trail)}, {counted(len(self._shown), 'message')}" + (
            "" if page.more else ", the last page"
        )
        self._asked.text = f"as of {datetime.now(UTC):%H:%M:%S} UTC"
        self._complain("")

    async def _go_on(self) -> None:
        self._trail.append(self._shown[-1].id)
        await self.look()

    async def _go_back(self) -> None:
        self._trail.pop()
        await self.look()

    async def _open_shown(self, message_id: str) -> None:
        ids = [message.id for message in self._shown]
        at = ids.index(message_id) if message_id in ids else 0
        await self.open(message_id, ids[at - 1] if at else self._trail[-1])

    async def open(self, message_id: str, after: str | None) -> None:
        """Show one message as it is now; ``after`` is the id of the one before it, if known."""
        if not (message_id and self._queue):
            return
        try:
            found = await find_message(self._context.client, self._queue, message_id, after=after, fairness_key=self._key)
        except FilaError as error:
            self._complain(str(error))
            return
        if found.message is None:
            self._complain(found.why_not)
            if found.is_letter:
                ui.navigate.to(link("/dead-letters", queue=self._queue, id=message_id))
            return
        self._dialog.show(found.message)
        self._tell_address(message_id, after)

    def _closed(self) -> None:
        self._tell_address(None, None)

    def _tell_address(self, message_id: str | None, after: str | None) -> None:
        address = link("/messages", queue=self._queue, state=self._state, key=self._key, id=message_id, after=after)
        ui.navigate.history.replace(address)

    async def _cancel(self, message: MessageView) -> None:
        if message.state == "leased":
            notify_error(_leased(message))
            return
        if not await confirm(f"Remove message {message.id} from {message.queue}?\nThis can't be undone.", yes="Remove it"):
            return
        removed = await attempt(self._context.client.cancel(message.queue, message.id))
        if removed is None:
            return
        self._dialog.close()
        if removed:
            notify(f"message {message.id} was removed")
        else:
            notify_error(f"message {message.id} has just been leased: only its consumer can settle it now")
        await self.look()


def _leased(message: MessageView) -> str:
    until = f", {distance(message.lease_expires_at, datetime.now(UTC))}" if message.lease_expires_at else ""
    leased = f"Message {message.id} is leased by {message.consumer}"
    return f"{leased}: it can be removed when it is given back or its lease ends{until}."
