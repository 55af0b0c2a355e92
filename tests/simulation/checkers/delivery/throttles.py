"""The limit of a throttle key over the whole cluster: never more than ``burst + rate × t`` in any window of length t.

The moments are those of the grants, not of their frames: a granted message is sent when the log has confirmed the grant.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tests.simulation.history import Done, Grant, History
from tests.simulation.world.processes import BIRTH_MS

SLACK_S = 0.05
"""What a shard's clock, in whole milliseconds and read once a turn, may differ from that of the bank."""


KNOWN_US = 2_500_000
"""After this time the bank knows what a settled delivery has cost, unless a process died."""

AWAKE_US = 200_000
"""How soon a worker that stood still for long hears of the router."""

PATTERN = "t*"
"""A pattern of the throttle keys."""


@dataclass
class Stretch:
    """A time in which the limit of a throttle key, or of a pattern, was known: ``rate`` None: there was none."""

    since_us: int
    until_us: int
    rate: float | None = None
    burst: float = 0.0
    least: float | None = None
    """The least rate that deferrals leave; None: they leave all."""


def check(history: History) -> None:
    """Look at every stretch in which a single limit was in force, and nothing was being changed."""
    of_pattern = _stretches(history, PATTERN)
    _check_lists(history, PATTERN, of_pattern)
    for key in ("t0", "t1"):
        own = _stretches(history, key)
        _check_lists(history, key, own)
        for limit in _in_force(own, of_pattern):
            _check_stretch(history, key, limit)


def _stretches(history: History, key: str) -> list[Stretch]:
    """The stretches between changes: from when one was confirmed until the next one began, or a power cut undid it."""
    changes = [
        call
        for call in history.calls
        if (call.kind in ("set_config", "delete_config") and call.said["key"] == f"throttle.{key}")
        or (call.kind in ("set_throttle", "delete_throttle") and call.said["key"] == key)
    ]
    changes.sort(key=lambda call: call.started_us)
    starts = [min(call.started_us, history.audit_us) for call in changes] + [history.audit_us]
    found = [Stretch(0, starts[0])]
    for index, call in enumerate(changes):
        overlaps = any(
            other is not call
            and other.started_us < (call.ended_us or 1 << 60)
            and (other.ended_us is None or other.ended_us > call.started_us or not other.ok)
            for other in changes[: index + 1]
        )
        if not call.ok or overlaps:
            continue
        assert call.ended_us is not None
        undone = (
            cut_us for shard, first_us, cut_us in history.power_cuts if shard == 0 and first_us <= call.ended_us <= cut_us
        )
        until_us = min([starts[index + 1], *undone])
        if call.kind.startswith("delete"):
            found.append(Stretch(call.ended_us, until_us))
        else:
            rate, burst = map(float, call.said["value"].split(","))
            least = call.said.get("least")
            found.append(Stretch(call.ended_us, until_us, rate, burst, least))
    return found


def _in_force(own: list[Stretch], of_pattern: list[Stretch]) -> Iterator[Stretch]:
    """The stretches with a limit: the key's own, or that of the pattern while the key has none."""
    for each in own:
        if each.rate is not None:
            yield each
            continue
        for other in of_pattern:
            since_us, until_us = max(each.since_us, other.since_us), min(each.until_us, other.until_us)
            if other.rate is not None and since_us < until_us:
                yield Stretch(since_us, until_us, other.rate, other.burst, other.least)


def _check_lists(history: History, key: str, limits: list[Stretch]) -> None:
    """A list that was asked for while a limit was in force has it. A power cut may have undone the limit."""
    if history.power_cuts:
        return
    for call in history.calls:
        if call.kind != "list_throttles" or not call.ok or call.ended_us is None:
            continue
        shown = {each.key: (each.rate, each.burst) for each in call.value}
        for limit in limits:
            in_force = limit.rate is not None and limit.since_us <= call.started_us and call.ended_us <= limit.until_us
            if in_force and shown.get(key) != (limit.rate, limit.burst):
                history.fail("listed", f"{shown} has not {key} with rate {limit.rate:g} and burst {limit.burst:g}")
                return


@dataclass
class Spent:
    """Tokens that were taken, or given back: when, when the bank must know it at the latest, how many, and for which delivery."""

    at_us: int
    known_us: int
    cost: float
    grant: Grant | None = None


