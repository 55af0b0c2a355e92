"""The option ``queue``: names and patterns."""

import pytest

from fila_cluster.errors import InvalidArgumentError
from fila_cluster.spark.pushdown import Selection

NAMES = ["orders", "orders-eu", "orders.dlq", "orders-eu.dlq", "mail", "shop/orders"]


def meant(text: str) -> list[str]:
    selection = Selection.of(text)
    assert all(name.startswith(selection.prefix) for name in NAMES if name in selection)
    return [name for name in NAMES if name in selection]


def drained(text: str) -> list[str]:
    selection = Selection.of(text)
    return [name for name in NAMES if selection.is_drained(name)]


@pytest.mark.parametrize(
    ("text", "names", "taken"),
    [
        ("orders", ["orders"], ["orders"]),
        (" mail , orders ", ["orders", "mail"], ["orders", "mail"]),
        ("orders.dlq", ["orders.dlq"], ["orders.dlq"]),
        ("orders*", ["orders", "orders-eu", "orders.dlq", "orders-eu.dlq"], ["orders", "orders-eu"]),
        ("orders-??", ["orders-eu"], ["orders-eu"]),
        ("*.dlq", ["orders.dlq", "orders-eu.dlq"], ["orders.dlq", "orders-eu.dlq"]),
        ("mail,orders*.dlq", ["orders.dlq", "orders-eu.dlq", "mail"], ["orders.dlq", "orders-eu.dlq", "mail"]),
        ("shop/*", ["shop/orders"], ["shop/orders"]),
        ("*", NAMES, ["orders", "orders-eu", "mail", "shop/orders"]),
        ("none*", [], []),
    ],
)
def test_what_is_meant_and_what_is_taken_out(text: str, names: list[str], taken: list[str]) -> None:
    assert meant(text) == names
    assert drained(text) == taken


@pytest.mark.parametrize("text", [None, "", " , "])
def test_a_queue_must_be_named(text: str | None) -> None:
    with pytest.raises(InvalidArgumentError, match="option queue: name the queue to read"):
        Selection.of(text)


def test_names_are_checked() -> None:
    with pytest.raises(InvalidArgumentError, match="queue name"):
        Selection.of("what is this")


@pytest.mark.parametrize(("text", "prefix"), [("a*,ab", "a"), ("x,y", ""), ("orders", "orders"), ("or?ers,orders", "or")])
def test_the_common_beginning(text: str, prefix: str) -> None:
    assert Selection.of(text).prefix == prefix
