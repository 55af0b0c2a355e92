"""The limit of a throttle key over the whole cluster: never more than ``burst + rate × t`` in any window of length t.

The moments are those of the grants, not of their frames: a granted message is sent when the log has confirmed the grant.
"""

from dataclasses import dataclass

from tests.simulation.history import Grant, History
from tests.simulation.world.processes import BIRTH_MS

SLACK_S = 0.05
"""What a shard's clock, in whole milliseconds and read once a turn, may differ from that of the bank."""


@dataclass
class Limit:
    """What was in force, perhaps, from one moment to another."""

    since_us: int
    until_us: int
    rate: float
    burst: float


def check(history: History) -> None:
    """Look at every stretch in which a single limit was in force, and nothing was being changed."""
    for key in ("t0", "t1"):
        limits = _limits(history, key)
        for limit in limits:
            _check_stretch(history, key, limit)
        _check_lists(history, key, limits)


def _limits(history: History, key: str) -> list[Limit]:
    """The stretches between changes: from when one was confirmed until the next one began."""
    changes = [
        call
        for call in history.calls
        if (call.kind in ("set_config", "delete_config") and call.said["key"] == f"throttle.{key}")
        or (call.kind in ("set_throttle", "delete_throttle") and call.said["key"] == key)
    ]
    changes.sort(key=lambda call: call.started_us)
    limits = []
    for index, call in enumerate(changes):
        overlaps = any(
            other is not call
            and other.started_us < (call.ended_us or 1 << 60)
            and (other.ended_us is None or other.ended_us > call.started_us or not other.ok)
            for other in changes[: index + 1]
        )
        if not call.ok or call.kind.startswith("delete") or overlaps:
            continue
        assert call.ended_us is not None
        rate, burst = map(float, call.said["value"].split(","))
        until_us = changes[index + 1].started_us if index + 1 < len(changes) else history.healed_us + (1 << 50)
        limits.append(Limit(call.ended_us, min(until_us, history.audit_us), rate, burst))
    return limits


def _check_lists(history: History, key: str, limits: list[Limit]) -> None:
    """A list that was asked for while a limit was in force has it."""
    for call in history.calls:
        if call.kind != "list_throttles" or not call.ok or call.ended_us is None:
            continue
        shown = {each.key: (each.rate, each.burst) for each in call.value}
        for limit in limits:
            in_force = limit.since_us <= call.started_us and call.ended_us <= limit.until_us
            if in_force and shown.get(key) != (limit.rate, limit.burst):
                history.fail("listed", f"{shown} has not {key} with rate {limit.rate:g} and burst {limit.burst:g}")
                return


def _check_stretch(history: History, key: str, limit: Limit) -> None:
    level = 0.0
    since_us = limit.since_us
    true_clocks = not history.clock_steps and not history.clocks_differ
    granted = sorted(((_granted_us(grant, true_clocks), grant) for grant in history.grants), key=lambda moment: moment[0])
    for granted_us, grant in granted:
        if (
            key not in grant.throttle_keys
            or grant.repeated
            or not limit.since_us + 1_000_000 <= granted_us <= limit.until_us
            or grant.queue.endswith(".dlq")
        ):
            continue
        level = max(0.0, level - limit.rate * (granted_us - since_us) / 1e6) + grant.cost
        since_us = granted_us
        allowed = limit.burst if grant.cost <= limit.burst else max(limit.burst, grant.cost) if limit.burst else 0.0
        if level > allowed + limit.rate * SLACK_S + 1e-6:
            history.fail(
                "throttles",
                f"{grant.token}: {level:.3f} tokens of {key} beyond its rate, burst {limit.burst:g}, rate {limit.rate:g}",
            )
            return


def _granted_us(grant: Grant, true_clocks: bool) -> int:
    """When a worker granted it; where wall clocks were set or differ: when the worker sent it."""
    return (grant.leased_ms - BIRTH_MS) * 1000 if true_clocks else grant.at_us
