"""Payloads as annotations want them, and what is said of those that do not fit."""

from dataclasses import dataclass
from inspect import Parameter
from typing import Annotated, Any

import msgspec
import pydantic
import pytest

from fila_cluster.app import PayloadError
from fila_cluster.app.payloads import reader_of


class Order(msgspec.Struct):
    id: int
    customer: str


class Model(pydantic.BaseModel):
    id: int
    customer: str


@dataclass
class Plain:
    id: int


ORDER = b'{"id": 7, "customer": "acme"}'


@pytest.mark.parametrize(
    ("annotation", "payload", "value"),
    [
        (Parameter.empty, b"\xff", b"\xff"),
        (bytes, b"", b""),
        (str, "né".encode(), "né"),
        (dict, ORDER, {"id": 7, "customer": "acme"}),
        (dict[str, Any], ORDER, {"id": 7, "customer": "acme"}),
        (Any, b"[1]", [1]),
        (list[int], b"[1, 2]", [1, 2]),
        (Order, ORDER, Order(7, "acme")),
        (Order | None, b"null", None),
        (Plain, b'{"id": 1}', Plain(1)),
        (Model, ORDER, Model(id=7, customer="acme")),
        (Annotated[bytes, "raw"], b"\xff", b"\xff"),
        (Annotated[str, "mail"], b"7", "7"),
        (Annotated[str, msgspec.Meta(max_length=2)], b"ab", "ab"),
        (Annotated[Model, "checked"], ORDER, Model(id=7, customer="acme")),
        (list[Model], b"[" + ORDER + b"]", [Model(id=7, customer="acme")]),
    ],
)
def test_a_payload_that_fits(annotation: Any, payload: bytes, value: Any) -> None:
    assert reader_of(annotation)(payload) == value


@pytest.mark.parametrize(
    ("annotation", "payload", "said"),
    [
        (str, b"ok \xff", "not UTF-8: byte 3 of 4"),
        (Annotated[str, msgspec.Meta(max_length=2)], b"abc", "Expected `str` of length <= 2"),
        (dict, b"", "no dict: "),
        (dict, b"[]", "no dict: Expected `object`, got `array`"),
        (Order, b'{"id": "secret", "customer": "acme"}', r"no Order: Expected `int`, got `str` - at `\$.id`"),
        (Order, b'{"id": 7}', "missing required field `customer`"),
        (Model, b'{"id": "secret", "customer": "acme"}', r"no Model: .*integer.* - at `\$.id`"),
        (Model, b"secret", "no Model: Invalid JSON"),
        (list[Model], b'[{"id": "secret", "customer": "acme"}]', r"integer.* - at `\$.id`"),
        (dict, b"[" * 100_000, "no dict: "),
        (str, b"\xed\xa0\x80", "not UTF-8"),
    ],
)
def test_a_payload_that_does_not_fit_is_told_without_its_content(annotation: Any, payload: bytes, said: str) -> None:
    with pytest.raises(PayloadError, match=said) as caught:
        reader_of(annotation)(payload)
    assert "secret" not in caught.value.reason


def test_what_nothing_can_read_is_refused_at_once() -> None:
    class Odd: ...

    with pytest.raises(TypeError, match="Odd cannot be read from JSON: use bytes"):
        reader_of(Odd)
    with pytest.raises(TypeError, match="cannot be read from JSON"):
        reader_of(Order | Plain | Odd)
