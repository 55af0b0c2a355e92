"""Schedules: each due time has one message, whatever is restarted."""

from collections import defaultdict
from datetime import datetime, timedelta

from tests.simulation.history import Done, History
from tests.simulation.world.processes import BIRTH_MS
from tests.simulation.world.queues import TICKS

LATE_S = 3.0
"""When all is well a message comes this soon after its due time and its jitter."""


def check(history: History) -> None:
    """No due time has two messages; and none is left out from the first one of a schedule to the last."""
    if history.power_cuts:
        return
    seen: dict[str, dict[datetime, set[str]]] = defaultdict(lambda: defaultdict(set))
    for grant in history.grants:
        if grant.queue == TICKS:
            name, _, due = grant.token.partition("@")
            seen[name][datetime.fromisoformat(due)].add(grant.id)
    puts: dict[str, list[Done]] = defaultdict(list)
    for call in history.calls:
        if call.kind in ("put_schedule", "delete_schedule"):
            puts[call.queue].append(call)
    for name, times in seen.items():
        most = _new_ones(history, puts[name])
        for due, ids in times.items():
            if len(ids) > most:
                history.fail("schedules", f"{name} has {len(ids)} messages for {due}: {sorted(ids)}")
    made_us = min((call.ended_us or 0 for call in history.calls if _made_queue(call)), default=1 << 60)
    for name, calls in puts.items():
        if len(calls) == 1 and _is_new(calls[0]) and made_us < calls[0].started_us:
            _check_all_there(history, calls[0], sorted(seen[name]))


def _new_ones(history: History, calls: list[Done]) -> int:
    """How many schedules of a name may have the same due time: one that follows a deletion begins now, by a clock that may be behind."""
    if not (history.clock_steps or history.clocks_differ):
        return 1
    return 1 + sum(call.kind == "delete_schedule" for call in calls)


def _made_queue(call: Done) -> bool:
    return call.kind == "create_queue" and call.queue == TICKS and call.ok


def _is_new(call: Done) -> bool:
    """Whether a call has put a schedule whose first due time is known. A call that was repeated may be answered later."""
    return call.kind == "put_schedule" and call.ok and call.value.next_due_at is not None and not call.value.fired


def _check_all_there(history: History, put: Done, times: list[datetime]) -> None:
    """A schedule that was put once: its due times follow each other from the first one on."""
    first, step = put.value.next_due_at, _step(put)
    wanted = [first + number * step for number in range(len(times))]
    if times != wanted:
        lacking = [str(each) for each in wanted if each not in times]
        history.fail("schedules", f"{put.queue} has no message for {lacking[:3]}, but {len(times)} others")
    elif not (history.clock_steps or history.clocks_differ or _is_behind_others(history, put.queue)):
        ends = datetime.fromtimestamp(BIRTH_MS / 1000 + history.schedules_end_us / 1e6, first.tzinfo)
        following = first + len(times) * step
        if following + timedelta(seconds=put.value.jitter + LATE_S) < ends:
            history.fail("schedules", f"{put.queue} has no message for {following}, and was deleted at {ends}")


def _is_behind_others(history: History, name: str) -> bool:
    """Whether a schedule's messages go the way of dead letters, or of redriven ones, which may be many: then they wait for those."""
    way = {history.shard_of(name), history.shard_of(TICKS)}
    others = [(queue, options.get("dead_letter", "dlq")) for queue, options in history.queues.items()]
    return len(way) > 1 and any(
        {history.shard_of(queue), history.shard_of(target)} == way
        for queue, target in others
        if target not in ("dlq", "discard")
    )


def _step(put: Done) -> timedelta:
    cron = put.said.get("cron")
    seconds = put.said["every"] if cron is None else 2 if cron.startswith("*/2") else 1
    return timedelta(seconds=seconds)
