"""Hooks without Lua: a script is a few words, and what it decides follows from the message's headers.

The engine itself is tested elsewhere; here it only matters what its decisions do to the shard, in time that does not depend on the
machine. A script that begins with ``syntax`` does not compile.
"""

from collections.abc import Callable, Sequence

import msgspec

from fila_proto_zmq.errors import LuaCompilationError
from fila_worker.core.hooks import NO_CHANGE, EnqueueDecision, FailedAttempt, FailureDecision, HookFailed
from fila_worker.core.measures import SPAN_NS, CountedHistogram


class WordHooks:
    """``on_enqueue``: ``key`` (the fairness key is the header ``tenant``), ``throttle``, ``urgent``, ``late``, ``fails``.
    ``on_failure``: ``dead`` (at the second attempt), ``wait`` (retry after a second), ``fails``."""

    def __init__(self, on_enqueue: str | None, on_failure: str | None) -> None:
        self.has_on_enqueue = on_enqueue is not None
        self.has_on_failure = on_failure is not None
        self.failed = 0
        self.run_ns = CountedHistogram(SPAN_NS)
        self.took_ns = 0
        self._enqueue_words = (on_enqueue or "").split()
        self._failure_words = (on_failure or "").split()

    def on_enqueue(
        self, headers: Sequence[bytes], payload_sizes: Sequence[int], failures_max: int, time_max_ns: int = 0
    ) -> list[EnqueueDecision | HookFailed]:
        return [self._decide(msgspec.msgpack.decode(each) if each else {}) for each in headers]

    def _decide(self, headers: dict[str, str]) -> EnqueueDecision | HookFailed:
        words, decision = self._enqueue_words, NO_CHANGE
        if "fails" in words and "bad" in headers:
            self.failed += 1
            return HookFailed("on_enqueue:1: bad header")
        if "key" in words:
            decision = decision._replace(fairness_key=headers.get("tenant", "none"))
        if "throttle" in words:
            decision = decision._replace(throttle_keys=["t0"])
        if "urgent" in words and "urgent" in headers:
            decision = decision._replace(priority=-1)
        if "late" in words and "late" in headers:
            decision = decision._replace(delay_ms=500)
        return decision

    def on_failure(
        self, failures: Sequence[FailedAttempt], failures_max: int, time_max_ns: int = 0
    ) -> list[FailureDecision | HookFailed]:
        return [self._judge(failure) for failure in failures]

    def _judge(self, failure: FailedAttempt) -> FailureDecision | HookFailed:
        words = self._failure_words
        if "fails" in words and failure.attempts == 1:
            self.failed += 1
            return HookFailed("on_failure:1: first attempt")
        return FailureDecision("dead" in words and failure.attempts >= 2, 1000 if "wait" in words else 0)

    def close(self) -> None:
        """Nothing to free."""


def compile_hooks(
    queue: str,
    on_enqueue: str | None,
    on_failure: str | None,
    *,
    timeout_ms: int,
    memory_limit_bytes: int,
    get_config: Callable[[str], str | None],
) -> WordHooks:
    """Stands in for the compiler of Lua hooks."""
    for script in (on_enqueue, on_failure):
        if script is not None and script.startswith("syntax"):
            raise LuaCompilationError("on_enqueue:1: syntax error")
    return WordHooks(on_enqueue, on_failure)
