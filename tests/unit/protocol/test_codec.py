"""Bodies and frames: golden bytes, read and written by us and by the reference msgpack."""

from contextlib import suppress

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fila_proto_zmq import commands
from fila_proto_zmq.codec import (
    decode_body,
    decode_command,
    encode_body,
    encode_command,
    encode_delivery,
    encode_error,
    encode_reply,
)
from fila_proto_zmq.commands import (
    BY_OPCODE,
    COMMANDS,
    CreateByTemplate,
    CreateQueue,
    Delivered,
    Done,
    Enqueue,
    Fault,
    GetQueueStats,
    QueueOptions,
    Receive,
    Subscribe,
    Welcome,
)
from fila_proto_zmq.errors import InvalidFrameError, OverloadedError
from fila_proto_zmq.frames import Header
from tests.unit.protocol.vectors import BODIES, Body

each_body = pytest.mark.parametrize("body", BODIES, ids=[body.name for body in BODIES])


@each_body
def test_we_write_the_golden_bytes(body: Body) -> None:
    assert encode_body(body.struct).hex() == body.hex


@each_body
def test_we_read_the_golden_bytes(body: Body) -> None:
    assert decode_body(type(body.struct), bytes.fromhex(body.hex)) == body.struct


@each_body
def test_the_reference_msgpack_agrees(body: Body) -> None:
    assert msgpack.packb(body.plain).hex() == body.hex
    assert msgpack.unpackb(bytes.fromhex(body.hex)) == body.plain


@each_body
def test_unknown_trailing_fields_are_ignored(body: Body) -> None:
    longer = msgpack.packb([*body.plain, "of a later version", {"n": 1}])
    assert decode_body(type(body.struct), longer) == body.struct


def test_every_command_and_reply_has_golden_bytes() -> None:
    structs = {*COMMANDS, *(command.reply for command in COMMANDS), Fault}
    assert {type(body.struct) for body in BODIES} == structs


@pytest.mark.parametrize(
    ("plain", "struct"),
    [
        ([[b"\0\0\0\0"]], Enqueue([b"\0\0\0\0"], "default", 0, 0, 0, 0, 0)),
        ([], Receive(1, 0)),
        ([7, 10], Subscribe(7, 10, [])),
        ([[]], CreateQueue(QueueOptions(None, None))),
        ([1, [], 5], Delivered(1, [], 5)),
        (["orders"], CreateByTemplate("orders", "")),
        (["INTERNAL", "?"], Fault("INTERNAL", "?", 0, {})),
        ([1, "0.1.0", 4, 15_000], Welcome(1, "0.1.0", 4, 15_000, 0)),
    ],
)
def test_missing_trailing_fields_take_their_defaults(plain: list[object], struct: commands.Struct) -> None:
    assert decode_body(type(struct), msgpack.packb(plain)) == struct


def test_default_values_are_not_shared_between_structs() -> None:
    Fault("A", "").details["seen"] = True
    assert Fault("B", "").details == {}


@pytest.mark.parametrize(
    ("kind", "plain"),
    [
        (Receive, ["10"]),
        (Receive, [1.5]),
        (Receive, [True]),
        (Receive, {"count": 1}),
        (Enqueue, []),
        (Enqueue, [["text instead of bytes"]]),
        (Subscribe, [1]),
        (CreateQueue, [None]),
    ],
)
def test_a_body_of_the_wrong_shape_is_refused_by_name(kind: type[commands.Struct], plain: object) -> None:
    with pytest.raises(InvalidFrameError, match=f"no {kind.__name__}"):
        decode_body(kind, msgpack.packb(plain))


def test_opcodes_are_unique_and_fit_in_a_byte() -> None:
    opcodes = [command.opcode for command in COMMANDS]
    assert len({*opcodes, commands.DELIVERY}) == len(opcodes) + 1
    assert all(0 < opcode < 256 for opcode in opcodes)


