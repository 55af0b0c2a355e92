"""``/queues``: all queues, and ``/queue?name=…``: one queue, and all actions on it."""

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from nicegui import ui

from fila_cluster import AsyncClient, QueueStats
from fila_cluster.client.calls.queues import describe_queue
from fila_cluster.errors import DeadLetterQueueNotEmptyError, FilaError
from fila_cluster.figures import aged, counted, paced
from fila_cluster.ops.analysis.history import short_of_weight
from fila_cluster.ops.analysis.rows import QueueRow, partition_rows, plain_state
from fila_cluster.ops.dashboard.queues.options import change_dialog, create_dialog
from fila_cluster.ops.dashboard.queues.tables import FairnessKeyTable, PartitionTable, QueueDescriptionCards
from fila_cluster.ops.dashboard.shell.context import ADMIN, CONSUME, EVERYTHING, PRODUCE, Context, Visits
from fila_cluster.ops.dashboard.shell.frame import frame, lacks, link, queue_page
from fila_cluster.ops.dashboard.shell.live import (
    Look,
    VerbButton,
    attempt,
    confirm,
    confirm_by_name,
    keep_live,
    notify,
    notify_error,
    succeeds,
)
from fila_cluster.ops.dashboard.widgets.charts import Gauges, ShareChart, Tile, TimeChart
from fila_cluster.ops.dashboard.widgets.forms import MessageFields
from fila_cluster.ops.dashboard.widgets.paged_table import (
    STATE_SLOT,
    PagedTable,
    TableColumn,
    linked,
    show_state,
    state_badge,
)
from fila_proto_zmq.commands import QueueOptions
from fila_proto_zmq.names import dead_letter_name, is_dead_letter
from fila_proto_zmq.reasons import ReasonCode


def register_list(visits: Visits) -> None:
    """Add the page."""

    @ui.page("/queues")
    def queues(search: str = "") -> None:
        context = visits.context()
        with frame(context, "Queues", "/queues"):
            page = _Queues(context, search)
        keep_live(context, page.look)


LETTERS_SLOT = """<a v-if="props.value !== '0'" :href="props.row.letters" class="text-negative">{{ props.value }}</a>
<span v-else>0</span>"""

_COLUMNS = (
    TableColumn("name", "Queue", slot=linked("href")),
    TableColumn("state", "State", slot=STATE_SLOT),
    TableColumn("pending", "Pending", counted, is_number=True),
    TableColumn("in_flight", "In flight", counted, is_number=True),
    TableColumn("delayed", "Delayed", counted, is_number=True),
    TableColumn("oldest_pending_age", "Oldest waits", aged, is_number=True),
    TableColumn("consumers", "Consumers", counted, is_number=True),
    TableColumn("enqueued_per_s", "Enqueued / s", paced, is_number=True),
    TableColumn("delivered_per_s", "Delivered / s", paced, is_number=True),
    TableColumn("acked_per_s", "Acked / s", paced, is_number=True),
    TableColumn("dead_letters", "Dead letters", counted, is_number=True, slot=LETTERS_SLOT),
    TableColumn("shard", "Shard", is_number=True),
)


class _Queues:
    def __init__(self, context: Context, search: str) -> None:
        self._context = context
        with ui.row().classes("w-full items-center gap-6"):
            self._with_letters = ui.switch("Dead letter queues, too").props("data-testid=with-letters")
            self._only_full = ui.switch("Only those with messages").props("data-testid=only-full")
            self._count = ui.label().classes("fila-quiet").props("data-testid=queue-count")
            ui.space()
            if context.may(ADMIN, EVERYTHING):
                ui.link("Templates", "/templates")
            create = ui.button("Create queue", icon="add", on_click=self._create)
            create.props("outline dense no-caps data-testid=create-queue").set_visibility(context.may_some(ADMIN))
        self._table = PagedTable(
            _COLUMNS,
            key="name",
            sort_by="name",
            mark="queues",
            search_in=["name", "state"],
            more=_addresses,
            empty="No queue.",
        )
        self._table.search.value = search
        for switch in (self._with_letters, self._only_full):
            switch.on_value_change(self.look)

    async def _create(self) -> None:
        name = await create_dialog(lambda name, options: self._context.client.create_queue(name, **options))
        if name is not None:
            notify(f"{name} and {dead_letter_name(name)} are there")
            ui.navigate.to(queue_page(name))

    async def look(self) -> None:
        rows = [row for row in await self._context.queue_rows() if self._is_wanted(row)]
        part = self._context.coverage
        self._count.text = counted(len(rows), "queue") + (f", {part}" if part else "")
        self._table.show(rows, part)

    def _is_wanted(self, row: QueueRow) -> bool:
        return (self._with_letters.value or not row.is_dead_letter) and (not self._only_full.value or row.depth != 0)


