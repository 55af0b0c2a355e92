"""Records of a shard's log survive their bytes, and no bytes raise anything but :class:`RecordError`."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fila_worker.core.store import Families
from fila_worker.log.records import (
    RECORD_BYTES_LEAST,
    Before,
    Changes,
    LogRecord,
    RecordError,
    RecordKind,
    decode,
    decode_changes,
    encode,
    encode_changes,
    split,
)

OFFSETS = st.integers(0, 2**63 - 1)
NUMBERS = st.integers(1, 2**64 - 1)


@st.composite
def records(draw: st.DrawFn) -> tuple[int, LogRecord]:
    """A record that may stand at an offset."""
    kind = draw(st.sampled_from(RecordKind))
    body = draw(st.binary(min_size=kind is RecordKind.BATCH, max_size=50))
    if kind in {RecordKind.MARKER, RecordKind.TRANSFER_REQUEST}:
        return draw(OFFSETS), LogRecord(kind, 0, 0, body)
    epoch = draw(st.integers(0, 2**63 - 2))
    number = draw(st.one_of(st.just(1), NUMBERS))
    before = None
    if number == 1:
        before = draw(
            st.builds(Before, st.integers(0, epoch - 1), NUMBERS) | st.just(Before()) if epoch else st.just(Before())
        )
    parts = draw(st.integers(1, 2**32 - 1)) if kind is RecordKind.BATCH else 1
    record = LogRecord(kind, epoch, number, body, before, draw(st.integers(0, parts - 1)), parts)
    return draw(st.integers(epoch + 1, 2**63 - 1)), record


@given(records())
def test_a_record_survives_its_bytes(case: tuple[int, LogRecord]) -> None:
    offset, record = case
    assert decode(encode(record), offset) == record


@given(records(), st.data())
def test_a_damaged_record_is_one_error_or_another_record(case: tuple[int, LogRecord], data: st.DataObject) -> None:
    offset, record = case
    damaged = bytearray(encode(record))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    check_decode(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]), offset)


@given(st.binary(max_size=80), OFFSETS)
@example(b"", 0)
def test_no_bytes_raise_anything_else(data: bytes, offset: int) -> None:
    check_decode(data, offset)


@given(st.sampled_from([1, 2, 3, 4]), st.binary(max_size=60), OFFSETS)
def test_nothing_behind_a_known_kind_raises_anything_else(kind: int, rest: bytes, offset: int) -> None:
    check_decode(bytes([1, kind]) + rest, offset)


def check_decode(data: bytes, offset: int) -> None:
    """What is decoded is what has these bytes."""
    try:
        record = decode(data, offset)
    except RecordError as error:
        problem = str(error)
        assert problem.startswith(f"the record at offset {offset} of the log")
    else:
        assert encode(record) == data


FAMILIES = st.integers(0, len(Families._fields) - 1)
SMALL = st.binary(max_size=40)
CHANGES = st.lists(
    st.tuples(st.just("put"), SMALL, SMALL, FAMILIES)
    | st.tuples(st.just("delete"), SMALL, FAMILIES)
    | st.tuples(st.just("delete_range"), SMALL, SMALL, FAMILIES),
    max_size=30,
)


class Calls:
    """A store's batch that notes what is called."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def put(self, *arguments: object) -> None:
        self.calls.append(("put", *arguments))

    def delete(self, *arguments: object) -> None:
        self.calls.append(("delete", *arguments))

    def delete_range(self, *arguments: object) -> None:
        self.calls.append(("delete_range", *arguments))

    def __len__(self) -> int:
        return len(self.calls)


def changes_of(calls: list[tuple]) -> Changes:
    changes = Changes()
    for name, *arguments in calls:
        getattr(changes, name)(*arguments)
    return changes


@given(CHANGES)
def test_changes_survive_their_bytes(calls: list[tuple]) -> None:
    changes = changes_of(calls)
    again = decode_changes(encode_changes(changes), 7)
    assert again == changes
    assert len(again) == len(calls)
    batch = Calls()
    again.apply(batch, Families._fields)
    assert batch.calls == [(*call[:-1], Families._fields[call[-1]]) for call in calls]


@given(CHANGES, st.integers(RECORD_BYTES_LEAST, 300), st.one_of(st.just(1), st.integers(2, 1000)))
def test_the_parts_of_a_batch_are_its_bytes(calls: list[tuple], most: int, number: int) -> None:
    batch = encode_changes(changes_of(calls))
    before = Before(3, 9) if number == 1 else None
    encoded = split(5, number, batch, before, most)
    assert max(map(len, encoded)) <= most
    parts = [decode(record, 6) for record in encoded]
    assert b"".join(part.body for part in parts) == batch
    assert [part.number for part in parts] == list(range(number, number + len(parts)))
    assert [(part.part, part.parts) for part in parts] == [(index, len(parts)) for index in range(len(parts))]
    assert {part.epoch for part in parts} == {5}
    assert [part.before for part in parts] == [before] + [None] * (len(parts) - 1)
    room = most - RECORD_BYTES_LEAST + 22  # of each part but the last: no more of them than needed
    assert (len(parts) - 1) * room <= len(batch)


@given(CHANGES, st.data())
def test_a_damaged_batch_is_one_error_or_other_changes(calls: list[tuple], data: st.DataObject) -> None:
    damaged = bytearray(encode_changes(changes_of(calls)))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    check_decode_changes(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))


@given(st.binary(max_size=80))
@example(b"\x93\x01\xc4\x00\xdd\xff\xff\xff\xff")
def test_no_bytes_of_a_batch_raise_anything_else(data: bytes) -> None:
    check_decode_changes(data)
    check_decode_changes(b"\x93\x01" + data)


def check_decode_changes(data: bytes) -> None:
    """What is decoded can be applied."""
    try:
        changes = decode_changes(data, 7)
    except RecordError as error:
        problem = str(error)
        assert problem.startswith("the record at offset 7 of the log")
    else:
        batch = Calls()
        changes.apply(batch, Families._fields)
        assert len(batch) == len(changes)
        with pytest.raises(StopIteration):
            next(iter(changes.items[sum(len(call) - 2 for call in batch.calls) :]))
