"""``/connections``: the clients of the router of this host."""

from datetime import UTC, datetime
from typing import Any, Final

from nicegui import ui
from nicegui.events import GenericEventArguments

from fila_cluster import ConnectionInfo
from fila_cluster.figures import counted
from fila_cluster.ops.dashboard.shell.context import Context, Visits
from fila_cluster.ops.dashboard.shell.frame import frame, may_govern
from fila_cluster.ops.dashboard.shell.live import Look, confirm, keep_live, succeeds
from fila_cluster.ops.dashboard.widgets.paged_table import MONO, PagedTable, TableColumn, ago, origin, wrapped

CLIENTS_SHOWN: Final = 2000
"""More are not asked for."""

_ACTIONS: Final = """
<q-btn dense flat size="sm" icon="link_off" color="negative" @click="$parent.$emit('drop', props.row)"
 aria-label="close connection">
<q-tooltip>Close its session</q-tooltip></q-btn>
"""

_COLUMNS: Final = (
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


def register(visits: Visits) -> None:
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
            _COLUMNS,
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
        self._table.show([_row(each, now) for each in found])

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


def _row(connection: ConnectionInfo, now: datetime) -> dict[str, Any]:
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
