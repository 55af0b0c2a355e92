"""The options of a queue as facts to read, as fields of a form, and the dialogs that create a queue and change it."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, cast

from nicegui import ui

from fila_cluster.client.calls.queues import QueueOptions
from fila_cluster.figures import aged, counted, duration_s, sized, written_ms
from fila_cluster.ops.dashboard.widgets.forms import FormDialog
from fila_proto_zmq import commands
from fila_proto_zmq.commands import QUEUE_OPTIONS, Option

FIELDS: Final = [option for option in QUEUE_OPTIONS.values() if not option.of_hooks]
"""The options besides hooks, which have a page of their own."""
_OF_HOOKS: Final = [option for option in QUEUE_OPTIONS.values() if option.of_hooks]


def facts(options: commands.QueueOptions) -> Iterator[tuple[str, str | None]]:
    """Yield each option and its value for people; None: the default. Limits of hooks come only where they are set."""
    for option in (*FIELDS, *_OF_HOOKS):
        value = getattr(options, option.field)
        if value is not None or not option.of_hooks or option.kind == "script":
            yield option.label, None if value is None else _fact(option, value)


def _fact(option: Option, value: Any) -> str:
    match option.kind:
        case "duration":
            return aged(value / 1000) if value >= 1000 else f"{value} ms"
        case "size":
            return sized(value)
        case "script":
            return f"{sized(len(value.encode()))} of Lua"
        case "count":
            return counted(value) if value else _word(option)
    return str(value)


def title_of(field: Option) -> str:
    """Return the label of an option's field."""
    return field.label[0].upper() + field.label[1:]


def texts_of(options: commands.QueueOptions) -> dict[str, str]:
    """Return the text of each option."""
    return {field.name: _text(field, getattr(options, field.field)) for field in FIELDS}


def _text(field: Option, value: Any) -> str:
    if value is None:
        return field.choices[0] if field.kind == "choice" else ""
    if field.kind == "count" and not value:
        return _word(field)
    return written_ms(value) if field.kind == "duration" else str(value)


def _word(option: Option) -> str:
    """Return the word that stands for a number that only the broker knows: 0 on the wire."""
    return option.choices[0] if option.choices else "0"


def changed_options(before: Mapping[str, str], texts: Mapping[str, str]) -> QueueOptions:
    """Return the options whose texts are others than before. :class:`ValueError` names the option that is none."""
    options: dict[str, Any] = {}
    for field in FIELDS:
        text = texts[field.name].strip()
        if text != before[field.name]:
            options[field.name] = _value(field, text) if text else None
    return cast(QueueOptions, options)


def _value(field: Option, text: str) -> Any:
    try:
        if field.kind == "duration":
            return duration_s(text)
        return text if field.bounds is None or text in field.choices else int(text)
    except ValueError as error:
        words = "".join(f", nor {word}" for word in field.choices)
        reason = str(error) if field.kind == "duration" else f"{text!r} is not a whole number{words}"
        raise ValueError(f"{title_of(field)}: {reason}") from None


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
    made.props("dense outlined stack-label hide-bottom-space")  # the last one: a hint may have several lines
    made.props(f'hint="{field.help}" data-testid=option-{field.name}').classes("w-full")
    return made


Do = Callable[[str, QueueOptions], Awaitable[None]]

_HOOKS: Final = "Hooks are on their own page."
_MARK: Final = "options"


async def create_dialog(create: Do) -> str | None:
    """Ask for a name and options until ``create`` succeeds, and return the name; None: the user does not want it."""
    form = FormDialog("Create a queue", "Create", mark=_MARK)
    with form.fields:
        name = ui.input("Name").props("dense outlined autofocus data-testid=new-name").classes("w-full")
        options = OptionsForm(commands.QueueOptions(), _HOOKS)

    def wanted() -> str:
        return str(name.value or "").strip()

    async def submit() -> None:
        await create(wanted(), options.changed())

    return wanted() if await form.ask(submit) else None


async def change_dialog(queue: str, options: commands.QueueOptions, change: Do) -> bool:
    """Ask for other options until ``change`` succeeds. Return whether it did."""
    form = FormDialog(f"Options of {queue}", "Change", mark=_MARK)
    with form.fields:
        fields = OptionsForm(options, _HOOKS)

    async def submit() -> None:
        if changed := fields.changed():
            await change(queue, changed)

    return await form.ask(submit)
