"""The hooks of a queue: the applied ones and the edited ones in editors, and the buttons between them."""

import re
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary, WeakSet

from nicegui import Client, context, ui
from nicegui.events import GenericEventArguments

from fila_cluster.client.calls.queues import QueueOptions
from fila_cluster.errors import FilaError
from fila_cluster.ops.dashboard.shell.context import ADMIN, Context
from fila_cluster.ops.dashboard.shell.live import confirm, notify
from fila_proto_zmq import commands
from fila_proto_zmq.commands import QueueDescription

HOOKS: Final = ("on_enqueue", "on_failure")

TEMPLATES: Final = {
    "on_enqueue": "function on_enqueue(msg)\n  return { fairness_key = msg.headers.tenant }\nend\n",
    "on_failure": 'function on_failure(msg)\n  return { action = "retry", delay_ms = 1000 * msg.attempts }\nend\n',
}
"""Scripts to start from."""

WITHOUT: Final = {"on_enqueue": "messages go as producers ask", "on_failure": "a nack is a retry at once"}
"""The behaviour without such a script."""


@dataclass(frozen=True, slots=True)
class HookPolicy:
    """An empty script means no script; None is the broker's default. Lines end with LF, as in an editor."""

    on_enqueue: str = ""
    on_failure: str = ""
    timeout_ms: int | None = None
    memory_limit_bytes: int | None = None

    def script(self, hook: str) -> str | None:
        """Return the text of a hook, None if there is none."""
        text: str = getattr(self, hook)
        return text if text.strip() else None


def policy_of(options: commands.QueueOptions) -> HookPolicy:
    """Return the hooks among a queue's options."""
    return HookPolicy(
        _lines(options.on_enqueue), _lines(options.on_failure), options.lua_timeout_ms, options.lua_memory_limit_bytes
    )


def changes(applied: HookPolicy, wanted: HookPolicy) -> QueueOptions:
    """Return the options for ``update_queue`` that change one into the other; empty if they are the same."""
    options = QueueOptions()
    if applied.script("on_enqueue") != wanted.script("on_enqueue"):
        options["on_enqueue"] = wanted.script("on_enqueue")
    if applied.script("on_failure") != wanted.script("on_failure"):
        options["on_failure"] = wanted.script("on_failure")
    if applied.timeout_ms != wanted.timeout_ms:
        options["lua_timeout"] = None if wanted.timeout_ms is None else wanted.timeout_ms / 1000
    if applied.memory_limit_bytes != wanted.memory_limit_bytes:
        options["lua_memory_limit"] = wanted.memory_limit_bytes
    return options


def _lines(script: str | None) -> str:
    return (script or "").replace("\r\n", "\n").replace("\r", "\n")


class Shelf:
    """The hooks that queues had before the last change that was made here, to undo it once, unless another change came after."""

    def __init__(self, kept_max: int = 100) -> None:
        self._kept: dict[str, tuple[HookPolicy, HookPolicy]] = {}
        self._kept_max = kept_max

    def keep(self, queue: str, before: HookPolicy, after: HookPolicy) -> None:
        """Remember a change; undoing the remembered change forgets it."""
        undone = self._kept.pop(queue, None)
        if undone == (after, before):
            return
        self._kept[queue] = (before, after)
        while len(self._kept) > self._kept_max:
            del self._kept[next(iter(self._kept))]

    def before(self, queue: str, now: HookPolicy) -> HookPolicy | None:
        """Return the hooks to go back to; None: none, or they were changed since by other means."""
        before, after = self._kept.get(queue, (None, None))
        return before if after == now else None


_LIGHT: Final = "vscodeLight"
_DARK: Final = "vscodeDark"

_NAME: Final = """
const named = setInterval(() => {
  const text = document.querySelector("[data-testid=editor-%(hook)s] .cm-content");
  text?.setAttribute("aria-label", "%(hook)s");
  if (text) clearInterval(named);
}, 50);
"""
"""The editor comes after the page, and has no name for those who hear the page."""

_TELL_COLOURS: Final = """
(() => {
  const tell = () => emitEvent('fila_dark', document.body.classList.contains('body--dark'));
  if (!window.fila_colours) {
    window.fila_colours = new MutationObserver(tell);
    window.fila_colours.observe(document.body, {attributes: true, attributeFilter: ['class']});
  }
  tell();
})()
"""
"""Reports the page's colours: if they are those of the user's system, only the browser has them."""


