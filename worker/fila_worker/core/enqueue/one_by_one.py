"""Enqueueing messages one by one, for unusual batches, and the checks of a message.

A message costs three times as much as one of a usual batch (:mod:`core.enqueue.enqueue`), and gets its own verdict.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from fila_proto_zmq.codec import to_fault
from fila_proto_zmq.commands import Enqueue, Fault
from fila_proto_zmq.errors import FilaError, InvalidArgumentError, PayloadTooLargeError, StorageError
from fila_proto_zmq.ids import low_half, sequence
from fila_proto_zmq.limits import (
    COST_MILLI_MAX,
    DEDUP_ID_BYTES_MAX,
    DELAY_MS_MAX,
    FAIRNESS_KEY_BYTES_MAX,
    HEADERS_BYTES_MAX,
    LEASE_MS_MAX,
    MAX_ATTEMPTS_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    THROTTLE_KEY_BYTES_MAX,
    THROTTLE_KEYS_MAX,
    TTL_MS_MAX,
    WEIGHT_MAX,
)
from fila_proto_zmq.names import parse_batch_id
from fila_proto_zmq.record import FIXED_BYTES, Extension, Record, headers_length
from fila_worker.core.enqueue import policy, quotas
from fila_worker.core.enqueue.dedup import Dedup
from fila_worker.core.enqueue.insert import Incoming, store
from fila_worker.core.enqueue.replace import Hint, Replacements

if TYPE_CHECKING:
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

Faults: TypeAlias = list[tuple[int, Fault]]
Known: TypeAlias = list[tuple[int, int, int]]
ThrottleKeys: TypeAlias = tuple[str, ...]


class Numbers(Protocol):
    """The source of a batch's sequence numbers. ``sequence`` is the last one that was given out."""

    sequence: int


def accept_one_by_one(
    state: "State", queue: "Queue", command: Enqueue, dedup: Dedup | None, numbers: "Numbers", high: int, now_ms: int
) -> tuple[Faults, Known]:
    """Take in a batch with messages that are unusual, invalid or too many. Return its faults and known dedup ids."""
    faults: Faults = []
    known: Known = []
    stored: list[str] = []
    first = numbers.sequence + 1
    seen = dedup.seen if dedup else {}
    replacements = Replacements(state, queue, dedup, now_ms) if dedup and command.dedup_last is not False else None
    token = parse_batch_id(command.batch)[1] if command.batch else None
    for index, (envelope, name, *options, throttle_keys, dedup_id, last) in enumerate(_rows(command)):
        try:
            check_message(envelope, name, state.settings.max_payload_bytes)
            _check_options(options, throttle_keys, dedup_id, last, now_ms)
            earlier = seen.get(dedup_id)
            if earlier is not None:
                hint = Hint(name, policy.canonical(throttle_keys), options[1])
                if (
                    not last
                    or replacements is None
                    or replacements.replace(dedup_id, hint, envelope, _deliver_ms(options, now_ms))
                ):
                    known.append((index, *earlier))
                    continue
            quotas.check_room(state, queue, name, len(envelope) + FIXED_BYTES, now_ms)
        except StorageError:
            raise  # no fault of the message
        except FilaError as error:
            faults.append((index, to_fault(error)))
        else:
            numbers.sequence += 1
            low = low_half(numbers.sequence)
            message = _incoming(envelope, name, options, policy.canonical(throttle_keys), high, low, now_ms)
            message.record.extension.batch = token
            placed = store(state, queue, message, now_ms)
            stored.append(dedup_id)
            if dedup_id:
                seen[dedup_id] = (high, low)
                if replacements:
                    replacements.stored(dedup_id, placed)
    if dedup:
        dedup.remember(stored, high, first)
    if replacements:
        replacements.remember()
    if token is not None and stored:
        state.batch_parts.add(queue.counted_as, command.batch, len(stored), state.batch)
    return faults, known


def _incoming(
    envelope: bytes, name: str, options: list[int], throttle_keys: ThrottleKeys, high: int, low: int, now_ms: int
) -> Incoming:
    """Return one message. ``high`` and ``low`` are the halves of its id."""
    weight, priority, _, _, lease_ms, cost_milli, ttl_ms, max_attempts = options
    extension = Extension(lease_ms=lease_ms or None, cost_milli=cost_milli, max_attempts=max_attempts or None)
    record = Record(0, priority, high, low, extension, bytes(envelope))
    deliver_ms = _deliver_ms(options, now_ms)
    return Incoming(
        record,
        name,
        weight=weight,
        throttle_keys=throttle_keys,
        deliver_ms=deliver_ms,
        ttl_ms=ttl_ms,
        number=sequence(record.id_low),
    )


def _deliver_ms(options: list[int], now_ms: int) -> int:
    _, _, delay_ms, due_ms, *_ = options
    return max(now_ms + delay_ms, due_ms)


def check_enqueue(command: Enqueue, payload_max: int, now_ms: int) -> None:
    """Raise the error of the first message that is not valid, whatever the queue is."""
    for envelope, name, *options, throttle_keys, dedup_id, last in _rows(command):
        check_message(envelope, name, payload_max)
        _check_options(options, throttle_keys, dedup_id, last, now_ms)


