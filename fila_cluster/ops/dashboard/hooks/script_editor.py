"""A Lua script in an editor, with a mark if it differs from the applied one."""

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final
from weakref import WeakKeyDictionary, WeakSet

from nicegui import Client, context, ui
from nicegui.events import GenericEventArguments

from fila_cluster.ops.dashboard.hooks.policy import HOOKS, TEMPLATES, WITHOUT, HookPolicy

_LIGHT: Final = "vscodeLight"
_DARK: Final = "vscodeDark"

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
