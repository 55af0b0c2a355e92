"""Dead letters by what went wrong with them, and what errors have in common."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from fila_cluster.ops.dashboard.dead_letters.groups import (
    NO_ERROR,
    PATTERN_CHARS_MAX,
    DeadLetter,
    grouped,
    kind_shares,
    most_frequent,
    pattern,
)

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def letter(number: int, error: str, reason: str = "failed", key: str = "a") -> DeadLetter:
    at = START + timedelta(seconds=number)
    return DeadLetter(f"id-{number}", None, key, "pending", 1, reason, error, "orders", at, pattern(error))


LETTERS = [
    letter(3, "timeout after 3 s"),
    letter(1, "timeout after 1 s", "max_attempts", key="b"),
    letter(2, "timeout after 2 s", key="b"),
    letter(4, "HTTP 500"),
]


def test_letters_whose_errors_differ_in_numbers_are_one_group() -> None:
    timeouts, http = grouped(LETTERS).values()
    assert timeouts.kind == "timeout after <n> s"
    assert timeouts.ids == ["id-3", "id-1", "id-2"]
    assert (timeouts.first_at, timeouts.last_at) == (START + timedelta(seconds=1), START + timedelta(seconds=3))
    assert timeouts.example == "timeout after 3 s"
    assert timeouts.reasons() == {"failed": 2, "max_attempts": 1}
    assert timeouts.fairness_keys() == {"a": 1, "b": 2}
    assert http.ids == ["id-4"]


def test_groups_may_be_of_one_reason_only() -> None:
    assert {kind: group.ids for kind, group in grouped(LETTERS, "max_attempts").items()} == {"timeout after <n> s": ["id-1"]}


def test_shares_of_the_most_frequent_errors() -> None:
    assert kind_shares(LETTERS) == "75 % timeout after <n> s · 25 % HTTP 500"
    assert kind_shares([]) == ""


def test_numbers_are_shown_with_how_many_are_left_out() -> None:
    assert most_frequent(Counter(a=3)) == "a"
    assert most_frequent(Counter(a=3, b=2)) == "a (3), b (2)"
    assert most_frequent(Counter(a=3000, b=2, c=1, d=1, e=1), 2) == "a (3,000), b (2), 3 more"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("timeout after 30 s", "timeout after <n> s"),
        ("order 12,345.67 of user_42 at 10:15", "order <n> of user_<n> at <n>"),
        ("no row 0190a7c2-1111-7abc-8def-0123456789ab", "no row <id>"),
        ("at 2026-11-20T20:44:33.123Z: late", "at <time>: late"),
        ("due 2026-11-20", "due <time>"),
        ("connect to 10.0.3.17:5432 refused", "connect to <address> refused"),
        ("pointer 0xDEADBEEF", "pointer <hex>"),
        ("commit 4bf92f3577b34da6 failed", "commit <hex> failed"),
        ("key 'a b' and \"c\" and `d`", "key <text> and <text> and <text>"),
        ("can't find user's cart", "can't find user's cart"),
        ("defaced facade", "defaced facade"),
        ("HTTP 500 from host 7", "HTTP 500 from host <n>"),
        ("HTTP/1.1 404 for id 9", "HTTP/1.1 404 for id <n>"),
        ("status code: 429, retry in 17", "status code: 429, retry in <n>"),
        ("[Errno 111] refused by 8", "[Errno 111] refused by <n>"),
        ("550 mailbox 'x@y' unavailable", "550 mailbox <text> unavailable"),
        ("12 items failed", "<n> items failed"),
        ("two\n  lines\t3", "two lines <n>"),
        ("", NO_ERROR),
        ("  \n", NO_ERROR),
        ("<img src=x onerror=alert(1)>", "<img src=x onerror=alert(<n>)>"),
    ],
)
def test_what_differs_becomes_a_placeholder(error: str, kind: str) -> None:
    assert pattern(error) == kind


def test_a_stack_trace_is_known_by_its_beginning() -> None:
    head = "Traceback: " + "frame " * 200
    assert pattern(head + "one end") == pattern(head + "another end")
    assert len(pattern(head)) <= PATTERN_CHARS_MAX


def test_half_a_number_at_the_end_makes_no_kind_of_its_own() -> None:
    head = "x" * (PATTERN_CHARS_MAX - 10)
    assert pattern(f"{head} 0x12345678901234") == pattern(f"{head} 9876543210 again") == head
