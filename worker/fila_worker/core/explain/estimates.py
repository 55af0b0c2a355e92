"""Estimates of delivery times, from the queue's pace, the key's share and the tokens that come in.

An estimate supposes that all goes on as it does: no other message takes the tokens, no key comes or goes, and messages cost
about the same. Where this supposition gives no time (a pause, no consumer, strict order behind a lease) there is no estimate.
"""

from typing import TYPE_CHECKING, Final, NamedTuple

from fila_worker.core.model.token_client import LIVE_MS, MICRO_PER_MILLI

if TYPE_CHECKING:
    from fila_worker.core.explain.queue_position import QueuePosition
    from fila_worker.core.model.fairness_keys import FairnessKey
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

KEYS_MAX: Final = 2000
"""Keys of a queue that are examined; the others are taken to be alike."""


class Rivals(NamedTuple):
    """The other keys that take turns with a key: their number, their weights, and how many of their messages go first."""

    keys: int
    weights: int
    messages: int


def rivals_of(key: "FairnessKey", ahead_in_key: int) -> Rivals:
    """Return what goes before a message, of other keys; ``ahead_in_key`` messages of its own key go before it."""
    rounds = -(-(ahead_in_key + 1) // key.weight)
    looked = key.queue.keys.portion(0, KEYS_MAX)
    others = [each for each in looked if each.active and each is not key]
    messages = sum(min(each.pending, each.weight * rounds) for each in others)
    scale = len(key.queue.keys) / len(looked)
    return Rivals(round(len(others) * scale), round(sum(each.weight for each in others) * scale), round(messages * scale))


def is_read(queue: "Queue", now_ms: int) -> bool:
    """Return whether a consumer receives from a queue, or did less than ``LIVE_MS`` ago."""
    return bool(queue.subscribers) or (queue.served_ms > 0 and now_ms - queue.served_ms < LIVE_MS)


def is_served(key: "FairnessKey", now_ms: int) -> bool:
    """Return whether a key's messages are delivered at all: a consumer receives from its queue, and neither is paused."""
    return not key.queue.paused and not key.paused and is_read(key.queue, now_ms)


def delivery_ms(
    state: "State", lane: "Lane", spot: bytes, place: "QueuePosition", rivals: Rivals, cost_milli: int, now_ms: int
) -> int:
    """Return when a message of a lane will be delivered, in Unix ms; 0 if there is no estimate.

    ``spot`` is the message's place in its lane, ``place`` and ``rivals`` count the messages before it.
    """
    key, queue = lane.key, lane.key.queue
    if not is_served(key, now_ms) or not key.open or (key.blocked_head and spot > key.blocked_head):
        return 0
    tokens_ms = tokens_come_ms(state, lane, place.in_lane, cost_milli, now_ms)
    if tokens_ms is None or tokens_ms > now_ms:
        return tokens_ms or 0
    messages = place.ahead + rivals.messages
    pace = queue.delivery_rate.per_second(now_ms)
    if not messages and any(demand.credit > 0 for demand in queue.demands):
        return now_ms
    return now_ms + round((messages + 1) * 1000 / pace) if pace else 0


def tokens_come_ms(state: "State", lane: "Lane", ahead: int, cost_milli: int, now_ms: int) -> int | None:
    """Return when a message has the tokens of all its throttle keys, in Unix ms; None: never.

    ``ahead`` is the number of messages before it in its lane.
    """
    throttling = state.token_client
    if lane.throttle is None:
        return now_ms
    latest = max(now_ms, throttling.parks.until(lane.throttle_keys))
    for name in lane.throttle_keys:
        limit = throttling.limits.get(name)
        if limit is None:
            continue
        cost = cost_milli * MICRO_PER_MILLI
        missing = ahead * cost + limit.level_for(cost) - lane.tokens - throttling.levels.tokens_in(name, limit, now_ms)
        if missing > 0:
            if not limit.rate_milli:
                return None
            latest = max(latest, now_ms - (-missing // limit.rate_milli))
    return latest
