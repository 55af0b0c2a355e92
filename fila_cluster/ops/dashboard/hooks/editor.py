"""The hooks of one queue in editors: the applied ones and the edited ones, and the buttons between them."""

import re
from collections.abc import Awaitable, Callable
from typing import Final

from nicegui import ui

from fila_cluster.errors import FilaError
from fila_cluster.ops.dashboard.hooks.policy import HookPolicy, Shelf, changes, policy_of
from fila_cluster.ops.dashboard.hooks.script_editor import HookFields
from fila_cluster.ops.dashboard.shell.context import ADMIN, Context
from fila_cluster.ops.dashboard.shell.feedback import confirm, notify
from fila_proto_zmq.commands import QueueDescription

_PLACE: Final = re.compile(r"(on_enqueue|on_failure):(\d+):")
"""The place of an error in a script, as texts of errors have it."""

_WORDS: Final = {
    "on_enqueue": "on_enqueue",
    "on_failure": "on_failure",
    "lua_timeout": "the time limit",
    "lua_memory_limit": "the memory limit",
}


class HookEditor:
    """Two scripts and their limits.

    Edits stay when the broker's hooks change meanwhile; fields without edits follow the broker.
    """

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
