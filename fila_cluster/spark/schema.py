"""The columns that ``format("fila")`` reads, made from stored records."""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.limits import COST_MILLI_DEFAULT
from fila_proto_zmq.record import (
    EXTENDED,
    FIXED_BYTES,
    ID_AT,
    LAYOUT_VERSION,
    Extension,
    extension_of,
    open_envelope,
    unpack_record,
)

READ_SCHEMA: Final = StructType(
    [
        StructField("id", StringType()),
        StructField("queue", StringType()),
        StructField("state", StringType()),
        StructField("fairness_key", StringType()),
        StructField("weight", IntegerType()),
        StructField("throttle_keys", ArrayType(StringType())),
        StructField("priority", IntegerType()),
        StructField("cost", DoubleType()),
        StructField("attempts", IntegerType()),
        StructField("headers", MapType(StringType(), StringType())),
        StructField("payload", BinaryType()),
        StructField("error", StringType()),
        StructField("reason", StringType()),
        StructField("source_queue", StringType()),
        StructField("enqueued_at", TimestampType()),
        StructField("due_at", TimestampType()),
    ]
)
"""``reason`` and ``source_queue`` are null unless it is a dead letter, ``due_at`` unless it is delayed, and ``headers`` if a
foreign producer sealed something other than a map of strings."""

_TEXTS: Final = pa.list_(pa.field("element", pa.string()))
_TEXT_MAP: Final = pa.map_(pa.string(), pa.string())
_MOMENT: Final = pa.timestamp("us", tz="UTC")

ARROW_SCHEMA: Final = pa.schema(
    [
        ("id", pa.string()), ("queue", pa.string()), ("state", pa.string()), ("fairness_key", pa.string()),
        ("weight", pa.int32()), ("throttle_keys", _TEXTS), ("priority", pa.int32()), ("cost", pa.float64()),
        ("attempts", pa.int32()), ("headers", _TEXT_MAP), ("payload", pa.binary()), ("error", pa.string()),
        ("reason", pa.string()), ("source_queue", pa.string()), ("enqueued_at", _MOMENT), ("due_at", _MOMENT),
    ]
)  # fmt: skip
"""The same for Arrow, in the exact form that Spark accepts."""

BATCH_BYTES_MAX: Final = 2**31 - 1
"""The bound of a batch's records together: Arrow counts the bytes of a column with 32 bits."""

_FIXED: Final = np.dtype([("flags", ">u2"), ("attempts", ">u4"), ("priority", ">i4"), ("high", ">u8"), ("low", ">u8")])
_LENGTH: Final = np.dtype(">u4")
_HEX: Final = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)
_GROUPS: Final = ((0, 0, 8), (8, 9, 4), (12, 14, 4), (16, 19, 4), (20, 24, 12))
"""Groups of an id's digits: the start among the digits, the start in the text, the length."""

_Longs: TypeAlias = NDArray[np.int64]


