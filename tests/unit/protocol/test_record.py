"""Envelopes and records: golden bytes, and what damaged ones do."""

import struct
from collections.abc import Callable
from contextlib import suppress

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.record import (
    FIXED_BYTES,
    PLAIN,
    Extension,
    Record,
    extension_of,
    headers_length,
    headers_of,
    open_envelope,
    pack_fixed,
    pack_record,
    payload_of,
    record_id,
    seal_envelope,
    unpack_fixed,
    unpack_record,
)
from tests.unit.protocol.vectors import (
    BARE_ENVELOPE,
    ENVELOPE,
    EXTENDED_RECORD,
    EXTENDED_RECORD_HEX,
    EXTENSION,
    ID,
    PLAIN_RECORD,
    PLAIN_RECORD_HEX,
)

RECORDS = [(PLAIN_RECORD, PLAIN_RECORD_HEX), (EXTENDED_RECORD, EXTENDED_RECORD_HEX)]
each_record = pytest.mark.parametrize(("record", "golden"), RECORDS, ids=["plain", "extended"])

headers_of_any_kind = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=4)
extensions = st.builds(
    Extension,
    lease_ms=st.none() | st.integers(1, 2**40),
    error=st.text(max_size=8),
    metadata=st.binary(max_size=8),
    reason=st.none() | st.sampled_from(["failed", "max_attempts"]),
    source_queue=st.none() | st.just("orders"),
    dead_lettered_ms=st.none() | st.integers(0, 2**45),
)
records = st.builds(
    Record,
    attempts=st.integers(0, 2**32 - 1),
    priority=st.integers(-(2**31), 2**31 - 1),
    id_high=st.integers(0, 2**64 - 1),
    id_low=st.integers(0, 2**64 - 1),
    extension=extensions,
    envelope=st.binary(max_size=16),
)


# --- envelopes --------------------------------------------------------------------------------------------------------


def test_golden_envelope() -> None:
    assert seal_envelope(b"hi", {"k": "vé"}) == ENVELOPE
    assert open_envelope(ENVELOPE) == ({"k": "vé"}, b"hi")
    assert msgpack.unpackb(ENVELOPE[4:11]) == {"k": "vé"}


@pytest.mark.parametrize("headers", [None, {}])
def test_golden_envelope_without_headers(headers: dict[str, str] | None) -> None:
    assert seal_envelope(b"hi", headers) == BARE_ENVELOPE
    assert open_envelope(BARE_ENVELOPE) == ({}, b"hi")


@given(payload=st.binary(max_size=64), headers=headers_of_any_kind)
def test_envelopes_survive_the_wire(payload: bytes, headers: dict[str, str]) -> None:
    assert open_envelope(seal_envelope(payload, headers)) == (headers, payload)


@pytest.mark.parametrize("payload", [b"abc", bytearray(b"abc"), memoryview(b"-abc-")[1:4]])
def test_any_bytes_like_payload_is_sealed(payload: bytes | bytearray | memoryview) -> None:
    assert open_envelope(seal_envelope(payload)) == ({}, b"abc")


@pytest.mark.parametrize("payload", ["text", 7, None, ["a"]])
def test_a_payload_that_is_not_bytes_like_cannot_be_sealed(payload: object) -> None:
    with pytest.raises(TypeError):
        seal_envelope(payload)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "envelope",
    [b"", b"\0", b"\0\0\0", b"\0\0\0\1", b"\xff\xff\xff\xff" + bytes(100)],
    ids=["empty", "one byte", "three bytes", "headers missing", "absurd length"],
)
def test_an_envelope_whose_header_length_does_not_fit_is_refused(envelope: bytes) -> None:
    with pytest.raises(InvalidFrameError, match=f"message of {len(envelope)} bytes"):
        headers_length(envelope)
    with pytest.raises(InvalidFrameError):
        open_envelope(envelope)


@pytest.mark.parametrize(
    "packed",
    [msgpack.packb({"k": 1}), msgpack.packb({1: "v"}), msgpack.packb(["k"]), b"\x81\xa1\xff\xa0", b"\xc1", b"\x80\x80"],
    ids=["number value", "number key", "array", "not UTF-8", "not msgpack", "two maps"],
)
def test_headers_that_are_no_map_of_strings_are_refused(packed: bytes) -> None:
    with pytest.raises(InvalidFrameError):
        open_envelope(len(packed).to_bytes(4, "big") + packed + b"payload")


@given(st.binary(max_size=64) | st.binary(max_size=16).map(lambda rest: bytes(3) + b"\x05" + rest))
def test_random_bytes_are_an_envelope_or_refused(data: bytes) -> None:
    try:
        headers, payload = open_envelope(data)
    except InvalidFrameError:
        return
    assert data.endswith(payload)
    assert all(isinstance(text, str) for item in headers.items() for text in item)


# --- records ----------------------------------------------------------------------------------------------------------


@each_record
def test_golden_records(record: Record, golden: str) -> None:
    assert pack_record(record).hex() == golden
    assert unpack_record(bytes.fromhex(golden)) == record


