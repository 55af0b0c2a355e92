"""Within the dedup window a second message with the same id is the first one."""

import itertools
from collections import defaultdict
from uuid import UUID

from tests.simulation.history import History


def check(history: History, window_us: int) -> None:
    """All messages with one dedup id that were stored within a window have one id."""
    if (
        history.clock_steps
        or history.power_cuts
        or history.saw("delete_queue")
        or any("idle_expiry" in each for each in history.queues.values())
    ):
        return
    for (queue, name), tokens in _stored(history).items():
        for (first_id, first), (second_id, second) in itertools.pairwise(sorted(tokens.items())):
            if _stored_ms(second_id) - _stored_ms(first_id) < window_us / 1000 - SLACK_MS:
                history.fail("dedup", f"{first} and {second} of {queue} have the dedup id {name} and are two messages")


def _stored(history: History) -> dict[tuple[str, str], dict[str, str]]:
    """By queue and dedup id: the ids of the messages that were confirmed or given out, each with its token."""
    stored: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    grants = history.grants_by_token()
    for token, sent in history.sent.items():
        if name := sent.options.get("dedup_id"):
            ids = {grant.id for grant in grants[token]} | ({sent.id} if sent.id is not None else set())
            stored[sent.queue, name].update(dict.fromkeys(ids, token))
    return stored


def _stored_ms(message_id: str) -> int:
    """When a message was stored: its id begins with that."""
    return UUID(message_id).int >> 80


SLACK_MS = 1100
"""Windows end on a grid of seconds, and clocks of different lives of a worker differ."""
