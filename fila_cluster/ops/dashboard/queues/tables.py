"""The tables of one queue: its fairness keys with their shares, its consumers, and its options."""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from nicegui import ui
from nicegui.events import GenericEventArguments

from fila_cluster import QueueMove, QueueStats
from fila_cluster.figures import aged, counted, paced, shared, sized
from fila_cluster.ops.analysis.rows import KeyRow, PartitionRow, key_rows
from fila_cluster.ops.dashboard.queues.options import facts
from fila_cluster.ops.dashboard.shell.context import ADMIN, Context
from fila_cluster.ops.dashboard.shell.frame import link
from fila_cluster.ops.dashboard.shell.live import attempt, confirm, notify, succeeds
from fila_cluster.ops.dashboard.widgets.paged_table import PagedTable, TableColumn, ago, linked
from fila_proto_zmq.commands import QueueDescription

RATES_S: Final = 10.0
"""Rates are measured over about this long, or since the last answer if that was longer ago. Answers with ten thousand keys
are large: few are kept."""

_WHY: Final = """
<q-btn dense flat size="sm" icon="help" :href="props.row.why" aria-label="why"><q-tooltip>Why does it wait?</q-tooltip></q-btn>
"""

_ACTIONS: Final = """
<q-btn dense flat size="sm" :icon="props.row.paused ? 'play_arrow' : 'pause'" @click="$parent.$emit('turn', props.row)"
 :aria-label="props.row.paused ? 'resume' : 'pause'"><q-tooltip>{{ props.row.paused ? 'Resume' : 'Pause' }} this key</q-tooltip></q-btn>
<q-btn dense flat size="sm" icon="delete_sweep" color="negative" @click="$parent.$emit('purge', props.row)" aria-label="purge">
<q-tooltip>Delete its pending and delayed messages</q-tooltip></q-btn>
"""

_COLUMNS: Final = (
    TableColumn("fairness_key", "Fairness key", lambda key: key or "(empty)", slot=linked("messages")),
    TableColumn("weight", "Weight", counted, is_number=True),
    TableColumn("pending", "Pending", counted, is_number=True),
    TableColumn("in_flight", "In flight", counted, is_number=True),
    TableColumn("delayed", "Delayed", counted, is_number=True),
    TableColumn("delivered_per_s", "Delivered / s", paced, is_number=True),
    TableColumn("share_due", "Entitled to", shared, is_number=True),
    TableColumn("share", "Gets", shared, is_number=True),
    TableColumn(
        "paused",
        "State",
        lambda paused: "paused" if paused else "",
        slot="""<q-badge v-if="props.value" color="warning">{{ props.value }}</q-badge>""",
    ),
)


class FairnessKeyTable:
    """All keys, a page at a time. ``changed`` is awaited after each action."""

    def __init__(self, context: Context, queue: str, changed: Callable[[], Awaitable[None]]) -> None:
        self._context = context
        self._queue = queue
        self._changed = changed
        self._looks: deque[tuple[float, QueueStats]] = deque()
        with ui.row().classes("items-baseline gap-3"):
            ui.label("Fairness keys").classes("text-lg font-semibold")
            self._count = ui.label().classes("fila-quiet").props("data-testid=key-count")
        slot = _WHY + _ACTIONS if context.may(ADMIN, queue) else _WHY
        self._table = PagedTable(
            (*_COLUMNS, TableColumn("actions", "", slot=slot, is_value=False)),
            key="fairness_key",
            sort_by="pending",
            descending=True,
            mark="keys",
            search_in=["fairness_key"],
            more=self._more,
            empty="No key has messages.",
            page_size=10,
        )
        self._table.table.on("turn", self._turn)
        self._table.table.on("purge", self._purge)

    def show(self, stats: QueueStats, now: float) -> None:
        """Change the rows; ``now`` in monotonic seconds."""
        if self._looks and stats.delivered < self._looks[-1][1].delivered:
            self._looks.clear()  # the counters started over
        while len(self._looks) > 1 and now - self._looks[1][0] >= RATES_S:
            self._looks.popleft()
        before = self._looks[0] if self._looks else None
        self._looks.append((now, stats))
        rows = key_rows(stats, before[1] if before else None, now - before[0] if before else 0.0)
        self._count.text = counted(len(rows), "key")
        self._table.show(rows)

    def _more(self, row: KeyRow) -> dict[str, Any]:
        key = row.fairness_key
        return {
            "key": key,
            "why": link("/why", queue=self._queue, key=key),
            "messages": link("/messages", queue=self._queue, key=key),
        }

    async def _turn(self, event: GenericEventArguments) -> None:
        key, paused = event.args["key"], event.args["paused"]
        client = self._context.client
        call = client.resume if paused else client.pause
        if await succeeds(call(self._queue, fairness_key=key), f"{key!r} {'goes on' if paused else 'is paused'}"):
            await self._changed()

    async def _purge(self, event: GenericEventArguments) -> None:
        key = event.args["key"]
        if await confirm(f"Delete all pending and delayed messages of the key {key!r}?\nThis can't be undone.", yes="Purge"):
            count = await attempt(self._context.client.purge_queue(self._queue, fairness_key=key))
            if count is not None:
                notify(f"{counted(count, 'message')} deleted")
                await self._changed()