def record_batch(
    queue: str,
    states: Sequence[str] | str,
    fairness_keys: list[str] | str,
    weights: list[int] | int,
    throttle_keys: list[list[str]],
    due_ms: list[int] | int,
    records: list[bytes],
) -> pa.RecordBatch:
    """Return stored records of a queue, with the fields beside them, in :data:`ARROW_SCHEMA`.

    A single value holds for all rows, so does one element of ``throttle_keys``; without elements, no row has any. ``due_ms``:
    Unix ms, 0 without a delay. Raises :class:`InvalidFrameError` for damaged records.
    """
    count = len(records)
    if not records:
        return pa.RecordBatch.from_pylist([], ARROW_SCHEMA)
    fixed = _fixed_fields(records)
    extended = np.flatnonzero(fixed["flags"] & EXTENDED)
    headers, payloads = _parts(records, extended)
    costs, errors, reasons, sources = _extensions(records, extended)
    columns = [
        _ids(fixed), _texts(queue, count), _texts(states, count), _texts(fairness_keys, count),
        _numbers(weights, count), _key_lists(throttle_keys, count), pa.array(fixed["priority"].astype(np.int32)), costs,
        pa.array(fixed["attempts"].astype(np.int32)), headers, payloads, errors, reasons, sources,
        _moments((fixed["high"] >> 16).astype(np.int64)), _due_moments(due_ms, count),
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


# --- columns that are given -------------------------------------------------------------------------------------------


def _texts(values: Sequence[str] | str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(values), count) if isinstance(values, str) else pa.array(values, pa.string())


def _numbers(values: list[int] | int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(values, pa.int32()), count) if isinstance(values, int) else pa.array(values, pa.int32())


def _key_lists(keys: list[list[str]], count: int) -> pa.Array:
    if len(keys) <= 1:
        return pa.repeat(pa.scalar(keys[0] if keys else [], _TEXTS), count)
    return pa.array(keys, _TEXTS)


def _moments(unix_ms: _Longs, mask: NDArray[np.bool_] | None = None) -> pa.Array:
    return pa.array(unix_ms * 1000, pa.int64(), mask=mask).view(_MOMENT)


def _due_moments(due_ms: list[int] | int, count: int) -> pa.Array:
    if not due_ms:
        return pa.nulls(count, _MOMENT)
    moments = np.full(count, due_ms, np.int64) if isinstance(due_ms, int) else np.array(due_ms, np.int64)
    return _moments(moments, moments == 0)


# --- columns that are in the records ----------------------------------------------------------------------------------


def _fixed_fields(records: list[bytes]) -> NDArray[np.void]:
    fixed = b"".join([record[:FIXED_BYTES] for record in records])
    if len(fixed) != len(records) * FIXED_BYTES:
        raise InvalidFrameError(f"damaged message record of {min(map(len, records))} bytes")
    fields = np.frombuffer(fixed, _FIXED)
    foreign = np.flatnonzero(fields["flags"] >> 8 != LAYOUT_VERSION)
    if foreign.size:
        unpack_record(records[foreign[0]])  # it raises the right error
    return fields


def _ids(fixed: NDArray[np.void]) -> pa.Array:
    """Return the texts of ids: two digits for each byte, and dashes between the groups."""
    data = fixed.view(np.uint8).reshape(-1, FIXED_BYTES)[:, ID_AT]
    digits = _HEX[data].view(np.uint8)
    texts = np.full((len(fixed), 36), ord("-"), np.uint8)
    for start, at, length in _GROUPS:
        texts[:, at : at + length] = digits[:, start : start + length]
    offsets = np.arange(0, 36 * len(fixed) + 1, 36, dtype=np.int32)
    return pa.StringArray.from_buffers(len(fixed), pa.py_buffer(offsets), pa.py_buffer(texts))


def _parts(records: list[bytes], extended: _Longs) -> tuple[pa.Array, pa.Array]:
    """Return headers and payloads: their places in all records are computed at once."""
    joined = b"".join(records)
    if len(joined) > BATCH_BYTES_MAX:
        raise InvalidFrameError(
            f"{len(records)} records of {len(joined)} bytes together: at most {BATCH_BYTES_MAX} in a batch"
        )
    sizes = np.fromiter(map(len, records), np.int64, len(records))
    ends = np.cumsum(sizes)
    starts = ends - sizes + FIXED_BYTES
    starts[extended] += 4 + _lengths(joined, starts[extended], ends[extended])
    headers_end = starts + 4 + _lengths(joined, starts, ends)
    if (headers_end > ends).any():
        raise InvalidFrameError("damaged message record: its header length is beyond its end")
    cuts = np.concatenate([[0], np.stack([starts, headers_end, ends], axis=1).ravel()]).astype(np.int32)
    pieces = pa.BinaryArray.from_buffers(pa.binary(), len(cuts) - 1, [None, pa.py_buffer(cuts), pa.py_buffer(joined)])
    first = np.arange(0, len(cuts) - 1, 3)
    return _headers(pieces.take(pa.array(first + 1))), pieces.take(pa.array(first + 2))


def _lengths(data: bytes, at: _Longs, ends: _Longs) -> _Longs:
    """Return the 32-bit numbers at some places of ``data``."""
    if (at + 4 > ends).any():
        raise InvalidFrameError("damaged message record: it ends in the middle of a length")
    places = at[:, np.newaxis] + np.arange(4)
    lengths: _Longs = np.frombuffer(data, np.uint8)[places].view(_LENGTH).ravel().astype(np.int64)
    return lengths


def _headers(packed: pa.Array) -> pa.Array:
    """Return packed headers, with their lengths in front, as maps; each distinct set is decoded once."""
    distinct = packed.dictionary_encode()
    offsets: list[int | None] = []
    names: list[str] = []
    values: list[str] = []
    for data in distinct.dictionary.to_pylist():
        headers = _opened(data)
        offsets.append(None if headers is None else len(names))
        names += headers or ()
        values += headers.values() if headers else ()
    offsets.append(len(names))
    maps = pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(names, pa.string()), pa.array(values, pa.string()))
    return maps.take(distinct.indices)


def _opened(packed: bytes) -> dict[str, str] | None:
    try:
        return open_envelope(packed)[0]
    except InvalidFrameError:
        return None


def _extensions(records: list[bytes], extended: _Longs) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
    """Return costs, errors, reasons and source queues: decoded only where there are any."""
    count = len(records)
    rest = Extension()
    parts: list[Any] = [extension_of(records[index]) for index in extended.tolist()]
    costs = np.full(count, COST_MILLI_DEFAULT / 1000)
    costs[extended] = [part.cost_milli / 1000 for part in parts]
    if not parts:
        nothing = pa.nulls(count, pa.string())
        return pa.array(costs), pa.repeat(pa.scalar(""), count), nothing, nothing
    whole = [rest] * count
    for index, part in zip(extended.tolist(), parts, strict=True):
        whole[index] = part
    return (
        pa.array(costs),
        pa.array([each.error for each in whole], pa.string()),
        pa.array([each.reason for each in whole], pa.string()),
        pa.array([each.source_queue for each in whole], pa.string()),
    )


COLUMN: Final = "dead_lettered_at"
DEAD_LETTER_SCHEMA: Final = StructType([*READ_SCHEMA.fields, StructField(COLUMN, TimestampType())])
"""The reader's columns, and this one: null for messages that are not dead letters."""

_DEAD_LETTERED_AT: Final = ARROW_SCHEMA.field("enqueued_at").type
_ARROW_SCHEMA: Final = ARROW_SCHEMA.append(pa.field(COLUMN, _DEAD_LETTERED_AT))


def with_dead_lettered_at(batch: pa.RecordBatch, records: Sequence[bytes]) -> pa.RecordBatch:
    """Return a batch of the reader with this column, taken from its records."""
    moments_ms = [extension_of(record).dead_lettered_ms for record in records]
    moments = pa.array([None if moment is None else moment * 1000 for moment in moments_ms], pa.int64())
    return pa.RecordBatch.from_arrays([*batch.columns, moments.view(_DEAD_LETTERED_AT)], schema=_ARROW_SCHEMA)
