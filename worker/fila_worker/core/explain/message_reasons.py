"""Why a message waits: its state, or the reason that stops its delivery."""

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

from fila_proto_zmq.commands import Explained
from fila_proto_zmq.errors import MessageNotFoundError
from fila_proto_zmq.ids import format_id
from fila_proto_zmq.names import shard_of
from fila_proto_zmq.reasons import ReasonCode
from fila_proto_zmq.record import Record
from fila_worker.core.explain import queue_reasons
from fila_worker.core.explain.estimates import delivery_ms, is_served, place_in_line, rivals_of, tokens_come_ms
from fila_worker.core.explain.in_flight_reasons import cap, holder_of_message, lease_words
from fila_worker.core.explain.queue_reasons import tokens
from fila_worker.core.explain.text import counted, reason, span
from fila_worker.core.inspect.backlog import DELAYED, LEASED, Found, locate
from fila_worker.core.model.due_index import parse_delayed
from fila_worker.core.model.lanes import unpack_stored
from fila_worker.core.model.leases import Reservation
from fila_worker.core.model.queues import DISCARD, OWN
from fila_worker.core.model.token_client import MICRO_PER_MILLI
from fila_worker.core.settle import dead_letters

if TYPE_CHECKING:
    from fila_proto_zmq.commands import Reason
    from fila_worker.core.explain.estimates import QueuePosition, Rivals
    from fila_worker.core.jobs import Work
    from fila_worker.core.model.fairness_keys import FairnessKey
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

DEAD_LETTERED: Final = "dead_lettered"
"""The state of a message that is a dead letter."""


def explain_message(state: "State", queue: "Queue", high: int, low: int, now_ms: int) -> "Work":
    """Return why a message or dead letter waits. Raise :class:`MessageNotFoundError` for one that is not in this shard."""
    found = yield from _find(state, queue, high, low)
    state.settle_writes()
    record = unpack_stored(found.record)
    if found.lane.key.queue is not queue:
        return Explained(DEAD_LETTERED, [_dead_letter(found, record, now_ms)])
    if found.state == LEASED:
        leased = yield from _leased(state, found, record, now_ms)
        return Explained(LEASED, [leased])
    if found.state == DELAYED:
        return _explain_delayed(state, found, record, now_ms)
    return _explain_pending(state, found, record, now_ms)


# --- finding -----------------------------------------------------------------------------------------------------------


def _find(state: "State", queue: "Queue", high: int, low: int) -> "Generator[int, int, Found]":
    policy = queue.options.dead_letter or OWN
    for each in (queue, queue.dead_letters, state.queues.get(policy)):
        found = (yield from locate(state, each, high, low)) if each is not None else None
        if found is not None:
            return found
    elsewhere = policy not in {OWN, DISCARD} and (
        shard_of(policy, state.shards) != state.index or state.runtime.definitions.find(policy) is not None
    )
    where = f"; its dead letters go to queue {policy!r}: ask there" if elsewhere else ""
    gone = "; the queue discards its dead letters" if policy == DISCARD else ""
    raise MessageNotFoundError(
        f"no message {format_id(high, low)} in queue {queue.name!r} or among its dead letters: it was settled or removed, "
        f"or never in it{where}{gone}",
        details={"queue": queue.name} | ({"dead_letters": policy} if elsewhere else {}),
    )


# --- not in line -------------------------------------------------------------------------------------------------------


def _dead_letter(found: Found, record: Record, now_ms: int) -> "Reason":
    extension, dead = record.extension, found.lane.key.queue
    ago = span(now_ms - (extension.dead_lettered_ms or now_ms))
    details: dict[str, Any] = {
        "reason": extension.reason,
        "error": extension.error,
        "source_queue": extension.source_queue,
        "dead_letter_queue": dead.name,
        "dead_lettered_ms": extension.dead_lettered_ms,
        "attempts": record.attempts,
        **_own_cap(record),
    }
    back = f"`redrive {dead.name}` sends it back to {extension.source_queue!r}"
    if extension.reason == dead_letters.EXPIRED:
        text = f"its time to live ended: it was dead-lettered into {dead.name!r} {ago} ago; {back}"
        return reason(ReasonCode.EXPIRED, text, **details)
    why = f"{extension.reason} after {counted(record.attempts, 'attempt')}" + (
        f": {extension.error}" if extension.error else ""
    )
    return reason(ReasonCode.DEAD_LETTERED, f"it was dead-lettered into {dead.name!r} {ago} ago ({why}); {back}", **details)


def _leased(state: "State", found: Found, record: Record, now_ms: int) -> "Generator[int, int, Reason]":
    held = yield from holder_of_message(state, found.lane.key.queue, found.key)
    if held is None:
        return reason(
            ReasonCode.LEASED, "it was leased, and its lease has just ended", attempts=record.attempts, **_own_cap(record)
        )
    who = held.lease.holder
    details: dict[str, Any] = {
        "consumer": who.shown,
        "reservation": isinstance(who, Reservation),
        "leased_ms": held.lease.leased_ms,
        "expires_ms": held.expires_ms,
        "attempts": record.attempts,
        **_own_cap(record),
    }
    return reason(ReasonCode.LEASED, f"{lease_words(held, now_ms)}, unless it is renewed", held.expires_ms, **details)


