"""The messages that a throttle key is said to be leased with: they have that key, and were not settled before."""

from tests.simulation.history import Grant, History

SETTLED = ("ack", "nack", "retry", "fail", "defer")


def check(history: History) -> None:
    """Look at each answer. A power cut may have undone a settlement."""
    grants: dict[tuple[str, str, int], Grant] = {(each.place, each.id, each.leased_ms): each for each in history.grants}
    settled: dict[tuple[str, int, int], int] = {}
    for call in history.calls:
        if call.kind in SETTLED and call.ok and "index" in call.said and call.said.get("lease"):
            place = call.said.get("place", call.queue)
            settled.setdefault((place, call.said["lease"], call.said["index"]), call.ended_us or 0)
    for call in history.calls:
        if call.kind != "describe_throttle" or not call.ok:
            continue
        for each in call.value.holders:
            grant = grants.get((each.queue, each.message_id, each.since_ms))
            if grant is None:  # its worker died, or its consumer was gone, before it was sent
                continue
            if call.said["key"] not in grant.throttle_keys:
                history.fail("holders", f"#{call.number}: {grant.token} is said to hold {call.said['key']}: {grant}")
            ended_us = settled.get((each.queue, *grant.fence), call.started_us)
            if ended_us < call.started_us and not (history.power_cuts or history.is_excused(grant.token)):
                history.fail("holders", f"#{call.number}: {grant.token} is said to be leased, and was settled: {grant}")
