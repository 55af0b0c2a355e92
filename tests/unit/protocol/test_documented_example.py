"""The example in docs/protocol.md is what the code sends."""

import re
from pathlib import Path

from fila_proto_zmq.codec import decode_body, encode_body
from fila_proto_zmq.commands import (
    DELIVERY,
    CreateQueue,
    Delivered,
    Done,
    Enqueue,
    Enqueued,
    Fault,
    GetQueueStats,
    Hello,
    LeaseBatch,
    QueueOptions,
    Settle,
    Settled,
    Struct,
    Subscribe,
    Subscribed,
    Verb,
    Welcome,
)
from fila_proto_zmq.frames import ERROR, REPLY, pack_header, unpack_header
from fila_proto_zmq.ids import format_id
from fila_proto_zmq.record import Extension, Record, pack_record
from tests.unit.protocol.vectors import ENVELOPE, ID

PAGE = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()

SESSION = bytes(range(32))
RECORD = pack_record(Record(0, 0, *ID, Extension(), ENVELOPE))
LEASE = 4294967297
EXPECTED: list[tuple[str, Struct]] = [
    ("→", Hello([1], "doc/1", b"")),
    ("←", Welcome(1, "0.1.0", 4, 15_000, 16_777_216, SESSION)),
    ("→", CreateQueue(QueueOptions(None, 5))),
    ("←", Done()),
    ("→", Enqueue([ENVELOPE], "acme")),
    ("←", Enqueued(*ID, 1)),
    ("→", Subscribe(1, 100, [], 0)),
    ("←", Subscribed(LEASE - 1)),
    ("←", Delivered(1, [LeaseBatch(LEASE, 1_730_000_000_200, 1_730_000_030_200, "acme", 1, [RECORD])], LEASE - 1)),
    ("→", Settle(Verb.ACK, [(LEASE, [0])])),
    ("←", Settled()),
    ("→", GetQueueStats()),
    ("←", Fault("QUEUE_NOT_FOUND", "no queue 'job'")),
]
FRAME = re.compile(r"^(→|←) (\w+).*\n  header ([0-9a-f ]+)\n  key    ([0-9a-f]+|-)\n  body   ((?:[0-9a-f]+\n? *)+)", re.M)


def shown() -> list[tuple[str, str, bytes, bytes, bytes]]:
    frames = FRAME.findall(PAGE)
    return [(arrow, name, *(bytes.fromhex("" if part == "-" else part) for part in parts)) for arrow, name, *parts in frames]


def test_the_example_is_what_the_code_sends() -> None:
    assert len(shown()) == len(EXPECTED)
    for (arrow, name, raw_header, _, body), (direction, struct) in zip(shown(), EXPECTED, strict=True):
        header = unpack_header(raw_header)
        push = header.opcode == DELIVERY
        assert arrow == direction
        assert name == ("DELIVERY" if push else type(struct).__name__)
        assert (body, decode_body(type(struct), body)) == (encode_body(struct), struct)
        greeted = arrow == "→" and name != "Hello"
        tag = int.from_bytes(SESSION[:4], "big") if greeted else 0
        assert raw_header == pack_header(header.opcode, header.request, header.flags, tag)
        assert header.flags == (0 if arrow == "→" or push else REPLY | ERROR if name == "Fault" else REPLY)


def test_the_examples_answers_belong_to_its_questions() -> None:
    asked: dict[int, tuple[int, bytes]] = {}
    for arrow, _, raw_header, key, _ in shown():
        header = unpack_header(raw_header)
        if arrow == "→":
            asked[header.request] = (header.opcode, key)
        elif header.request:
            assert asked.pop(header.request) == (header.opcode, key)
    assert asked == {}
    assert format_id(*ID) in PAGE