def incoming_single(command: Enqueue, high: int, low: int, now_ms: int) -> Incoming:
    """Return the only message of a command. ``high`` and ``low`` are the halves of its id."""
    ((envelope, name, *options, throttle_keys, _, _),) = _rows(command)
    return _incoming(envelope, name, options, policy.canonical(throttle_keys), high, low, now_ms)


def _rows(command: Enqueue) -> Iterable[tuple[Any, ...]]:
    """Return the batch message by message, with its columns spread."""
    count = len(command.envelopes)
    columns = (
        command.fairness_key,
        command.weight,
        command.priority,
        command.delay_ms,
        command.due_ms,
        command.lease_ms,
        command.cost_milli,
        command.ttl_ms,
        command.max_attempts,
    )
    spread = (policy.spread(column, count) for column in columns)
    throttle_keys = policy.spread_keys(command.throttle_keys, count)
    dedup = (policy.spread(column, count) for column in (command.dedup_id, command.dedup_last))
    return zip(command.envelopes, *spread, throttle_keys, *dedup, strict=False)


# --- checks -----------------------------------------------------------------------------------------------------------


def check_message(envelope: bytes, name: str, payload_max: int) -> None:
    """Raise the error for a message's envelope or its key's name, if one of them is not valid."""
    headers_bytes = headers_length(envelope)
    payload_bytes = len(envelope) - 4 - headers_bytes
    if payload_bytes > payload_max:
        raise PayloadTooLargeError(
            f"payload of {payload_bytes} bytes: this broker accepts up to {payload_max} "
            "([limits] max_payload_bytes); store it elsewhere and send a reference",
            details={"payload_bytes": payload_bytes, "max_payload_bytes": payload_max},
        )
    if headers_bytes > HEADERS_BYTES_MAX:
        raise InvalidArgumentError(f"headers of {headers_bytes} bytes: use at most {HEADERS_BYTES_MAX}")
    if not 0 < len(name.encode()) <= FAIRNESS_KEY_BYTES_MAX:
        raise InvalidArgumentError(f"fairness key of {len(name.encode())} bytes: use 1 to {FAIRNESS_KEY_BYTES_MAX}")


def _check_options(options: list[int], throttle_keys: list[str], dedup_id: str, last: bool, now_ms: int) -> None:
    """Raise :class:`InvalidArgumentError` if a message's options are not valid."""
    weight, priority, delay_ms, due_ms, lease_ms, cost_milli, ttl_ms, max_attempts = options
    if not PRIORITY_MIN <= priority <= PRIORITY_MAX:
        raise InvalidArgumentError(f"priority {priority}: use a 32-bit integer, lower is more urgent")
    if weight > WEIGHT_MAX:
        raise InvalidArgumentError(f"weight {weight}: use at most {WEIGHT_MAX}")
    if not 0 <= delay_ms <= DELAY_MS_MAX:
        raise InvalidArgumentError(f"delay of {delay_ms} ms: use 0 to {DELAY_MS_MAX}")
    if not 0 <= due_ms <= now_ms + DELAY_MS_MAX:
        raise InvalidArgumentError(f"delivery at {due_ms}: use Unix milliseconds, at most ten years from now")
    if not 0 <= lease_ms <= LEASE_MS_MAX:
        raise InvalidArgumentError(f"lease of {lease_ms} ms: use 1 to {LEASE_MS_MAX}")
    if not 0 < cost_milli <= COST_MILLI_MAX:
        raise InvalidArgumentError(f"cost of {cost_milli} thousandths: use 1 to {COST_MILLI_MAX}")
    if not 0 <= ttl_ms <= TTL_MS_MAX:
        raise InvalidArgumentError(f"time to live of {ttl_ms} ms: use 1 to {TTL_MS_MAX}")
    if not 0 <= max_attempts <= MAX_ATTEMPTS_MAX:
        raise InvalidArgumentError(
            f"max_attempts of {max_attempts} deliveries: use 1 to {MAX_ATTEMPTS_MAX}, or 0 for the queue's"
        )
    if last and not dedup_id:
        raise InvalidArgumentError("dedup_last without a dedup_id: name what the message is to replace")
    if len(dedup_id.encode()) > DEDUP_ID_BYTES_MAX:
        raise InvalidArgumentError(f"dedup id of {len(dedup_id.encode())} bytes: use at most {DEDUP_ID_BYTES_MAX}")
    wrong = wrong_throttle_keys(throttle_keys)
    if wrong:
        raise InvalidArgumentError(wrong)


def wrong_throttle_keys(throttle_keys: "list[str] | ThrottleKeys") -> str:
    """Return what is wrong with a message's throttle keys; empty if they are valid."""
    if len(throttle_keys) > THROTTLE_KEYS_MAX:
        return f"{len(throttle_keys)} throttle keys: use at most {THROTTLE_KEYS_MAX}"
    for key in throttle_keys:
        if not 0 < len(key.encode()) <= THROTTLE_KEY_BYTES_MAX or key.startswith("\0"):
            return f"throttle key of {len(key.encode())} bytes: use 1 to {THROTTLE_KEY_BYTES_MAX}, none that begins with NUL"
    return ""