class ScriptEditor:
    """One hook's script. ``edited`` is called at each change by the user."""

    def __init__(self, hook: str, edited: Callable[[], None]) -> None:
        self.hook = hook
        self._edited = edited
        self._may_start = True
        with ui.card().classes("p-3 gap-2 grow basis-0 min-w-[min(22rem,100%)]"):
            with ui.row().classes("w-full items-center gap-2 h-7 no-wrap"):
                ui.label(hook).classes("font-semibold fila-mono")
                self._mark = ui.badge("changed", color="warning").props(f"data-testid=changed-{hook}")
                self._none = ui.label(f"none: {WITHOUT[hook]}").classes("fila-quiet ellipsis")
                ui.space()
                self._start = (
                    ui.button("Start from an example", on_click=self._fill)
                    .props("flat dense no-caps size=sm")
                    .classes("whitespace-nowrap")
                )
            self.editor = ui.codemirror(
                "", language="Lua", theme=_LIGHT, indent="  ", line_wrapping=True, on_change=self._changed
            )
            self.editor.classes("w-full h-60").props(f"data-testid=editor-{hook}")
            ui.run_javascript(_NAME % {"hook": hook})
        self.mark(changed=False)

    def lock(self) -> None:
        """Make it read-only."""
        self.editor.disable()
        self._may_start = False
        self._start.set_visibility(False)

    @property
    def text(self) -> str:
        """The script in the editor."""
        return self.editor.value or ""

    def load(self, text: str) -> None:
        """Show a script."""
        self.editor.set_value(text)

    def mark(self, *, changed: bool) -> None:
        """Show whether it differs from the applied script."""
        self._mark.set_visibility(changed)
        self._none.set_visibility(not self.text.strip() and not changed)
        self._start.set_visibility(self._may_start and not self.text.strip())

    def _changed(self) -> None:
        self._edited()

    def _fill(self) -> None:
        self.load(TEMPLATES[self.hook])


_followers: WeakKeyDictionary[Client, "WeakSet[ScriptEditor]"] = WeakKeyDictionary()
"""The editors of each open page: its colours are reported once, however often a dialog with editors was open."""


def follow_colours(editors: Sequence[ScriptEditor]) -> None:
    """Keep the editors as light or as dark as their page. A page may have more of them later, in a dialog."""
    page = context.client
    followers = _followers.get(page)
    if followers is None:
        followers = _followers[page] = WeakSet()
        ui.on("fila_dark", lambda event: _paint(followers, event))
    followers.update(editors)
    ui.timer(0.1, lambda: ui.run_javascript(_TELL_COLOURS), once=True)


def _paint(editors: Iterable[ScriptEditor], event: GenericEventArguments) -> None:
    for each in editors:
        if not each.editor.is_deleted:
            each.editor.set_theme(_DARK if event.args else _LIGHT)


class HookFields:
    """Two scripts in editors, and below them, in the row ``limits``, their limits. ``edited`` is called at each change."""

    def __init__(self, edited: Callable[[], None]) -> None:
        with ui.row().classes("w-full gap-3 items-stretch"):
            self._editors = {hook: ScriptEditor(hook, edited) for hook in HOOKS}
        follow_colours(list(self._editors.values()))
        with ui.row().classes("w-full items-center gap-3") as self.limits:
            self._timeout = ui.number("Time limit, ms", placeholder="default", precision=0, on_change=edited)
            self._timeout.props("dense outlined clearable data-testid=lua-timeout").classes("w-40")
            self._memory = ui.number("Memory limit, bytes", placeholder="default", precision=0, on_change=edited)
            self._memory.props("dense outlined clearable data-testid=lua-memory").classes("w-48")

    @property
    def policy(self) -> HookPolicy:
        """The hooks in the fields."""
        scripts = {hook: editor.text for hook, editor in self._editors.items()}
        return HookPolicy(**scripts, timeout_ms=_whole(self._timeout), memory_limit_bytes=_whole(self._memory))

    def load(self, policy: HookPolicy) -> None:
        """Show other hooks."""
        for hook, editor in self._editors.items():
            editor.load(getattr(policy, hook))
        self._timeout.value, self._memory.value = policy.timeout_ms, policy.memory_limit_bytes

    def mark(self, changed: Container[str]) -> None:
        """Show which scripts differ from the applied ones."""
        for hook, editor in self._editors.items():
            editor.mark(changed=hook in changed)

    def reveal(self, hook: str, line: int) -> None:
        """Scroll to a line of a script."""
        self._editors[hook].editor.reveal_line(line)

    def lock(self) -> None:
        """Make them read-only."""
        self.limits.set_visibility(False)
        for editor in self._editors.values():
            editor.lock()


