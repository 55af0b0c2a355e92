"""What a message takes before it is leased: a place of each throttle key with a concurrency, and tokens of those with a rate.

A partition takes places of its whole queue before it looks at its messages, as a queue looks at its ``max_in_flight``.
"""

from math import inf
from typing import TYPE_CHECKING

from fila_worker.core.held_places import HOLD_MS_MAX
from fila_worker.core.model.queues import QueuePartition
from fila_worker.core.model.token_client import MICRO_PER_MILLI, is_live

if TYPE_CHECKING:
    from fila_worker.core.model.lane_tokens import LaneTokens
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.queues import PlaceTaker, Queue
    from fila_worker.core.model.state import State


def take(state: "State", lane: "Lane", throttle: "LaneTokens", cost_milli: int, now_ms: int) -> bool:
    """Take places and tokens for the next message of a lane: all of them, or none. Then the lane waits."""
    places, at_most_once = state.places, lane.key.queue.at_most_once
    if throttle.places_version != places.version:
        throttle.placed, throttle.places_version = places.placed(throttle.keys, throttle.traffic), places.version
    elif not at_most_once and throttle.is_free(state.token_client.version, now_ms) and places.spend(lane, throttle.placed):
        for traffic in throttle.traffic:  # the usual case: the lane has places, and needs no tokens
            traffic.leased += 1
        return True
    needed = throttle.placed and not at_most_once and throttle.parked_until_ms <= now_ms
    if needed and not places.room(lane, throttle.placed):
        state.token_client.rest(lane)
        places.wait(lane, throttle.placed)
        return False
    if not state.token_client.take(throttle, lane, cost_milli, now_ms):
        return False
    if not at_most_once:
        places.spend(lane, throttle.placed)
        for traffic in throttle.traffic:
            traffic.leased += 1
    return True


def may_take(state: "State", lane: "Lane", throttle: "LaneTokens", cost_milli: int, now_ms: int) -> bool:
    """Return whether :func:`take` would take what the next message of a lane needs. If not, the lane waits."""
    places = state.places
    if throttle.places_version != places.version:
        throttle.placed, throttle.places_version = places.placed(throttle.keys, throttle.traffic), places.version
    needed = throttle.placed and not lane.key.queue.at_most_once
    if needed and not places.room(lane, throttle.placed):
        return take(state, lane, throttle, cost_milli, now_ms)
    state.token_client.keep_up(throttle)
    return throttle.may_spend(lane, cost_milli * MICRO_PER_MILLI, now_ms) or take(state, lane, throttle, cost_milli, now_ms)


def room(state: "State", queue: "Queue") -> float:
    """Return how many more messages of a queue may be leased now. A partition that lacks places of its queue waits for some."""
    partition, places = queue.partition, state.places
    if partition is None or (siblings := partition.siblings) is None:
        return queue.max_in_flight - queue.in_flight
    if siblings.version != places.version:
        siblings.placed, siblings.version = places.placed((siblings.name,), (siblings,)), places.version
    if not siblings.placed:
        return inf
    free = places.room(partition, siblings.placed)
    if not free:
        places.wait(partition, siblings.placed)
    return free


def use_room(state: "State", queue: "Queue", count: int) -> None:
    """Use places of a whole queue for messages of a partition that are counted as leased now. The others go back if no message
    of it could use them: all may lack places of throttle keys, which another partition has, and that one these.
    """
    if queue.partition is not None and queue.partition.siblings is not None:
        state.places.spend(queue.partition, queue.partition.siblings.placed, count)
        state.places.doubt(queue.partition)


def can_use(lane: "PlaceTaker", now_ms: int) -> bool:
    """Return whether a lane, or a partition, could deliver a message at once if it had places."""
    if isinstance(lane, QueuePartition):
        queue = lane.owner
        asked = queue.demands or now_ms - queue.served_ms < HOLD_MS_MAX  # some ask again and again, and wait for no bank
        return bool(asked and len(queue.ring)) and not (queue.paused or queue.gone or queue.reshaping)
    throttle, queue = lane.throttle, lane.key.queue
    parked = throttle is not None and throttle.parked_until_ms > now_ms
    return is_live(lane, now_ms) and not queue.full and not parked