def test_the_reference_msgpack_reads_a_records_extension() -> None:
    data = bytes.fromhex(EXTENDED_RECORD_HEX)
    flags, attempts, priority, high, low = struct.unpack_from(">HIiQQ", data)
    length = int.from_bytes(data[26:30], "big")
    assert (flags, attempts, priority, (high, low)) == (0x0117, 1, 0, ID)
    assert msgpack.unpackb(data[30 : 30 + length]) == EXTENSION
    assert data[30 + length :] == ENVELOPE


def test_the_enqueue_loops_short_cut_makes_the_same_bytes() -> None:
    assert pack_fixed(PLAIN, 2, -7, *ID) + ENVELOPE == bytes.fromhex(PLAIN_RECORD_HEX)


@each_record
def test_the_id_is_read_without_unpacking(record: Record, golden: str) -> None:
    assert record_id(bytes.fromhex(golden)) == ID


@given(records)
def test_records_survive_storage(record: Record) -> None:
    data = pack_record(record)
    assert unpack_record(data) == record
    assert bool(data[1]) == (record.extension != Extension())


def with_extension(packed: bytes, length: int | None = None) -> bytes:
    return pack_fixed(PLAIN | 1, 0, 0, *ID) + (len(packed) if length is None else length).to_bytes(4, "big") + packed


def test_unknown_extension_fields_are_ignored() -> None:
    data = with_extension(msgpack.packb({"later": [1, {"x": None}], "error": "boom"})) + ENVELOPE
    assert unpack_record(data) == Record(0, 0, *ID, Extension(error="boom"), ENVELOPE)


@pytest.mark.parametrize(
    "packed",
    [
        msgpack.packb({"error": 7}),
        msgpack.packb({"lease_ms": "long"}),
        msgpack.packb([1]),
        b"\x81\xa5error\xa1\xff",
        b"\x81\xa1x" + b"\x91" * 100_000,
        b"\xc1",
        b"",
    ],
    ids=["error", "lease", "array", "text not UTF-8", "absurdly nested", "not msgpack", "empty"],
)
def test_a_damaged_extension_is_refused(packed: bytes) -> None:
    with pytest.raises(InvalidFrameError):
        unpack_record(with_extension(packed) + ENVELOPE)


def test_an_extension_that_claims_more_bytes_than_there_are_is_refused() -> None:
    with pytest.raises(InvalidFrameError):
        unpack_record(with_extension(b"\x80", length=1000))


@each_record
def test_a_record_cut_in_its_own_part_is_refused(record: Record, golden: str) -> None:
    whole = bytes.fromhex(golden)
    for length in range(len(whole) - len(record.envelope)):
        with pytest.raises(InvalidFrameError):
            unpack_record(whole[:length])


@pytest.mark.parametrize("layout", [0, 2, 255])
def test_a_record_of_another_layout_is_refused_with_what_to_do(layout: int) -> None:
    data = bytes([layout, 0]) + bytes.fromhex(PLAIN_RECORD_HEX)[2:]
    with pytest.raises(InvalidFrameError, match=f"layout {layout}.*upgrade"):
        unpack_record(data)


@given(st.binary(max_size=80) | st.binary(min_size=25, max_size=60).map(lambda rest: b"\x01\x01" + rest))
def test_random_bytes_are_a_record_or_refused(data: bytes) -> None:
    try:
        record = unpack_record(data)
    except InvalidFrameError:
        return
    assert len(data) >= FIXED_BYTES
    assert data.endswith(record.envelope)


@given(position=st.integers(0, 400), byte=st.integers(0, 255))
def test_a_damaged_record_is_unpacked_or_refused(position: int, byte: int) -> None:
    damaged = bytearray.fromhex(EXTENDED_RECORD_HEX)
    damaged[position % len(damaged)] = byte
    with suppress(InvalidFrameError):
        unpack_record(bytes(damaged))


# --- single parts -----------------------------------------------------------------------------------------------------


@given(record=records, headers=headers_of_any_kind, payload=st.binary(max_size=16))
def test_single_parts_are_those_of_the_whole(record: Record, headers: dict[str, str], payload: bytes) -> None:
    record.envelope = seal_envelope(payload, headers)
    data = pack_record(record)
    assert (headers_of(data), payload_of(data), extension_of(data)) == (headers, payload, record.extension)
    assert unpack_fixed(data)[1:] == (record.attempts, record.priority, record.id_high, record.id_low)


@pytest.mark.parametrize("part", [headers_of, payload_of, extension_of])
@given(
    data=st.binary(max_size=80)
    | st.binary(max_size=60).map(lambda rest: b"\x01\x00" + rest)
    | st.binary(max_size=60).map(lambda rest: b"\x01\x01" + rest)
)
def test_single_parts_of_random_bytes_are_read_or_refused(part: Callable[[bytes], object], data: bytes) -> None:
    with suppress(InvalidFrameError):
        part(data)


@each_record
@pytest.mark.parametrize("part", [headers_of, payload_of, extension_of])
def test_single_parts_of_a_record_of_another_layout_are_refused(
    part: Callable[[bytes], object], record: Record, golden: str
) -> None:
    with pytest.raises(InvalidFrameError, match="layout 2"):
        part(b"\x02" + bytes.fromhex(golden)[1:])