def test_an_unknown_opcode_is_refused_by_number() -> None:
    with pytest.raises(InvalidFrameError, match="unknown opcode 255"):
        decode_command(Header(255, 0, 0, 1), b"\x90")


# --- whole frames -----------------------------------------------------------------------------------------------------


def test_a_request_frame() -> None:
    assert encode_command(GetQueueStats(), 7, "jobs") == [
        bytes.fromhex("4643" "01" "0c" "0000" "00000000" "0000000000000007"),
        b"jobs",
        b"\x91\x00",
    ]  # fmt: skip


def test_a_reply_frame() -> None:
    assert encode_reply(12, 7, Done(), "jobs") == [
        bytes.fromhex("4643" "01" "0c" "0001" "00000000" "0000000000000007"),
        b"jobs",
        b"\x90",
    ]  # fmt: skip


def test_an_error_frame() -> None:
    header, key, body = encode_error(20, 7, OverloadedError("busy", retry_after=0.2), "jobs")
    assert header.hex() == "4643" "01" "14" "0003" "00000000" "0000000000000007"  # fmt: skip
    assert (key, msgpack.unpackb(body)) == (b"jobs", ["OVERLOADED", "busy", 200, {}])


def test_a_push_is_no_reply_and_answers_no_request() -> None:
    header, key, body = encode_delivery("jobs", Delivered(1, []))
    assert header.hex() == "4643" "01" "21" "0000" "00000000" "0000000000000000"  # fmt: skip
    assert (key, msgpack.unpackb(body)) == (b"jobs", [1, [], 0, 0, 0])


# --- hostile bytes ----------------------------------------------------------------------------------------------------

opcodes = st.sampled_from(sorted(BY_OPCODE))
plain_data = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=3),
    max_leaves=12,
)


def decodes_or_is_refused(opcode: int, body: bytes) -> None:
    try:
        command = decode_command(Header(opcode, 0, 0, 1), body)
    except InvalidFrameError:
        return
    assert type(command) is BY_OPCODE[opcode]


@given(opcode=st.integers(0, 255), body=st.binary(max_size=64))
def test_random_bytes_are_decoded_or_refused(opcode: int, body: bytes) -> None:
    decodes_or_is_refused(opcode, body)


@given(opcode=opcodes, fields=st.lists(plain_data, max_size=8))
def test_random_arrays_are_decoded_or_refused(opcode: int, fields: list[object]) -> None:
    decodes_or_is_refused(opcode, msgpack.packb(fields))


@given(body=st.sampled_from(BODIES), position=st.integers(0, 100), byte=st.integers(0, 255))
def test_a_damaged_body_is_decoded_or_refused(body: Body, position: int, byte: int) -> None:
    damaged = bytearray.fromhex(body.hex)
    damaged[position % len(damaged)] = byte
    with suppress(InvalidFrameError):
        decode_body(type(body.struct), bytes(damaged))


@each_body
def test_a_truncated_body_is_refused(body: Body) -> None:
    whole = bytes.fromhex(body.hex)
    for length in range(len(whole)):
        with pytest.raises(InvalidFrameError):
            decode_body(type(body.struct), whole[:length])


@pytest.mark.parametrize(
    "body",
    [
        b"\x91" * 100_000,
        b"\x92\x91\xff" + b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\x91\xdd\xff\xff\xff\xff",
        b"\x94\xa0\xa0\x00" + b"\x81\xa0" * 100_000,
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
    ],
    ids=[
        "nested arrays",
        "nested in an unknown field",
        "long array",
        "long inner array",
        "nested maps",
        "long map",
        "long bin",
    ],
)
@pytest.mark.parametrize("struct", [Fault, *COMMANDS], ids=lambda struct: struct.__name__)
def test_absurd_nesting_and_lengths_are_refused(struct: type[commands.Struct], body: bytes) -> None:
    with pytest.raises(InvalidFrameError):
        decode_body(struct, body)
