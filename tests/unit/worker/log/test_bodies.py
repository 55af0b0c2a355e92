import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fila_worker.log.bodies import (
    BODY_BYTES_MAX,
    STATE_BYTES_MAX,
    Beat,
    Body,
    Figures,
    Leaves,
    Marker,
    Node,
    NodeState,
    TransferRequest,
    decode_body,
    encode_body,
)

NODE = Node("disk", "host-a", "10.0.0.1:5555", "life")
BODIES: list[Body] = [
    Marker(NODE, 3),
    Beat(NODE, Figures(7, 1 << 40, 99)),
    Leaves(NODE, "host-b"),
    TransferRequest("host-b", 12),
    NodeState(NODE, {1: 5}, {2: 300}, True),
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_a_body_survives_its_bytes(body: Body) -> None:
    assert decode_body(encode_body(body), type(body)) == body


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_another_version_says_nothing(body: Body) -> None:
    assert decode_body(b"\x02" + encode_body(body)[1:], type(body)) is None
    assert decode_body(b"", type(body)) is None


def test_a_later_release_may_add_fields() -> None:
    data = b"\x01" + msgspec.msgpack.encode({"host": "host-b", "epoch": 4, "mood": [1, {"a": None}]})
    assert decode_body(data, TransferRequest) == TransferRequest("host-b", 4)
    assert decode_body(b"\x01\x80", Beat) == Beat()


@pytest.mark.parametrize(
    "said",
    [
        {"host": "h" * 256},
        {"host": 5},
        {"epoch": -2},
        {"epoch": 1 << 63},
        {"epoch": 1.5},
        [],
        {"more": b"x" * BODY_BYTES_MAX},
    ],
    ids=str,
)
def test_what_can_not_be_so_says_nothing(said: object) -> None:
    assert decode_body(b"\x01" + msgspec.msgpack.encode(said), TransferRequest) is None


def test_there_is_room_for_the_shards_of_a_large_host() -> None:
    shards = dict.fromkeys(range(4096), 2**63 - 1)
    state = NodeState(NODE, shards, shards)
    assert len(encode_body(state)) <= STATE_BYTES_MAX
    assert decode_body(encode_body(state), NodeState) == state
    too_large = NodeState(NODE, dict.fromkeys(range(20_000), 2**63 - 1))
    assert decode_body(encode_body(too_large), NodeState) is None


@given(st.binary(max_size=200), st.sampled_from([Marker, Beat, Leaves, TransferRequest, NodeState]))
def test_no_bytes_raise_anything(data: bytes, kind: type[Body]) -> None:
    for tried in (data, b"\x01" + data):
        body = decode_body(tried, kind)
        assert body is None or type(body) is kind


def test_deep_bytes_raise_nothing() -> None:
    """How deep an unknown field may be is the interpreter's limit: it differs between versions of Python."""
    for depth in (10, BODY_BYTES_MAX - 10):
        assert decode_body(b"\x01\x81\xa1x" + b"\x91" * depth + b"\xc0", Beat) in (None, Beat())
