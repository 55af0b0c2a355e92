"""A trial of a script on one message, for authors of scripts: the decision, and its cost.

Time is measured per message in a batch, as a broker runs it, and is the median of many runs. Instructions are counted in a
separate state, because counting is slow.
"""

from collections.abc import Mapping
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any, Final, NamedTuple

import msgspec

from fila_proto_zmq.errors import LuaCompilationError
from fila_worker.core.hooks import EnqueueDecision, FailedAttempt, FailureDecision, HookFailed
from fila_worker.lua.hooks import LuaHooks, compile_hooks
from fila_worker.lua.state import LuaState

TIMEOUT_MS: Final = 10
MEMORY_LIMIT_BYTES: Final = 1024 * 1024
"""The broker's default limits."""

HOOKS: Final = ("on_enqueue", "on_failure")
_BATCH: Final = 100
_TIMED_S: Final = 0.2
_EMPTY: Final = "function on_enqueue(msg) end function on_failure(msg) end"


class SampleMessage(NamedTuple):
    """The message that a script is tried on."""

    headers: Mapping[str, str]
    payload_bytes: int
    failure: FailedAttempt


class TrialOutcome(NamedTuple):
    """The decision of a hook, and its cost for one message of a batch."""

    decision: EnqueueDecision | FailureDecision | HookFailed
    microseconds: float
    instructions: int
    """The script's own, without the driver's."""


def try_hooks(script: str, sample: SampleMessage, *, queue: str, config: Mapping[str, str]) -> dict[str, TrialOutcome]:
    """Run the hooks of ``script`` and return their outcomes. Raise LuaCompilationError for a bad one, or without a hook."""
    defined = _defined(script, queue, config)
    return {hook: _outcome(hook, script, sample, partial(_compile, hook, queue=queue, config=config)) for hook in defined}


def _defined(script: str, queue: str, config: Mapping[str, str]) -> list[str]:
    state = LuaState(queue, timeout_ms=TIMEOUT_MS, memory_limit_bytes=MEMORY_LIMIT_BYTES, get_config=config.get)
    state.load(next((hook for hook in HOOKS if hook in script), HOOKS[0]), script)
    defined = [hook for hook in HOOKS if state.defines(hook)]
    if not defined:
        raise LuaCompilationError("the script defines neither on_enqueue(msg) nor on_failure(msg)")
    return defined


def _compile(hook: str, script: str, *, queue: str, config: Mapping[str, str], counting: bool = False) -> LuaHooks:
    on_enqueue, on_failure = (script if hook == name else None for name in HOOKS)
    return compile_hooks(
        queue,
        on_enqueue,
        on_failure,
        timeout_ms=TIMEOUT_MS,
        memory_limit_bytes=MEMORY_LIMIT_BYTES,
        get_config=config.get,
        recalls=False,
        counting=counting,
    )


def _outcome(hook: str, script: str, sample: SampleMessage, compiled: Any) -> TrialOutcome:
    decision = _run(compiled(script), sample, 1)[0]
    if isinstance(decision, HookFailed):
        return TrialOutcome(decision, 0, 0)
    own = _instructions(compiled(script, counting=True), sample) - _instructions(compiled(_EMPTY, counting=True), sample)
    return TrialOutcome(decision, _microseconds(compiled(script), sample), own)


def _run(hooks: LuaHooks, sample: SampleMessage, count: int) -> list[Any]:
    if hooks.has_on_failure:
        return list(hooks.on_failure([sample.failure] * count, count))
    packed = msgspec.msgpack.encode(sample.headers)
    return list(hooks.on_enqueue([packed] * count, [sample.payload_bytes] * count, count))


def _instructions(hooks: LuaHooks, sample: SampleMessage) -> int:
    before = hooks.instructions
    _run(hooks, sample, 1)
    return hooks.instructions - before


def _microseconds(hooks: LuaHooks, sample: SampleMessage) -> float:
    _run(hooks, sample, _BATCH)
    spent_s: list[float] = []
    while sum(spent_s) < _TIMED_S:
        started = perf_counter()
        _run(hooks, sample, _BATCH)
        spent_s.append(perf_counter() - started)
    return median(spent_s) / _BATCH * 1e6
