"""The dialogs that create a queue and change its options."""

from collections.abc import Awaitable, Callable
from typing import Final

from nicegui import ui

from fila_cluster.client.calls.queues import QueueOptions
from fila_cluster.ops.dashboard.queues.options_form import OptionsForm
from fila_cluster.ops.dashboard.widgets.forms import FormDialog
from fila_proto_zmq import commands

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
