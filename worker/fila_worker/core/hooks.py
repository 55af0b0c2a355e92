"""The port to the hook engine: the core's view of scripts, without Lua.

A queue's scripts run over a batch, because each call into another language costs more than a message. The decisions are
already checked and in the units of the wire: the core never gets an unchecked value of a script. A failure of a script is a
value too, never an exception: a message whose hook failed is enqueued, or retried, by its options and the defaults.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from fila_worker.core.measures import Histogram


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


class Failure(NamedTuple):
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
    batch, and :class:`~fila_worker.core.breaker.GuardedHooks` calls again for the rest, or bypasses the hooks.
    """

    has_on_enqueue: bool
    has_on_failure: bool
    failed: int
    """The number of failed runs since the scripts were compiled."""
    run_ns: Histogram
    """The durations of runs. Each run counts with the mean of its batch."""
    took_ns: int
    """The duration of the last call. The core has no clock, and keeps its budget with this."""

    def on_enqueue(
        self, headers: Sequence[bytes], payload_sizes: Sequence[int], failures_max: int, time_max_ns: int = NO_TIME_MAX_NS
    ) -> list[EnqueueDecision | HookFailed]:
        """Run the script for each message, and return the decisions.

        ``headers`` are packed as in an envelope (a msgpack map of strings, or empty).
        """
        ...

    def on_failure(
        self, failures: Sequence[Failure], failures_max: int, time_max_ns: int = NO_TIME_MAX_NS
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