def _check_stretch(history: History, key: str, limit: Stretch) -> None:
    assert limit.rate is not None
    true_clocks = not history.clock_steps and not history.clocks_differ
    counted = [
        grant
        for grant in history.grants
        if key in grant.throttle_keys and not grant.repeated and not grant.queue.endswith(".dlq")
    ]
    moments = [(_granted_us(grant, true_clocks), grant) for grant in counted]
    spent = [Spent(at_us, at_us, grant.cost, grant) for at_us, grant in moments] + _differences(history, counted)
    spent = [each for each in spent if limit.since_us + 1_000_000 <= each.at_us <= limit.until_us]
    spent.sort(key=lambda each: each.at_us)
    late = [each for each in spent if each.known_us > each.at_us]
    lowered = _deferrals(history, limit, counted)
    level, since_us = 0.0, limit.since_us
    for position, each in enumerate(spent):
        if late:
            known = [other for other in spent[:position] if other.known_us <= each.at_us]
            level, since_us = _level_after(history, known, limit, lowered)
        level, since_us = _level_with(history, each, limit, lowered, level, since_us), each.at_us
        if each.grant is None:
            continue
        cost = each.cost
        allowed = limit.burst if cost <= limit.burst else max(limit.burst, cost) if limit.burst else 0.0
        if level > allowed + limit.rate * SLACK_S + 1e-6 and not _slept_through(history, limit, each.grant):
            history.fail(
                "throttles",
                f"{each.grant.token}: {level:.3f} tokens of {key} beyond its rate, burst {limit.burst:g}, rate {limit.rate:g}",
            )
            return


def _slept_through(history: History, limit: Stretch, grant: Grant) -> bool:
    """Whether the worker stood still when the limit was set, and has just gone on: it follows the limits of before for a moment."""
    return any(
        name == grant.by[0] and since_us <= limit.since_us <= until_us <= grant.at_us <= until_us + AWAKE_US
        for name, since_us, until_us in history.world.pauses
    )


def _level_after(history: History, spent: list[Spent], limit: Stretch, lowered: list[Done]) -> tuple[float, int]:
    level, since_us = 0.0, limit.since_us
    for each in spent:
        level, since_us = _level_with(history, each, limit, lowered, level, since_us), each.at_us
    return level, since_us


def _level_with(history: History, each: Spent, limit: Stretch, lowered: list[Done], level: float, since_us: int) -> float:
    """How many tokens are missing in the bucket with these. The bank of a new router has empty buckets, and no debts."""
    if any(name.startswith("router") and since_us <= at_us <= each.at_us for name, at_us in history.deaths):
        level = min(level, limit.burst)
    return max(0.0, max(0.0, level - _income(limit, lowered, since_us, each.at_us)) + each.cost)


def _deferrals(history: History, limit: Stretch, grants: list[Grant]) -> list[Done]:
    """The deferrals that lower the rate in this stretch for certain: each is the first for a while, and nobody died."""
    if limit.least is None or history.clock_steps or history.clocks_differ:
        return []
    by_fence = {grant.fence: grant for grant in grants}
    about = [
        call
        for call in history.calls
        if call.kind == "defer" and (call.said.get("lease"), call.said.get("index")) in by_fence
    ]
    return [
        call
        for call in about
        if call.ok and call.ended_us is not None and limit.since_us <= call.started_us
        and not history.had_a_death(call.started_us - 3_000_000, limit.until_us)
        and not any(0 <= call.started_us - other.started_us < 3_000_000 for other in about if other is not call)
    ]  # fmt: skip


def _income(limit: Stretch, lowered: list[Done], since_us: int, until_us: int) -> float:
    """The most tokens that may have come in: a deferral halves the rate, and each second adds a twentieth."""
    assert limit.rate is not None
    if not lowered or until_us <= since_us:
        return limit.rate * (until_us - since_us) / 1e6
    income = 0.0
    for begin_us in range(since_us, until_us, 100_000):
        end_us = min(begin_us + 100_000, until_us)
        known = [call for call in lowered if (call.ended_us or 0) + 500_000 <= begin_us]
        shares = [0.5 + ((end_us - call.started_us) / 1e6 + 1) / 20 for call in known]
        rate = max(limit.least or 0.0, limit.rate * min([1.0, *shares]))
        income += rate * (end_us - begin_us) / 1e6
    return income


def _differences(history: History, grants: list[Grant]) -> list[Spent]:
    """What deliveries cost more or less than their messages' cost: from when on the bank may know it, or must."""
    by_fence = {grant.fence: grant for grant in grants}
    found: dict[tuple[int, int], Spent] = {}
    for call in history.calls:
        fence = call.said.get("lease"), call.said.get("index")
        if "actual_cost" not in call.said or fence not in by_fence:
            continue
        more = call.said["actual_cost"] - by_fence[fence].cost
        if more <= 0:
            at_us = min(call.started_us, found[fence].at_us) if fence in found else call.started_us
            found[fence] = Spent(at_us, at_us, more)
        elif call.ok and call.ended_us is not None and not history.had_a_death(call.started_us, call.ended_us + KNOWN_US):
            found[fence] = Spent(call.started_us, call.ended_us + KNOWN_US, more)
    return list(found.values())


def _granted_us(grant: Grant, true_clocks: bool) -> int:
    """When a worker granted it; where wall clocks were set or differ: when the worker sent it."""
    return (grant.leased_ms - BIRTH_MS) * 1000 if true_clocks else grant.at_us
