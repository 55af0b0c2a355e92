"""Which bindings take a message."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fila_cluster.celery.exchanges import Binding, destinations, unpacked

WORDS = st.lists(st.sampled_from(["a", "b", ""]), min_size=1, max_size=5).map(".".join)
PATTERNS = st.lists(st.sampled_from(["a", "b", "*", "#"]), min_size=1, max_size=5).map(".".join)


@pytest.mark.parametrize(
    ("kind", "key", "taken", "refused"),
    [
        ("direct", "tasks", ["tasks"], ["tasks.a", ""]),
        ("fanout", "", ["", "anything.else"], []),
        ("topic", "*.critical", ["disk.critical"], ["critical", "a.disk.critical", "disk.minor"]),
        ("topic", "task.#", ["task", "task.sent", "task.sent.now"], ["tasks.sent", "worker.task"]),
        ("topic", "#", ["", "a", "a.b"], []),
        ("topic", "#.error.#", ["error", "a.error", "a.b.error.c"], ["errors", "a.b"]),
        ("topic", "a+b.*", ["a+b.c"], ["aab.c"]),
    ],
)
def test_an_exchange(kind: str, key: str, taken: list[str], refused: list[str]) -> None:
    binding = Binding(kind, "q", key)
    assert [each for each in taken if not binding.takes(each)] == []
    assert [each for each in refused if binding.takes(each)] == []


@given(PATTERNS, WORDS)
def test_a_topic_is_what_its_pattern_says_word_by_word(pattern: str, routing_key: str) -> None:
    """Compared with a regular expression over the words, each of which ends with a dot."""
    pieces = {"*": r"[^.]*\.", "#": r"(?:[^.]*\.)*"}
    expression = "".join(pieces.get(word, re.escape(word) + r"\.") for word in pattern.split("."))
    assert Binding("topic", "q", pattern).takes(routing_key) == bool(re.fullmatch(expression, routing_key + "."))


def test_a_pattern_made_to_take_long_does_not() -> None:
    assert not Binding("topic", "q", ".".join("#a" * 60)).takes(".".join("b" * 125))
    assert not Binding("topic", "q", ".".join("#*" * 60 + "c")).takes(".".join("b" * 125))


def test_a_queue_that_is_bound_twice_gets_a_message_once() -> None:
    bindings = [Binding("topic", "one", "a.*"), Binding("topic", "two", "#"), Binding("topic", "one", "*.b")]
    assert destinations(each for each in bindings if each.takes("a.b")) == ["one", "two"]


def test_a_binding_survives_its_message() -> None:
    binding = Binding("topic", "events é", "task.#")
    assert unpacked(binding.packed()) == binding


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xff", b"[]", b"{}", b'{"kind":"headers","queue":"q","key":""}', b'{"kind":"topic","queue":1,"key":""}'],
)
def test_what_is_no_binding_is_left_out(payload: bytes) -> None:
    assert unpacked(payload) is None
