"""The consumers of a queue, and its options."""

from collections.abc import Awaitable, Callable
from typing import Final

from nicegui import ui

from fila_cluster.figures import counted, sized
from fila_cluster.ops.dashboard.queues.options_text import facts
from fila_cluster.ops.dashboard.widgets.cells import ago
from fila_cluster.ops.dashboard.widgets.paged_table import PagedTable, TableColumn
from fila_proto_zmq.commands import QueueDescription

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
