"""Limits on the messages that are leased at a time, as reasons: which messages hold the places, and for how long."""

from collections.abc import Callable, Iterator
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any, Final

from fila_proto_zmq.commands import ThrottleHolder
from fila_proto_zmq.ids import format_id
from fila_proto_zmq.limits import THROTTLE_USERS_SHOWN
from fila_proto_zmq.names import whole_queue
from fila_proto_zmq.reasons import ReasonCode
from fila_proto_zmq.record import record_id
from fila_worker.core.explain.text import counted, holder, reason, span
from fila_worker.core.walking import LOOKS_AT_ONCE

if TYPE_CHECKING:
    from fila_proto_zmq.commands import Reason
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.leases import Lease
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

HOLDERS_SHOWN: Final = 5
"""The leased messages that are named, those that are leased for longest."""

LEASES_LOOKED_AT_MAX: Final = 20_000
"""Leases of a shard that are examined for them, the oldest ones first: some milliseconds."""


def full_queue(state: "State", queue: "Queue", now_ms: int) -> "Reason | None":
    """Return as a reason that as many messages of a queue are leased as may be; of a partition: of its whole queue."""
    limit, in_use, is_full = queue.max_in_flight, queue.in_flight, queue.full
    siblings = None if queue.partition is None else queue.partition.siblings
    if siblings is not None:
        limit, in_use = state.places.limit(siblings.name) or inf, places_in_use(state, siblings.name)
        is_full = is_full or (in_use >= limit and _lacks(state, siblings.name))
    if not is_full or limit == inf:
        return None
    leases = [lease for lease in _oldest(state) if lease.queue is queue or (siblings and siblings.has(lease.queue))]
    about = f"queue {whole_queue(queue.name)!r} has {counted(in_use, 'message')} leased of at most {limit:,}"
    first_ms = min((lease.next_expiry() for lease in leases), default=0)
    longest, words = _longest(state, leases, lambda lane: True, now_ms)
    details: dict[str, Any] = {"limit": limit, "in_use": in_use, "holders": longest}
    return reason(
        ReasonCode.CONCURRENCY, f"{about} (max_in_flight){words}", first_ms, queue=whole_queue(queue.name), **details
    )


def place_shortage(state: "State", lane: "Lane", now_ms: int) -> "Reason | None":
    """Return as a reason that a lane needs a place of a throttle key that has none free."""
    places, queue = state.places, lane.key.queue
    if lane.throttle is None or queue.at_most_once or lane in places.dealt:
        return None
    limits = {name: limit for name in lane.throttle_keys if (limit := places.limit(name)) is not None}
    short = [name for name in limits if _lacks(state, name)]
    used_up = [name for name in short if places_in_use(state, name) >= limits[name]]
    if not used_up and not (short and lane in places.where):
        return None
    name = (used_up or short)[0]
    in_use, limit = places_in_use(state, name), limits[name]
    leases = [lease for lease in _oldest(state) if lease.labelled and not lease.at_most_once]
    longest, words = _longest(state, leases, lambda other: name in other.throttle_keys, now_ms)
    text = f"throttle key {name!r} has {counted(in_use, 'message')} leased of at most {limit:,} (concurrency){words}"
    return reason(ReasonCode.CONCURRENCY, text, throttle_key=name, limit=limit, in_use=in_use, holders=longest)


def _lacks(state: "State", name: str) -> bool:
    key = state.places.keys.get(name)
    return key is None or key.idle <= 0


def places_in_use(state: "State", name: str) -> int:
    """Return how many places of a throttle key all shards have, as this shard last heard."""
    key = state.places.keys.get(name)
    return 0 if key is None else max(key.in_use, key.counts.leased)


def _oldest(state: "State") -> "list[Lease]":
    """Return the oldest leases of a shard that have messages."""
    looked_at = list(islice(state.leases.leases.values(), LEASES_LOOKED_AT_MAX))
    state.jobs.charge(len(looked_at) // LOOKS_AT_ONCE)
    return [lease for lease in looked_at if lease.open]


def longest_holders(state: "State", name: str) -> "list[ThrottleHolder]":
    """Return the messages with a throttle key that are leased for longest on this shard, the oldest first."""
    leases = [lease for lease in _oldest(state) if lease.labelled and not lease.at_most_once]
    held = _held(state, leases, lambda lane: name in lane.throttle_keys, THROTTLE_USERS_SHOWN)
    return [
        ThrottleHolder(message_id, lease.queue.name, lane.key.name, lease.holder.shown, lease.leased_ms)
        for lease, lane, message_id in held
    ]


def _longest(
    state: "State", leases: "list[Lease]", counts: "Callable[[Lane], bool]", now_ms: int
) -> tuple[list[dict[str, Any]], str]:
    """Return the messages that are leased for longest, as details and in words. ``counts``: whether those of a lane do."""
    held = _held(state, leases, counts, HOLDERS_SHOWN)
    if not held:
        return [], ""
    details = [
        {"message_id": message_id, "consumer": lease.holder.shown, "since_ms": lease.leased_ms}
        for lease, _, message_id in held
    ]
    oldest, _, first = held[0]
    since = span(now_ms - oldest.leased_ms)
    return details, f"; the longest is message {first}, leased by {holder(oldest.holder)} for {since}"


def _held(
    state: "State", leases: "list[Lease]", counts: "Callable[[Lane], bool]", most: int
) -> "list[tuple[Lease, Lane, str]]":
    """Return the messages that are leased for longest, the oldest first: their leases, lanes and ids."""
    held = list(islice(_members(sorted(leases, key=lambda lease: lease.leased_ms), counts), most))
    ids = [format_id(*record_id(record)) for record in state.read([key for _, key, _ in held])] if held else []
    return [(lease, lane, message_id) for (lease, _, lane), message_id in zip(held, ids, strict=True)]


def _members(leases: "list[Lease]", counts: "Callable[[Lane], bool]") -> "Iterator[tuple[Lease, bytes, Lane]]":
    for lease in leases:
        for _, key, lane in lease.open_members():
            if counts(lane):
                yield lease, key, lane
