"""Trying hooks: what a trial decides is what a broker would; what fails, hangs or crashes comes back as a value or a clear line."""

import asyncio

import pytest

from fila_cluster.ops.dashboard.hooks.trial_card import decided_fields, enqueue_rows, failure_rows, result_line
from fila_cluster.ops.dashboard.hooks.trials.__main__ import run
from fila_cluster.ops.dashboard.hooks.trials.plan import (
    HookReport,
    HookVerdict,
    TrialError,
    TrialMessage,
    TrialPlan,
    TrialReport,
    try_out,
)

FULL = """
function on_enqueue(msg)
  return { fairness_key = msg.headers.tenant, weight = tonumber(fila.get("weight")), throttle_keys = { "b", "a" },
           priority = -3, cost = msg.payload_size / 8, delay_ms = 1500 }
end
"""


def message(number: int = 1, *, error: str = "", attempts: int = 1, **headers: str) -> TrialMessage:
    return TrialMessage(f"00000000-0000-7000-8000-{number:012x}", headers, 20, attempts=attempts, error=error)


def plan(
    *messages: TrialMessage, on_enqueue: str | None = None, on_failure: str | None = None, **others: object
) -> TrialPlan:
    given = {"timeout_ms": 10, "memory_limit_bytes": 1 << 20, "config": {}} | others
    return TrialPlan("orders", on_enqueue, on_failure, messages=list(messages), **given)  # type: ignore[arg-type]


def test_all_fields_come_back_in_the_words_of_a_script_and_the_config_is_read() -> None:
    [verdict] = run(plan(message(tenant="acme"), on_enqueue=FULL, config={"weight": "7"})).hooks["on_enqueue"].verdicts
    assert verdict == HookVerdict(
        {"fairness_key": "acme", "weight": 7, "throttle_keys": ["b", "a"], "priority": -3, "cost": 2.5, "delay_ms": 1500}
    )


def test_throttles_are_read_in_the_dotted_spelling_too() -> None:
    script = 'function on_enqueue(msg) return { fairness_key = fila.get("throttle.mail") } end'
    report = run(plan(message(), on_enqueue=script, config={"throttle:mail:rate": "5", "throttle:mail:burst": "9"}))
    assert report.hooks["on_enqueue"].verdicts[0].decided == {"fairness_key": "5,9"}


def test_each_message_is_decided_though_others_fail_and_both_scripts_share_variables() -> None:
    enqueue = "seen = 0 function on_enqueue(msg) seen = seen + 1 return { fairness_key = msg.headers.t:upper() } end"
    fail = 'function on_failure(msg) return { action = msg.error == "404" and "dlq" or "retry", delay_ms = seen } end'
    messages = [message(1, t="a"), *(message(at, error="404") for at in range(2, 8)), message(8, t="b", attempts=3)]
    report = run(plan(*messages, on_enqueue=enqueue, on_failure=fail))
    enqueued, failed = (report.hooks[hook].verdicts for hook in ("on_enqueue", "on_failure"))
    assert [each.decided.get("fairness_key") for each in enqueued] == ["A", *[None] * 6, "B"]
    assert all(each.failure.startswith("on_enqueue:1:") for each in enqueued[1:7])
    assert [each.decided["action"] for each in failed] == ["retry", *["dlq"] * 6, "retry"]
    assert failed[0].decided["delay_ms"] == 8


def test_the_limits_of_the_queue_hold() -> None:
    endless = "function on_enqueue(msg) while true do end end"
    [verdict] = run(plan(message(), on_enqueue=endless, timeout_ms=3)).hooks["on_enqueue"].verdicts
    assert "ran for more than 3 ms" in verdict.failure


def test_what_does_not_compile_is_refused_with_its_line() -> None:
    assert run(plan(message(), on_failure="function on_failure(msg)\n  return = 3\nend")).refused.startswith("on_failure:2:")
    assert "defines no function of that name" in run(plan(message(), on_enqueue="x = 1")).refused


def test_when_the_time_is_up_the_rest_is_not_tried_and_the_summary_says_so() -> None:
    messages = [message(at) for at in range(3)]
    report = run(plan(*messages, on_enqueue=FULL), time_s=0)
    assert report.hooks["on_enqueue"].verdicts == []
    assert "3 were not tried" in result_line(messages, report.hooks["on_enqueue"])


def test_a_trial_runs_in_a_process_of_its_own_and_measures_costs() -> None:
    report = asyncio.run(try_out(plan(message(tenant="acme"), on_enqueue=FULL, costs=True)))
    measured = report.hooks["on_enqueue"]
    assert measured.verdicts[0].decided["fairness_key"] == "acme"
    assert measured.cost_us > 0
    assert measured.instructions > 0


def test_a_trial_that_does_not_end_is_stopped() -> None:
    with pytest.raises(TrialError, match=r"did not end within 0.001 s: they were stopped"):
        asyncio.run(try_out(plan(message(), on_enqueue=FULL), end_s_max=0.001))


def test_a_trial_that_crashes_says_what_it_said_last() -> None:
    with pytest.raises(TrialError, match=r"ended with code 1: .*No module named"):
        asyncio.run(try_out(plan(message(), on_enqueue=FULL), module="fila_cluster.ops.dashboard.hooks.trials.nowhere"))


def test_rows_compare_what_is_with_what_would_be() -> None:
    now = TrialMessage("id-1", {"a": "1"}, 5, "acme", 3, ["x", "y"], 0, 1.0)
    decided = {"fairness_key": "acme", "weight": 5, "throttle_keys": ["y", "x"], "delay_ms": 90_000}
    report = HookReport([HookVerdict(decided), HookVerdict({}, "on_enqueue:1: no")], 2000.0)
    first, second = enqueue_rows([now, now], report)
    assert (first["fairness_key"], first["weight"], first["throttle_keys"]) == ("acme", "3 → 5", "y, x")
    assert first["delay_ms"] == "90.0 s"
    assert first["_changed"] == ["weight", "delay_ms"]
    assert (second["weight"], second["failure"], second["_changed"]) == ("–", "on_enqueue:1: no", [])
    assert decided_fields(report) == ["fairness_key", "weight", "throttle_keys", "delay_ms"]
    assert result_line([now, now], report) == "2 tried, 1 failed, 2.0 ms in all"


def test_rows_of_failures_say_what_becomes_of_them() -> None:
    verdicts = [
        HookVerdict({"action": "dlq", "delay_ms": 0}),
        HookVerdict({"action": "retry", "delay_ms": 2500}),
        HookVerdict({}, "on_failure:1: no"),
    ]
    rows = failure_rows([message(error="404"), message(attempts=3), message()], HookReport(verdicts, 0.0))
    assert [row["decision"] for row in rows] == ["dead letter", "retry in 2.5 s", "retry at once"]
    assert [(row["attempts"], row["error"]) for row in rows] == [(1, "404"), (3, "–"), (1, "–")]


def test_without_scripts_there_is_nothing_to_report() -> None:
    assert run(plan(message())) == TrialReport("", {})