def _addresses(row: QueueRow) -> dict[str, Any]:
    return {"href": queue_page(row.name), "letters": link("/dead-letters", queue=dead_letter_name(row.name))}


class SendDialog:
    """``sent`` is awaited after each message."""

    def __init__(self, client: AsyncClient, queue: str, sent: Callable[[], Awaitable[None]]) -> None:
        self._client, self._queue, self._sent = client, queue, sent
        with ui.dialog() as self._dialog, ui.card().classes("p-4 gap-3 w-[44rem]").style("max-width: 95vw"):
            self._dialog.props('aria-label="Send a message" data-testid=send-dialog')
            self._fields = MessageFields(f"Send a message to {queue}", mark="send")
            self._fields.payload.props("autofocus")
            self._trouble = ui.label().classes("text-negative whitespace-pre-line").props("data-testid=send-trouble")
            with ui.row().classes("w-full justify-end"):
                ui.button("Close", on_click=self._dialog.close).props("flat no-caps")
                ui.button("Send", icon="send", on_click=self._send).props("no-caps data-testid=send-submit")

    def open(self) -> None:
        """Show it."""
        self._trouble.text = ""
        self._dialog.open()

    async def _send(self) -> None:
        self._trouble.text = ""
        try:
            message = self._fields.read()
            message_id = await self._client.enqueue(
                self._queue,
                message.payload,
                message.headers,
                fairness_key=message.fairness_key,
                priority=message.priority,
                delay=message.delay,
            )
        except (FilaError, ValueError) as error:
            self._trouble.text = str(error)
        else:
            notify(f"message {message_id} is in {self._queue}")
            self._dialog.close()
            await self._sent()


class MoveDialog:
    """Takes messages of a queue to another one. ``moved`` is awaited afterwards."""

    def __init__(self, client: AsyncClient, queue: str, moved: Callable[[], Awaitable[None]]) -> None:
        self._client, self._queue, self._moved = client, queue, moved
        with ui.dialog() as self._dialog, ui.card().classes("p-4 gap-3 w-[32rem]"):
            self._dialog.props('aria-label="Move messages"')
            ui.label(f"Move pending and delayed messages of {queue}").classes("font-semibold")
            ui.label("They keep their ids, and what is left of their delays. Leased ones stay.").classes("fila-quiet")
            self._target = ui.input("To queue").props("dense outlined autofocus data-testid=move-target").classes("w-full")
            self._key = (
                ui.input("Fairness key", placeholder="all").props("dense outlined data-testid=move-key").classes("w-full")
            )
            self._trouble = ui.label().classes("text-negative whitespace-pre-line").props("data-testid=move-trouble")
            with ui.row().classes("w-full justify-end"):
                ui.button("Close", on_click=self._dialog.close).props("flat no-caps")
                ui.button("Move", icon="drive_file_move", on_click=self._move).props("no-caps data-testid=move-submit")

    def open(self) -> None:
        """Show it."""
        self._trouble.text = ""
        self._dialog.open()

    async def _move(self) -> None:
        target, key = str(self._target.value or "").strip(), str(self._key.value or "")
        self._trouble.text = ""
        try:
            count = await self._client.move(self._queue, target, fairness_key=key or None)
        except FilaError as error:
            self._trouble.text = str(error)
        else:
            notify(f"{counted(count, 'message')} moved to {target}")
            self._dialog.close()
            await self._moved()


LEVELS = {"pending": "pending", "in_flight": "in flight", "delayed": "delayed"}
FLOWS = {
    "enqueued": "enqueued",
    "delivered": "delivered",
    "acked": "acked",
    "nacked": "nacked",
    "dead_lettered": "dead-lettered",
}
TILES = {
    "pending": "Pending",
    "in_flight": "In flight",
    "delayed": "Delayed",
    "oldest": "Oldest waits",
    "consumers": "Consumers",
    "enqueued": "Enqueued / s",
    "delivered": "Delivered / s",
    "acked": "Acked / s",
}

