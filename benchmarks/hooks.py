"""Measure what ``on_enqueue`` costs in the engine alone: µs a message in batches, µs a call for lone messages.

    python benchmarks/hooks.py [messages]

The first row is the same loop without Lua: it reads the same headers from the same bytes and decides the same in Python.
Every script runs for every message, except in the rows with *recalled*: there, earlier decisions of pure scripts for the same headers are
recalled (``fila_worker/lua/recall.py``; 1,500 different headers). Scripts in rows with *watched* run under the count hook; the text of the
others bounds what they do (``fila_worker/lua/straight.py``).
"""

import sys
import time
from collections.abc import Callable, Sequence
from statistics import median

import msgspec

from fila_worker.core.hooks import Breaker, EnqueueDecision, GuardedHooks, HookFailed
from fila_worker.lua import compile_hooks

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
    fairness_key = h.tenant, weight = tonumber(fila.get("weight:" .. h.provider)) or 1, throttle_keys = { h.provider, h.tenant },
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

PURE = ("two headers in, three fields out", "weight from the config, all six fields")

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
    get_config = {"weight:mail": "3"}.get
    hooks = compile_hooks(
        "bench", script, None, timeout_ms=10, memory_limit_bytes=1 << 20, get_config=get_config, recalls=recalls
    )
    guarded = GuardedHooks(hooks, Breaker(3, 10_000))
    return lambda headers, sizes: guarded.on_enqueue(headers, sizes, 0)


def messages(count: int) -> list[bytes]:
    providers = ("mail", "sms", "push")
    return [
        msgspec.msgpack.encode({"tenant": f"tenant-{n * 7919 % 500}", "provider": providers[n % 3]}) for n in range(count)
    ]


def percentiles(spent_us: list[float]) -> tuple[float, float]:
    return median(spent_us), sorted(spent_us)[int(len(spent_us) * 0.99)]


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


def main() -> None:
    packed = messages(max(BATCH, int(sys.argv[1]) if len(sys.argv) > 1 else 50_000))
    contestants: dict[str, OnEnqueue] = {"without Lua": without_lua}
    contestants |= {name: with_lua(script) for name, script in SCRIPTS.items()}
    contestants |= {f"recalled: {name}": with_lua(SCRIPTS[name], recalls=True) for name in PURE}
    print(f"{'on_enqueue, µs':50}  batches of {BATCH}: p50    p99   lone calls: p50    p99")
    for name, on_enqueue in contestants.items():
        timed(on_enqueue, packed, BATCH)  # warm up: headers are seen for the first time
        together, alone = timed(on_enqueue, packed, BATCH), timed(on_enqueue, packed[:20_000], 1)
        print(f"{name:50}  {together[0]:20.2f} {together[1]:6.2f} {alone[0]:17.2f} {alone[1]:6.2f}")


if __name__ == "__main__":
    main()
