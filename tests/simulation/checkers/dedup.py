"""Within the dedup window a second message with the same id is the first one."""

import itertools
from collections import defaultdict
from uuid import UUID

from tests.simulation.history import History, Sent


def check(history: History, window_us: int) -> None:
    """All confirmed messages with one dedup id that were sent within a window have one id."""
    groups: dict[tuple[str, str], list[Sent]] = defaultdict(list)
    for sent in history.sent.values():
        if sent.id is not None and sent.options.get("dedup_id"):
            groups[sent.queue, sent.options["dedup_id"]].append(sent)
    if (
        history.clock_steps
        or history.power_cuts
        or history.saw("delete_queue")
        or any("idle_expiry" in each for each in history.queues.values())
    ):
        return
    for (queue, name), several in groups.items():
        stored = sorted({sent.id: sent for sent in several if sent.id is not None}.items())
        for (first_id, first), (second_id, second) in itertools.pairwise(stored):
            if _stored_ms(second_id) - _stored_ms(first_id) < window_us / 1000 - SLACK_MS:
                history.fail(
                    "dedup", f"{first.token} and {second.token} of {queue} have the dedup id {name} and are two messages"
                )


def _stored_ms(message_id: str) -> int:
    """When a message was stored: its id begins with that."""
    return UUID(message_id).int >> 80


SLACK_MS = 1100
"""Windows end on a grid of seconds, and clocks of different lives of a worker differ."""
