"""What happens to a message between two of its deliveries is a row of the table of its life: that tells its attempts."""

from collections import defaultdict
from itertools import pairwise

from fila_worker.core.lifecycle import LifecycleEvent, MessagePlace, Transition, step_of, steps_from
from tests.simulation.checkers.fate import calls_by_token
from tests.simulation.history import Done, Grant, History

SETTLEMENTS = {
    "ack": LifecycleEvent.ACK, "nack": LifecycleEvent.NACK, "retry": LifecycleEvent.RETRY, "fail": LifecycleEvent.FAIL, "defer": LifecycleEvent.DEFER,
}  # fmt: skip


def check(history: History) -> None:
    """Look at every two deliveries in a row of a message in one queue."""
    if any(map(history.saw, ("redrive", "reserve", "set_aside"))):
        return  # these move it unseen
    calls = calls_by_token(history)
    for token, grants in history.grants_by_token().items():
        if history.is_excused(token) or (token in history.sent and history.sent[token].options.get("dedup_mode") == "last"):
            continue  # undone; or it may have replaced another between two deliveries
        by_id: dict[str, list[Grant]] = defaultdict(list)
        for grant in grants:
            if not grant.repeated and not _is_late(by_id[grant.id], grant):
                by_id[grant.id].append(grant)
        for several in by_id.values():
            for before, after in pairwise(several):
                wrong = _wrong(history, before, after, calls[token])
                if wrong:
                    history.fail("lives", f"{token} of {before.queue} {wrong}")


def _is_late(earlier: list[Grant], grant: Grant) -> bool:
    """Whether a later leader had given it out already: one that pauses while it sends sends the rest when it goes on."""
    return any(each.shard == grant.shard and each.lease >> 40 > grant.lease >> 40 > 0 for each in earlier)


def _wrong(history: History, before: Grant, after: Grant, calls: list[Done]) -> str:
    moved = before.queue != after.queue or (after.reason is not None and not after.queue.endswith(".dlq"))
    if moved or before.at_most_once or history.had_a_death(before.at_us, after.at_us):
        return ""
    steps = _steps(before, calls)
    allowed = {step.attempts.of(before.attempts) for step in steps if _comes_back(step, before)}
    if after.attempts in allowed:
        return ""
    events = ", ".join(sorted(step.event for step in steps))
    return f"had {before.attempts} attempts, and {after.attempts} at {after.at_us / 1e6:.6f} after {events}: allowed are {sorted(allowed)}"


def _steps(before: Grant, calls: list[Done]) -> list[Transition]:
    """What may have ended a delivery: the settlements that were tried, if one was confirmed, else anything."""
    about = [call for call in calls if (call.said.get("lease"), call.said.get("index")) == before.fence]
    tried = [call for call in about if call.kind in SETTLEMENTS]
    if not any(call.ok for call in tried):
        return list(steps_from(MessagePlace.LEASED))
    return [step for call in tried if (step := step_of(MessagePlace.LEASED, SETTLEMENTS[call.kind]))]


def _comes_back(step: Transition, grant: Grant) -> bool:
    place = step.leads_to(None, dead_letters=not grant.queue.endswith(".dlq"))
    return place in {MessagePlace.PENDING, MessagePlace.DELAYED}
