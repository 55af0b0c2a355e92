"""``/audit``: the latest administrative acts at the router of this host."""

from typing import Any, Final

from nicegui import ui

from fila_cluster import AuditEntry
from fila_cluster.figures import counted
from fila_cluster.ops.dashboard.shell.context import Context, Visits
from fila_cluster.ops.dashboard.shell.frame import frame, may_govern
from fila_cluster.ops.dashboard.shell.live import keep_live
from fila_cluster.ops.dashboard.widgets.paged_table import MONO, PagedTable, TableColumn, origin, short_time, wrapped

ACTS_SHOWN: Final = 1000

_RESULT: Final = """<q-badge :color="props.value == 'ok' ? 'positive' : 'negative'">{{ props.value }}</q-badge>"""
_WRAPPED: Final = wrapped("8rem")

_COLUMNS: Final = (
    TableColumn("at", "At (UTC)", short_time),
    TableColumn("by", "API key"),
    TableColumn("address", "From", slot=MONO),
    TableColumn("verb", "Act"),
    TableColumn("target", "Target", slot=_WRAPPED),
    TableColumn("details", "Details", slot=_WRAPPED),
    TableColumn("result", "Result", slot=_RESULT),
    TableColumn("times", "Times", counted, is_number=True),
)


def register(visits: Visits) -> None:
    """Add the page."""

    @ui.page("/audit")
    def audit() -> None:
        context = visits.context()
        with frame(context, "Audit", "/audit"):
            if not may_govern(context, "the audit"):
                return
            page = _Audit(context)
        keep_live(context, page.look, page.trouble)


class _Audit:
    def __init__(self, context: Context) -> None:
        self._context = context
        with ui.row().classes("w-full items-baseline gap-3"):
            ui.label("Audit").classes("text-xl font-semibold")
            ui.label(
                "Administrative acts since the router started, the latest first. The log has all of them (admin.acted). "
                "With several hosts: those that came to this host's router."
            ).classes("fila-quiet")
        self.trouble = ui.label().classes("text-negative").props("data-testid=trouble")
        self._table = PagedTable(
            _COLUMNS,
            key="number",
            sort_by="at",
            descending=True,
            mark="audit",
            search_in=("by", "address", "verb", "target", "details", "result"),
            empty="Nothing was done yet.",
        )

    async def look(self) -> None:
        acts = await self._context.client.audit(ACTS_SHOWN)
        self._table.show([_row(number, act) for number, act in enumerate(reversed(acts))])


def _row(number: int, act: AuditEntry) -> dict[str, Any]:
    return {
        "number": number,
        "at": act.at,
        "by": act.by or None,
        "address": origin(act.address),
        "verb": act.verb,
        "target": act.target or None,
        "details": act.details,
        "result": act.result,
        "times": act.times,
    }
