"""Payloads for people's eyes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fila_cluster.ops.dashboard.widgets.payload_view import (
    HEX_BYTES,
    JSON_BYTES_MAX,
    SHOWN_BYTES,
    as_hex,
    as_json,
    as_text,
    fitting,
    rendered,
)


@pytest.mark.parametrize(
    ("payload", "view"),
    [
        (b'{"a": 1}', "json"),
        (b" [1, 2]\n", "json"),
        (b'{"a": 1', "text"),
        (b"12", "text"),
        (b'"word"', "text"),
        (b"", "text"),
        ("Zoë\n\tSöhne\r\n".encode(), "text"),
        (b"\x00\x01\xff", "hex"),
        (b"text with a \x1b[31m", "hex"),
        (b"caf\xe9", "hex"),
        (b"[" * 100_000, "text"),
        (b"[" + b"9" * 5000 + b"]", "json"),
        (b"[1]" + b" " * JSON_BYTES_MAX, "text"),
        ("ö".encode() * SHOWN_BYTES, "text"),
        (b"x" + "ö".encode() * SHOWN_BYTES, "text"),
        (b"x" * (SHOWN_BYTES - 100) + b"\xff" + b"x" * 1000, "hex"),
    ],
)
def test_the_view_fits_the_content(payload: bytes, view: str) -> None:
    assert fitting(payload) == view


def test_json_keeps_digits_order_and_duplicates() -> None:
    payload = b'{"b":1.10,"a":12345678901234567890.000,"a":[],"e":{},"t":"a, [b]: \\"{c}\\""}'
    assert as_json(payload).text == (
        '{\n  "b": 1.10,\n  "a": 12345678901234567890.000,\n  "a": [],\n  "e": {},\n  "t": "a, [b]: \\"{c}\\""\n}'
    )


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.lists(_VALUES) | st.dictionaries(st.text(), _VALUES), st.booleans())
def test_json_says_what_the_payload_says(value: object, escaped: bool) -> None:
    payload = json.dumps(value, ensure_ascii=escaped).encode()
    assert json.loads(as_json(payload).text) == value


def test_large_json_is_cut_and_says_by_how_much() -> None:
    payload = json.dumps([{"i": i, "ö": "x" * 20} for i in range(5000)], ensure_ascii=False).encode()
    shown = as_json(payload)
    assert SHOWN_BYTES <= len(shown.text) < SHOWN_BYTES + 100
    seen = "".join(shown.text.split())
    whole = "".join(payload.decode().split())
    assert whole.startswith(seen)
    assert len("".join(payload[len(payload) - shown.left_out_bytes :].decode().split())) == len(whole) - len(seen)


def test_text_is_cut_and_says_by_how_much() -> None:
    assert as_text(b"x" * (SHOWN_BYTES + 7)) == ("x" * SHOWN_BYTES, 7)


def test_control_characters_become_signs() -> None:
    assert as_text(b"a\x00b\x1bc\x7f\n\t\xff").text == "a\u2400b\u241bc\u2421\n\t\ufffd"


def test_hex_has_offset_bytes_and_ascii() -> None:
    shown = as_hex(bytes(range(60, 80)) + b"\x00")
    assert shown.text.splitlines() == [
        "00000000  3c 3d 3e 3f 40 41 42 43  44 45 46 47 48 49 4a 4b  <=>?@ABCDEFGHIJK",
        "00000010  4c 4d 4e 4f 00                                    LMNO.",
    ]
    assert shown.left_out_bytes == 0


def test_hex_is_cut_and_says_by_how_much() -> None:
    shown = as_hex(bytes(HEX_BYTES + 1))
    assert len(shown.text.splitlines()) == HEX_BYTES // 16
    assert shown.left_out_bytes == 1


def test_what_is_no_json_is_shown_as_text() -> None:
    assert rendered(b"{nonsense", "json").text == "{nonsense"
    assert rendered(b"{}", "hex").text.endswith("{}")
