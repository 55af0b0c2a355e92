"""A message that may be replaced is delivered as its last replacement left it, not before its delay; queues that a template makes are there."""

from collections import defaultdict

from fila_proto_zmq.errors import QueueNotFoundError
from tests.simulation.history import Done, Grant, History
from tests.simulation.world.processes import BIRTH_MS

SLACK_US = 2000
"""Times of leases are whole milliseconds."""


def check(history: History) -> None:
    """Look at the first delivery of each message that was confirmed to have a dedup id: nothing was leased before it."""
    if history.power_cuts or history.clock_steps or history.clocks_differ:
        return
    calls: dict[tuple[str, str], list[Done]] = defaultdict(list)
    for call in history.calls:
        if call.kind == "enqueue" and call.said.get("dedup_mode") == "last" and call.ok:
            calls[call.queue, call.value].append(call)
    firsts: dict[tuple[str, str], Grant] = {}
    for grant in history.grants:
        firsts.setdefault((grant.queue, grant.id), grant)
    for place, several in calls.items():
        first = firsts.get(place)
        if first is not None:
            _check_first(history, first, several)


def _check_first(history: History, first: Grant, several: list[Done]) -> None:
    """Fail if the message came too early, or if a replacement was confirmed before it was leased, and after the one that it came with."""
    leased_us = (first.leased_ms - BIRTH_MS) * 1000 - SLACK_US
    shown = history.sent[first.token].call
    early_us = shown.started_us + 1e6 * history.sent[first.token].options["delay"] - leased_us
    if early_us > 2 * SLACK_US:
        history.fail(
            "replaced",
            f"{first.token} of {first.queue} ({first.id}) is given out {early_us / 1e6:.6f} s before its delay is over",
        )
    if shown.ended_us is None:
        return  # it was sent, and may be the last one that had an effect
    for call in several:
        later = call.started_us > shown.ended_us and call.ended_us is not None and call.ended_us < leased_us
        if later and not history.had_a_death(call.started_us, first.at_us):
            history.fail(
                "replaced",
                f"{first.token} of {first.queue} ({first.id}) is given out at {leased_us / 1e6:.6f}, and #{call.number} had replaced it",
            )
            return


def check_kept(history: History) -> None:
    """What was confirmed is given out, or was replaced by a later one: no update is dropped because a consumer has an older one."""
    grants = history.grants_by_token()
    last = [call for call in history.calls if call.kind == "enqueue" and call.said.get("dedup_mode") == "last"]
    for call in last:
        sent = history.sent[call.said["token"]]
        if not call.ok or grants[sent.token] or history.is_excused(sent.token) or history.was_swept(sent):
            continue
        same = (each for each in last if (each.queue, each.said["dedup_id"]) == (call.queue, call.said["dedup_id"]))
        if not any(each is not call and (each.ended_us is None or each.ended_us >= call.started_us) for each in same):
            history.fail(
                "replaced",
                f"#{call.number} was confirmed as {call.value} of {call.queue}, and {sent.token} was never given out",
            )


def check_made(history: History) -> None:
    """Once a template is put, an enqueue to a name that it matches finds a queue."""
    puts = [call for call in history.calls if call.kind == "put_template" and call.ok]
    since_us = min((call.ended_us or 0 for call in puts), default=None)
    if since_us is None or history.power_cuts:
        return
    for call in history.calls:
        made = call.kind == "enqueue" and call.said.get("dedup_mode") == "last" and call.started_us >= since_us
        if made and isinstance(call.error, QueueNotFoundError):
            history.fail("replaced", f"#{call.number} found no queue {call.queue}, and there is a template: {call.error}")
