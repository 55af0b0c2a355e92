"""Learned rates on the whole broker in memory: consumers of a provider whose limit nobody knows, and which changes."""

from fila_cluster import Message
from fila_cluster.testing import broker

STEP_S = 0.02
PHASE_S, LEARNS_S = 20, 10
LIMITS = (40, 10, 30)


class Provider:
    """Bears ``limit`` calls a second, and half a second's calls at once."""

    def __init__(self) -> None:
        self.limit = 0
        self.accepted = self.refused = 0
        self._level = 0.0

    def call(self) -> int:
        if self._level + 1 > self.limit / 2:
            self.refused += 1
            return 429
        self._level += 1
        self.accepted += 1
        return 200

    def rest(self, seconds: float) -> None:
        self._level = max(0.0, self._level - self.limit * seconds)


def test_the_rate_follows_a_provider_whose_limit_changes() -> None:
    provider, used = Provider(), list[float]()
    with broker() as fila:
        fila.create_queue("calls")
        fila.set_throttle("provider", rate=60, burst=2, rate_min=2)
        fila.enqueue_many("calls", [Message(b"", throttle_keys=["provider"]) for _ in range(4000)])
        for provider.limit in LIMITS:
            for seconds in (LEARNS_S, PHASE_S - LEARNS_S):
                before = provider.accepted
                for _ in range(round(seconds / STEP_S)):
                    for delivery in fila.receive("calls", 100):
                        if provider.call() == 429:
                            delivery.defer(1)
                        else:
                            delivery.ack()
                    fila.clock.advance(STEP_S)
                    provider.rest(STEP_S)
            used.append((provider.accepted - before) / seconds / provider.limit)
    assert provider.refused <= 0.05 * (provider.accepted + provider.refused)
    assert all(0.6 <= share <= 1.01 for share in used), used
