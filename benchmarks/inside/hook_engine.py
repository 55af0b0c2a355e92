"""What ``on_enqueue`` costs in the engine alone: µs a message in batches, µs a call for lone messages."""

import time
from collections.abc import Callable, Sequence
from statistics import median, quantiles
from typing import Any

import msgspec

from benchmarks.harness.workload import Run
from fila_worker.core.hooks import Breaker, EnqueueDecision, GuardedHooks, HookFailed
from fila_worker.lua import compile_hooks

TABLE = "The hook engine, microseconds a message"
BATCH = 100
PAYLOAD_BYTES = 1024

SCRIPTS = {
    "two headers in, three fields out": """
function on_enqueue(msg)
  local h = msg.headers
  return { fairness_key = h.tenant, weight = 2, throttle_keys = { "provider:" .. h.provider } }
end""",
    "the same, watched": """
function on_enqueue(msg) -- for ever watched
  local h = msg.headers
  return { fairness_key = h.tenant, weight = 2, throttle_keys = { "provider:" .. h.provider } }
end""",
    "weight from the config, all six fields": """
function on_enqueue(msg)
  local h = msg.headers
  return {
    fairness_key = h.tenant, throttle_keys = { h.provider, h.tenant },
    weight = tonumber(fila.get("weight:" .. h.provider)) or 1,
    priority = h.provider == "mail" and 1 or 0, cost = math.max(1, msg.payload_size / 512), delay_ms = 0,
  }
end""",
    "a loop, a match, a helper": """
local function known(tenant)
  for index = 1, 20 do if tenant == "tenant-" .. index then return index end end
  return 1
end
function on_enqueue(msg)
  local h = msg.headers
  return { fairness_key = h.tenant, weight = known(h.tenant), priority = tonumber(h.tenant:match("^tenant%-(%d+)$")) }
end""",
}

USUAL = "two headers in, three fields out"
PURE = (USUAL, "weight from the config, all six fields")

OnEnqueue = Callable[[Sequence[bytes], Sequence[int]], Sequence[EnqueueDecision | HookFailed]]
_decode = msgspec.msgpack.Decoder(dict[str, str]).decode


def without_lua(headers: Sequence[bytes], payload_sizes: Sequence[int]) -> list[EnqueueDecision | HookFailed]:
    """Decide the same as the first script, in Python."""
    decisions: list[EnqueueDecision | HookFailed] = []
    for packed in headers:
        read = _decode(packed)
        decisions.append(EnqueueDecision(read["tenant"], 2, ["provider:" + read["provider"]]))
    return decisions


def with_lua(script: str, *, recalls: bool = False) -> OnEnqueue:
    """Return a function that runs a script, with the guard of a worker."""
    get_config = {"weight:mail": "3"}.get
    hooks = compile_hooks(
        "bench", script, None, timeout_ms=10, memory_limit_bytes=1 << 20, get_config=get_config, recalls=recalls
    )
    guarded = GuardedHooks(hooks, Breaker(3, 10_000))
    return lambda headers, sizes: guarded.on_enqueue(headers, sizes, 0)


def messages(count: int) -> list[bytes]:
    """Return packed headers: 500 tenants, three providers."""
    providers = ("mail", "sms", "push")
    return [
        msgspec.msgpack.encode({"tenant": f"tenant-{n * 7919 % 500}", "provider": providers[n % 3]}) for n in range(count)
    ]


def percentiles(spent_us: list[float]) -> tuple[float, float]:
    """Return p50 and p99."""
    return median(spent_us), quantiles(spent_us, n=100, method="inclusive")[-1] if len(spent_us) > 1 else spent_us[0]


def timed(on_enqueue: OnEnqueue, packed: list[bytes], batch: int) -> tuple[float, float]:
    """Return p50 and p99 of µs a message, in batches of this size."""
    spent_us = []
    for start in range(0, len(packed) - batch + 1, batch):
        headers, sizes = packed[start : start + batch], [PAYLOAD_BYTES] * batch
        started = time.perf_counter()
        decisions = on_enqueue(headers, sizes)
        spent_us.append((time.perf_counter() - started) / batch * 1e6)
        assert not any(isinstance(decision, HookFailed) for decision in decisions)
    return percentiles(spent_us)


def measure_engine(run: Run[Any], count: int) -> float:
    """Add the table of the engine to a run. Return p99 of lone runs of the usual script, in µs."""
    packed, usual_us = messages(max(BATCH, count)), 0.0
    contestants: dict[str, OnEnqueue] = {"without Lua": without_lua}
    contestants |= {name: with_lua(script) for name, script in SCRIPTS.items()}
    contestants |= {f"recalled: {name}": with_lua(SCRIPTS[name], recalls=True) for name in PURE}
    for name, on_enqueue in contestants.items():
        timed(on_enqueue, packed, BATCH)  # warm up: headers are seen for the first time
        for column, batch in ((f"batches of {BATCH}", BATCH), ("lone calls", 1)):
            p50, p99 = timed(on_enqueue, packed, batch)
            run.figure(TABLE, name, f"{column}, p50", "µs", p50)
            run.figure(TABLE, name, f"{column}, p99", "µs", p99)
        usual_us = p99 if name == USUAL else usual_us
    return usual_us
