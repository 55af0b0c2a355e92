"""``python -P -m fila_cluster.ops.dashboard.hooks.trials``: a plan on standard input, a report on standard output.

The brokers' engine runs on messages in the order given, with the limits of the queue. Scripts keep their variables from
message to message and from hook to hook, as in a broker. Unlike there, no circuit breaker stops them: a trial shows each
failure.
"""

import resource
import sys
from collections.abc import Callable, Sequence
from time import monotonic, perf_counter
from typing import Any, Final

import msgspec

from fila_cluster.ops.dashboard.hooks.trials.plan import HookReport, HookVerdict, TrialMessage, TrialPlan, TrialReport
from fila_proto_zmq import runtime_config
from fila_proto_zmq.errors import LuaCompilationError
from fila_worker.core.hooks import EnqueueDecision, FailedAttempt, FailureDecision, HookFailed
from fila_worker.lua.hooks import LuaHooks, compile_hooks
from fila_worker.lua.trial import SampleMessage, TrialOutcome, try_hooks

TIME_S: Final = 8.0
"""After this long no further message is tried."""

PIECE_MS: Final = 500
"""As many messages are tried at once as take at most this long."""

Decision = EnqueueDecision | FailureDecision | HookFailed


def run(plan: TrialPlan, time_s: float = TIME_S) -> TrialReport:
    """Try all scripts of a plan on all its messages; errors of compilation are in the report."""
    try:
        hooks = compile_hooks(
            plan.queue,
            plan.on_enqueue,
            plan.on_failure,
            timeout_ms=plan.timeout_ms,
            memory_limit_bytes=plan.memory_limit_bytes,
            get_config=lambda key: runtime_config.read(key, plan.config),
            recalls=False,
        )
    except LuaCompilationError as error:
        return TrialReport(str(error), {})
    until_s = monotonic() + time_s
    report = TrialReport("", {})
    for hook, decide in (("on_enqueue", _enqueue(hooks)), ("on_failure", _fail(hooks))):
        if getattr(plan, hook) is not None:
            report.hooks[hook] = _tried(decide, plan, until_s)
            if plan.costs and plan.messages:
                _measure(hook, plan, report.hooks[hook])
    return report


Decide = Callable[[Sequence[TrialMessage]], Sequence[Decision]]


def _enqueue(hooks: LuaHooks) -> Decide:
    return lambda messages: hooks.on_enqueue(
        [msgspec.msgpack.encode(each.headers) for each in messages], [each.payload_bytes for each in messages], len(messages)
    )


def _fail(hooks: LuaHooks) -> Decide:
    return lambda messages: hooks.on_failure([_failure(each) for each in messages], len(messages))


def _failure(message: TrialMessage) -> FailedAttempt:
    packed = msgspec.msgpack.encode(message.headers)
    return FailedAttempt(packed, message.id, message.attempts, message.error, message.fairness_key)


def _tried(decide: Decide, plan: TrialPlan, until_s: float) -> HookReport:
    """Decide message after message until all are decided, or the time is up."""
    verdicts: list[HookVerdict] = []
    took_s, piece = 0.0, max(1, PIECE_MS // plan.timeout_ms)
    while len(verdicts) < len(plan.messages) and monotonic() < until_s:
        started_s = perf_counter()
        decided = decide(plan.messages[len(verdicts) : len(verdicts) + piece])  # it may stop after a failure
        took_s += perf_counter() - started_s
        verdicts += map(verdict, decided)
    return HookReport(verdicts, took_s * 1e6)


def verdict(decision: Decision) -> HookVerdict:
    """Return a decision named as in scripts: only the fields that were set."""
    if isinstance(decision, HookFailed):
        return HookVerdict({}, decision.text)
    if isinstance(decision, FailureDecision):
        return HookVerdict({"action": "dlq" if decision.dead_letter else "retry", "delay_ms": decision.delay_ms})
    fields: dict[str, Any] = {name: value for name, value in decision._asdict().items() if value is not None}
    if "cost_milli" in fields:
        fields["cost"] = fields.pop("cost_milli") / 1000
    return HookVerdict(fields)


def _measure(hook: str, plan: TrialPlan, report: HookReport) -> None:
    """Note the cost of one run, if it did not fail, measured as by ``fila-cluster hook test``."""
    first, script = plan.messages[0], getattr(plan, hook)
    sample = SampleMessage(first.headers, first.payload_bytes, _failure(first))
    outcome: TrialOutcome = try_hooks(script, sample, queue=plan.queue, config=plan.config)[hook]
    report.cost_us, report.instructions = outcome.microseconds, outcome.instructions


CPU_S_MAX: Final = 30
"""The bound if the process that started this one is gone and can't stop it."""


def main() -> None:
    """Run one trial."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MAX, CPU_S_MAX))
    plan = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=TrialPlan)
    sys.stdout.buffer.write(msgspec.msgpack.encode(run(plan)))


if __name__ == "__main__":
    main()
