"""What a message takes before it is leased: a place of each throttle key with a concurrency, and tokens of those with a rate."""

from typing import TYPE_CHECKING

from fila_worker.core.model.token_client import MICRO_PER_MILLI, is_live

if TYPE_CHECKING:
    from fila_worker.core.held_places import HeldKey
    from fila_worker.core.model.lane_tokens import LaneTokens
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.state import State


def take(state: "State", lane: "Lane", throttle: "LaneTokens", cost_milli: int, now_ms: int) -> bool:
    """Take places and tokens for the next message of a lane: all of them, or none. Then the lane waits."""
    places, at_most_once = state.places, lane.key.queue.at_most_once
    if throttle.places_version != places.version:
        throttle.placed, throttle.places_version = _placed(state, throttle), places.version
    elif not at_most_once and throttle.is_free(state.token_client.version, now_ms) and places.spend(lane, throttle.placed):
        for traffic in throttle.traffic:  # the usual case: the lane has places, and needs no tokens
            traffic.leased += 1
        return True
    needed = throttle.placed and not at_most_once and throttle.parked_until_ms <= now_ms
    if needed and not places.has(lane, throttle.placed):
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
        throttle.placed, throttle.places_version = _placed(state, throttle), places.version
    needed = throttle.placed and not lane.key.queue.at_most_once
    if needed and not places.has(lane, throttle.placed):
        return take(state, lane, throttle, cost_milli, now_ms)
    state.token_client.keep_up(throttle)
    return throttle.may_spend(lane, cost_milli * MICRO_PER_MILLI, now_ms) or take(state, lane, throttle, cost_milli, now_ms)


def _placed(state: "State", throttle: "LaneTokens") -> "tuple[HeldKey[Lane], ...]":
    """Return the accounts of the throttle's keys that have a concurrency."""
    placed = state.places.placed(throttle.keys, throttle.traffic)
    for key in placed:
        state.token_client.traffic[key.key].held = key
    return placed


def can_use(lane: "Lane", now_ms: int) -> bool:
    """Return whether a lane could deliver a message at once if it had places."""
    throttle, queue = lane.throttle, lane.key.queue
    parked = throttle is not None and throttle.parked_until_ms > now_ms
    return is_live(lane, now_ms) and not queue.full and not parked
