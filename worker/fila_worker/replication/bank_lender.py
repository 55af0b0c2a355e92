"""The decision which router holds the token bank of a cluster of many routers, by the process that leads shard 0.

The pulses lend the bank for a moment again and again, so that at most one router holds it:

- *Two leaders.* A lease ends ``silence_ms`` less a margin after its lender's proof was appended, at the latest. A leader
  whose proof counts has appended it before a later leader's marker, and the later one has read it by then. So the later one
  waits for that span from the last record of another term that it has read before it leads. A leader that leaves ends its
  lending with its last record, which has the time for which it was alone. So its successor waits for the end of that leader's
  last lease only, if all others' have ended, too.
- *Two routers of one leader.* The next router gets the bank when the last lease has certainly ended by the lender's clock. A
  lease counts from an earlier moment on the router's clock, so it ends there sooner.

Each holder begins with empty buckets under an epoch of its own. All times are of a steady clock.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from fila_proto_zmq.commands import BankLease
from fila_worker.log.leadership import Proof

LEASE_MS: Final = 2000
"""The longest lease. A lost router keeps the bank for so long, and a live one can miss some pulses."""
MARGIN_MS: Final = 1000
"""How much earlier than any claim of another host all leases have ended: clocks may differ by a few percent."""
DRIFT_MS: Final = 200
"""How much longer a lender waits before another router gets the bank."""
HOLDERS_BITS: Final = 16
"""Epochs between two offsets of the log. A term has a new holder more seldom than a new record."""


class RouterView(NamedTuple):
    """A router, as its link sees it."""

    lives: bool
    at_ms: int
    """``at_ms`` of its last answer; 0: no answer yet."""
    bank: int
    """The epoch under which it held the bank then; 0: it did not hold it."""


class BankLender:
    """The leases of one process. ``silence_ms``: of a leader, before another host claims."""

    def __init__(self, silence_ms: int) -> None:
        self._span_ms = silence_ms - MARGIN_MS
        assert self._span_ms > 0, "a lease ends before another host may claim"
        self._term = -1
        self._holders = 0
        """How many epochs began in this term."""
        self._holder = 0
        self._taken = False
        """Whether the holder has reported that it holds the bank under this epoch."""
        self._ends_ms: int | None = None
        """When the last lease has certainly ended; None: no lease yet."""

    def lend(self, proof: Proof | None, routers: Sequence[RouterView], now_ms: int) -> tuple[int, BankLease] | None:
        """Return a router, by its place, and its lease; None: no router gets one. ``proof``: None without leadership."""
        if proof is None or proof.alone_ms < LEASE_MS + DRIFT_MS or proof.before_ms + proof.alone_ms < self._span_ms:
            return None
        for_ms = min(LEASE_MS, self._span_ms - proof.age_ms)
        ended = self._ends_ms is None or now_ms >= self._ends_ms
        holder = self._holder
        if ended and not routers[holder].lives:
            holder = next((place for place, router in enumerate(routers) if router.lives), holder)
        router = routers[holder]
        if for_ms <= 0 or not router.lives or not router.at_ms:
            return None
        if ended or proof.epoch != self._term or (self._taken and router.bank != self._epoch):
            self._begin(proof.epoch, holder)
        self._taken = self._taken or router.bank == self._epoch
        self._ends_ms = max(self._ends_ms or 0, now_ms + for_ms + DRIFT_MS)
        return holder, BankLease(self._epoch, router.at_ms, for_ms)

    @property
    def _epoch(self) -> int:
        return (self._term << HOLDERS_BITS) + self._holders

    def _begin(self, term: int, holder: int) -> None:
        """Begin a new epoch: of another router, or of one whose lease may have ended."""
        self._holders = self._holders + 1 if term == self._term else 1
        self._term, self._holder, self._taken = term, holder, False
