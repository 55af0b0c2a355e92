"""The fields of hooks, in the editor of a queue's hooks and in forms of templates."""

from collections.abc import Callable, Container

from nicegui import ui

from fila_cluster.ops.dashboard.hooks.policy import HOOKS, HookPolicy
from fila_cluster.ops.dashboard.hooks.script_editor import ScriptEditor, follow_colours


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
        """Let nobody change them."""
        self.limits.set_visibility(False)
        for editor in self._editors.values():
            editor.lock()


def _whole(field: ui.number) -> int | None:
    return None if field.value is None else int(field.value)
