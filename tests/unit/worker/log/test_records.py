"""The bytes of the log, as other versions will find them, and what is said of those that are none."""

import pickle

import pytest

from fila_proto_zmq.errors import StorageError
from fila_worker.core.store import DamageError, Families
from fila_worker.log import records
from fila_worker.log.records import (
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
from fila_worker.storage.memory import MemoryStore

HEADER = "00000000000000070000000000000002"


def test_the_layout_is_that_of_version_1() -> None:
    assert encode(LogRecord(RecordKind.MARKER, 0, 0, b"host-a")).hex() == "0101" + "00" * 16 + b"host-a".hex()
    assert (
        encode(LogRecord(RecordKind.BATCH, 7, 2, b"piece", None, 1, 3)).hex()
        == "0102" + HEADER + "0000000100000003" + b"piece".hex()
    )
    assert encode(LogRecord(RecordKind.BEAT, 7, 2)).hex() == "0103" + HEADER
    assert encode(LogRecord(RecordKind.LEAVES, 7, 2)).hex() == "0104" + HEADER
    assert encode(LogRecord(RecordKind.TRANSFER_REQUEST, 0, 0, b"host-b")).hex() == "0105" + "00" * 16 + b"host-b".hex()
    first = encode(LogRecord(RecordKind.BEAT, 7, 1, b"", Before(3, 9)))
    assert first.hex() == "0103" + "00000000000000070000000000000001" + "00000000000000030000000000000009"
    assert encode(LogRecord(RecordKind.BEAT, 0, 1, b"", Before())).hex().endswith("ffffffffffffffff0000000000000000")


def test_the_encoding_of_changes_is_the_first() -> None:
    changes = Changes()
    changes.put(b"key", b"value", 0)
    changes.delete(b"gone", 3)
    changes.delete_range(b"a", b"b", 10)
    batch = encode_changes(changes)
    assert (
        batch.hex()
        == "93" + "01" + "c403" + "000d2a" + "95" + "c4036b6579" + "c40576616c7565" + "c404676f6e65" + "c40161" + "c40162"
    )


def test_families_keep_their_numbers() -> None:
    """A new one goes to the end: the numbers are in logs."""
    assert Families._fields == (
        "messages", "delayed", "schedule", "leases", "lanes", "ledger", "queues", "dedup", "outbox", "config", "state",
    )  # fmt: skip


def test_changes_are_repeated_in_another_store_in_their_order() -> None:
    changes = Changes()
    changes.put(b"a", b"1", 0)
    changes.put(b"b", b"2", 0)
    changes.delete_range(b"a", b"b", 0)
    changes.put(b"a", b"3", 10)
    changes.delete(b"b", 0)
    changes.put(b"b", b"4", 0)
    store = MemoryStore()
    batch = store.new_batch()
    decode_changes(encode_changes(changes), 0).apply(batch, store.families)
    store.commit(batch)
    assert dict(store.families.messages) == {b"b": b"4"}
    assert dict(store.families.state) == {b"a": b"3"}


@pytest.mark.parametrize(
    ("data", "byte", "problem"),
    [
        ("0102", 2, "it has 2 bytes, and a header has 18"),
        ("0203" + HEADER, 0, "its version is 2, and this program reads 1"),
        ("0109" + HEADER, 1, "its kind is 9, which is none of 1 to 5"),
        ("0101" + "00" * 15 + "02", 2, "a marker has epoch 0 and number 0, and this one 0 and 2"),
        ("0101" + HEADER, 2, "a marker has epoch 0 and number 0, and this one 7 and 2"),
        ("0105" + HEADER, 2, "a transfer request has epoch 0 and number 0, and this one 7 and 2"),
        (
            "0103" + "000000000000000b" + "00" * 7 + "02",
            2,
            "its epoch is 11, but the marker of an epoch comes before its records",
        ),
        ("0103" + "0000000000000007" + "00" * 8, 10, "its number is 0, and the first one is 1"),
        (
            "0103" + "0000000000000007" + "00" * 7 + "01" + "00" * 15,
            33,
            "it ends within the name of the record before its epoch",
        ),
        (
            "0103" + "0000000000000007" + "00" * 7 + "01" + "0000000000000007" * 2,
            18,
            "number 7 of epoch 7 can't come before epoch 7",
        ),
        (
            "0103" + "0000000000000007" + "00" * 7 + "01" + "ff" * 8 + "00" * 7 + "01",
            18,
            "number 1 of epoch -1 can't come before epoch 7",
        ),
        ("0102" + HEADER + "00000000", 22, "it ends before the piece of its batch"),
        ("0102" + HEADER + "0000000000000001", 26, "it ends before the piece of its batch"),
        ("0102" + HEADER + "0000000200000002" + "aa", 18, "it is part 3 of 2"),
    ],
)
def test_what_is_no_record_is_said_with_its_place(data: str, byte: int, problem: str) -> None:
    with pytest.raises(RecordError) as refused:
        decode(bytes.fromhex(data), 11)
    assert str(refused.value).startswith(f"the record at offset 11 of the log, byte {byte}: {problem}; find out")
    assert refused.value.details == {"offset": 11, "byte": byte}
    assert isinstance(refused.value, DamageError)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        ("", "its batch begins with nothing, and this program reads 9301"),
        ("9302c40090", "its batch begins with 9302, and this program reads 9301"),
        ("9301", "its batch can't be read: "),
        ("9301c4000090", "its batch can't be read: "),
        ("9301c4019000c400", "its batch can't be read: "),
        ("9301c4010391c400", "its batch has a change 3, which this program can't read"),
        ("9301c4012c92c400c400", "its batch has a change 44, which this program can't read"),
        ("9301c4010091c400", "its batch has 1 changes with 1 keys and values, not 2"),
        ("9301c4010192c400c400", "its batch has 1 changes with 2 keys and values, not 1"),
    ],
)
def test_what_is_no_batch_is_said(batch: str, problem: str) -> None:
    with pytest.raises(RecordError, match=f"^the record at offset 11 of the log: {problem}"):
        decode_changes(bytes.fromhex(batch), 11)


def test_a_batch_that_no_reader_takes_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "BATCH_BYTES_MAX", 100)
    assert len(split(0, 2, bytes(100), None, 64)) == 3
    with pytest.raises(StorageError, match="a batch of 101 bytes is larger than the log takes: at most 100"):
        split(0, 2, bytes(101), None, 64)
