"""``/config``: the runtime config, throttles first.

``?throttle=…`` opens the form with a throttle key, ``?search=…`` searches keys.
"""

from nicegui import ui

from fila_cluster.errors import FilaError
from fila_cluster.ops.dashboard.config.history import ConfigHistory
from fila_cluster.ops.dashboard.config.meaning import FAMILIES
from fila_cluster.ops.dashboard.config.table import ConfigTable
from fila_cluster.ops.dashboard.config.throttle_card import ThrottleCard
from fila_cluster.ops.dashboard.shell.context import Context, Visits
from fila_cluster.ops.dashboard.shell.frame import frame, may_govern
from fila_cluster.ops.dashboard.shell.live import Look, keep_live


def register(visits: Visits) -> None:
    """Add the page."""

    @ui.page("/config")
    def config(throttle: str = "", search: str = "") -> None:
        context = visits.context()
        with frame(context, "Config", "/config"):
            if not may_govern(context, "the runtime config"):
                return
            page = _Config(context, throttle, search)
        page.look_now = keep_live(context, page.look, page.trouble)


class _Config:
    def __init__(self, context: Context, throttle: str, search: str) -> None:
        self._context = context
        self.look_now: Look = self.look
        with ui.row().classes("w-full items-baseline gap-3"):
            ui.label("Runtime config").classes("text-xl font-semibold")
            ui.label("A change holds at once, for the whole cluster, and survives restarts.").classes("fila-quiet")
        self.trouble = ui.label().classes("text-negative").props("data-testid=trouble")
        self._body = ui.column().classes("w-full gap-4")
        with self._body:
            self._throttles = ThrottleCard(context, throttle, self._look_again)
            self._table = ConfigTable(context, search, self._look_again)
            self._history = ConfigHistory(context, self._look_again)
        self._body.set_visibility(False)
        _explain()

    async def _look_again(self) -> None:
        await self.look_now()

    async def look(self) -> None:
        try:
            config = await self._context.client.list_config()
        except FilaError:
            self._body.set_visibility(False)
            raise
        self._body.set_visibility(True)
        self._throttles.show(config)
        self._table.show(config)
        await self._history.look()


def _explain() -> None:
    with ui.expansion("What keys mean, and where the other settings are", icon="info").classes("w-full").props("dense"):
        with ui.element("table").classes("text-left"):
            for family in FAMILIES:
                with ui.element("tr"):
                    for text, look in ((family.key, "fila-mono"), (family.value, ""), (family.meaning, "fila-quiet")):
                        with ui.element("td").classes("pr-6 py-1"):
                            ui.label(text).classes(look)
        ui.label(
            "Ports, directories, defaults and limits are static: they are read at the start, from fila.toml, FILA_… variables and flags of "
            "fila-cluster up, and can't be changed here. docs/configuration.md lists them."
        ).classes("fila-quiet pt-2")
