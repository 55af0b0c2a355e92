"""The hooks of a queue: two scripts and their limits, as applied and as edited, and the changes between the two."""

from dataclasses import dataclass
from typing import Final

from fila_cluster.client.calls.queues import QueueOptions
from fila_proto_zmq import commands

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
    """The hooks that queues had before the last change that was made here, to undo it once.

    Another change makes that impossible.
    """

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
