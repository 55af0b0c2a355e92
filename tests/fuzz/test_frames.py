"""Bytes that anybody may send: every decoder refuses with an error of its own, and the router goes on."""

import contextlib
from collections.abc import Callable
from random import Random

import msgspec
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from fila_proto_zmq.codec import decode_body, decode_command
from fila_proto_zmq.commands import BY_OPCODE, COMMANDS, Command, Fault, Struct
from fila_proto_zmq.errors import FilaError, InvalidFrameError
from fila_proto_zmq.frames import HEADER_BYTES, Header, pack_header, unpack_header
from fila_proto_zmq.record import open_envelope, unpack_record
from fila_router.core.routing import addressee
from tests.fuzz.broker import WORKER, FuzzedBroker
from tests.fuzz.values import Values

BOMBS = (
    b"\xdd\xff\xff\xff\xff",
    b"\xdc\xff\xff" + b"\xc0" * 100,
    b"\x91" * 5000,
    b"\xc6\xff\xff\xff\xffx",
    b"\xdf\xff\xff\xff\xff",
)
"""Small bodies that announce, or nest, more than there is."""

seeds = st.integers(0, 2**32)
headers = st.one_of(
    st.binary(max_size=40),
    st.builds(pack_header, st.integers(0, 255), st.integers(0, 2**64 - 1), st.integers(0, 255), st.integers(0, 2**32 - 1)),
    st.builds(pack_header, st.sampled_from(sorted(BY_OPCODE)), st.integers(0, 2**64 - 1)),
)


def damaged(random: Random, struct: type[Struct]) -> bytes:
    """A body of ``struct`` with a few bytes turned, left out or put in."""
    body = bytearray(msgspec.msgpack.encode(Values(random).command(struct)))
    for _ in range(random.randint(0, 3)):
        place = random.randrange(len(body) + 1)
        body[place : place + random.randint(0, 2)] = random.choice((b"", b"\xc0", b"\xff", b"\x91", random.randbytes(1)))
    return bytes(body)


bodies = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(BOMBS),
    st.builds(damaged, st.builds(Random, seeds), st.sampled_from(COMMANDS)),
)


def refuses_or_decodes(decode: Callable[[], object]) -> None:
    """Nothing but the protocol's own error may come out."""
    with contextlib.suppress(FilaError):
        decode()


@given(header=headers)
@example(header=b"FC" + b"\xff" * 16)
def test_a_header_is_decoded_or_refused(header: bytes) -> None:
    try:
        decoded = unpack_header(header)
    except InvalidFrameError:
        assert len(header) != HEADER_BYTES or header[:2] != b"FC"
    else:
        assert pack_header(decoded.opcode, decoded.request, decoded.flags, decoded.epoch, decoded.version) == header


STRUCTS = list(dict.fromkeys([*COMMANDS, *(command.reply for command in COMMANDS), Fault]))


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
@settings(max_examples=20, phases=[Phase.generate])
@given(random=st.builds(Random, seeds))
def test_a_body_is_decoded_or_refused(struct: type[Struct], random: Random) -> None:
    for candidate in (*BOMBS, b"", damaged(random, struct), random.randbytes(random.randint(0, 50))):
        refuses_or_decodes(lambda candidate=candidate: decode_body(struct, candidate))


@given(opcode=st.integers(0, 255), body=bodies)
def test_a_command_of_any_opcode_is_decoded_or_refused(opcode: int, body: bytes) -> None:
    refuses_or_decodes(lambda: decode_command(Header(opcode, 0, 0, 1), body))
    refuses_or_decodes(lambda: addressee(memoryview(body)))


@given(data=bodies)
def test_a_record_and_an_envelope_are_opened_or_refused(data: bytes) -> None:
    refuses_or_decodes(lambda: unpack_record(data))
    refuses_or_decodes(lambda: open_envelope(data))


@given(frames=st.lists(st.tuples(headers, st.sampled_from((b"", b"q", b"\xff\xfe", b"x" * 300)), bodies), max_size=6))
def test_any_frames_of_clients_and_workers_leave_the_broker_serving(frames: list[tuple[bytes, bytes, bytes]]) -> None:
    broker = FuzzedBroker()
    for header, key, body in frames:
        broker.from_client(b"stranger", header, key, body)
        broker.router.malformed(b"stranger", header, broker.now_ms)
        broker.host.accept([b"stranger", header, key, body], broker.now_ms)
        broker.host.accept([b"stranger", header, key], broker.now_ms)
        broker.run()
    broker.check()
    broker.serve_an_honest_client()


@given(frames=st.lists(st.tuples(headers, bodies), max_size=6), identity=st.sampled_from((WORKER, b"stranger", b"")))
def test_any_frames_of_workers_leave_the_router_standing(frames: list[tuple[bytes, bytes]], identity: bytes) -> None:
    """Workers are trusted with their shards, so that one which lies may make them unavailable, but no more than that."""
    broker = FuzzedBroker()
    for header, body in frames:
        for client in (b"", b"somebody"):
            broker.router.from_worker(identity, client, header, b"q", body, broker.now_ms)
        broker.router.outgoing.take()
        broker.router.tick(broker.now_ms)


def test_every_command_is_made_by_the_generator() -> None:
    values = Values(Random(1))
    for opcode in BY_OPCODE:
        command: Command = values.any_command([opcode])
        assert command.opcode == opcode
