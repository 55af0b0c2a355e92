"""Rates that consumers' deferrals lower: between ``rate_min`` and ``rate`` of a throttle key, additive up, by half down.

A deferral says that the provider behind a throttle key refuses work. It halves the rate in force, at most once a second, and
each second without one adds a twentieth of the configured rate. A key at its whole rate is not kept here. A new bank begins
with whole rates: what it does not know it learns with the next deferrals.
"""

from heapq import heappop, heappush
from typing import Final

from fila_proto_zmq.runtime_config import Limit

STEP_MS: Final = 1000
"""How often a rate grows, and may be halved."""

STEPS: Final = 20
"""Steps from nothing to the whole rate."""


class _Learned:
    __slots__ = ("due_ms", "halved_ms", "rate_milli")

    def __init__(self, rate_milli: int, now_ms: int) -> None:
        self.rate_milli = rate_milli
        self.halved_ms = now_ms
        self.due_ms = now_ms + STEP_MS


class LearnedRates:
    """The keys whose rate is below the configured one. Invariant: each has an entry at its ``due_ms`` in the heap."""

    def __init__(self) -> None:
        self._rates: dict[str, _Learned] = {}
        self._heap: list[tuple[int, str]] = []

    def deferred(self, key: str, limit: Limit, least_milli: int, now_ms: int) -> None:
        """Halve the rate of a key, unless it was halved within a second. ``least_milli``: it does not get lower."""
        learned = self._rates.get(key)
        if learned is None:
            learned = self._rates[key] = _Learned(max(limit.rate_milli // 2, least_milli), now_ms)
        else:
            learned.due_ms = now_ms + STEP_MS
            if now_ms - learned.halved_ms >= STEP_MS:
                learned.rate_milli, learned.halved_ms = max(learned.rate_milli // 2, least_milli), now_ms
        heappush(self._heap, (learned.due_ms, key))

    def __contains__(self, key: str) -> bool:
        return key in self._rates

    def in_force(self, key: str, limit: Limit, least_milli: int) -> Limit:
        """Return the limit of a key that is kept here, with the rate in force."""
        return limit._replace(rate_milli=min(max(self._rates[key].rate_milli, least_milli), limit.rate_milli))

    def next_due(self) -> int | None:
        """Return when a rate may grow; None: all are whole."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> str | None:
        """Return a key whose rate is to grow now; None: none is."""
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, key = heappop(self._heap)
            learned = self._rates.get(key)
            if learned is not None and learned.due_ms == due_ms:
                return key
        return None

    def grow(self, key: str, limit: Limit | None) -> None:
        """Let the rate of a key grow by a step. ``limit`` None: it is not learned any more."""
        learned = self._rates[key]
        learned.due_ms += STEP_MS
        if limit is not None:
            learned.rate_milli += -(-limit.rate_milli // STEPS)
        if limit is None or learned.rate_milli >= limit.rate_milli:
            del self._rates[key]
        else:
            heappush(self._heap, (learned.due_ms, key))
