"""The dialogs that create a queue and change its options."""

from collections.abc import Awaitable, Callable
from typing import Final

from nicegui import ui

from fila_cluster.client.calls.queues import QueueOptions
from fila_cluster.dashboard.queues.options_text import DELIVERIES, FIELDS, OptionField, changed_options, texts_of
from fila_cluster.errors import FilaError
from fila_proto_zmq import commands

Do = Callable[[str, QueueOptions], Awaitable[None]]

_HINT: Final = "Durations as 500ms, 30s, 5m, 2h. An empty field is the default. Hooks are on their own page."


async def create_dialog(create: Do) -> str | None:
    """Ask for a name and options until ``create`` succeeds, and return the name; None: the user does not want it."""
    return await _ask("Create a queue", None, commands.QueueOptions(), "Create", create)


async def change_dialog(queue: str, options: commands.QueueOptions, change: Do) -> bool:
    """Ask for other options until ``change`` succeeds. Return whether it did."""
    return await _ask(f"Options of {queue}", queue, options, "Change", change) is not None


async def _ask(title: str, queue: str | None, options: commands.QueueOptions, yes: str, do: Do) -> str | None:
    before = texts_of(options)
    with ui.dialog() as dialog, ui.card().classes("p-4 gap-3 w-[44rem]").style("max-width: 95vw"):
        dialog.props("data-testid=options-dialog")
        ui.label(title).classes("text-lg font-semibold break-all")
        name = ui.input("Name", value=queue or "").props("dense outlined autofocus data-testid=new-name").classes("w-full")
        name.set_visibility(queue is None)
        with ui.grid(columns=2).classes("w-full gap-x-4 gap-y-1"):
            fields = {field.name: _field(field, before[field.name]) for field in FIELDS}
        ui.label(_HINT).classes("fila-quiet")
        trouble = ui.label().classes("text-negative whitespace-pre-line").props("data-testid=options-trouble")

        async def submit() -> None:
            wanted = str(name.value or "").strip()
            try:
                given = changed_options(before, {each: str(field.value or "") for each, field in fields.items()})
                if queue is None or given:
                    await do(wanted, given)
            except (FilaError, ValueError) as error:
                trouble.text = str(error)
            else:
                dialog.submit(wanted)

        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=lambda: dialog.submit(None)).props("flat no-caps")
            ui.button(yes, on_click=submit).props("no-caps data-testid=options-submit")
    answer = await dialog
    dialog.delete()
    return answer if isinstance(answer, str) else None


def _field(field: OptionField, text: str) -> ui.input | ui.select:
    if field.kind == "choice":
        made: ui.input | ui.select = ui.select(list(DELIVERIES), label=field.label, value=text)
    else:
        made = ui.input(field.label, value=text, placeholder=field.default)
    made.props(f'dense outlined stack-label hint="{field.meaning}" data-testid=option-{field.name}').classes("w-full")
    return made
