"""Within the dedup window a second message with the same id is the first one."""

import itertools
from collections import defaultdict
from uuid import UUID

from tests.simulation.history import Grant, History, Sent
from tests.simulation.processes import BIRTH_MS


def check(history: History, window_us: int) -> None:
    """All messages with one dedup id that were stored within a window have one id."""
    if (
        history.clock_steps
        or history.clocks_differ
        or history.power_cuts
        or history.saw("delete_queue")
        or any("idle_expiry" in each for each in history.queues.values())
    ):
        return
    for (queue, name), messages in _stored(history).items():
        for (first_id, (first, _)), (_, (second, second_ms)) in itertools.pairwise(sorted(messages.items())):
            if second_ms - _stored_ms(first_id) < window_us / 1000 - SLACK_MS:
                history.fail("dedup", f"{first} and {second} of {queue} have the dedup id {name} and are two messages")


def _stored(history: History) -> dict[tuple[str, str], dict[str, tuple[str, float]]]:
    """By queue and dedup id: the ids of the messages that were confirmed or given out, each with its token and when it was stored at the latest."""
    stored: dict[tuple[str, str], dict[str, tuple[str, float]]] = defaultdict(dict)
    grants = history.grants_by_token()
    for token, sent in history.sent.items():
        if (name := sent.options.get("dedup_id")) and sent.options.get(
            "dedup_mode"
        ) != "last":  # their queues go when they are idle
            for message_id in {grant.id for grant in grants[token]} | ({sent.id} if sent.id is not None else set()):
                stored[sent.queue, name][message_id] = token, _stored_by_ms(message_id, sent, grants[token])
    return stored


def _stored_ms(message_id: str) -> int:
    """When a message was stored, or the first of its batch: its id begins with that."""
    return UUID(message_id).int >> 80


def _stored_by_ms(message_id: str, sent: Sent, grants: list[Grant]) -> float:
    """When a message was stored at the latest: a batch may be taken in by many turns, and all its ids begin with the time of the first."""
    if sent.call.kind == "enqueue":
        return _stored_ms(message_id)
    known_us = [grant.at_us for grant in grants if grant.id == message_id]
    if message_id == sent.id and sent.call.ended_us is not None:
        known_us.append(sent.call.ended_us)
    return BIRTH_MS + min(known_us) / 1000


SLACK_MS = 1100
"""Windows end on a grid of seconds, and clocks of different lives of a worker differ."""
