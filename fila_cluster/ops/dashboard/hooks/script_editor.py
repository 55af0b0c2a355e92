"""A Lua script in an editor, with a mark if it differs from the applied one."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final
from weakref import WeakKeyDictionary, WeakSet

from nicegui import Client, context, ui
from nicegui.events import GenericEventArguments

from fila_cluster.ops.dashboard.hooks.policy import TEMPLATES, WITHOUT

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
"""Reports the page's colours. Only the browser knows them, if they are those of its system."""


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
        """Let nobody change it."""
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
"""The editors of each open page: a page hears of its colours once, however often a dialog with editors was open."""


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
