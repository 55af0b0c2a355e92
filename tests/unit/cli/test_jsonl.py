"""Messages as lines of JSON."""

from datetime import UTC, datetime

import pytest

from fila_cluster import Message
from fila_cluster.cli.jsonl import read_message


def test_a_payload_is_enough():
    assert read_message(b'{"payload": "h\xc3\xa4"}\n') == Message("hä".encode())


def test_any_bytes_can_be_a_payload():
    assert read_message(b'{"payload_base64": "/wA="}') == Message(b"\xff\0")


def test_a_line_has_a_message_s_fields():
    line = b'{"payload": "", "headers": {"a": "b"}, "fairness_key": "k", "weight": 2, "priority": -1, "delay": 0.5}'
    assert read_message(line) == Message(b"", {"a": "b"}, fairness_key="k", weight=2, priority=-1, delay=0.5)


def test_an_instant_is_written_in_iso_8601():
    message = read_message(b'{"payload": "", "deliver_at": "2030-01-02T03:04:05+00:00"}')
    assert message.deliver_at == datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"nonsense", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "a message is a JSON object, this is a list"),
        (b"{}", "give either payload or payload_base64"),
        (b'{"payload": "a", "payload_base64": "YQ=="}', "give either"),
        (b'{"payload": 3}', "the payload is a string"),
        (b'{"payload_base64": "*"}', "payload_base64"),
        (b'{"payload": "\\ud800"}', "surrogates not allowed"),
        (b'{"payload": "", "fairnes_key": "x"}', "unknown field 'fairnes_key'; known: payload, payload_base64, "),
        (b'{"payload": "", "deliver_at": "tomorrow"}', "Invalid isoformat"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(line: bytes, reason: str):
    with pytest.raises(ValueError, match=reason):
        read_message(line)
