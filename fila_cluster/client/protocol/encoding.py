"""Messages to the columns of an ``Enqueue`` frame, checked on the way.

A batch is sealed column by column: it costs less than a row at a time, and a column whose values are all the same travels
as that one value. The fast path assumes that every message is good; if one is not, the batch is sealed again message by
message, which finds the bad ones and keeps the others.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeAlias

from fila_cluster.client import checks
from fila_cluster.client.message import Message
from fila_proto_zmq.commands import Enqueue, KeysColumn
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import COST_MILLI_DEFAULT, HEADERS_BYTES_MAX
from fila_proto_zmq.record import seal_envelope

Options: TypeAlias = tuple[
    str | None,
    int | None,
    Iterable[str] | None,
    int,
    float,
    float,
    datetime | None,
    float | None,
    float | None,
    str | None,
    str,
    int | None,
]
"""The options of a message, in the order of ``enqueue``: what ``_options`` gives of a :class:`Message`."""
Columns: TypeAlias = tuple[str, int, int, int, int, int, KeysColumn, int, int, str, int, None, int, bool]
"""The options of a message, checked: the fields of :class:`Enqueue` behind the envelopes, in their order.

Two of them, the dedup window and the place in a sequence, are about the whole frame, and have their defaults here.
"""
Row: TypeAlias = tuple[bytes, Columns]
"""One checked message: its envelope, and what else is said of it. Most messages share their columns."""

_options = attrgetter(
    "fairness_key", "weight", "throttle_keys", "priority", "cost", "delay", "deliver_at", "ttl", "lease", "dedup_id"
)
_rare_options = attrgetter("dedup_mode", "max_attempts")
"""The options that hardly any message has: a batch without them does not make columns of them."""
_LISTS = (tuple, list, set, frozenset)
_NO_HEADERS = seal_envelope(b"")
"""The bytes before a payload without headers."""


def seal_row(payload: Any, headers: Any, options: Options) -> Row:
    """Check and seal one message; :class:`InvalidArgumentError` names the bad argument."""
    fairness_key, weight, throttle_keys, priority, cost, delay, deliver_at, ttl, lease, dedup_id, dedup_mode, attempts = (
        options
    )
    # The usual message: a quarter of the checks.
    if (
        (
            weight is None
            and throttle_keys is None
            and deliver_at is None
            and ttl is None
            and lease is None
            and dedup_id is None
            and attempts is None
            and dedup_mode == "first"
        )
        and (type(priority) is type(cost) is int and priority == 0 and cost == 1)
        and (type(delay) is float and not delay)
    ):
        return seal(payload, headers), _USUAL if fairness_key is None else _usual_columns(fairness_key)
    return seal(payload, headers), (
        checks.fairness_key(fairness_key),
        0 if weight is None else checks.weight_units(weight),
        checks.priority_units(priority),
        0 if type(delay) is float and not delay else checks.delay_ms(delay),
        checks.due_ms(deliver_at),
        checks.lease_ms(lease),
        _keys_column(throttle_keys),
        checks.cost_milli(cost),
        checks.ttl_ms(ttl),
        checks.dedup_id(dedup_id),
        0,
        None,
        checks.max_attempts(attempts),
        checks.dedup_last(dedup_mode, dedup_id),
    )


def _usual_columns(key: Any) -> Columns:
    """Return the columns of a message that has only a fairness key; for one that was used before it costs a look-up."""
    return _known_columns(key) if type(key) is str else _columns_of(key)


def _columns_of(key: Any) -> Columns:
    return checks.fairness_key(key), 0, 0, 0, 0, 0, [], COST_MILLI_DEFAULT, 0, "", 0, None, 0, False


_known_columns = lru_cache(maxsize=4096)(_columns_of)
_USUAL = _columns_of(None)


def seal_message(message: Any) -> Row:
    """Check and seal one item of a batch."""
    if not isinstance(message, Message):
        raise InvalidArgumentError(f"enqueue_many takes Message objects, not a {type(message).__name__}: Message(payload, …)")
    if isinstance(message.throttle_keys, Iterator):
        raise InvalidArgumentError(f"throttle_keys={message.throttle_keys!r}: it can be read only once, pass a list")
    return seal_row(message.payload, message.headers, _options(message) + _rare_options(message))


def seal_rows(rows: Sequence[Row]) -> Enqueue:
    """Return one frame of rows that were checked one by one."""
    envelopes, columns = zip(*rows, strict=True)
    if columns.count(columns[0]) == len(columns):
        return Enqueue(list(envelopes), *columns[0])
    return Enqueue(list(envelopes), *map(_collapse, zip(*columns, strict=True)))


def seal_batch(messages: Sequence[Any]) -> tuple[Enqueue | None, dict[int, InvalidArgumentError]]:
    """Return one frame of the good messages (None if there are none), and the errors of the others, by index."""
    try:
        return _seal_columns(messages), {}
    except (TypeError, ValueError, AttributeError):  # InvalidArgumentError is a ValueError
        return _seal_each(messages)


def _seal_columns(messages: Sequence[Message]) -> Enqueue:
    envelopes = [seal(message.payload, message.headers) for message in messages]
    columns = zip(*map(_options, messages), strict=True)
    key, weight, throttle_keys, priority, cost, delay, moment, ttl, lease, dedup_id = columns
    attempts, last = _rare_columns(messages, dedup_id) if _have_rare_options(messages) else (0, False)
    return Enqueue(
        envelopes,
        convert(key, checks.fairness_key),
        convert(weight, checks.weight_units),
        convert(priority, checks.priority_units),
        convert(delay, checks.delay_ms),
        convert(moment, checks.due_ms),
        convert(lease, checks.lease_ms),
        convert_keys(throttle_keys),
        convert(cost, checks.cost_milli),
        convert(ttl, checks.ttl_ms),
        convert(dedup_id, checks.dedup_id),
        max_attempts=attempts,
        dedup_last=last,
    )


def _have_rare_options(messages: Sequence[Message]) -> bool:
    for message in messages:  # noqa: SIM110 - a generator expression costs three times as much
        if message.max_attempts is not None or message.dedup_mode != "first":
            return True
    return False


def _rare_columns(messages: Sequence[Message], dedup_ids: Sequence[Any]) -> tuple[Any, Any]:
    """Return the columns ``max_attempts`` and ``dedup_last``."""
    modes, attempts = zip(*map(_rare_options, messages), strict=True)
    last = _collapse([checks.dedup_last(mode, dedup_id) for mode, dedup_id in zip(modes, dedup_ids, strict=True)])
    return convert(attempts, checks.max_attempts), last


def convert(values: Sequence[Any], check: Callable[[Any], Any]) -> Any:
    """Return a column of hashable values (one at least) for the wire; a single value if they are all the same."""
    if values.count(values[0]) == len(values):  # a third of the cost of a set
        return check(values[0])
    checked = {value: check(value) for value in set(values)}
    return [checked[value] for value in values]


def convert_keys(values: Sequence[Any]) -> KeysColumn:
    """Return a column of throttle keys; :class:`TypeError` if one is neither None nor a collection to be read twice."""
    if values.count(None) == len(values):
        return []
    if not all(value is None or isinstance(value, _LISTS) for value in values):
        raise TypeError("the kind of this iterable is checked message by message")
    columns: KeysColumn = _collapse([_known_column(tuple(value or ())) for value in values])
    return columns


def _keys_column(throttle_keys: Any) -> KeysColumn:
    """Return the column of one message."""
    keys = checks.throttle_keys(throttle_keys)
    return [keys] if keys else []


_known_column = lru_cache(maxsize=4096)(_keys_column)


def _collapse(values: Sequence[Any]) -> Any:
    if values.count(values[0]) == len(values):
        return values[0]
    if isinstance(values[0], list):
        return [column[0] if column else [] for column in values]
    return list(values)


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
    if headers is None and type(payload) is bytes:
        return _NO_HEADERS + payload
    if headers is not None and not _are_plain(headers):
        headers = _plain_headers(headers)
    try:
        envelope = seal_envelope(payload, headers)
    except BufferError:
        raise InvalidArgumentError(
            "payload is bytes-like and contiguous, which this memoryview is not: pass bytes(payload)"
        ) from None
    except TypeError:
        hint = ": encode it, for example payload.encode()" if isinstance(payload, str) else ""
        raise InvalidArgumentError(f"payload is bytes-like, not a {type(payload).__name__}{hint}") from None
    except UnicodeEncodeError as cause:
        raise InvalidArgumentError(f"a header cannot be encoded as UTF-8: {cause.reason}") from None
    if headers and len(envelope) > HEADERS_BYTES_MAX:
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
