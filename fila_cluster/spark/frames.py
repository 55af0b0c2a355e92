"""Rows to ``Enqueue`` frames, column by column, with dedup ids by their jobs and contents.

Arrow's columns become Python lists in one call each, options that all rows share are sent once, and only the envelopes are
made row by row. A bad value is searched only when its column was refused; the error names the row, counted from 0 in its
partition.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from hashlib import blake2b
from itertools import repeat
from operator import itemgetter
from typing import Any, Final, Self, TypeAlias
from uuid import uuid4

import msgspec
from pyspark import SparkContext, TaskContext

from fila_cluster.client import checks
from fila_cluster.client.protocol.encoding import convert, convert_keys, seal
from fila_cluster.client.protocol.producing import frame_bounds
from fila_proto_zmq.commands import BoolColumn, Enqueue
from fila_proto_zmq.errors import FilaError, InvalidArgumentError
from fila_proto_zmq.limits import COST_MILLI_DEFAULT, DELAY_MS_MAX, TTL_MS_MAX

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_RUN: Final = "spark.jobGroup.id"
"""Spark's own names for the run of its tasks, and of the driver's thread in ``foreachBatch``."""


@dataclass(frozen=True, slots=True)
class WriteJob:
    """One write, made on the driver, which goes to the tasks. ``name`` is the user's, ``token`` random, ``write`` the number
    of the write within its micro-batch."""

    name: str
    token: str
    write: int = 0

    @classmethod
    def new(cls, name: str | None) -> Self:
        """Return a job of that name; without a name, one with a random token."""
        return cls(name or "", uuid4().hex, _writes.number())

    def scope(self) -> bytes:
        """Return the identity of the calling task's rows; without a task there is one partition."""
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        batch = None if context is None else context.getLocalProperty(_BATCH)
        if context is None or batch is None:
            return scope_of("job", self.name or self.token, str(partition))
        query = context.getLocalProperty(_QUERY) or ""
        return scope_of("query", query, batch, self.name, str(self.write), str(partition))


class _Writes:
    """Counts the writes of each micro-batch, as ``foreachBatch`` makes them one after the other.

    Two writes of a batch into one queue may have equal rows that are both meant; a replay makes the same writes in the same
    order. A run of a query makes each batch once, so a count belongs to a run and a batch.
    """

    def __init__(self) -> None:
        self._counts: dict[str, tuple[str, int]] = {}

    def number(self) -> int:
        """Return how many writes of this thread's micro-batch came before; 0 outside of any."""
        context = SparkContext._active_spark_context
        batch = None if context is None else context.getLocalProperty(_BATCH)
        if context is None or batch is None:
            return 0
        run = f"{context.getLocalProperty(_QUERY)} {context.getLocalProperty(_RUN)}"
        counted_batch, count = self._counts.get(run, (batch, 0))
        if counted_batch != batch:
            count = 0
        self._counts[run] = batch, count + 1
        return count


_writes = _Writes()


_REPEATED: Final = b"a repeated row"


def scope_of(*parts: str) -> bytes:
    """Return the identity of one partition of one job, as 32 bytes."""
    return blake2b("\0".join(parts).encode(), digest_size=32).digest()


class RowIds:
    """Gives out the dedup ids of one partition's rows."""

    def __init__(self, scope: bytes) -> None:
        self._empty = blake2b(digest_size=16, salt=scope[:16], person=scope[16:])
        self._seen: set[bytes] = set()
        self._copies: dict[bytes, int] = {}

    def of(self, options: Sequence[bytes] | bytes, envelopes: Sequence[bytes]) -> list[str]:
        """Return the ids of rows by their options (one for all, or each its own; msgpack ends them) and envelopes."""
        start, seen, ids = self._empty.copy, self._seen, []
        for option, envelope in zip(repeat(options) if isinstance(options, bytes) else options, envelopes, strict=False):
            hasher = start()
            hasher.update(option)
            hasher.update(envelope)
            digest = hasher.digest()
            if digest in seen:
                digest = self._of_copy(digest)
            else:
                seen.add(digest)
            ids.append(digest.hex())
        return ids

    def _of_copy(self, digest: bytes) -> bytes:
        before = self._copies[digest] = self._copies.get(digest, 0) + 1
        return blake2b(digest + before.to_bytes(8, "big"), digest_size=16, person=_REPEATED).digest()


Values: TypeAlias = Mapping[str, Sequence[Any]]
"""The values of some rows, by field; absent fields have their defaults."""

