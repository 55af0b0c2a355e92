"""Scripts and messages for the tests of the hook engine."""

from collections.abc import Callable
from typing import Any

import msgspec

from fila_worker.core.hooks import EnqueueDecision, FailedAttempt, FailureDecision, HookFailed
from fila_worker.lua import compile_hooks
from fila_worker.lua.hooks import LuaHooks

pack = msgspec.msgpack.encode

TENANT = "function on_enqueue(msg) return { fairness_key = msg.headers.tenant } end"
"""Straight: it runs without a count hook."""


def hook(body: str) -> str:
    """``on_enqueue`` with this body."""
    return f"function on_enqueue(msg)\n{body}\nend"


def compiled(
    on_enqueue: str | None = None,
    on_failure: str | None = None,
    *,
    timeout_ms: int = 10,
    memory_limit_bytes: int = 1 << 20,
    get_config: Callable[[str], str | None] = {}.get,
    **others: Any,
) -> LuaHooks:
    """Hooks of the queue ``q``, with the limits that a broker has by default."""
    return compile_hooks(
        "q",
        on_enqueue,
        on_failure,
        timeout_ms=timeout_ms,
        memory_limit_bytes=memory_limit_bytes,
        get_config=get_config,
        **others,
    )


def decisions(
    hooks: LuaHooks, *headers: dict[str, str], payload_bytes: int = 0, failures_max: int = 1000
) -> list[EnqueueDecision | HookFailed]:
    """What ``on_enqueue`` decides for messages with these headers."""
    return hooks.on_enqueue([pack(each) for each in headers], [payload_bytes] * len(headers), failures_max)


def decision(hooks: LuaHooks, headers: dict[str, str] | None = None, payload_bytes: int = 0) -> EnqueueDecision:
    """The same for one message; it must not fail."""
    (outcome,) = decisions(hooks, headers or {}, payload_bytes=payload_bytes)
    assert isinstance(outcome, EnqueueDecision), outcome
    return outcome


def decided(body: str, headers: dict[str, str] | None = None) -> EnqueueDecision:
    """What an ``on_enqueue`` with this body decides."""
    return decision(compiled(hook(body)), headers)


def failure_of(hooks: LuaHooks, headers: dict[str, str] | None = None) -> str:
    """Why ``on_enqueue`` fails."""
    (outcome,) = decisions(hooks, headers or {})
    assert isinstance(outcome, HookFailed), outcome
    return outcome.text


def settled(
    hooks: LuaHooks, *, headers: dict[str, str] | None = None, attempts: int = 1, error: str = "", key: str = "default"
) -> FailureDecision | HookFailed:
    """What ``on_failure`` decides for one failed attempt."""
    (outcome,) = hooks.on_failure([FailedAttempt(pack(headers) if headers else b"", "id-1", attempts, error, key)], 1000)
    return outcome
