"""Queue names, and which shard they live on."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import QUEUE_NAME_BYTES_MAX
from fila_proto_zmq.names import (
    batch_id,
    check_new_queue_name,
    check_pattern,
    check_queue_name,
    dead_letter_name,
    is_dead_letter,
    parse_batch_id,
    root_name,
    shard_of,
)

LONGEST = "q" * QUEUE_NAME_BYTES_MAX
MANY = [f"queue-{number}" for number in range(2_000)]


@pytest.mark.parametrize(
    "name",
    ["a", "orders", "Orders_2.eu-west", "acme/invoices", ".", "-", "0", LONGEST, "n" * 100 + "/" + "q" * 99, "a.dlq.b"],
)
def test_good_names(name: str) -> None:
    assert check_new_queue_name(name) == name
    assert check_queue_name(dead_letter_name(name)) == name + ".dlq"


@pytest.mark.parametrize(
    "name",
    [
        "",
        LONGEST + "q",
        "n" * 100 + "/" + "q" * 100,
        "a b",
        "a\n",
        "a\0",
        "/a",
        "a/",
        "a//b",
        "a/b/c",
        "größe",
        "a:b",
        "a*",
        ".dlq",
        "٣",
    ],
)
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError):
        check_queue_name(name)


@pytest.mark.parametrize("name", [None, 7, b"orders", ["orders"]])
def test_a_name_that_is_no_text_is_refused_by_its_type(name: object) -> None:
    with pytest.raises(InvalidArgumentError, match=type(name).__name__):
        check_queue_name(name)  # type: ignore[arg-type]


def test_names_of_the_broker_cannot_be_given() -> None:
    with pytest.raises(InvalidArgumentError, match="made by the broker"):
        check_new_queue_name("orders.dlq")


def test_refusals_say_what_is_wrong_with_which_value() -> None:
    with pytest.raises(InvalidArgumentError, match="201 characters"):
        check_queue_name(LONGEST + "q")
    with pytest.raises(InvalidArgumentError, match=r"'a b'.*namespace/queue"):
        check_queue_name("a b")


def test_dead_letter_names() -> None:
    assert dead_letter_name("acme/orders") == "acme/orders.dlq"
    assert is_dead_letter("orders.dlq")
    assert not is_dead_letter("orders")
    assert (root_name("orders.dlq"), root_name("orders")) == ("orders", "orders")


# --- placement --------------------------------------------------------------------------------------------------------

GOLDEN_SHARDS = {
    "orders": [0, 0, 2, 2, 5, 8, 8, 1749],
    "a": [0, 1, 2, 2, 5, 14, 33, 2565],
    "acme/invoices": [0, 1, 1, 3, 3, 11, 24, 478],
    "x" * 200: [0, 0, 2, 2, 7, 7, 25, 186],
}
"""By number of shards: 1, 2, 3, 4, 8, 16, 64, 4096."""


@pytest.mark.parametrize("name", GOLDEN_SHARDS)
def test_golden_placement(name: str) -> None:
    assert [shard_of(name, shards) for shards in (1, 2, 3, 4, 8, 16, 64, 4096)] == GOLDEN_SHARDS[name]


@given(st.text("abcdefghijklmnopqrstuvwxyz./-", min_size=1, max_size=30), st.integers(1, 64))
def test_a_queue_and_its_dead_letters_share_a_shard(name: str, shards: int) -> None:
    assert 0 <= shard_of(name, shards) < shards
    assert shard_of(dead_letter_name(root_name(name)), shards) == shard_of(root_name(name), shards)


def test_queues_are_spread_evenly() -> None:
    counts = Counter(shard_of(name, 8) for name in MANY)
    assert all(200 <= counts[shard] <= 300 for shard in range(8)), counts


def test_a_new_shard_takes_its_part_and_moves_nothing_else() -> None:
    moved = [name for name in MANY if shard_of(name, 8) != shard_of(name, 9)]
    assert all(shard_of(name, 9) == 8 for name in moved)
    assert len(MANY) / 9 * 0.8 < len(moved) < len(MANY) / 9 * 1.2


@pytest.mark.parametrize(
    "pattern", ["a", "a*", "*", "ns/a*", "ns/*", "a.b-c_*", "a" * 200, "a" * 200 + "*", "dlq*", "x.dlq*"]
)
def test_good_patterns(pattern: str) -> None:
    assert check_pattern(pattern) == pattern


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "**",
        "*a",
        "a*b",
        "a b*",
        "/a*",
        "a//b*",
        "a/b/c*",
        "x.dlq",
        "a" * 201,
        "a" * 201 + "*",
        "a" * 10_000 + "*",
        "é*",
        3,
        None,
    ],
)
def test_bad_patterns_are_refused(pattern: object) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        check_pattern(pattern)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 400


def test_an_empty_pattern_is_called_a_pattern() -> None:
    with pytest.raises(InvalidArgumentError, match="bad pattern ''"):
        check_pattern("")


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queue", ["done", "billing/done", "a.b-c_d"])
def test_the_id_of_a_batch_names_its_callbacks_queue(queue: str) -> None:
    token = bytes(range(16))
    assert batch_id(queue, token) == f"{queue}#000102030405060708090a0b0c0d0e0f"
    assert parse_batch_id(batch_id(queue, token)) == (queue, token)


@pytest.mark.parametrize("text", ["", "done", "done#", "done#12", f"done#{'AB' * 16}", f"done#{'é' * 32}", f"#{'ab' * 16}"])
def test_what_is_no_id_of_a_batch_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_batch_id(text)
