"""Every script on the pattern page runs, and decides what stands under it."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fila_worker.core.hooks import EnqueueDecision, FailedAttempt, FailureDecision, HookFailed
from fila_worker.lua import compile_hooks
from fila_worker.lua.hooks import LuaHooks

PAGE = Path(__file__).parents[2] / "docs/lua-patterns.md"
PATTERN = re.compile(r"^###? ([^\n]+)\n(?:(?!^#).)*?^```lua\n(.*?)^```\n\n```json\n(.*?)^```\n", re.MULTILINE | re.DOTALL)

PATTERNS = {title: (script, cases) for title, script, cases in PATTERN.findall(PAGE.read_text(encoding="utf-8"))}


def compiled(script: str, config: Mapping[str, str]) -> LuaHooks:
    """All hooks that a script defines, with a broker's default limits."""
    texts = [script if f"function {hook}(" in script else None for hook in ("on_enqueue", "on_failure")]
    return compile_hooks("orders", *texts, timeout_ms=10, memory_limit_bytes=1 << 20, get_config=config.get)


def outcome_of(hooks: LuaHooks, case: dict[str, Any]) -> EnqueueDecision | FailureDecision | HookFailed:
    """What the hook that a case is meant for decides."""
    headers = msgspec.msgpack.encode(case.get("headers", {}))
    if hooks.has_on_failure and (not hooks.has_on_enqueue or "error" in case):
        identity = case.get("id", "00000000-0000-7000-8000-000000000001")
        failure = FailedAttempt(headers, identity, case.get("attempts", 1), case.get("error", ""), "default")
        return hooks.on_failure([failure], 1)[0]
    count = case.get("before", 0) + 1
    return hooks.on_enqueue([headers] * count, [case.get("payload_size", 0)] * count, 1)[-1]


def words_of(decision: EnqueueDecision | FailureDecision) -> dict[str, Any]:
    """A decision in the words of the page: only what is decided."""
    if isinstance(decision, FailureDecision):
        return {"action": "dlq" if decision.dead_letter else "retry", "delay_ms": decision.delay_ms}
    fields = {name: value for name, value in decision._asdict().items() if value is not None}
    if "cost_milli" in fields:
        fields["cost"] = fields.pop("cost_milli") / 1000
    return fields


def test_no_script_is_left_out() -> None:
    assert len(PATTERNS) == PAGE.read_text(encoding="utf-8").count("```lua") >= 15


@pytest.mark.parametrize("title", PATTERNS)
def test_the_pattern(title: str) -> None:
    script, lines = PATTERNS[title]
    config: dict[str, str] = {}
    hooks = compiled(script, config)
    assert lines.splitlines()
    for case in map(json.loads, lines.splitlines()):
        config.clear()
        config.update(case.get("config", {}))
        outcome = outcome_of(hooks, case)
        if isinstance(outcome, HookFailed):
            assert case["fails"] in outcome.text
        else:
            assert words_of(outcome) == case["decides"], case
