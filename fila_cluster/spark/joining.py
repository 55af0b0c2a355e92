"""Parts of a reservation to larger batches: Spark and Arrow cost as much for 500 rows as for thousands.

Measured: 1.9 µs a row for batches of 500, 1.1 for 4,000, and no less for more.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Final, TypeVar

from fila_proto_zmq.commands import LeaseBatch

ROWS_AT_ONCE: Final = 4000
BYTES_AT_ONCE: Final = 8 * 1024 * 1024
"""Of records: large ones are worth a batch sooner."""

T = TypeVar("T", str, int)


def joined(batches: Iterable[LeaseBatch]) -> Iterator[LeaseBatch]:
    """The same messages in the same order in fewer batches, which are for reading only: they have no lease."""
    waiting: list[LeaseBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += len(batch.records)
        size += sum(map(len, batch.records))
        if rows >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield _as_one(waiting)
            waiting, rows, size = [], 0, 0
    if rows:
        yield _as_one(waiting)


def _as_one(batches: Sequence[LeaseBatch]) -> LeaseBatch:
    counts = [len(batch.records) for batch in batches]
    return LeaseBatch(
        lease=0,
        leased_ms=0,
        expires_ms=0,
        fairness_key=_column([batch.fairness_key for batch in batches], counts),
        weight=_column([batch.weight for batch in batches], counts),
        records=list(chain.from_iterable(batch.records for batch in batches)),
        throttle_keys=_keys([batch.throttle_keys for batch in batches], counts),
    )


def _column(columns: Sequence[list[T] | T], counts: Sequence[int]) -> list[T] | T:
    """A value that is the same for all stays one."""
    first = columns[0]
    if not isinstance(first, list) and all(column == first for column in columns):
        return first
    spread = (
        column if isinstance(column, list) else repeat(column, count) for column, count in zip(columns, counts, strict=True)
    )
    return list(chain.from_iterable(spread))


def _keys(columns: Sequence[list[list[str]]], counts: Sequence[int]) -> list[list[str]]:
    """Throttle keys: no elements are none for all, and one element is for all."""
    first = columns[0]
    if len(first) <= 1 and all(column == first for column in columns):
        return first
    spread = (
        column if len(column) == count else repeat(column[0] if column else [], count)
        for column, count in zip(columns, counts, strict=True)
    )
    return list(chain.from_iterable(spread))
