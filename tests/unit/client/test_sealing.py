"""Messages to columns."""

import array
from collections import OrderedDict
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType

import pytest

from fila_cluster import Message
from fila_cluster.client.sealing import seal, seal_batch, seal_rows
from fila_cluster.errors import InvalidArgumentError
from fila_proto_zmq.commands import Enqueue
from fila_proto_zmq.record import open_envelope, seal_envelope


class Colour(StrEnum):
    RED = "red"


def test_uniform_columns_are_one_value():
    command, faults = seal_batch([Message(b"a", fairness_key="k"), Message(b"b", fairness_key="k")])
    assert faults == {}
    assert command == Enqueue([seal_envelope(b"a"), seal_envelope(b"b")], "k", 0, 0, 0, 0, 0)


def test_mixed_columns_are_spread():
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    command, _ = seal_batch(
        [
            Message(b"a", fairness_key="k", weight=3, priority=-1, delay=1.5, lease=2),
            Message(b"b", deliver_at=moment),
        ]
    )
    assert command is not None
    assert command.fairness_key == ["k", "default"]
    assert (command.weight, command.priority, command.delay_ms) == ([3, 0], [-1, 0], [1500, 0])
    assert (command.due_ms, command.lease_ms) == ([0, 1_767_225_600_000], [2000, 0])


@pytest.mark.parametrize("payload", [b"abc", bytearray(b"abc"), memoryview(b"abc"), array.array("b", b"abc")])
def test_payloads_are_bytes_like(payload):
    assert open_envelope(seal(payload, None)) == ({}, b"abc")


@pytest.mark.parametrize("payload", ["abc", None, 3, ["a"], [b"a"], {"a": 1}, memoryview(b"abcd")[::2], object()])
def test_bad_payloads(payload):
    with pytest.raises(InvalidArgumentError, match="payload is bytes-like"):
        seal(payload, None)


def test_a_text_payload_is_told_to_encode():
    with pytest.raises(InvalidArgumentError, match=r"payload\.encode\(\)"):
        seal("abc", {"a": "b"})


@pytest.mark.parametrize(
    "headers", [{"a": "b"}, OrderedDict(a="b"), MappingProxyType({"a": "b"}), {"a": "b"}.copy(), {Colour.RED: Colour.RED}]
)
def test_headers(headers):
    assert open_envelope(seal(b"", headers))[0] == {str(key): str(value) for key, value in headers.items()}


@pytest.mark.parametrize(
    "headers", [{"a": 1}, {1: "a"}, {"a": None}, {"a": b"b"}, [("a", "b")], "ab", [], 0, {"a": "\ud800"}]
)
def test_bad_headers(headers):
    with pytest.raises(InvalidArgumentError, match="header"):
        seal(b"", headers)


def test_header_values_are_not_told():
    with pytest.raises(InvalidArgumentError) as caught:
        seal(b"", {"token": b"secret"})
    assert "secret" not in str(caught.value)


def test_headers_have_a_limit():
    with pytest.raises(InvalidArgumentError, match="belongs in the payload"):
        seal(b"", {"a": "x" * 65536})


def test_bad_messages_are_found_and_do_not_spoil_the_others():
    command, faults = seal_batch(
        [
            Message(b"a"),
            Message("text"),  # type: ignore[arg-type]
            Message(b"b", delay=-1),
            b"no message",
            Message(b"c", weight=[]),  # type: ignore[arg-type]
            Message(b"d", fairness_key="k"),
            Message(b"e", {"a": 1}),  # type: ignore[dict-item]
        ]
    )
    assert command is not None
    assert [open_envelope(envelope)[1] for envelope in command.envelopes] == [b"a", b"d"]
    assert command.fairness_key == ["default", "k"]
    assert list(faults) == [1, 2, 3, 4, 6]
    assert all(isinstance(fault, InvalidArgumentError) for fault in faults.values())


def test_nothing_good_is_no_frame():
    command, faults = seal_batch([3, None])
    assert command is None
    assert len(faults) == 2


def test_rows_collapse_too():
    row = (b"\0\0\0\0a", "k", 0, 0, 0, 0, 0)
    assert seal_rows([row, row]) == Enqueue([row[0], row[0]], "k")
    assert seal_rows([row, (row[0], "j", *row[2:])]).fairness_key == ["k", "j"]
