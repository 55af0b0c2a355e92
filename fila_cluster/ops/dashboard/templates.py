"""``/templates``: the options of queues that the first enqueue creates, and how many queues match each pattern."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from nicegui import ui
from nicegui.events import GenericEventArguments

from fila_cluster import AsyncClient
from fila_cluster.client.calls.queues import QueueOptions, encode
from fila_cluster.figures import counted
from fila_cluster.ops.analysis.rows import QueueRow
from fila_cluster.ops.dashboard.hooks.editor import HookFields, changes, policy_of
from fila_cluster.ops.dashboard.queues.options import OptionsForm, facts
from fila_cluster.ops.dashboard.shell.context import Context, Visits
from fila_cluster.ops.dashboard.shell.frame import frame, link, may_govern
from fila_cluster.ops.dashboard.shell.live import Look, confirm, keep_live, notify, succeeds
from fila_cluster.ops.dashboard.widgets.forms import FormDialog
from fila_cluster.ops.dashboard.widgets.paged_table import PagedTable, TableColumn, wrapped
from fila_proto_zmq.runtime_config import TEMPLATE
from fila_proto_zmq.templates import Templates

_WIDTH = "64rem"
_MARK = "template"


async def create_dialog(client: AsyncClient) -> str | None:
    """Ask for a pattern and options until the template is put, and return the pattern; None: the user has cancelled."""
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


_ACTIONS: Final = """
<q-btn dense flat size="sm" icon="edit" @click="$parent.$emit('change', props.row)" aria-label="change template">
<q-tooltip>Change the template</q-tooltip></q-btn>
<q-btn dense flat size="sm" icon="delete" color="negative" @click="$parent.$emit('drop', props.row)"
 aria-label="delete template"><q-tooltip>Delete the template</q-tooltip></q-btn>
"""

_QUEUES_SLOT: Final = """<a v-if="props.value !== '0'" :href="props.row.href" class="text-primary">{{ props.value }}</a>
<span v-else>0</span>"""

_COLUMNS: Final = (
    TableColumn("pattern", "Pattern", slot=wrapped("10rem", "fila-mono")),
    TableColumn("options", "Options", slot=wrapped("16rem")),
    TableColumn("queues", "Queues", counted, is_number=True, slot=_QUEUES_SLOT),
    TableColumn("actions", "", slot=_ACTIONS, is_value=False),
)


def register(visits: Visits) -> None:
    """Add the page."""

    @ui.page("/templates")
    def templates() -> None:
        context = visits.context()
        with frame(context, "Templates", "/templates"):
            if not may_govern(context, "the list of templates"):
                return
            page = _Templates(context)
        page.look_now = keep_live(context, page.look, page.trouble)


class _Templates:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._found: Mapping[str, QueueOptions] = {}
        self.look_now: Look = self.look
        with ui.row().classes("w-full items-center gap-3"):
            ui.label("Templates").classes("text-xl font-semibold")
            self._count = ui.label().classes("fila-quiet").props("data-testid=template-count")
            ui.space()
            create = ui.button("Create template", icon="add", on_click=self._create)
            create.props("outline dense no-caps data-testid=create-template")
        ui.label(
            "The first enqueue to a queue that does not exist creates it with the options of the longest pattern that "
            "matches. Queues that exist stay as they are."
        ).classes("fila-quiet")
        self.trouble = ui.label().classes("text-negative").props("data-testid=trouble")
        self._table = PagedTable(
            _COLUMNS,
            key="pattern",
            sort_by="pattern",
            mark="templates",
            search_in=("pattern", "options"),
            empty="No template, or none that matches the search.",
        )
        self._table.table.on("change", self._change)
        self._table.table.on("drop", self._delete)

    async def look(self) -> None:
        self._found = await self._context.client.list_templates()
        self._count.text = counted(len(self._found), "template")
        self._table.show(rows(self._found, await self._context.queue_rows()))

    async def _create(self) -> None:
        pattern = await create_dialog(self._context.client)
        if pattern is not None:
            notify(f"the template {pattern} is there")
            await self.look_now()

    async def _change(self, event: GenericEventArguments) -> None:
        pattern = event.args["pattern"]
        options = self._found.get(pattern)
        if options is not None and await change_dialog(self._context.client, pattern, options):
            notify(f"the template {pattern} has its new options")
            await self.look_now()

    async def _delete(self, event: GenericEventArguments) -> None:
        pattern = event.args["pattern"]
        if not await confirm(f"Delete the template {pattern}?\nQueues that it has made stay.", yes="Delete it"):
            return
        if await succeeds(self._context.client.delete_template(pattern), f"the template {pattern} is deleted"):
            await self.look_now()


def rows(templates: Mapping[str, QueueOptions], queues: Iterable[QueueRow]) -> list[dict[str, Any]]:
    """Return the rows of templates. A queue counts for the pattern that would make it now."""
    patterns = Templates()
    patterns.change({TEMPLATE + pattern: "{}" for pattern in templates})
    found = (patterns.find(queue.name) for queue in queues if not queue.is_dead_letter)
    counts = Counter(match.pattern for match in found if match is not None)
    return [
        {
            "pattern": pattern,
            "options": " · ".join(f"{name} {text}" for name, text in facts(encode(options)[0]) if text) or "all defaults",
            "queues": counts[pattern],
            "href": link("/queues", search=pattern.removesuffix("*")),
        }
        for pattern, options in templates.items()
    ]
