"""What becomes of a message: the exceptions, the attempts and the policy."""

import pytest

from fila_cluster.app import Backoff, Defer, Fail, PayloadError, RetryAfter, Verdict, backoff
from fila_cluster.app.decisions import judge
from fila_cluster.errors import InvalidArgumentError
from fila_proto_zmq.commands import Verb


def test_any_other_exception_is_a_nack_with_its_text() -> None:
    assert judge(KeyError("total"), 3, None) == Verdict(Verb.NACK, "KeyError: 'total'")
    assert judge(ValueError(), 0, None).error == "ValueError"


@pytest.mark.parametrize("policy", [None, backoff(attempts=1)])
def test_a_handlers_own_answer_is_not_the_policys(policy: Backoff | None) -> None:
    assert judge(RetryAfter(2.5, "busy"), 9, policy) == Verdict(Verb.RETRY, "busy", 2.5)
    assert judge(Defer(30), 9, policy) == Verdict(Verb.DEFER, "", 30)
    assert judge(Fail("no such customer"), 0, policy) == Verdict(Verb.FAIL, "no such customer")
    assert judge(PayloadError("no JSON"), 0, policy) == Verdict(Verb.FAIL, "no JSON")


def test_a_policys_pauses_grow_up_to_the_most() -> None:
    policy = backoff(first=1, factor=3, most=20, attempts=None)
    assert [judge(OSError("x"), attempts, policy).after_s for attempts in range(5)] == [1, 3, 9, 20, 20]
    assert policy.pause_s(10_000_000) == 20
    assert backoff(first=0, most=5, attempts=None).pause_s(10_000_000) == 0


def test_the_last_attempt_of_a_policy_is_dead_lettered() -> None:
    policy = backoff(attempts=3)
    verbs = [judge(OSError("x"), attempts, policy).verb for attempts in range(4)]
    assert verbs == [Verb.RETRY, Verb.RETRY, Verb.FAIL, Verb.FAIL]


def test_an_exception_without_a_text_is_settled_too() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert judge(MuteError(), 0, None).error == "MuteError: (its text cannot be made)"


def test_a_long_text_is_cut_and_keeps_its_end() -> None:
    text = judge(ValueError("é" * 100_000 + "the end"), 0, None).error
    assert text.endswith("the end")
    assert len(text.encode()) < 100_000


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "5", None])
def test_durations_that_are_none_are_refused_where_they_are_raised(seconds: float) -> None:
    for kind in (RetryAfter, Defer):
        with pytest.raises(InvalidArgumentError, match="seconds"):
            kind(seconds)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"first": -1}, "first=-1"),
        ({"factor": 0.5}, "factor=0.5"),
        ({"factor": float("nan")}, "factor=nan"),
        ({"most": float("inf")}, "most=inf"),
        ({"attempts": 0}, "attempts=0"),
        ({"attempts": 2.5}, "attempts=2.5"),
    ],
)
def test_a_policy_is_checked_when_it_is_made(options: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        backoff(**options)  # type: ignore[arg-type]