_NO_HEADERS: Final = seal(b"", None)
_pack = msgspec.msgpack.Encoder().encode


@dataclass(slots=True)
class Frame:
    """A command with what is needed to send a part of it again, and to name a bad row."""

    queue: str
    command: Enqueue
    rows: Sequence[int]
    """The rows' numbers in their partition."""

    def only(self, indexes: Sequence[int]) -> "Frame":
        """Return a frame of some of its messages."""
        return Frame(self.queue, _picked(self.command, indexes), [self.rows[index] for index in indexes])


def _picked(batch: Enqueue, indexes: Sequence[int]) -> Enqueue:
    return _part(batch, lambda column: [column[index] for index in indexes])


def _part(batch: Enqueue, take: Callable[[list[Any]], list[Any]]) -> Enqueue:
    """Return a batch of the elements that ``take`` picks from each column."""
    total = len(batch.envelopes)
    columns = {name: getattr(batch, name) for name in batch.__struct_fields__}
    own = {name: take(column) for name, column in columns.items() if isinstance(column, list) and len(column) == total}
    return msgspec.structs.replace(batch, **own)


class Framing:
    """Makes the frames of one partition. ``queue`` is for rows without a queue; None: each row has to name one."""

    def __init__(self, queue: str | None, ids: RowIds, dedup_window_ms: int = 0) -> None:
        self._queue = queue
        self._ids = ids
        self._dedup_window_ms = dedup_window_ms
        self._rows = 0

    def frames(self, values: Values) -> Iterator[Frame]:
        """Yield the frames of a batch of rows; :class:`InvalidArgumentError` names a bad row."""
        count, first = len(values["payload"]), self._rows
        self._rows += count
        if not count:
            return
        queues = _column(values, "queue", self._queue_of, first)
        batch = self._batch(values, queues, first)
        if isinstance(queues, str):
            yield from _cut(queues, batch, range(first, first + count))
            return
        places: dict[str, list[int]] = {}
        for index, queue in enumerate(queues):
            places.setdefault(queue, []).append(index)
        for queue, indexes in places.items():
            yield from _cut(queue, _picked(batch, indexes), [first + index for index in indexes])

    def _batch(self, values: Values, queues: str | list[str], first: int) -> Enqueue:
        """Return all rows as one command, whatever its size."""
        batch = Enqueue(
            _envelopes(values["payload"], values.get("headers"), first),
            throttle_keys=_throttle_keys(values, first),
            dedup_window_ms=self._dedup_window_ms,
            dedup_last=_dedup_last(values, first),
            **{_WIRE_NAMES.get(field, field): _column(values, field, check, first) for field, check in _CHECKS.items()},
        )
        batch.dedup_id = self._dedup_ids(values.get("dedup_id"), batch, queues, first)
        return batch

    def _dedup_ids(self, given: Sequence[Any] | None, batch: Enqueue, queues: str | list[str], first: int) -> list[str]:
        if given is None:
            return self._ids.of(_packed_options(batch, queues), batch.envelopes)
        ids = [_checked(checks.dedup_id, text, first + index) for index, text in enumerate(given)]
        missing = [index for index, dedup_id in enumerate(ids) if not dedup_id]
        if missing:
            rest = _picked(batch, missing)
            options = _packed_options(rest, queues if isinstance(queues, str) else [queues[index] for index in missing])
            for index, dedup_id in zip(missing, self._ids.of(options, rest.envelopes), strict=True):
                ids[index] = dedup_id
        return ids

    def _queue_of(self, name: Any) -> str:
        if name is not None:
            return checks.queue_name(name)
        if self._queue is None:
            raise InvalidArgumentError("queue is null: give every row a queue, or all of them one with option queue")
        return self._queue


def _cut(queue: str, batch: Enqueue, rows: Sequence[int]) -> Iterator[Frame]:
    for start, end in frame_bounds(list(map(len, batch.envelopes))):
        yield Frame(queue, _part(batch, itemgetter(slice(start, end))), rows[start:end])


# --- one column -------------------------------------------------------------------------------------------------------


def _priority(value: Any) -> int:
    return 0 if value is None else checks.priority_units(value)


def _cost_milli(value: Any) -> int:
    if value is None:
        return COST_MILLI_DEFAULT
    return checks.cost_milli(float(value) if isinstance(value, Decimal) else value)


def _delay_ms(value: Any) -> int:
    return 0 if value is None else checks.whole_number("delay_ms", value, 0, DELAY_MS_MAX)


