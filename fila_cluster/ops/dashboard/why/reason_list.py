"""The reasons why something waits, each with its numbers, a countdown, and the actions on it."""

from collections.abc import Awaitable, Callable, Sequence

from nicegui import ui

from fila_cluster.client.explanation import Reason
from fila_cluster.ops.dashboard.why.text import Action, actions, countdown, numbers, time_of_day

Act = Callable[[Action], Awaitable[None]]


class ReasonList:
    """Drawn again only if other reasons hold: buttons stay in place while numbers change.

    ``act`` does the actions that have a verb.
    """

    def __init__(self, queue: str, act: Act, may: Callable[[Action], bool]) -> None:
        """``may``: whether to offer an action."""
        self._queue = queue
        self._may = may
        self._act = act
        self._rows: list[_Row] = []
        self._list = ui.column().classes("w-full gap-2").props("data-testid=reasons")

    def show(self, reasons: Sequence[Reason]) -> None:
        """Show new reasons."""
        kinds = [(reason.code, tuple(filter(self._may, actions(self._queue, reason)))) for reason in reasons]
        if kinds != [row.kind for row in self._rows]:
            self._list.clear()
            with self._list:
                self._rows = [_Row(code, todo, is_first=not at, act=self._act) for at, (code, todo) in enumerate(kinds)]
        for row, reason in zip(self._rows, reasons, strict=True):
            row.show(reason)


class _Row:
    def __init__(self, code: str, todo: tuple[Action, ...], *, is_first: bool, act: Act) -> None:
        self.kind = (code, todo)
        with ui.card().classes("w-full p-3 gap-1").props(f"data-testid=reason-{code}"):
            with ui.row().classes("w-full items-baseline gap-3 no-wrap"):
                ui.badge(code, color="primary" if is_first else "grey").classes("px-2 py-1")
                self._text = ui.label().classes("grow break-words min-w-0" + (" font-semibold" if is_first else ""))
                self._until = ui.label().classes("fila-mono whitespace-nowrap").props("data-testid=until")
            with ui.row().classes("w-full items-center gap-x-4 gap-y-1"):
                self._numbers = ui.label().classes("fila-quiet break-all").props("data-testid=numbers")
                ui.space()
                for each in todo:
                    _offer(each, act)

    def show(self, reason: Reason) -> None:
        self._text.text = reason.text
        self._until.text = f"{countdown(reason.until)}, {time_of_day(reason.until)}" if reason.until else ""
        self._numbers.text = " · ".join(f"{name} {text}" for name, text in numbers(reason))


def _offer(action: Action, act: Act) -> None:
    if action.href:
        ui.link(action.label, action.href)
    else:
        ui.button(action.label, icon="play_arrow", on_click=lambda: act(action)).props("outline dense no-caps size=sm")
