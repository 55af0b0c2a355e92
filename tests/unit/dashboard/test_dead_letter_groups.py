"""Dead letters by what went wrong with them."""

from collections import Counter
from datetime import UTC, datetime, timedelta

from fila_cluster.dashboard.dead_letters.groups import DeadLetter, grouped, most_frequent, pattern, shares

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
    assert shares(LETTERS) == "75 % timeout after <n> s · 25 % HTTP 500"
    assert shares([]) == ""


def test_numbers_are_told_with_how_many_are_left_out() -> None:
    assert most_frequent(Counter(a=3)) == "a"
    assert most_frequent(Counter(a=3, b=2)) == "a (3), b (2)"
    assert most_frequent(Counter(a=3000, b=2, c=1, d=1, e=1), 2) == "a (3,000), b (2), 3 more"