LIMITS_SHOWN: Final = 3
"""Keys for which the page asks what limits them."""

LIMITS: Final = frozenset(
    {
        ReasonCode.THROTTLED,
        ReasonCode.PARKED,
        ReasonCode.IN_FLIGHT_CAP,
        ReasonCode.ORDERED_BEHIND,
        ReasonCode.KEY_PAUSED,
        ReasonCode.MOVING,
    }
)
"""Reasons that may keep a key below the share that its weight entitles it to."""


def register(visits: Visits) -> None:
    """Add the page."""

    @ui.page("/queue")
    def queue(name: str = "") -> None:
        context = visits.context()
        with frame(context, name or "Queue", "/queues"):
            if not context.may_see(name):
                lacks(f"any permission on {name!r}")
                return
            page = _Queue(context, name)
        page.look_now = keep_live(context, page.look, page.trouble)


class _Queue:
    def __init__(self, context: Context, name: str) -> None:
        self._context = context
        self._name = name
        self.look_now: Look = self.look
        self._is_paused = False
        self._limits: dict[str, str] = {}
        self._build_head()
        self.trouble = ui.label().classes("text-negative").props("data-testid=trouble")
        with ui.row().classes("w-full gap-3 items-stretch"):
            self._tiles = {tile: Tile(label, f"queue-{tile}") for tile, label in TILES.items()}
        with ui.row().classes("w-full gap-3"):
            self._levels = TimeChart("Messages held", LEVELS, stacked=True)
            self._flows = TimeChart("Messages a second", FLOWS)
            self._shares = ShareChart()
        self._gauges = Gauges()
        self._partitions = PartitionTable()
        self._keys = FairnessKeyTable(context, name, self._look_again)
        may_change = context.may(ADMIN, name) and not is_dead_letter(name)
        self._description = QueueDescriptionCards(self._change if may_change else None)
        self._options = QueueOptions()

    def _build_head(self) -> None:
        with ui.row().classes("w-full items-center gap-3"):
            ui.label(self._name).classes("text-xl font-semibold break-all")
            self._state = state_badge()
            ui.space()
            letters, may = dead_letter_name(self._name), self._context.may
            for title, path, target, is_open in (
                ("Messages", "/messages", self._name, may(CONSUME, self._name)),
                ("Dead letters", "/dead-letters", letters, may(CONSUME, letters)),
                ("Hooks", "/hooks", self._name, True),
                ("Why?", "/why", self._name, True),
            ):
                if is_open:
                    ui.link(title, link(path, queue=target))
        with ui.row().classes("w-full items-center justify-end gap-3") as row:
            self._build_buttons()
        may_some = may(PRODUCE, self._name) or may(ADMIN, self._name) or may(ADMIN, letters)
        row.set_visibility(may_some)

    def _build_buttons(self) -> None:
        may = self._context.may
        if may(PRODUCE, self._name):
            dialog = SendDialog(self._context.client, self._name, self._look_again)
            ui.button("Send message", icon="send", on_click=dialog.open).props("outline dense no-caps data-testid=send")
        self._pause = ui.button("Pause", icon="pause", on_click=self._turn)
        self._pause.props("outline dense no-caps data-testid=pause").set_visibility(may(ADMIN, self._name))
        redrive = ui.button("Redrive", icon="replay", on_click=self._redrive)
        redrive.props("outline dense no-caps data-testid=redrive")
        redrive.set_visibility(may(ADMIN, dead_letter_name(self._name)))
        mover = MoveDialog(self._context.client, self._name, self._look_again)
        move = ui.button("Move", icon="drive_file_move", on_click=mover.open)
        move.props("outline dense no-caps data-testid=move").set_visibility(may(ADMIN, self._name))
        purge = ui.button("Purge", icon="delete_sweep", on_click=self._purge, color="negative")
        purge.props("outline dense no-caps data-testid=purge").set_visibility(may(ADMIN, self._name))
        delete = ui.button("Delete", icon="delete_forever", on_click=self._delete, color="negative")
        delete.props("outline dense no-caps data-testid=delete-queue")
        delete.set_visibility(may(ADMIN, self._name) and not is_dead_letter(self._name))
        for button in (self._pause, redrive, move, purge, delete):
            VerbButton(button)

    async def look(self) -> None:
        stats = await self._context.client.queue_stats(self._name)
        self._show_numbers(stats)
        history, times = self._context.series_of(self._name), self._context.times()
        self._levels.show(times, history)
        self._flows.show(times, history)
        shares = self._context.shares_of(self._name)
        self._limits = {key: why for key in short_of_weight(shares, LIMITS_SHOWN) if (why := await self._limit_of(key))}
        self._shares.show(shares, self._limits)
        self._gauges.show(stats.throttles)
        latest = self._context.latest
        rows = partition_rows(latest, self._name, self._context.rates()) if latest else []
        self._partitions.show(rows, self._context.coverage, stats.move)
        self._keys.show(stats, time.monotonic())
        description = await describe_queue(self._context.client, self._name)
        self._options = description.options
        self._description.show(description, time.time_ns() // 1_000_000)

    async def _limit_of(self, key: str) -> str:
        """Return what keeps a key from its share: now, or else when this was last seen; empty: nothing is known."""
        told = await self._context.client.why(self._name, fairness_key=key)
        return next((each.text for each in told.reasons if each.code in LIMITS), self._limits.get(key, ""))

    def _show_numbers(self, stats: QueueStats) -> None:
        self._is_paused = stats.paused
        rates = self._context.rates().queues.get(self._name)
        show_state(self._state, plain_state(stats, rates))
        self._pause.text = "Resume" if stats.paused else "Pause"
        self._pause.props(f"icon={'play_arrow' if stats.paused else 'pause'}")
        for name in ("pending", "in_flight", "delayed", "consumers"):
            self._tiles[name].show(counted(getattr(stats, name)))
        self._tiles["oldest"].show(aged(stats.oldest_pending_age) if stats.pending else "–")
        for name in ("enqueued", "delivered", "acked"):
            self._tiles[name].show(paced(getattr(rates, name)) if rates else "–", f"{counted(getattr(stats, name))} in all")

    async def _look_again(self) -> None:
        await self.look_now()

    async def _turn(self) -> None:
        client = self._context.client
        if self._is_paused:
            changed = await succeeds(client.resume(self._name), f"{self._name} goes on")
        elif await confirm(f"Stop all deliveries of {self._name}? Producers can go on.", yes="Pause", danger=False):
            changed = await succeeds(client.pause(self._name), f"{self._name} is paused")
        else:
            return
        if changed:
            await self._look_again()

    async def _change(self) -> None:
        client, name = self._context.client, self._name
        if await change_dialog(name, self._options, lambda _, options: client.update_queue(name, **options)):
            notify(f"{name} has its new options")
            await self._look_again()

    async def _delete(self) -> None:
        question = f"Delete {self._name} with all its messages, for good?\nConsumers and producers get errors from then on."
        if not await confirm_by_name(question, self._name, yes="Delete the queue"):
            return
        try:
            await self._context.client.delete_queue(self._name)
        except DeadLetterQueueNotEmptyError as error:
            if not await confirm(f"{error}\nDelete the dead letters, too?", yes="Delete all of it"):
                return
            if not await succeeds(self._context.client.delete_queue(self._name, force=True), f"{self._name} is deleted"):
                return
        except FilaError as error:
            notify_error(str(error))
            return
        ui.navigate.to("/queues")

    async def _redrive(self) -> None:
        letters = dead_letter_name(self._name)
        question = f"Send all dead letters of {self._name} back into it, at once?\nThe page of dead letters does it by selection, and at a rate."
        if await confirm(question, yes="Redrive", danger=False):
            count = await attempt(self._context.client.redrive(letters))
            if count is not None:
                notify(f"{counted(count, 'dead letter')} went back")
                await self._look_again()

    async def _purge(self) -> None:
        question = f"Delete all pending and delayed messages of {self._name}?\nLeased ones stay. This can't be undone."
        if await confirm(question, yes="Purge"):
            count = await attempt(self._context.client.purge_queue(self._name))
            if count is not None:
                notify(f"{counted(count, 'message')} deleted")
                await self._look_again()
