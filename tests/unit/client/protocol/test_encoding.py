"""Messages to columns."""

import array
from collections import OrderedDict
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType

import pytest

from fila_cluster import Message
from fila_cluster.client.protocol.encoding import seal, seal_batch, seal_message, seal_rows
from fila_cluster.errors import InvalidArgumentError
from fila_proto_zmq.commands import Enqueue
from fila_proto_zmq.limits import HEADERS_BYTES_MAX
from fila_proto_zmq.record import open_envelope, seal_envelope
from tests.unit.client.peer import row


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


def test_a_text_payload_is_refused_with_encode_as_the_remedy():
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


def test_header_values_are_not_quoted():
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
    plain = row(b"a", fairness_key="k")
    assert seal_rows([plain, plain]) == Enqueue([plain[0], plain[0]], "k")
    assert seal_rows([plain, row(b"a", fairness_key="j")]).fairness_key == ["k", "j"]


POLICY = {"throttle_keys": ["a", "b"], "cost": 2.5, "ttl": 60, "dedup_id": "d"}


def both_ways(*messages):
    """The frame that is made of columns, and that which is made of rows: they are the same."""
    in_columns, faults = seal_batch(messages)
    assert faults == {}
    assert seal_rows([seal_message(message) for message in messages]) == in_columns
    return in_columns


def test_a_batch_without_policy_says_nothing_of_it():
    command = both_ways(Message(b"a"), Message(b"b"))
    assert (command.throttle_keys, command.cost_milli, command.ttl_ms, command.dedup_id) == ([], 1000, 0, "")


def test_a_policy_that_all_share_travels_once():
    command = both_ways(Message(b"a", **POLICY), Message(b"b", **POLICY))
    assert (command.throttle_keys, command.cost_milli, command.ttl_ms, command.dedup_id) == ([["a", "b"]], 2500, 60_000, "d")


def test_policies_that_differ_are_spread():
    command = both_ways(Message(b"a", **POLICY), Message(b"b"), Message(b"c", throttle_keys=("b",), dedup_id="e"))
    assert command.throttle_keys == [["a", "b"], [], ["b"]]
    assert (command.cost_milli, command.ttl_ms, command.dedup_id) == ([2500, 1000, 1000], [60_000, 0, 0], ["d", "", "e"])


def test_the_number_of_attempts_and_the_mode_of_dedup_ids_travel():
    command = both_ways(Message(b"a", max_attempts=3, dedup_id="x", dedup_mode="last"), Message(b"b"))
    assert (command.max_attempts, command.dedup_last) == ([3, 0], [True, False])
    command = both_ways(Message(b"a", dedup_id="x", dedup_mode="last"), Message(b"b", dedup_id="y", dedup_mode="last"))
    assert (command.max_attempts, command.dedup_last, command.dedup_window_ms, command.after) == (0, True, 0, None)
    assert Enqueue([b""]) == Enqueue([b""], *seal_message(Message(b""))[1])


@pytest.mark.parametrize("keys", [[], (), set()])
def test_no_throttle_keys_are_none(keys):
    assert both_ways(Message(b"a", throttle_keys=keys), Message(b"b")).throttle_keys == []


@pytest.mark.parametrize("keys", [["a", "a"], ("a",), {"a"}, frozenset("a"), {"a": 1}, {"a": 1}.keys()])
def test_throttle_keys_of_any_collection(keys):
    assert both_ways(Message(b"x", throttle_keys=keys), Message(b"y", throttle_keys=["b"])).throttle_keys == [["a"], ["b"]]


def test_an_iterator_of_throttle_keys_is_refused_in_a_batch_which_may_have_to_look_twice():
    command, faults = seal_batch([Message(b"x", throttle_keys=iter(["a"])), Message(b"y")])
    assert command is not None
    assert len(command.envelopes) == 1
    assert "pass a list" in str(faults[0])


@pytest.mark.parametrize(
    "bad",
    [{"throttle_keys": "a"}, {"throttle_keys": [1]}, {"throttle_keys": 3}, {"cost": 0}, {"cost": True}, {"cost": float("nan")},
     {"ttl": 0}, {"ttl": -1}, {"dedup_id": ""}, {"dedup_id": 3}, {"dedup_mode": "last"},
     {"dedup_mode": "middle", "dedup_id": "d"}, {"dedup_mode": None}, {"dedup_mode": []}, {"max_attempts": 0}, {"max_attempts": -1},
     {"max_attempts": True}, {"max_attempts": 1.5}, {"max_attempts": 2**31}],
)  # fmt: skip
def test_a_bad_policy_is_its_message_s_alone(bad):
    command, faults = seal_batch([Message(b"a", **POLICY), Message(b"b", **bad)])
    assert command is not None
    assert (command.throttle_keys, command.dedup_id) == ([["a", "b"]], "d")
    assert [type(fault) for fault in faults.values()] == [InvalidArgumentError]


def test_headers_that_are_just_too_long_are_refused_whatever_the_payload():
    with pytest.raises(InvalidArgumentError, match="belongs in the payload"):
        seal(b"", {"a": "x" * (HEADERS_BYTES_MAX - 5)})
    seal(b"x" * HEADERS_BYTES_MAX, {"a": "x" * (HEADERS_BYTES_MAX - 6)})
