"""A trial as a table: the fields of each message now, and as the hook would set them."""

from collections.abc import Sequence
from typing import Any, Final

from fila_cluster.figures import aged
from fila_cluster.ops.dashboard.hooks.trials.plan import HookReport, HookVerdict, TrialMessage

ENQUEUE_FIELDS: Final = {
    "fairness_key": "Fairness key",
    "weight": "Weight",
    "throttle_keys": "Throttle keys",
    "priority": "Priority",
    "cost": "Cost",
    "delay_ms": "Delay",
}
"""The fields that ``on_enqueue`` may set, with their names for people."""

LEFT_OUT: Final = "–"


def enqueue_rows(messages: Sequence[TrialMessage], report: HookReport) -> list[dict[str, Any]]:
    """Return rows of :data:`ENQUEUE_FIELDS`, as ``now → then`` where they differ; ``_changed`` names those fields."""
    return [
        _enqueue_row(number, message, each)
        for number, (message, each) in enumerate(zip(messages, report.verdicts, strict=False), 1)
    ]


def decided_fields(report: HookReport) -> list[str]:
    """Return the fields that any run has set, in order: the others need no column."""
    return [field for field in ENQUEUE_FIELDS if any(field in each.decided for each in report.verdicts)]


def failure_rows(messages: Sequence[TrialMessage], report: HookReport) -> list[dict[str, Any]]:
    """Return rows with the result of failed attempts."""
    return [
        _row(number, message, each)
        | {"attempts": message.attempts, "error": message.error or LEFT_OUT, "decision": _fate(each)}
        for number, (message, each) in enumerate(zip(messages, report.verdicts, strict=False), 1)
    ]


def result_line(messages: Sequence[TrialMessage], report: HookReport) -> str:
    """Return the results in one line."""
    tried, failed = len(report.verdicts), sum(bool(each.failure) for each in report.verdicts)
    parts = [f"{tried:,} tried", f"{failed:,} failed", f"{report.took_us / 1000:,.1f} ms in all"]
    if report.instructions:
        parts.append(f"{report.cost_us:.1f} µs and {report.instructions:,} instructions a run in a batch")
    if tried < len(messages):
        parts.append(f"the time was up: {len(messages) - tried:,} were not tried")
    return ", ".join(parts)


def _row(number: int, message: TrialMessage, each: HookVerdict) -> dict[str, Any]:
    return {
        "number": number,
        "id": message.id,
        "headers": ", ".join(f"{name}={value}" for name, value in message.headers.items())[:200] or LEFT_OUT,
        "failure": each.failure,
    }


def _enqueue_row(number: int, message: TrialMessage, each: HookVerdict) -> dict[str, Any]:
    row, changed = _row(number, message, each), []
    for field in ENQUEUE_FIELDS:
        now = None if field == "delay_ms" else getattr(message, field)
        then = each.decided.get(field)
        row[field] = _compared(field, now, then)
        if then is not None and not _is_same(now, then):
            changed.append(field)
    return row | {"_changed": changed}


def _compared(field: str, now: Any, then: Any) -> str:
    if then is None:
        return LEFT_OUT
    if now is None or _is_same(now, then):
        return _text(field, then)
    return f"{_text(field, now)} → {_text(field, then)}"


def _is_same(now: Any, then: Any) -> bool:
    """Compare two values; throttle keys as a set."""
    return bool(sorted(now) == sorted(then) if isinstance(now, list) else now == then)


def _text(field: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    if field == "delay_ms":
        return aged(value / 1000)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _fate(each: HookVerdict) -> str:
    """Return a verdict of ``on_failure`` for people, with the effect of a failed run."""
    if each.decided.get("action") == "dlq":
        return "dead letter"
    delay_ms = each.decided.get("delay_ms", 0)
    return f"retry in {aged(delay_ms / 1000)}" if delay_ms else "retry at once"