def _whole(field: ui.number) -> int | None:
    return None if field.value is None else int(field.value)


_PLACE: Final = re.compile(r"(on_enqueue|on_failure):(\d+):")
"""The place of an error in a script, as texts of errors have it."""

_WORDS: Final = {
    "on_enqueue": "on_enqueue",
    "on_failure": "on_failure",
    "lua_timeout": "the time limit",
    "lua_memory_limit": "the memory limit",
}


class HookEditor:
    """Two scripts and their limits. Edits stay when the broker's hooks change; fields without edits follow the broker."""

    def __init__(self, context: Context, queue: str, shelf: Shelf, applied_anew: Callable[[], Awaitable[None]]) -> None:
        """``applied_anew`` is awaited after a change of the broker's queue."""
        self._context = context
        self._queue = queue
        self._shelf = shelf
        self._applied_anew = applied_anew
        self._applied = self._base = HookPolicy()
        self._fields = HookFields(self._mark)
        with self._fields.limits:
            ui.space()
            self._build_buttons()
        if not context.may(ADMIN, queue):
            self._fields.lock()
        self._meanwhile = ui.label("These hooks were changed elsewhere since you began to edit. Reset shows the new ones.")
        self._meanwhile.classes("text-warning").props("data-testid=meanwhile")
        self._refusal = ui.label().classes("text-negative fila-mono whitespace-pre-line").props("data-testid=refusal")
        self._mark()

    def _build_buttons(self) -> None:
        self._undo = ui.button("Undo the last change", icon="undo", on_click=self._bring_back)
        self._undo.props("flat dense no-caps data-testid=undo")
        self._reset = ui.button("Reset", icon="restart_alt", on_click=self._start_over)
        self._reset.props("outline dense no-caps data-testid=reset")
        self._apply = ui.button("Apply", icon="check", on_click=self._apply_edited).props("dense no-caps data-testid=apply")

    @property
    def wanted(self) -> HookPolicy:
        """The hooks in the editors."""
        return self._fields.policy

    def show(self, description: QueueDescription) -> None:
        """Take in the broker's hooks."""
        self._applied = policy_of(description.options)
        if self._applied != self._base and self.wanted == self._base:
            self._fill(self._applied)
        self._mark()

    def _fill(self, policy: HookPolicy) -> None:
        self._base = policy
        self._fields.load(policy)
        self._refuse("")

    def _mark(self) -> None:
        """Show which fields are changed, and enable the buttons."""
        changed = changes(self._applied, self.wanted)
        self._fields.mark(changed)
        self._apply.set_enabled(bool(changed))
        self._reset.set_enabled(bool(changed))
        self._undo.set_visibility(self._shelf.before(self._queue, self._applied) is not None)
        self._meanwhile.set_visibility(bool(changed) and self._applied != self._base)

    def _start_over(self) -> None:
        self._fill(self._applied)
        self._mark()

    async def _apply_edited(self) -> None:
        changed = changes(self._applied, self.wanted)
        what = " and ".join(_WORDS[name] for name in changed)
        question = f"Change {what} of {self._queue}?\nIt decides about messages from now on; earlier ones stay as they are."
        if changed and await confirm(question, yes="Apply", danger=False):
            await self._change_to(self.wanted, f"{what} of {self._queue} changed")

    async def _bring_back(self) -> None:
        before = self._shelf.before(self._queue, self._applied)
        question = f"Bring back the hooks that {self._queue} had before the last change?"
        if before is not None and await confirm(question, yes="Undo", danger=False):
            await self._change_to(before, f"{self._queue} has its old hooks again")

    async def _change_to(self, policy: HookPolicy, done: str) -> None:
        applied = self._applied
        try:
            await self._context.client.update_queue(self._queue, **changes(applied, policy))
        except FilaError as error:
            self._refuse(str(error))
            return
        self._shelf.keep(self._queue, applied, policy)
        self._applied = policy
        self._fill(policy)
        notify(done)
        await self._applied_anew()

    def _refuse(self, text: str) -> None:
        """Show why nothing was changed, and the line of the error."""
        self._refusal.text = f"Refused, nothing has changed: {text}" if text else ""
        self._refusal.set_visibility(bool(text))
        if place := _PLACE.search(text):
            self._fields.reveal(place[1], int(place[2]))
