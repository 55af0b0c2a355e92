"""The fields of a queue's options, in forms of queues and of templates."""

from typing import Final

from nicegui import ui

from fila_cluster.client.calls.queues import QueueOptions
from fila_cluster.ops.dashboard.queues.options_text import FIELDS, changed_options, texts_of, title_of
from fila_proto_zmq import commands
from fila_proto_zmq.commands import Option

_HINT: Final = "Durations as 500ms, 30s, 5m, 2h. An empty field is the default."


class OptionsForm:
    """A field for each option besides hooks."""

    def __init__(self, options: commands.QueueOptions, hint: str = "") -> None:
        """``hint``: one more sentence below the fields."""
        self._before = texts_of(options)
        with ui.grid().classes("w-full gap-x-4 gap-y-1 grid-cols-1 sm:grid-cols-2"):
            self._fields = {field.name: _field(field, self._before[field.name]) for field in FIELDS}
        ui.label(f"{_HINT} {hint}").classes("fila-quiet")

    def changed(self) -> QueueOptions:
        """Return the options that were changed. :class:`ValueError` names one that can't be read."""
        return changed_options(self._before, {name: str(field.value or "") for name, field in self._fields.items()})


def _field(field: Option, text: str) -> ui.input | ui.select:
    if field.kind == "choice":
        made: ui.input | ui.select = ui.select(list(field.choices), label=title_of(field), value=text)
    else:
        made = ui.input(title_of(field), value=text, placeholder=field.default)
    made.props(f'dense outlined stack-label hint="{field.help}" data-testid=option-{field.name}').classes("w-full")
    return made
