"""The circuit breaker, alone and around hooks, on a virtual clock."""

from collections.abc import Sequence

import pytest

from fila_worker.core.hooks import (
    NO_CHANGE,
    RETRY,
    Breaker,
    EnqueueDecision,
    FailedAttempt,
    FailureDecision,
    GuardedHooks,
    HookFailed,
)
from tests.unit.worker.lua.scripts import compiled, hook, pack

COOLDOWN_MS = 10_000
GOOD, BAD = EnqueueDecision(weight=1), HookFailed("no")


def breaker_with(failures: int, now_ms: int = 0) -> Breaker:
    breaker = Breaker(3, COOLDOWN_MS)
    for _ in range(failures):
        breaker.failed(now_ms)
    return breaker


@pytest.mark.parametrize(("failures", "open_"), [(0, False), (2, False), (3, True), (4, True)])
def test_it_opens_at_the_threshold(failures: int, open_: bool):
    assert breaker_with(failures).allows(0) is not open_


def test_only_failures_in_a_row_count():
    breaker = breaker_with(2)
    breaker.succeeded()
    breaker.failed(0)
    breaker.failed(0)
    assert breaker.allows(0)
    assert breaker.failures_left == 1


def test_it_closes_after_its_cooldown():
    breaker = breaker_with(3, now_ms=5)
    assert breaker.open_until_ms == 5 + COOLDOWN_MS
    assert not breaker.allows(4 + COOLDOWN_MS)
    assert breaker.allows(5 + COOLDOWN_MS)


def test_on_trial_one_failure_opens_it_again():
    breaker = breaker_with(3)
    assert breaker.failures_left == 1
    breaker.failed(COOLDOWN_MS)
    assert not breaker.allows(COOLDOWN_MS)
    assert breaker.open_until_ms == 2 * COOLDOWN_MS


def test_on_trial_one_success_closes_it():
    breaker = breaker_with(3)
    breaker.succeeded()
    assert breaker.failures_left == 3
    assert breaker.allows(0)


class Told:
    """Hooks whose decision is a header of each message: ``good`` or not."""

    has_on_enqueue = has_on_failure = True

    def __init__(self) -> None:
        self.failed = self.took_ns = 0
        self.asked = 0

    def on_enqueue(
        self, headers: Sequence[bytes], payload_sizes: Sequence[int], failures_max: int, time_max_ns: int = 0
    ) -> list[EnqueueDecision | HookFailed]:
        outcomes: list[EnqueueDecision | HookFailed] = []
        streak = 0
        for each in headers:
            self.asked += 1
            streak = 0 if each == b"good" else streak + 1
            outcomes.append(BAD if streak else GOOD)
            if streak == failures_max:
                break
        self.failed += outcomes.count(BAD)
        return outcomes

    def on_failure(
        self, failures: Sequence[FailedAttempt], failures_max: int, time_max_ns: int = 0
    ) -> list[FailureDecision | HookFailed]:
        outcomes = self.on_enqueue([failure.headers for failure in failures], [], failures_max)
        return [FailureDecision(dead_letter=True) if outcome == GOOD else BAD for outcome in outcomes]

    def close(self) -> None:
        pass


def guarded() -> tuple[GuardedHooks, Told]:
    hooks = Told()
    return GuardedHooks(hooks, Breaker(3, COOLDOWN_MS)), hooks


def run(guard: GuardedHooks, story: str, now_ms: int) -> str:
    """Play a story of ``g``ood and ``b``ad messages; ``.`` is one that was bypassed."""
    headers = [b"good" if letter == "g" else b"bad" for letter in story]
    names = {GOOD: "g", BAD: "b", NO_CHANGE: "."}
    return "".join(names[outcome] for outcome in guard.on_enqueue(headers, [0] * len(headers), now_ms))


@pytest.mark.parametrize(
    ("story", "outcome"),
    [
        ("", ""),
        ("ggg", "ggg"),
        ("bbbgg", "bbb.."),
        ("bbgbbgbbb", "bbgbbgbbb"),
        ("gbbbbbb", "gbbb..."),
        ("bgbgbg", "bgbgbg"),
    ],
)
def test_it_opens_in_the_middle_of_a_batch(story: str, outcome: str):
    guard, hooks = guarded()
    assert run(guard, story, 0) == outcome
    assert hooks.asked == len(outcome.rstrip("."))


def test_failures_are_counted_over_batches():
    guard, hooks = guarded()
    assert run(guard, "b", 0) + run(guard, "b", 1) + run(guard, "bg", 2) == "bbb."
    assert run(guard, "gg", COOLDOWN_MS + 1) == ".."
    assert hooks.asked == 3, "nobody asked while it was open"
    assert run(guard, "ggbbg", COOLDOWN_MS + 2) == "ggbbg"


def test_after_the_cooldown_it_is_tried_with_one_message():
    guard, hooks = guarded()
    run(guard, "bbb", 0)
    asked = hooks.asked
    assert run(guard, "bbbbb", COOLDOWN_MS) == "b...."
    assert hooks.asked == asked + 1
    assert guard.breaker.open_until_ms == 2 * COOLDOWN_MS


def test_both_hooks_count():
    guard, _ = guarded()
    failures = [FailedAttempt(b"bad", "id", 1, "", "k")] * 2
    assert run(guard, "b", 0) == "b"
    assert guard.on_failure(failures, 0) == [BAD, BAD]
    assert run(guard, "g", 1) == "."
    assert guard.on_failure(failures, 1) == [RETRY, RETRY]
    assert guard.last_failure == "no"


def test_around_a_script():
    script = hook("if msg.headers.bad then while true do end end return { weight = 2 }")
    guard = GuardedHooks(compiled(script), Breaker(3, COOLDOWN_MS))
    messages = [pack({"bad": "1"}), pack({"a": "1"})]

    def weights(*kinds: int, now_ms: int) -> list[int | None]:
        outcomes = guard.on_enqueue([messages[kind] for kind in kinds], [0] * len(kinds), now_ms)
        return [None if isinstance(outcome, HookFailed) else outcome.weight for outcome in outcomes]

    assert weights(1, 0, 1, 0, 0, 0, 1, 1, now_ms=0) == [2, None, 2, None, None, None, None, None]
    assert "ran for more than 10 ms" in guard.last_failure
    assert weights(1, now_ms=COOLDOWN_MS - 1) == [None]
    assert weights(1, now_ms=COOLDOWN_MS) == [2]