_CHECKS: Final[dict[str, Callable[[Any], Any]]] = {
    "fairness_key": checks.fairness_key,
    "weight": checks.weight_units,
    "priority": _priority,
    "cost": _cost_milli,
    "delay_ms": _delay_ms,
    "ttl_ms": lambda value: 0 if value is None else checks.whole_number("ttl_ms", value, 1, TTL_MS_MAX),
    "max_attempts": checks.max_attempts,
}
_WIRE_NAMES: Final = {"cost": "cost_milli"}
_HASHED: Final = ("fairness_key", "weight", "priority", "cost_milli", "delay_ms", "ttl_ms", "max_attempts")


def _column(values: Values, field: str, check: Callable[[Any], Any], first: int) -> Any:
    column = values.get(field)
    if column is None:
        return check(None)
    try:
        return convert(column, check)
    except (TypeError, ValueError):  # InvalidArgumentError is a ValueError
        return [_checked(check, value, first + index) for index, value in enumerate(column)]


def _throttle_keys(values: Values, first: int) -> list[list[str]]:
    column = values.get("throttle_keys")
    if column is None:
        return []
    try:
        return convert_keys(column)
    except (TypeError, ValueError):
        return [_checked(checks.throttle_keys, keys, first + index) for index, keys in enumerate(column)]


def _dedup_last(values: Values, first: int) -> BoolColumn:
    """Return which rows replace an earlier message. They need a dedup id: the hash of a row finds only equal rows."""
    modes = values.get("dedup_mode")
    if modes is None:
        return False
    rows = zip(modes, values.get("dedup_id") or repeat(None), strict=False)
    last = [_checked(_replaces, row, number) for number, row in enumerate(rows, first)]
    return last if any(last) else False


def _replaces(row: tuple[Any, Any]) -> bool:
    mode, dedup_id = row
    return mode is not None and checks.dedup_last(mode, dedup_id)


def _envelopes(payloads: Sequence[Any], headers: Sequence[Any] | None, first: int) -> list[bytes]:
    try:
        sealed = repeat(_NO_HEADERS) if headers is None else _sealed_headers(headers)
        return [start + payload for start, payload in zip(sealed, payloads, strict=False)]
    except (TypeError, ValueError, AttributeError):  # a payload is text, or a value is wrong
        rows = zip(payloads, repeat(None) if headers is None else headers, strict=False)
        return [_checked(_sealed, row, number) for number, row in enumerate(rows, first)]


def _sealed_headers(column: Sequence[Any]) -> Iterator[bytes]:
    """Yield the bytes before each payload. Headers repeat, and looking them up costs a third of packing them."""
    known: dict[Any, bytes] = {}
    for headers in column:
        pairs = None if headers is None else tuple(headers.items() if isinstance(headers, Mapping) else headers)
        start = known.get(pairs)
        if start is None:
            start = known[pairs] = seal(b"", dict(pairs) if pairs else None)
        yield start


def _sealed(row: tuple[Any, Any]) -> bytes:
    payload, headers = row
    if payload is None:
        raise InvalidArgumentError("payload is null: give it one, or leave such rows out")
    if isinstance(payload, str):
        payload = payload.encode()
    return seal(payload, dict(headers) if isinstance(headers, list) else headers)  # Arrow's maps are lists of pairs


def _checked(check: Callable[[Any], Any], value: Any, row: int) -> Any:
    """Return the value for the wire, or an error that names the row."""
    try:
        return check(value)
    except FilaError as wrong:
        raise in_row(row, wrong) from None
    except (TypeError, ValueError) as wrong:
        raise in_row(row, InvalidArgumentError(str(wrong))) from None


def in_row(row: int, error: FilaError) -> FilaError:
    """Return the same error with the number of its row."""
    return type(error)(f"row {row} of its partition: {error.message}", retry_after=error.retry_after, details=error.details)


# --- equal rows -------------------------------------------------------------------------------------------------------


def _packed_options(batch: Enqueue, queues: str | list[str]) -> list[bytes] | bytes:
    """Return all options of a row beside its envelope, as bytes with an end of their own."""
    columns = [queues, batch.throttle_keys or [[]], *(getattr(batch, name) for name in _HASHED)]
    if isinstance(columns[1], list) and len(columns[1]) == 1:
        columns[1] = tuple(columns[1][0])
    if not any(isinstance(column, list) for column in columns):
        return _pack(columns)
    spread = (column if isinstance(column, list) else repeat(column) for column in columns)
    return [_pack(options) for options in zip(*spread, strict=False)]
