"""Choosing a queue by its name."""

from collections.abc import Callable
from typing import Final

from nicegui import ui
from nicegui.events import ValueChangeEventArguments

from fila_cluster.errors import FilaError
from fila_cluster.ops.dashboard.shell.context import Context

OFFERED_MAX: Final = 2000
"""More are not offered, but any name can be typed."""


class QueueChoice:
    """A field that offers the names of all queues."""

    def __init__(
        self,
        context: Context,
        name: str,
        chosen: Callable[[str], None],
        *,
        mark: str,
        wanted: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """``chosen`` is called with a name when another one is picked; ``wanted``: whether to offer a name."""
        self._context = context
        self._wanted = wanted
        self.select = ui.select(
            [name] if name else [],
            label="Queue",
            value=name or None,
            new_value_mode="add-unique",
            on_change=lambda event: self._picked(event, chosen),
        )
        self.select.props(f"dense outlined data-testid={mark}").classes("w-80")
        ui.timer(0.05, self._offer, once=True)

    @property
    def name(self) -> str:
        """The chosen name; empty if there is none."""
        return self.select.value or ""

    def _picked(self, event: ValueChangeEventArguments[str | None], chosen: Callable[[str], None]) -> None:
        if event.value:
            chosen(event.value)

    async def _offer(self) -> None:
        try:
            infos = await self._context.client.list_queues()
        except FilaError:
            return  # the page shows why nothing works
        names = [info.name for info in infos if self._wanted(info.name)][:OFFERED_MAX]
        self.select.set_options(sorted({*names, *([self.name] if self.name else [])}))
