"""The messages in flight of fairness keys, and how a cap on them stops a key's next message.

With a cap of 1 a key is in strict order: one message is in flight, or comes first and waits for tokens, and all messages
behind it wait for that message. So the reason names it.
"""

from collections.abc import Generator, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fila_proto_zmq.ids import format_id
from fila_proto_zmq.reasons import ReasonCode
from fila_proto_zmq.record import record_id
from fila_worker.core.explain.queue_reasons import tokens
from fila_worker.core.explain.text import holder, reason, span
from fila_worker.core.model.due_index import parse_delayed
from fila_worker.core.model.lanes import extension_of, head, sample
from fila_worker.core.walking import LOOKS_AT_ONCE, lease_pieces

if TYPE_CHECKING:
    from fila_proto_zmq.commands import Reason
    from fila_worker.core.model.cold_lanes import ColdLane
    from fila_worker.core.model.fairness_keys import FairnessKey
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.leases import Lease
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

HELD_LOOKS_MAX: Final = 50_000
"""Leases and leased messages that are examined to find those of a key: some milliseconds."""

DELAYED_MAX: Final = 1000
"""Delayed messages of a lane that are examined."""


# --- leases ------------------------------------------------------------------------------------------------------------


class Held(NamedTuple):
    """A leased message."""

    lease: "Lease"
    member: int
    key: bytes

    @property
    def expires_ms(self) -> int:
        """When the message's lease ends, Unix ms."""
        return self.lease.expiry_of(self.member)


def held_of(state: "State", key: "FairnessKey") -> Iterator[Held]:
    """Yield the leased messages of a key; only the first ones if the shard has many leases."""
    looks_left = HELD_LOOKS_MAX
    for lease in state.leases.leases.values():
        looks_left -= 1
        if lease.queue is key.queue:
            looks_left -= lease.open
            for index, message_key, lane in lease.open_members():
                if lane.key is key:
                    yield Held(lease, index, message_key)
        if looks_left <= 0:
            break
    state.jobs.charge((HELD_LOOKS_MAX - looks_left) // LOOKS_AT_ONCE)


def holder_of_message(state: "State", queue: "Queue", message_key: bytes) -> "Generator[int, int, Held | None]":
    """Return the lease of a message of a queue; None if it ended meanwhile."""
    for leases, effort in lease_pieces(state, queue):
        for lease in leases:
            for index, key, _ in lease.open_members():
                if key == message_key:
                    state.jobs.charge(effort)
                    return Held(lease, index, key)
        yield effort
    return None


def lease_words(held: Held, now_ms: int) -> str:
    """Return which consumer has a message, since when and until when."""
    since = span(now_ms - held.lease.leased_ms)
    return f"leased by {holder(held.lease.holder)} for {since}; the lease ends in {span(held.expires_ms - now_ms)}"


# --- caps --------------------------------------------------------------------------------------------------------------


def cap(state: "State", key: "FairnessKey", now_ms: int, place: bytes | None = None) -> "Reason | None":
    """Return as a reason that a key has its maximum in flight, or, in strict order, waits for tokens before ``place``."""
    most = key.queue.options.max_in_flight_per_key
    if most is None:
        return None
    if key.held < most:
        return _behind_tokens(state, key, place, now_ms) if most == 1 and place is not None else None
    held = min(held_of(state, key), key=lambda each: each.expires_ms, default=None)
    if most == 1:
        behind = _behind_lease(state, key, held, now_ms) if held else _behind_retry(state, key, now_ms)
        if behind is not None:
            return behind
    retrying = sum(lane.retrying for lane in key.lanes.values())
    first = f", and the first of those leases ends in {span(held.expires_ms - now_ms)}" if held else ""
    text = (
        f"fairness key {key.name!r} has {key.held:,} of at most {most:,} in flight (max_in_flight_per_key): "
        f"{key.held - retrying:,} leased{first}; {retrying:,} waiting for a retry"
    )
    details: dict[str, Any] = {"fairness_key": key.name, "in_flight": key.held, "max_in_flight": most, "retrying": retrying}
    return reason(ReasonCode.IN_FLIGHT_CAP, text, held.expires_ms if held else 0, **details)


def _behind(key: "FairnessKey", record: bytes, why: str, until_ms: int, **details: object) -> "Reason":
    message_id = format_id(*record_id(record))
    text = f"fairness key {key.name!r} is in strict order (max_in_flight_per_key=1), and message {message_id} is first: {why}"
    return reason(ReasonCode.ORDERED_BEHIND, text, until_ms, fairness_key=key.name, message_id=message_id, **details)


def _behind_lease(state: "State", key: "FairnessKey", held: Held, now_ms: int) -> "Reason":
    details: dict[str, Any] = {"waits_for": "lease", "leased_ms": held.lease.leased_ms, "expires_ms": held.expires_ms}
    return _behind(key, state.read([held.key])[0], lease_words(held, now_ms), held.expires_ms, **details)


def _behind_retry(state: "State", key: "FairnessKey", now_ms: int) -> "Reason | None":
    retrying = (lane for lane in key.lanes.values() if lane.retrying)
    for lane in islice(retrying, 1):  # there is one, unless the cap was higher a moment ago
        for _, value in sample(delayed_of(state, lane), DELAYED_MAX)[0]:
            delayed = parse_delayed(value)
            if delayed.retrying:
                what = "was deferred" if delayed.deferred else "waits for its next attempt"
                why = f"it {what}, due in {span(delayed.due_ms - now_ms)}"
                details = {"waits_for": "retry", "error": extension_of(delayed.record).error}
                return _behind(key, delayed.record, why, delayed.due_ms, **details)
    return None


def _behind_tokens(state: "State", key: "FairnessKey", place: bytes, now_ms: int) -> "Reason | None":
    heads = [(head(state, lane), lane) for lane in key.lanes.values() if lane.active]
    (message_key, kept), lane = min(heads, key=lambda entry: entry[0][0][8:])
    waiting = tokens(state, lane, now_ms) if message_key[8:] < place else None
    if waiting is None:
        return None
    details = waiting.details | {"waits_for": "tokens"}
    return _behind(key, kept or state.read([message_key])[0], waiting.text, waiting.until_ms, **details)


def delayed_of(state: "State", lane: "Lane | ColdLane") -> Iterator[tuple[bytes, bytes]]:
    """Return the delayed messages of a lane, by their place in it."""
    return state.store.scan(lane.prefix, lane.end, state.store.families.delayed)
