"""The dialogs that make a template and change one."""

from typing import cast

from nicegui import ui

from fila_cluster import AsyncClient
from fila_cluster.client.calls.queues import QueueOptions, encode
from fila_cluster.ops.dashboard.hooks.fields import HookFields
from fila_cluster.ops.dashboard.hooks.policy import changes, policy_of
from fila_cluster.ops.dashboard.queues.options_form import OptionsForm
from fila_cluster.ops.dashboard.widgets.form_dialog import FormDialog

_WIDTH = "64rem"
_MARK = "template"


async def create_dialog(client: AsyncClient) -> str | None:
    """Ask for a pattern and options until the template is put, and return the pattern; None: the user does not want it."""
    form = FormDialog("Create a template", "Create", mark=_MARK, width=_WIDTH)
    with form.fields:
        name = ui.input("Pattern", placeholder="tenant-*").props(
            "dense outlined stack-label autofocus data-testid=new-pattern"
        )
        name.props('hint="a queue\'s name, or the beginning of names and *"').classes("w-full")
        fields = _TemplateFields({})

    def pattern() -> str:
        return str(name.value or "").strip()

    async def put() -> None:
        if await client.get_template(pattern()) is not None:
            raise ValueError(f"there is a template of {pattern()}: change it in the list")
        await client.put_template(pattern(), **fields.options())

    return pattern() if await form.ask(put) else None


async def change_dialog(client: AsyncClient, pattern: str, before: QueueOptions) -> bool:
    """Ask for other options until they are put. Return whether they were."""
    form = FormDialog(f"Template {pattern}", "Change", mark=_MARK, width=_WIDTH)
    with form.fields:
        fields = _TemplateFields(before)

    async def put() -> None:
        if await client.get_template(pattern) != before:
            raise ValueError(f"the template {pattern} was changed or deleted elsewhere since you opened it: open it again")
        await client.put_template(pattern, **fields.options())

    return await form.ask(put)


class _TemplateFields:
    def __init__(self, before: QueueOptions) -> None:
        self._before = before
        stored = encode(before)[0]
        self._options = OptionsForm(stored)
        self._policy = policy_of(stored)
        self._hooks = HookFields(self._mark)
        self._hooks.load(self._policy)
        self._mark()

    def options(self) -> QueueOptions:
        """Return all options that are not the default: a template is replaced as a whole."""
        wanted = {**self._before, **self._options.changed(), **changes(self._policy, self._hooks.policy)}
        return cast(QueueOptions, {name: value for name, value in wanted.items() if value is not None})

    def _mark(self) -> None:
        self._hooks.mark(changes(self._policy, self._hooks.policy))
