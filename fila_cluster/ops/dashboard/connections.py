"""``/connections`` and ``/audit``: the clients and the administrative acts that the router of this host lists."""

from datetime import UTC, datetime
from typing import Any, Final

from nicegui import ui
from nicegui.events import GenericEventArguments

from fila_cluster import AuditEntry, ConnectionInfo
from fila_cluster.figures import counted
from fila_cluster.ops.dashboard.shell.context import Context, Visits
from fila_cluster.ops.dashboard.shell.frame import frame, may_govern
from fila_cluster.ops.dashboard.shell.live import Look, confirm, keep_live, succeeds
from fila_cluster.ops.dashboard.widgets.paged_table import MONO, PagedTable, TableColumn, ago, origin, short_time, wrapped

CLIENTS_SHOWN: Final = 2000
"""More are not asked for."""

_ACTIONS: Final = """
<q-btn dense flat size="sm" icon="link_off" color="negative" @click="$parent.$emit('drop', props.row)"
 aria-label="close connection">
<q-tooltip>Close its session</q-tooltip></q-btn>
"""

_CLIENT_COLUMNS: Final = (
    TableColumn("client", "Client", slot=MONO),
    TableColumn("key", "API key"),
    TableColumn("address", "Address", slot=MONO),
    TableColumn("version", "Version"),
    TableColumn("since", "Connected", ago, is_number=True),
    TableColumn("heard", "Last heard", ago, is_number=True),
    TableColumn("consumes", "Consumes", slot=wrapped("10rem")),
    TableColumn("subscriptions", "Subscriptions", counted, is_number=True),
    TableColumn("unsettled", "Unsettled", counted, is_number=True),
    TableColumn("actions", "", slot=_ACTIONS, is_value=False),
)


def register_connections(visits: Visits) -> None:
    """Add the page."""

    @ui.page("/connections")
    def connections() -> None:
        context = visits.context()
        with frame(context, "Connections", "/connections"):
            if not may_govern(context, "the list of connections"):
                return
            page = _Connections(context)
        page.look_now = keep_live(context, page.look, page.trouble)


class _Connections:
    def __init__(self, context: Context) -> None:
        self._context = context
        self.look_now: Look = self.look
        with ui.row().classes("w-full items-baseline gap-3"):
            ui.label("Connections").classes("text-xl font-semibold")
            self._count = ui.label().classes("fila-quiet").props("data-testid=connection-count")
        self.trouble = ui.label().classes("text-negative").props("data-testid=trouble")
        self._table = PagedTable(
            _CLIENT_COLUMNS,
            key="client",
            sort_by="unsettled",
            descending=True,
            mark="connections",
            search_in=("client", "key", "address", "version", "consumes"),
            empty="No client, or none that matches the search.",
        )
        self._table.table.on("drop", self._close)

    async def look(self) -> None:
        found = await self._context.client.connections(limit=CLIENTS_SHOWN)
        more = ", the first by name" if len(found) >= CLIENTS_SHOWN else ""
        more += " of this host's router: the other hosts have their own" if self._context.hosts() is not None else ""
        self._count.text = f"{counted(len(found), 'client')}{more}; the dashboard's own are among them"
        now = datetime.now(UTC)
        self._table.show([_client_row(each, now) for each in found])

    async def _close(self, event: GenericEventArguments) -> None:
        client = event.args["client"]
        question = (
            f"Close the session of {client}?\nWhat is leased to it goes back at once. It may connect anew: revoke its API "
            "key to keep it out."
        )
        if not await confirm(question, yes="Close it"):
            return
        if await succeeds(self._context.client.close_connection(client), f"the session of {client} is closed"):
            await self.look_now()


def _client_row(connection: ConnectionInfo, now: datetime) -> dict[str, Any]:
    return {
        "client": connection.client,
        "key": connection.key or None,
        "address": origin(connection.address),
        "version": connection.version or None,
        "since": max(0.0, (now - connection.since).total_seconds()),
        "heard": max(0.0, (now - connection.heard_at).total_seconds()),
        "consumes": ", ".join(connection.consumes) or None,
        "subscriptions": connection.subscriptions,
        "unsettled": connection.unsettled,
    }


ACTS_SHOWN: Final = 1000

_RESULT: Final = """<q-badge :color="props.value == 'ok' ? 'positive' : 'negative'">{{ props.value }}</q-badge>"""
_WRAPPED: Final = wrapped("8rem")

_ACT_COLUMNS: Final = (
    TableColumn("at", "At (UTC)", short_time),
    TableColumn("by", "API key"),
    TableColumn("address", "From", slot=MONO),
    TableColumn("verb", "Act"),
    TableColumn("target", "Target", slot=_WRAPPED),
    TableColumn("details", "Details", slot=_WRAPPED),
    TableColumn("result", "Result", slot=_RESULT),
    TableColumn("times", "Times", counted, is_number=True),
)


def register_audit(visits: Visits) -> None:
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
            _ACT_COLUMNS,
            key="number",
            sort_by="at",
            descending=True,
            mark="audit",
            search_in=("by", "address", "verb", "target", "details", "result"),
            empty="Nothing was done yet.",
        )

    async def look(self) -> None:
        acts = await self._context.client.audit(ACTS_SHOWN)
        self._table.show([_act_row(number, act) for number, act in enumerate(reversed(acts))])


def _act_row(number: int, act: AuditEntry) -> dict[str, Any]:
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
