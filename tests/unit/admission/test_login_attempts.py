"""How many wrong keys an address may try."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from fila_admission.keys import LoginAttempts

HERE, THERE = "10.0.0.1", "10.0.0.2"


def taken(attempts: LoginAttempts, times: int, now_ms: int, address: str = HERE) -> int:
    """How many of so many attempts are answered."""
    return sum([attempts.take(address, now_ms) for _ in range(times)])


def test_an_address_has_so_many_attempts_at_once_and_one_more_in_each_interval() -> None:
    attempts = LoginAttempts(3, 100, 10)
    assert taken(attempts, 5, 1000) == 3
    assert taken(attempts, 5, 1099) == 0
    assert taken(attempts, 5, 1100) == 1
    assert taken(attempts, 5, 1350) == 2
    assert taken(attempts, 5, 10_000) == 3


def test_addresses_do_not_count_for_each_other() -> None:
    attempts = LoginAttempts(2, 100, 10)
    assert taken(attempts, 3, 0) == 2
    assert taken(attempts, 3, 0, THERE) == 2


def test_an_address_that_does_not_stop_is_answered_at_the_rate() -> None:
    attempts = LoginAttempts(20, 50, 10)
    assert sum(taken(attempts, 100, now_ms) for now_ms in range(10_001)) == 20 + 10_000 // 50


@given(st.integers(1, 5), st.integers(1, 50), st.lists(st.integers(0, 120), max_size=60))
def test_no_time_has_more_answers_than_the_bucket_and_its_refills(attempts_max: int, refill_ms: int, gaps: list[int]) -> None:
    attempts = LoginAttempts(attempts_max, refill_ms, 10)
    answered = [now_ms for now_ms in accumulate(gaps) if attempts.take(HERE, now_ms)]
    for first, from_ms in enumerate(answered):
        for number, to_ms in enumerate(answered[first:], 1):
            assert number <= attempts_max + (to_ms - from_ms) // refill_ms


def test_what_is_given_back_can_be_taken_again_and_leaves_nothing_behind() -> None:
    attempts = LoginAttempts(2, 100, 10)
    assert taken(attempts, 2, 0) == 2
    attempts.give_back(HERE, 0)
    assert taken(attempts, 2, 0) == 1
    for _ in range(3):
        attempts.give_back(HERE, 0)
    assert len(attempts) == 0
    assert taken(attempts, 5, 0) == 2, "no more than at first"


def test_nothing_is_given_back_to_an_address_that_was_forgotten() -> None:
    attempts = LoginAttempts(2, 100, 1)
    attempts.take(HERE, 0)
    attempts.take(THERE, 0)
    attempts.give_back(HERE, 0)
    assert taken(attempts, 5, 0, THERE) == 1
    assert taken(attempts, 5, 0) == 2


def test_of_too_many_addresses_the_one_that_was_silent_longest_is_forgotten() -> None:
    attempts = LoginAttempts(1, 1000, 3)
    for address in "abc":
        assert attempts.take(address, 0)
    assert not attempts.take("a", 1)  # a refused one is heard of, too
    assert attempts.take("d", 2)
    assert len(attempts) == 3
    assert [attempts.take(address, 3) for address in "acd"] == [False, False, False]
    assert attempts.take("b", 3)
