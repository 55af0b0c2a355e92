"""Every call returns once, and in time."""

from tests.simulation.history import Done, History

SLACK_US = 300_000
"""Beyond a call's own limit: a sweep of the client, its event loop, and what the call does around its requests."""


def check(history: History, now_us: int) -> None:
    """No call hangs past its timeout (and its wait), unless its own process stood still."""
    processes = {process.name: process for process in history.clients}
    for call in history.calls:
        process = processes.get(call.client)
        if process is None or not call.limit_us:
            continue
        end_us = call.ended_us
        if end_us is None:
            if process.died_us is not None:
                continue
            end_us = now_us
        paused_us = sum(max(0, min(end_us, until) - max(call.started_us, since)) for since, until in process.pauses)
        limit_us = call.limit_us * (_nacks_in_line(history, call) if call.kind == "nack" else 1)
        if end_us - call.started_us > limit_us + paused_us + SLACK_US:
            history.fail("in time", f"{_shown(call)} took {(end_us - call.started_us) / 1e6:.3f} s of {limit_us / 1e6:.1f} s")


def _nacks_in_line(history: History, call: Done) -> int:
    """Return how many nacks of its client and queue were open when a nack began, itself included.

    Each may travel in a frame of its own, and the time of a frame begins anew when an earlier one is answered.
    """
    return sum(
        other.kind == "nack"
        and (other.client, other.queue) == (call.client, call.queue)
        and other.started_us <= call.started_us
        and (other.ended_us is None or other.ended_us >= call.started_us)
        for other in history.calls
    )


def _shown(call: Done) -> str:
    return f"#{call.number} {call.kind} of {call.client}" + ("" if call.ended_us is not None else ", which never returned,")
