"""A message in a form: what is shown of it, and what only stays."""

import pytest

from fila_cluster import Message
from fila_cluster.ops.dashboard.widgets.forms import EDITED_BYTES_MAX, others, payload_text, read_headers, written_headers


def test_a_payload_of_text_is_edited() -> None:
    assert payload_text("größer".encode()) == ("größer", "")


@pytest.mark.parametrize(
    ("payload", "told"), [(b"\xff", "1 B that are not text"), (b"x" * (EDITED_BYTES_MAX + 1), "64 KiB, too much")]
)
def test_any_other_payload_is_described(payload: bytes, told: str) -> None:
    text, instead = payload_text(payload)
    assert text == ""
    assert instead.startswith(told)
    assert "kept, unless you type another one" in instead


def test_headers_are_lines() -> None:
    headers = {"tenant": "acme", "note": "a=b"}
    assert read_headers(written_headers(headers)) == headers


def test_options_without_a_field_are_named() -> None:
    message = Message(
        b"x", {"a": "b"}, fairness_key="acme", priority=3, delay=5.0, weight=2, throttle_keys=["a", "b"], dedup_mode="last"
    )
    assert list(others(message)) == ["weight 2", "throttle_keys a b", "dedup_mode last"]
