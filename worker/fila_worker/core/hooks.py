"""The port to the hook engine: the core's view of scripts, without Lua.

A queue's scripts run over a batch, because each call into another language costs more than a message. The decisions are
already checked and in the units of the wire: the core never gets an unchecked value of a script. A failure of a script is a
value, too, never an exception: a message whose hook failed is enqueued, or retried, by its options and the defaults.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from fila_proto_zmq.errors import LuaCompilationError
from fila_worker.core.measures import CountedHistogram


class EnqueueDecision(NamedTuple):
    """The choice of ``on_enqueue`` for a message. A field is None if left out or invalid: then the enqueue option counts."""

    fairness_key: str | None = None
    weight: int | None = None
    throttle_keys: list[str] | None = None
    """Distinct, in the script's order. Decisions are shared: copy the list before changing it."""
    priority: int | None = None
    cost_milli: int | None = None
    delay_ms: int | None = None


NO_CHANGE: Final = EnqueueDecision()

NO_TIME_MAX_NS: Final = 10**18
"""The time limit of callers without one."""


class FailedAttempt(NamedTuple):
    """A failed attempt, as ``on_failure`` gets it."""

    headers: bytes
    """A packed msgpack map, as in an envelope; may be empty."""
    id: str
    attempts: int
    error: str
    fairness_key: str


class FailureDecision(NamedTuple):
    """The choice of ``on_failure``: ``action == "dlq"``, or a retry with any other action. ``delay_ms``: of the retry."""

    dead_letter: bool = False
    delay_ms: int = 0


RETRY: Final = FailureDecision()


class HookFailed(NamedTuple):
    """A failed run of a script. The text has the error and its line, for people."""

    text: str


class Hooks(Protocol):
    """The compiled scripts of one queue.

    Both calls return decisions on the messages in order. They may stop after a failure. They always stop after the
    ``failures_max``-th failure in a row, and after the run that used up ``time_max_ns``. The list is then shorter than the
    batch, and :class:`~fila_worker.core.hooks.GuardedHooks` calls again for the rest, or bypasses the hooks.
    """

    has_on_enqueue: bool
    has_on_failure: bool
    failed: int
    """The number of failed runs since the scripts were compiled."""
    run_ns: CountedHistogram
    """The durations of runs. Each run counts with the mean of its batch."""
    took_ns: int
    """The duration of the last call. The core has no clock, and keeps its budget with this."""

    def on_enqueue(
        self, headers: Sequence[bytes], payload_sizes: Sequence[int], failures_max: int, time_max_ns: int = NO_TIME_MAX_NS
    ) -> list[EnqueueDecision | HookFailed]:
        """Run the script for each message, and return the decisions. ``headers``: packed as in an envelope, maybe empty."""
        ...

    def on_failure(
        self, failures: Sequence[FailedAttempt], failures_max: int, time_max_ns: int = NO_TIME_MAX_NS
    ) -> list[FailureDecision | HookFailed]:
        """Run the script for each failed attempt, and return the decisions."""
        ...

    def close(self) -> None:
        """Free the scripts' memory. No method may be called afterwards."""
        ...


class HookCompiler(Protocol):
    """A function that compiles a queue's scripts."""

    def __call__(
        self,
        queue: str,
        on_enqueue: str | None,
        on_failure: str | None,
        *,
        timeout_ms: int,
        memory_limit_bytes: int,
        get_config: Callable[[str], str | None],
    ) -> Hooks:
        """Return the compiled scripts. Raise :class:`~fila_proto_zmq.errors.LuaCompilationError`, which names the line.

        ``get_config`` is called by ``fila.get``, while hooks run and while scripts are compiled.
        """
        ...


def no_hooks(*_: object, **__: object) -> Hooks:
    """Refuse to compile hooks: for programs that read or copy a shard and do not serve it."""
    raise LuaCompilationError("hooks are compiled only by the worker that serves the shard")


# --- the circuit breaker ------------------------------------------------------------------------------------------------
#
# A queue's hooks have a breaker, so that scripts that always fail take no more time. After ``threshold`` failures in a row,
# over both hooks of the queue, its hooks are bypassed for ``cooldown_ms``. Then they run on trial: one more failure opens the
# breaker again at once, one success closes it. (This is the usual "half open" state. With the full threshold in a trial, a
# script that always fails would use up as many time limits in every cooldown.)
#
# A batch may open the breaker in its middle. GuardedHooks runs hooks piecewise, so that exactly the messages behind the
# failure that opened it go without hooks. In the usual case there is one call per batch.