_PARTITION_COLUMNS: Final = (
    TableColumn("partition", "Partition", is_number=True),
    TableColumn("shard", "Shard", is_number=True),
    TableColumn("worker", "Worker"),
    TableColumn("pending", "Pending", counted, is_number=True),
    TableColumn("in_flight", "In flight", counted, is_number=True),
    TableColumn("delayed", "Delayed", counted, is_number=True),
    TableColumn("oldest_pending_age", "Oldest waits", aged, is_number=True),
    TableColumn("delivered_per_s", "Delivered / s", paced, is_number=True),
    TableColumn("share_due", "Entitled to", shared, is_number=True),
    TableColumn("share", "Gets", shared, is_number=True),
    TableColumn("move", "Sends on"),
)


class PartitionTable:
    """The partitions of a queue that has several; nothing for other queues."""

    def __init__(self) -> None:
        with ui.column().classes("w-full gap-2") as self._box:
            with ui.row().classes("items-baseline gap-3"):
                ui.label("Partitions").classes("text-lg font-semibold")
                self._count = ui.label().classes("fila-quiet").props("data-testid=partition-count")
                self._move = ui.label().props("data-testid=partition-move")
            self._table = PagedTable(
                _PARTITION_COLUMNS,
                key="partition",
                sort_by="partition",
                mark="partitions",
                empty="No partition has answered.",
                page_size=10,
            )
        self._box.set_visibility(False)

    def show(self, rows: Sequence[PartitionRow], part: str, move: QueueMove | None) -> None:
        """Change the rows; ``part``: the part of the shards that answered, empty: all. ``move``: to another number of them."""
        self._box.set_visibility(bool(rows))
        self._move.text = move.text if move else ""
        self._count.text = counted(len(rows), "partition") + (f", {part}" if part else "")
        self._table.show(rows)


_CONSUMER_COLUMNS: Final = (
    TableColumn("consumer", "Consumer"),
    TableColumn("kind", "Kind"),
    TableColumn("in_flight", "In flight", counted, is_number=True),
    TableColumn("prefetch", "Prefetch", counted, is_number=True),
    TableColumn("credit", "Credit", counted, is_number=True),
    TableColumn("heard", "Heard of", ago, is_number=True),
)

_UNSET: Final = {"on_enqueue": "none", "on_failure": "none"}


class QueueDescriptionCards:
    """Consumers beside options."""

    def __init__(self, change: Callable[[], Awaitable[None]] | None) -> None:
        """``change`` is awaited when the user wants other options; None: the user may not change them."""
        with ui.row().classes("w-full gap-3 items-start"):
            with ui.column().classes("grow gap-2"):
                with ui.row().classes("items-baseline gap-3"):
                    ui.label("Consumers").classes("text-lg font-semibold")
                    self._left_out = ui.label().classes("fila-quiet")
                self._consumers = PagedTable(
                    _CONSUMER_COLUMNS,
                    key="consumer",
                    sort_by="in_flight",
                    descending=True,
                    mark="consumers",
                    empty="No consumers.",
                    page_size=10,
                )
            with ui.column().classes("gap-2 min-w-[20rem]"):
                with ui.row().classes("w-full items-center"):
                    ui.label("Options").classes("text-lg font-semibold")
                    if change is not None:
                        ui.space()
                        ui.button("Change", icon="edit", on_click=change).props(
                            "flat dense no-caps size=sm data-testid=change-options"
                        )
                with ui.card().classes("w-full p-3 gap-1").props("data-testid=options"):
                    self._options = ui.grid(columns="auto 1fr").classes("w-full gap-x-6 gap-y-1")
        self._shown: list[tuple[str, str]] = []

    def show(self, description: QueueDescription, now_ms: int) -> None:
        """Show new values."""
        self._left_out.text = f"and {counted(description.consumers_left_out)} more" if description.consumers_left_out else ""
        self._consumers.show(
            [
                {
                    "consumer": each.consumer,
                    "kind": each.kind,
                    "in_flight": each.in_flight,
                    "prefetch": each.prefetch or None,
                    "credit": each.credit if each.prefetch else None,
                    "heard": max(0, now_ms - each.heard_ms) / 1000 if each.heard_ms else None,
                }
                for each in description.consumers
            ]
        )
        self._show_options(description)

    def _show_options(self, description: QueueDescription) -> None:
        rows = [(name, text or _UNSET.get(name, "default")) for name, text in facts(description.options)]
        rows.append(("size", sized(description.size_bytes)))
        if rows == self._shown:
            return
        self._shown = rows
        self._options.clear()
        with self._options:
            for name, text in rows:
                ui.label(name).classes("fila-quiet")
                ui.label(text).classes("break-all")
