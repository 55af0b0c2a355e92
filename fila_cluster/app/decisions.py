"""The outcome of a message when its handler has ended, by the exception, the attempts and the policy alone."""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from fila_cluster.client import checks
from fila_proto_zmq.commands import Verb
from fila_proto_zmq.limits import DELAY_MS_MAX

DEAD_LETTER_PAUSE_S: Final = 300.0
"""How long a message stays in a ``.dlq`` whose handler has failed, before the handler gets it again."""


class RetryAfter(Exception):  # noqa: N818  # it is an answer, not an error
    """Raise it for another delivery in ``seconds``; an attempt is counted. Overrides ``retry``; ``max_attempts`` holds."""

    def __init__(self, seconds: float, reason: str = "") -> None:
        checks.milliseconds("seconds", seconds, DELAY_MS_MAX)
        super().__init__(reason or f"retry after {seconds:g} s")
        self.seconds = seconds
        self.reason = checks.error_text(reason)


class Fail(Exception):  # noqa: N818
    """Raise it to dead-letter the message now, with this reason as its error."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = checks.error_text(reason)


class Defer(Exception):  # noqa: N818
    """Raise it to give the message back: no attempt is counted, and it is delivered again in ``seconds``. Until then its
    throttle keys deliver nothing, in the whole cluster: for a provider's "429 Too Many Requests"."""

    def __init__(self, seconds: float) -> None:
        checks.positive_milliseconds("seconds", seconds, DELAY_MS_MAX)
        super().__init__(f"defer for {seconds:g} s")
        self.seconds = seconds


class Verdict(NamedTuple):
    """How a delivery is to be settled. ``error``: the text of the failed attempt; ``after_s``: of a retry or a deferral."""

    verb: Verb
    error: str = ""
    after_s: float = 0.0


ACK = Verdict(Verb.ACK)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Retry after ``first`` s, then ``factor`` times as long, at most ``most``; ``attempts`` None: only the queue's limit."""

    first: float = 1.0
    factor: float = 2.0
    most: float = 300.0
    attempts: int | None = 10

    def __post_init__(self) -> None:
        checks.milliseconds("first", self.first, DELAY_MS_MAX)
        checks.milliseconds("most", self.most, DELAY_MS_MAX)
        if not (isinstance(self.factor, (int, float)) and math.isfinite(self.factor) and self.factor >= 1):
            raise ValueError(f"factor={self.factor!r}: pass a number of at least 1; 1 keeps the pauses equal")
        if self.attempts is not None and not (isinstance(self.attempts, int) and self.attempts >= 1):
            raise ValueError(f"attempts={self.attempts!r}: pass the number of deliveries, at least 1, or None for no limit")

    def pause_s(self, attempts: int) -> float:
        """Return the pause after a failure that ``attempts`` others came before."""
        try:
            return min(self.most, self.first * float(self.factor) ** attempts)
        except OverflowError:  # of the power
            return self.most if self.first else 0.0

    def verdict(self, attempts: int, error: str) -> Verdict:
        """Return the outcome of a message that failed now and ``attempts`` times before."""
        if self.attempts is not None and attempts + 1 >= self.attempts:
            return Verdict(Verb.FAIL, error)
        return Verdict(Verb.RETRY, error, self.pause_s(attempts))


def backoff(first: float = 1.0, factor: float = 2.0, most: float = 300.0, attempts: int | None = 10) -> Backoff:
    """Return a retry policy: pauses of ``first`` s, then ``factor`` times as long, at most ``most``. The delivery number
    ``attempts`` is the last: then the message is dead-lettered. None: no limit."""
    return Backoff(first, factor, most, attempts)


def judge(error: BaseException, attempts: int, policy: Backoff | None) -> Verdict:
    """Return the outcome of a message whose handler raised ``error``; ``attempts`` failed before this one. Without a policy
    an error is a nack: the queue's ``on_failure`` hook and ``max_attempts`` decide."""
    if isinstance(error, RetryAfter):
        return Verdict(Verb.RETRY, error.reason, error.seconds)
    if isinstance(error, Defer):
        return Verdict(Verb.DEFER, after_s=error.seconds)
    if isinstance(error, Fail):
        return Verdict(Verb.FAIL, error.reason)
    text = text_of(error)
    return Verdict(Verb.NACK, text) if policy is None else policy.verdict(attempts, text)


def in_dead_letter_queue(verdict: Verdict) -> Verdict:
    """Return the outcome of a dead letter. It stays where it is: given back, it would come again at once, for ever."""
    if verdict.verb in (Verb.NACK, Verb.FAIL):
        return Verdict(Verb.RETRY, verdict.error, DEAD_LETTER_PAUSE_S)
    return verdict


def text_of(error: BaseException) -> str:
    """Return the error text of an attempt."""
    try:
        said = str(error)
    except Exception:  # an exception whose __str__ fails must be settled, too
        said = "(its text cannot be made)"
    name = type(error).__name__
    return checks.error_text(f"{name}: {said}" if said else name)
