"""The port to the hook engine: what the core sees of scripts. No Lua here.

A queue's scripts are run over a batch, because each crossing into another language costs more than a message. What comes
out is checked already, in the units of the wire: the core never sees a value that a script made up. A script's failure is
a value too, never an exception: a message whose hook failed is enqueued, or retried, by its options and the defaults.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from fila_worker.core.measures import Histogram


class EnqueueDecision(NamedTuple):
    """What ``on_enqueue`` chose for a message. None: left out, or invalid; the enqueue options hold."""

    fairness_key: str | None = None
    weight: int | None = None
    throttle_keys: list[str] | None = None
    """Distinct, in the script's order. Decisions are shared: copy the list before changing it."""
    priority: int | None = None
    cost_milli: int | None = None
    delay_ms: int | None = None


NO_CHANGE: Final = EnqueueDecision()

NO_TIME_MAX_NS: Final = 10**18
"""For those who have all the time it takes."""


class Failure(NamedTuple):
    """A failed attempt, as ``on_failure`` sees it."""

    headers: bytes
    """A packed msgpack map, as in an envelope; may be empty."""
    id: str
    attempts: int
    error: str
    fairness_key: str


class FailureDecision(NamedTuple):
    """What ``on_failure`` chose: ``action == "dlq"``, or a retry, which any other action is. ``delay_ms`` is the retry's."""

    dead_letter: bool = False
    delay_ms: int = 0


RETRY: Final = FailureDecision()


class HookFailed(NamedTuple):
    """One run of a script that failed: why, and on which line, for people."""

    text: str


class Hooks(Protocol):
    """The compiled scripts of one queue.

    Both calls answer for the messages in order. They may stop behind a failure, and do so behind the ``failures_max``-th in
    a row, and behind the run with which ``time_max_ns`` are over: the list is then shorter than the batch.
    :class:`~fila_worker.core.breaker.GuardedHooks` asks for the rest, or bypasses the hooks.
    """

    has_on_enqueue: bool
    has_on_failure: bool
    failed: int
    """Runs that failed, since the scripts were compiled."""
    run_ns: Histogram
    """How long runs took, each counted with the mean of its batch."""
    took_ns: int
    """How long the last call took: the core has no clock, and holds a budget by it."""

    def on_enqueue(
        self, headers: Sequence[bytes], payload_sizes: Sequence[int], failures_max: int, time_max_ns: int = NO_TIME_MAX_NS
    ) -> list[EnqueueDecision | HookFailed]:
        """Run the script for each message; ``headers`` packed as in an envelope (a msgpack map of strings, or empty)."""
        ...

    def on_failure(
        self, failures: Sequence[Failure], failures_max: int, time_max_ns: int = NO_TIME_MAX_NS
    ) -> list[FailureDecision | HookFailed]:
        """Run the script for each failed attempt."""
        ...

    def close(self) -> None:
        """Free the scripts' memory. Nothing may be called afterwards."""
        ...


class HookCompiler(Protocol):
    """Makes hooks of a queue's scripts."""

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
        """Compile them. :class:`~fila_proto_zmq.errors.LuaCompilationError` says which line is wrong.

        ``get_config`` is what ``fila.get`` asks, while hooks run and while scripts are compiled.
        """
        ...
