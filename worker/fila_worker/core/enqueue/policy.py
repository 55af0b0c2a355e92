"""Apply the decisions of a queue's hooks. Scripts see headers and sizes, never payloads.

A script's decisions take precedence over the enqueue options. Without a decision, or after a failure, the options stay. The
whole batch is passed to the script at once, and the decisions become the columns of an ordinary enqueue.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fila_proto_zmq.commands import Enqueue
from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.events import BreakerClosed, BreakerOpened
from fila_proto_zmq.names import whole_queue
from fila_worker.core.hooks import NO_CHANGE, Breaker, EnqueueDecision, GuardedHooks, HookFailed

if TYPE_CHECKING:
    from fila_proto_zmq.commands import QueueOptions
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

_DELAY: Final = EnqueueDecision._fields.index("delay_ms")
from_bytes = int.from_bytes


def compile_hooks(state: "State", name: str, options: "QueueOptions") -> GuardedHooks | None:
    """Return the hooks of a queue; None without scripts. Raise :class:`LuaCompilationError` for a script with an error."""
    if options.on_enqueue is None and options.on_failure is None:
        return None
    settings = state.settings
    hooks = state.compile_hooks(
        whole_queue(name),
        options.on_enqueue,
        options.on_failure,
        timeout_ms=options.lua_timeout_ms or settings.lua_timeout_ms,
        memory_limit_bytes=options.lua_memory_limit_bytes or settings.lua_memory_limit_bytes,
        get_config=state.runtime.get,
    )

    def changed(is_open: bool) -> None:
        cooldown_ms = settings.lua_breaker_cooldown_ms
        opened = BreakerOpened(name, state.index, hooks.failed, cooldown_ms)
        state.notes.append(opened if is_open else BreakerClosed(name, state.index))

    return GuardedHooks(hooks, Breaker(settings.lua_breaker_threshold, settings.lua_breaker_cooldown_ms), changed)


def decide(state: "State", queue: "Queue", command: Enqueue, now_ms: int) -> Enqueue:
    """Return the command with the decisions of a queue's hook; only of its first messages, if the hook takes long."""
    hooks = queue.hooks
    if hooks is None or not hooks.hooks.has_on_enqueue:
        return command
    if not hooks.breaker.allows(now_ms):
        hooks.bypassed += len(command.envelopes)
        return command
    envelopes = command.envelopes
    lengths = [from_bytes(envelope[:4], "big") for envelope in envelopes]
    headers = [envelope[4 : 4 + length] for envelope, length in zip(envelopes, lengths, strict=True)]
    sizes = [len(envelope) - 4 - length for envelope, length in zip(envelopes, lengths, strict=True)]
    if min(sizes, default=0) < 0:  # a malformed message, which will be refused
        sizes = [max(0, size) for size in sizes]
    decisions = hooks.on_enqueue(headers, sizes, now_ms, state.jobs.time_left_ns)
    state.jobs.charge_ns(hooks.took_ns)
    command = command.only(0, len(decisions))
    return _overlaid(command, [NO_CHANGE if type(each) is HookFailed else each for each in decisions])  # type: ignore[misc]


def decide_one(state: "State", queue: "Queue", headers: bytes, payload_bytes: int, now_ms: int) -> EnqueueDecision:
    """Return the decision of a queue's hook on one message."""
    hooks = queue.hooks
    if hooks is None or not hooks.hooks.has_on_enqueue:
        return NO_CHANGE
    decision = hooks.on_enqueue([headers], [payload_bytes], now_ms)[0]
    state.jobs.charge_ns(hooks.took_ns)
    return NO_CHANGE if isinstance(decision, HookFailed) else decision


def _overlaid(command: Enqueue, decisions: Sequence[EnqueueDecision]) -> Enqueue:
    """Return the command with the decisions in its columns."""
    if not decisions:
        return command
    changed: dict[str, Any] = {}
    for name, decided in zip(EnqueueDecision._fields, zip(*decisions, strict=True), strict=True):
        if decided.count(None) < len(decided):
            spread_out = spread_keys if name == "throttle_keys" else spread
            changed[name] = _overlay(getattr(command, name), decided, spread_out)
    if "delay_ms" in changed and command.due_ms != 0:
        no_due = [None if decision[_DELAY] is None else 0 for decision in decisions]
        changed["due_ms"] = _overlay(command.due_ms, no_due, spread)  # the script's delay takes precedence over it, too
    return msgspec.structs.replace(command, **changed) if changed else command


def _overlay(given: Any, decided: Sequence[Any], spread_out: Callable[[Any, int], Iterable[Any]]) -> list[Any]:
    if None not in decided:
        return list(decided)
    spread_given = spread_out(given, len(decided))
    return [old if new is None else new for old, new in zip(spread_given, decided, strict=True)]


def spread(column: Any, count: int) -> Iterable[Any]:
    """Return a column with one value for each of ``count`` messages."""
    if not isinstance(column, list):
        return repeat(column, count)
    if len(column) != count:
        raise InvalidFrameError(f"a column of {len(column)} values for {count} messages: send one value, or one each")
    return column


def spread_keys(column: list[list[str]], count: int) -> Iterable[list[str]]:
    """Return a column of lists with one list for each message. No list stands for empty ones, one list is for all."""
    if len(column) == 1:
        return repeat(column[0], count)
    return spread(column, count) if column else repeat([], count)


def canonical(throttle_keys: Iterable[str]) -> tuple[str, ...]:
    """Return a set of throttle keys in the order in which lanes and buckets have them."""
    return tuple(sorted(set(throttle_keys)))
