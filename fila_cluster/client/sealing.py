"""Messages to the columns of an ``Enqueue`` frame, and checked on the way.

A batch is sealed column by column: it costs less than a row at a time, and a column whose values are all the same travels
as that one value. The fast path assumes that every message is good; if one is not, the batch is sealed again message by
message, which finds the culprits and keeps the others.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, TypeAlias

from fila_cluster.client import checks
from fila_cluster.client.message import Message
from fila_proto_zmq.commands import Enqueue
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import HEADERS_BYTES_MAX
from fila_proto_zmq.record import seal_envelope

Row: TypeAlias = tuple[bytes, str, int, int, int, int, int]
"""One checked message: the columns of :class:`Enqueue` in their order."""

_options = attrgetter("fairness_key", "weight", "priority", "delay", "deliver_at", "lease")
_CONVERTERS: tuple[Callable[[Any], Any], ...] = (
    checks.fairness_key,
    checks.weight_units,
    checks.priority_units,
    checks.delay_ms,
    checks.due_ms,
    checks.lease_ms,
)


def seal_row(
    payload: Any,
    headers: Any,
    fairness_key: str | None,
    weight: int | None,
    priority: int,
    delay: float,
    deliver_at: datetime | None,
    lease: float | None,
) -> Row:
    """Check and seal one message; :class:`InvalidArgumentError` names the argument that will not do."""
    return (
        seal(payload, headers),
        checks.fairness_key(fairness_key),
        0 if weight is None else checks.weight_units(weight),
        checks.priority_units(priority),
        checks.delay_ms(delay) if delay else 0,
        checks.due_ms(deliver_at),
        checks.lease_ms(lease),
    )


def seal_message(message: Any) -> Row:
    """Check and seal one item of a batch."""
    if not isinstance(message, Message):
        raise InvalidArgumentError(f"enqueue_many takes Message objects, not a {type(message).__name__}: Message(payload, …)")
    return seal_row(message.payload, message.headers, *_options(message))


def seal_rows(rows: Sequence[Row]) -> Enqueue:
    """One frame of rows that were checked one by one."""
    envelopes, *columns = zip(*rows, strict=True)
    return Enqueue(list(envelopes), *map(_collapse, columns))


def seal_batch(messages: Sequence[Any]) -> tuple[Enqueue | None, dict[int, InvalidArgumentError]]:
    """One frame of the good messages (None if there are none), and what is wrong with the others, by index."""
    try:
        return _seal_columns(messages), {}
    except (TypeError, ValueError, AttributeError):  # InvalidArgumentError is a ValueError
        return _seal_each(messages)


def _seal_columns(messages: Sequence[Message]) -> Enqueue:
    envelopes = [seal(message.payload, message.headers) for message in messages]
    columns = zip(*map(_options, messages), strict=True)
    return Enqueue(envelopes, *map(_convert, columns, _CONVERTERS))


def _convert(values: Sequence[Any], convert: Callable[[Any], Any]) -> Any:
    distinct = set(values)
    if len(distinct) == 1:
        return convert(values[0])
    converted = {value: convert(value) for value in distinct}
    return [converted[value] for value in values]


def _collapse(values: Sequence[Any]) -> Any:
    return values[0] if len(set(values)) == 1 else list(values)


def _seal_each(messages: Iterable[Any]) -> tuple[Enqueue | None, dict[int, InvalidArgumentError]]:
    rows: list[Row] = []
    faults: dict[int, InvalidArgumentError] = {}
    for index, message in enumerate(messages):
        try:
            rows.append(seal_message(message))
        except InvalidArgumentError as fault:
            faults[index] = fault
    return (seal_rows(rows) if rows else None), faults


def seal(payload: Any, headers: Any) -> bytes:
    """Pack payload and headers into an envelope."""
    if headers is not None and not _are_plain(headers):
        headers = _plain_headers(headers)
    try:
        envelope = seal_envelope(payload, headers)
    except (TypeError, BufferError):
        hint = ": encode it, for example payload.encode()" if isinstance(payload, str) else ""
        raise InvalidArgumentError(f"payload is bytes-like, not a {type(payload).__name__}{hint}") from None
    except UnicodeEncodeError as cause:
        raise InvalidArgumentError(f"a header cannot be encoded as UTF-8: {cause.reason}") from None
    if headers:
        _check_headers_length(envelope)
    return envelope


def _are_plain(headers: Any) -> bool:
    if type(headers) is not dict:
        return False
    for key, value in headers.items():  # noqa: SIM110 - a generator expression costs twice as much for two headers
        if type(key) is not str or type(value) is not str:
            return False
    return True


def _plain_headers(headers: Any) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise InvalidArgumentError(f"headers are a mapping of str to str, not a {type(headers).__name__}")
    for key, value in headers.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidArgumentError(
                f"header {key!r}: header keys and values are str, not "
                f"{type(key).__name__} and {type(value).__name__}; convert them first"
            )
    return {str.__str__(key): str.__str__(value) for key, value in headers.items()}


def _check_headers_length(envelope: bytes) -> None:
    length = int.from_bytes(envelope[:4], "big")
    if length > HEADERS_BYTES_MAX:
        raise InvalidArgumentError(
            f"headers of {length} bytes: at most {HEADERS_BYTES_MAX}; what is larger belongs in the payload"
        )