class Breaker:
    """A counter of failures in a row. Invariant: ``failures_left >= 1`` whenever a run is allowed."""

    __slots__ = ("cooldown_ms", "failures", "open_until_ms", "threshold")

    def __init__(self, threshold: int, cooldown_ms: int) -> None:
        self.threshold = max(1, threshold)
        self.cooldown_ms = cooldown_ms
        self.failures = 0
        """The latest failures in a row. One less than ``threshold`` while on trial."""
        self.open_until_ms = 0
        """Until when hooks are bypassed. With 0, or a time that has passed, they are not bypassed."""

    @property
    def failures_left(self) -> int:
        """The number of further failures in a row that open it."""
        return self.threshold - self.failures

    def allows(self, now_ms: int) -> bool:
        """Return whether hooks may run."""
        return now_ms >= self.open_until_ms

    def succeeded(self) -> None:
        """Count a success of a hook."""
        self.failures = 0
        self.open_until_ms = 0

    def failed(self, now_ms: int) -> None:
        """Count a failure of a hook."""
        self.failures += 1
        if self.failures >= self.threshold:
            self.failures = self.threshold - 1
            self.open_until_ms = now_ms + self.cooldown_ms


class GuardedHooks:
    """A queue's hooks behind its breaker. A bypassed hook changes nothing.

    A call returns decisions on the first messages, as many as ``time_max_ns`` allow and at least one. The last run may exceed
    the time. The caller passes the other messages later.
    """

    __slots__ = ("_changed", "_failed", "breaker", "bypassed", "hooks", "last_failure", "took_ns")

    def __init__(self, hooks: Hooks, breaker: Breaker, changed: Callable[[bool], None] | None = None) -> None:
        """``changed`` is called when the breaker opens (True) and when a success closes it (False); not at a failed trial."""
        self._changed = changed
        self.hooks = hooks
        self.breaker = breaker
        self.bypassed = 0
        """The number of runs left out because the breaker was open."""
        self.last_failure = ""
        """The error of the last failed run; empty: none."""
        self._failed = hooks.failed
        self.took_ns = 0
        """The duration of the runs of the last call."""

    def on_enqueue(
        self, headers: Sequence[bytes], payload_sizes: Sequence[int], now_ms: int, time_max_ns: int = NO_TIME_MAX_NS
    ) -> list[EnqueueDecision | HookFailed]:
        """Return the script's decisions on the first messages, as many as it has time for. NO_CHANGE with an open breaker."""
        decisions: list[EnqueueDecision | HookFailed] = []
        self.took_ns = done = 0
        while done < len(headers) and self.breaker.allows(now_ms):
            if self.took_ns >= time_max_ns and done:
                return decisions
            left_ns = time_max_ns - self.took_ns
            decisions += self.hooks.on_enqueue(headers[done:], payload_sizes[done:], self.breaker.failures_left, left_ns)
            self.took_ns += self.hooks.took_ns
            self._note(decisions[done:], now_ms)
            done = len(decisions)
        self.bypassed += len(headers) - done
        return decisions + [NO_CHANGE] * (len(headers) - done)

    def on_failure(
        self, failures: Sequence[FailedAttempt], now_ms: int, time_max_ns: int = NO_TIME_MAX_NS
    ) -> list[FailureDecision | HookFailed]:
        """Return the script's decisions on the first failed attempts, likewise. RETRY with an open breaker."""
        decisions: list[FailureDecision | HookFailed] = []
        self.took_ns = done = 0
        while done < len(failures) and self.breaker.allows(now_ms):
            if self.took_ns >= time_max_ns and done:
                return decisions
            left_ns = time_max_ns - self.took_ns
            decisions += self.hooks.on_failure(failures[done:], self.breaker.failures_left, left_ns)
            self.took_ns += self.hooks.took_ns
            self._note(decisions[done:], now_ms)
            done = len(decisions)
        self.bypassed += len(failures) - done
        return decisions + [RETRY] * (len(failures) - done)

    def _note(self, outcomes: Sequence[object], now_ms: int) -> None:
        was_bad = self.breaker.open_until_ms != 0
        if self._failed == self.hooks.failed:
            self.breaker.succeeded()
        else:
            self._failed = self.hooks.failed
            self._note_each(outcomes, now_ms)
        is_bad = self.breaker.open_until_ms != 0
        if is_bad != was_bad and self._changed is not None:
            self._changed(is_bad)

    def _note_each(self, outcomes: Sequence[object], now_ms: int) -> None:
        for outcome in outcomes:
            if type(outcome) is HookFailed:
                self.last_failure = outcome.text
                self.breaker.failed(now_ms)
            else:
                self.breaker.succeeded()