def _explain_delayed(state: "State", found: Found, record: Record, now_ms: int) -> Explained:
    lane, queue = found.lane, found.lane.key.queue
    nobody = queue_reasons.attendance(state, queue, now_ms) if not queue.subscribers else None
    reasons = [
        *_mortality(record, now_ms, found.due_ms),
        _delay(state, found, record, now_ms),
        *queue_reasons.stops(state, queue, lane.key.name),
        *_shortage(state, found, record, now_ms),
        *([nobody] if nobody else []),
    ]
    reasons.sort(key=lambda each: each.code == ReasonCode.EXPIRES)
    tokens_ms = tokens_come_ms(state, lane, 0, record.extension.cost_milli, now_ms) if is_served(lane.key, now_ms) else None
    estimated_ms = max(found.due_ms, tokens_ms) if tokens_ms else 0
    return Explained(DELAYED, reasons, None, _unless_too_old(record, estimated_ms))


def _delay(state: "State", found: Found, record: Record, now_ms: int) -> "Reason":
    """Return what a delayed message waits for."""
    value = state.store.get(found.key, state.store.families.delayed) or b""
    remaining_ms, error = max(0, found.due_ms - now_ms), record.extension.error
    details: dict[str, Any] = {
        "due_ms": found.due_ms,
        "remaining_ms": remaining_ms,
        "attempts": record.attempts,
        "error": error,
        **_own_cap(record),
    }
    if parse_delayed(value).deferred:
        text = f"its consumer deferred it: it is delivered again in {span(remaining_ms)}"
        return reason(ReasonCode.DEFERRED, text, found.due_ms, **details)
    if record.attempts:
        why = f" ({error})" if error else ""
        own = record.extension.max_attempts
        of = "" if own is None else f" of the {own} that it may have"
        text = f"{counted(record.attempts, 'attempt')}{of} failed{why}: the next one in {span(remaining_ms)}"
        return reason(ReasonCode.RETRY_WAIT, text, found.due_ms, **details)
    return reason(ReasonCode.DELAYED, f"it is delayed for another {span(remaining_ms)}", found.due_ms, **details)


def _own_cap(record: Record) -> dict[str, int]:
    """Return the message's own number of deliveries, as details, if it has one."""
    own = record.extension.max_attempts
    return {} if own is None else {"max_attempts": own}


def _shortage(state: "State", found: Found, record: Record, now_ms: int) -> "list[Reason]":
    """Return which tokens a delayed message will still lack when it is due, if all stays as it is."""
    lack = tokens(state, found.lane, now_ms, record.extension.cost_milli * MICRO_PER_MILLI)
    if lack is None:
        return []
    never = lack.details.get("wait_ms", 0) is None
    return [lack] if never or lack.until_ms > found.due_ms else []


# --- in line -----------------------------------------------------------------------------------------------------------


def _explain_pending(state: "State", found: Found, record: Record, now_ms: int) -> Explained:
    lane, key, queue = found.lane, found.lane.key, found.lane.key.queue
    place = place_in_line(state, lane, found.key)
    own = [each for each in (cap(state, key, now_ms, found.key[8:]), tokens(state, lane, now_ms)) if each is not None]
    ways = queue_reasons.queue_reasons(state, queue, key.name, own, now_ms)
    rivals = rivals_of(key, place.ahead)
    reasons = [*ways, *_ahead(key, place, rivals, now_ms)] or [queue_reasons.nothing(queue, now_ms)]
    letter = record.extension.reason is not None
    if letter:
        reasons.insert(0, _dead_letter(found, record, now_ms))
    estimated_ms = delivery_ms(state, lane, found.key[8:], place, rivals, record.extension.cost_milli, now_ms)
    mortality = _mortality(record, now_ms, estimated_ms)
    over = [each for each in mortality if each.code == ReasonCode.EXPIRED]
    reasons = [*over, *reasons] if over else [*reasons, *mortality]
    return Explained(
        DEAD_LETTERED if letter else found.state, reasons, place.ahead, 0 if over else _unless_too_old(record, estimated_ms)
    )


def _ahead(key: "FairnessKey", place: "QueuePosition", rivals: "Rivals", now_ms: int) -> "list[Reason]":
    """Return what goes before a message."""
    reasons = []
    if place.ahead:
        about = "" if place.exact else "about "
        are = "message goes" if place.ahead == 1 else "messages go"
        text = f"{about}{place.ahead:,} {are} before it in its fairness key {key.name!r}"
        reasons.append(reason(ReasonCode.BEHIND, text, fairness_key=key.name, ahead=place.ahead, exact=place.exact))
    if key.deliverable and rivals.keys:
        reasons.append(queue_reasons.turns(key, rivals, now_ms))
    return reasons


def _mortality(record: Record, now_ms: int, delivery_ms: int) -> "list[Reason]":
    """Return what a message's time to live does to it. ``delivery_ms``: when it may be delivered, 0 if not known."""
    expires_ms = record.extension.expires_ms
    if expires_ms is None:
        return []
    if expires_ms <= now_ms:
        text = (
            f"its time to live ended {span(now_ms - expires_ms)} ago: it is not delivered, but dead-lettered within seconds"
        )
        return [reason(ReasonCode.EXPIRED, text, expires_ms=expires_ms)]
    before = ", before it would be delivered" if delivery_ms > expires_ms else ""
    text = f"its time to live ends in {span(expires_ms - now_ms)}{before}"
    return [reason(ReasonCode.EXPIRES, text, expires_ms, expires_ms=expires_ms, remaining_ms=expires_ms - now_ms)]


def _unless_too_old(record: Record, estimated_ms: int) -> int:
    expires_ms = record.extension.expires_ms
    return 0 if expires_ms is not None and estimated_ms > expires_ms else estimated_ms
