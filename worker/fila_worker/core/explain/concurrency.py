"""Limits on the messages that are leased at a time, as reasons: which messages hold the places, and for how long."""

from collections.abc import Iterator
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from fila_proto_zmq.ids import format_id
from fila_proto_zmq.reasons import ReasonCode
from fila_proto_zmq.record import record_id
from fila_worker.core.explain.text import counted, holder, reason, span
from fila_worker.core.walking import LOOKS_AT_ONCE

if TYPE_CHECKING:
    from fila_proto_zmq.commands import Reason
    from fila_worker.core.model.leases import Lease
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

HOLDERS_SHOWN: Final = 5
"""The leased messages that are named, those that are leased for longest."""

LEASES_LOOKED_AT_MAX: Final = 20_000
"""Leases of a shard that are examined for them, the oldest ones first: some milliseconds."""


def full_queue(state: "State", queue: "Queue", now_ms: int) -> "Reason | None":
    """Return as a reason that as many messages of a queue are leased as may be."""
    if not queue.full:
        return None
    looked_at = list(islice(state.leases.leases.values(), LEASES_LOOKED_AT_MAX))
    state.jobs.charge(len(looked_at) // LOOKS_AT_ONCE)
    leases = [lease for lease in looked_at if lease.queue is queue and lease.open]
    about = f"queue {queue.name!r} has {counted(queue.in_flight, 'message')} leased of at most {queue.max_in_flight:,}"
    first_ms = min((lease.next_expiry() for lease in leases), default=0)
    longest, words = _longest(state, leases, now_ms)
    details: dict[str, Any] = {"limit": queue.max_in_flight, "in_use": queue.in_flight, "holders": longest}
    return reason(ReasonCode.CONCURRENCY, f"{about} (max_in_flight){words}", first_ms, queue=queue.name, **details)


def _longest(state: "State", leases: "list[Lease]", now_ms: int) -> tuple[list[dict[str, Any]], str]:
    """Return the messages that are leased for longest, as details and in words."""
    held = list(islice(_members(nsmallest(HOLDERS_SHOWN, leases, key=lambda lease: lease.leased_ms)), HOLDERS_SHOWN))
    if not held:
        return [], ""
    ids = [format_id(*record_id(record)) for record in state.read([key for _, key in held])]
    details = [
        {"message_id": message_id, "consumer": lease.holder.shown, "since_ms": lease.leased_ms}
        for (lease, _), message_id in zip(held, ids, strict=True)
    ]
    oldest = held[0][0]
    since = span(now_ms - oldest.leased_ms)
    return details, f"; the longest is message {ids[0]}, leased by {holder(oldest.holder)} for {since}"


def _members(leases: "list[Lease]") -> "Iterator[tuple[Lease, bytes]]":
    for lease in leases:
        for _, key, _ in lease.open_members():
            yield lease, key
