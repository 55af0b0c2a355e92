"""Rates that deferrals lower: by half, at most once a second, and back by a twentieth of the whole each second."""

import pytest

from fila_proto_zmq.commands import Tokens, TokenWant
from fila_router.core.tokens.token_bank import TokenBank
from tests.unit.router.bank_desk import EPOCH, TOKEN, check


class Learning:
    """A bank with a key ``k`` of 20 tokens a second, whose rate deferrals lower to 2."""

    def __init__(self, **more: str) -> None:
        self.bank = TokenBank()
        self.now_ms = 1_000
        self.bank.adopt({}, self.now_ms)
        entries = {"rate": "20", "burst": "20", "rate_min": "2"} | more
        self.bank.follow({f"throttle:k:{limit}": value for limit, value in entries.items()}, self.now_ms)

    def defer(self) -> float:
        self.bank.defer(["k", "unknown"], self.now_ms)
        return self.rate

    def wait(self, milliseconds: int) -> float:
        """Let time pass, in the steps in which the bank wants to be served."""
        end_ms = self.now_ms + milliseconds
        while (wait_ms := self.bank.next_due(self.now_ms)) is not None and self.now_ms + wait_ms <= end_ms:
            self.now_ms += wait_ms
            self.bank.serve(self.now_ms)
            check(self.bank)
        self.now_ms = end_ms
        return self.rate

    @property
    def rate(self) -> float:
        return self.bank.buckets["k"].rate / 1000


@pytest.fixture
def learning() -> Learning:
    return Learning()


def test_each_deferral_halves_the_rate_once_a_second_down_to_the_least(learning: Learning) -> None:
    assert learning.defer() == learning.defer() == 10
    rates = []
    for _ in range(4):
        learning.now_ms += 1_000
        rates.append(learning.defer())
    assert rates == [5, 2.5, 2, 2]


def test_each_second_without_one_adds_a_twentieth_of_the_rate(learning: Learning) -> None:
    learning.defer()
    assert [learning.wait(999), learning.wait(1), learning.wait(1_000)] == [10, 11, 12]
    assert learning.wait(60_000) == 20
    assert learning.bank.next_due(learning.now_ms) is None, "a whole rate takes no work"


def test_a_second_with_a_deferral_adds_nothing(learning: Learning) -> None:
    learning.defer()
    learning.wait(900)
    learning.defer()
    assert learning.wait(900) == 10
    assert learning.wait(100) == 11


def test_without_a_least_rate_deferrals_change_nothing() -> None:
    learning = Learning()
    learning.bank.follow({"throttle:k:rate_min": None}, learning.now_ms)
    assert learning.defer() == 20
    assert learning.bank.next_due(learning.now_ms) is None


def test_changes_of_the_config_meet_a_lowered_rate(learning: Learning) -> None:
    learning.defer()
    learning.bank.follow({"throttle:k:burst": "30"}, learning.now_ms)
    assert learning.rate == 10
    learning.bank.follow({"throttle:k:rate": "4"}, learning.now_ms)
    assert learning.rate == 4, "never above the rate"
    learning.bank.follow({"throttle:k:rate": "20", "throttle:k:rate_min": None}, learning.now_ms)
    assert learning.wait(1_000) == 20
    learning.bank.follow({"throttle:k:rate_min": "15"}, learning.now_ms)
    assert learning.defer() == 15
    learning.bank.follow({"throttle:k:rate": None}, learning.now_ms)
    learning.now_ms += 5_000
    learning.bank.serve(learning.now_ms)
    assert "k" not in learning.bank.buckets


def test_a_raised_least_rate_holds_with_the_next_step(learning: Learning) -> None:
    learning.defer()
    learning.bank.follow({"throttle:k:rate_min": "18"}, learning.now_ms)
    assert learning.wait(1_000) == 18


def test_keys_under_a_pattern_learn_for_themselves() -> None:
    learning = Learning()
    learning.bank.follow({"throttle:t:*:rate": "8", "throttle:t:*:rate_min": "1"}, learning.now_ms)
    learning.bank.defer(["t:a"], learning.now_ms)
    learning.bank.make_buckets(["t:b"], learning.now_ms)
    assert [learning.bank.buckets[key].rate for key in ("t:a", "t:b")] == [4000, 8000]


def test_who_waits_is_told_of_the_lower_rate_and_gets_no_more(learning: Learning) -> None:
    bank = learning.bank
    bank.ask(Tokens(0, 1, [TokenWant(["k"], 20 * TOKEN, 20 * TOKEN, 0, 0)]), EPOCH, learning.now_ms)
    bank.serve(learning.now_ms)
    learning.defer()
    bank.ask(Tokens(0, 1, [TokenWant(["k"], 5 * TOKEN, 5 * TOKEN, 20 * TOKEN, 0)]), EPOCH, learning.now_ms)
    (grants,) = bank.serve(learning.now_ms)
    assert (grants.levels[0][2], grants.grants[0].wait_ms) == (10_000, 500)
    learning.wait(499)
    assert bank.buckets["k"].outstanding == 0
    learning.wait(1)
    assert bank.buckets["k"].outstanding == 5 * TOKEN
