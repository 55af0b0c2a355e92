"""Within the dedup window a second message with the same id is the first one. A replacement begins the window anew."""

import itertools
from collections import defaultdict
from uuid import UUID

from fila_proto_zmq.names import whole_queue
from tests.simulation.actors.receiving import MADE
from tests.simulation.history import Grant, History, Sent
from tests.simulation.world.processes import BIRTH_MS

STAYS_S = 60.0
"""A queue that may be idle for this long is not deleted while programs run."""


def check(history: History, window_us: int) -> None:
    """All messages with one dedup id that were stored within a window have one id, but for those that may replace one that is leased or gone."""
    if history.clock_steps or history.clocks_differ or history.power_cuts or history.saw("delete_queue"):
        return
    made_stay = all(call.said["idle_expiry"] >= STAYS_S for call in history.calls if call.kind == "put_template")
    others_stay = not any("idle_expiry" in each for each in history.queues.values())
    replaced = _replaced_ms(history)
    for (place, name), messages in _stored(history).items():
        queue = whole_queue(place)
        if not (made_stay if queue.startswith(MADE) else others_stay):
            continue
        for (first_id, (first, _)), (_, (second, second_ms)) in itertools.pairwise(sorted(messages.items())):
            since_ms = max(_stored_ms(first_id), replaced.get((queue, first_id), 0))
            if (
                history.sent[second].options.get("dedup_mode") != "last"
                and second_ms - since_ms < window_us / 1000 - SLACK_MS
            ):
                history.fail("dedup", f"{first} and {second} of {queue} have the dedup id {name} and are two messages")


def _replaced_ms(history: History) -> dict[tuple[str, str], float]:
    """When a message was replaced last for certain, at the earliest: nobody had it before that was confirmed."""
    first_ms: dict[tuple[str, str], int] = {}
    for grant in history.grants:
        first_ms.setdefault((grant.queue, grant.id), grant.leased_ms)
    replaced: dict[tuple[str, str], float] = {}
    for call in history.calls:
        if call.kind != "enqueue" or call.said.get("dedup_mode") != "last" or not call.ok or call.ended_us is None:
            continue
        place = call.queue, str(call.value)
        ended_ms = BIRTH_MS + call.ended_us / 1000
        if first_ms.get(place, ended_ms + SLACK_MS) > ended_ms + 1 and not history.had_a_death(0, call.ended_us):
            replaced[place] = max(replaced.get(place, 0), BIRTH_MS + call.started_us / 1000)
    return replaced


def _stored(history: History) -> dict[tuple[str, str], dict[str, tuple[str, float]]]:
    """By place and dedup id: the ids of the messages that were confirmed or given out, each with its token and when it was stored at the latest."""
    stored: dict[tuple[str, str], dict[str, tuple[str, float]]] = defaultdict(dict)
    grants = history.grants_by_token()
    for token, sent in history.sent.items():
        if name := sent.options.get("dedup_id"):
            own = {grant.id for grant in grants[token]}
            if sent.id is not None and not history.is_repartitioned(sent.queue):  # else it may be one of another key
                own.add(sent.id)
            for message_id in own:
                stored[history.entrance_of(sent), name][message_id] = token, _stored_by_ms(message_id, sent, grants[token])
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
