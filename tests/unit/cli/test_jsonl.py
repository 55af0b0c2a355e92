"""Messages as lines of JSON."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from fila_cluster import Message
from fila_cluster.cli.shared.jsonl import read_message, view_fields, write_message
from fila_cluster.client.message import message_view
from fila_proto_zmq.commands import MessageView
from tests.unit.client.peer import BORN_MS, record


def test_a_payload_is_enough():
    assert read_message(b'{"payload": "h\xc3\xa4"}\n') == Message("hä".encode())


def test_any_bytes_can_be_a_payload():
    assert read_message(b'{"payload_base64": "/wA="}') == Message(b"\xff\0")


def test_an_editor_s_byte_order_mark_is_no_part_of_it():
    assert read_message(b'\xef\xbb\xbf{"payload": "a"}') == Message(b"a")


def test_a_line_has_a_message_s_fields():
    line = b'{"payload": "", "headers": {"a": "b"}, "fairness_key": "k", "weight": 2, "priority": -1, "delay": 0.5}'
    assert read_message(line) == Message(b"", {"a": "b"}, fairness_key="k", weight=2, priority=-1, delay=0.5)
    line = b'{"payload": "", "throttle_keys": ["a", "b"], "cost": 2.5, "ttl": 60, "dedup_id": "d", "lease": 5}'
    assert read_message(line) == Message(b"", throttle_keys=["a", "b"], cost=2.5, ttl=60, dedup_id="d", lease=5)


def test_an_instant_is_written_in_iso_8601():
    message = read_message(b'{"payload": "", "deliver_at": "2030-01-02T03:04:05+00:00"}')
    assert message.deliver_at == datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"nonsense", "not JSON"),
        (b"\xff", "not UTF-8: invalid start byte at byte 1"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "a message is a JSON object, this is a list"),
        (b"{}", "give either payload or payload_base64"),
        (b'{"payload": "a", "payload_base64": "YQ=="}', "give either"),
        (b'{"payload": 3}', "the payload is a string"),
        (b'{"payload_base64": "*"}', "payload_base64"),
        (b'{"payload": "\\ud800"}', "the payload cannot be encoded as UTF-8: surrogates not allowed; use payload_base64"),
        (b'{"payload": "", "fairnes_key": "x"}', "unknown field 'fairnes_key'; known: payload, payload_base64, "),
        (
            b'{"payload": "", "deliver_at": "tomorrow"}',
            "deliver_at='tomorrow' is not a time: write it as 2030-12-31T23:59:00",
        ),
    ],
)
def test_what_is_wrong_with_a_line_is_said(line: bytes, reason: str):
    with pytest.raises(ValueError, match=reason):
        read_message(line)


# --- messages that were looked at -------------------------------------------------------------------------------------


def test_a_browsed_message_has_a_delivery_s_fields_and_its_state():
    view = MessageView("delayed", "k", 2, ["a"], BORN_MS + 2000, 0, 0, "", record(b"\xff", 5, cost_milli=1500))
    fields = view_fields(message_view("orders", view))
    assert (fields["payload_base64"], fields["state"], fields["cost"], fields["throttle_keys"]) == (
        "/w==",
        "delayed",
        1.5,
        ["a"],
    )
    assert fields["due_at"] - fields["enqueued_at"] == timedelta(seconds=2)
    assert (fields["leased_at"], fields["lease_expires_at"], fields["consumer"]) == (None, None, None)
    assert "reason" not in fields
    assert "metadata" not in fields


def test_a_browsed_dead_letter_says_where_it_comes_from():
    packed = record(reason="failed", source_queue="orders", dead_lettered_ms=BORN_MS, metadata=b"m")
    fields = view_fields(message_view("orders.dlq", MessageView("pending", "k", 1, [], 0, 0, 0, "", packed)))
    assert (fields["reason"], fields["source_queue"], fields["metadata"]) == ("failed", "orders", "m")


def test_a_message_is_read_as_it_was_written():
    plain, full = Message(b"text"), Message(
        b"\xff", {"a": "b"}, fairness_key="k", weight=2, throttle_keys=["t"], priority=-1, cost=2.5, ttl=1.5, lease=3.0,
        deliver_at=datetime(2030, 1, 1, tzinfo=UTC), dedup_id="d",
    )  # fmt: skip
    assert json.loads(write_message(plain)) == {"payload": "text"}
    assert read_message(write_message(plain).encode()) == plain
    assert read_message(write_message(full).encode()) == full
