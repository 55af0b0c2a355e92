"""Which router holds the token bank.

Of several routers only one may grant tokens, else the limits would hold for each router alone. The worker that leads shard 0 lends the
bank to a router, for a time and again and again. A router that does not hold the bank grants nothing.

Each loan names the router's own time of the answer that it follows. So it ends by the router's own clock, no later than its lender counts,
however long a frame was under way. To another router the bank is lent with a new epoch, once all earlier loans have ended. That router
waits until what was granted before is void (a worker uses tokens for no longer than this after a pulse that their router has
answered), and begins with empty buckets. So ``burst + rate × t`` holds in every window. Left out: what a bucket owes, because a
message cost more than its burst, is forgotten with the bank.
"""

from typing import Final

from fila_admission.limits import TRUST_MS
from fila_proto_zmq.commands import BankLease
from fila_router.core.tokens.token_bank import TokenBank

ALONE: Final = 1
"""The epoch of the bank of an only router."""


class Holding:
    """Whether this router holds the bank, and until when."""

    def __init__(self, bank: TokenBank, *, several: bool, void_ms: int = TRUST_MS) -> None:
        """``several``: whether there are other routers. An only router holds the bank for ever.

        ``void_ms``: how long after the end of a loan tokens may be used that were granted before.
        """
        self._bank = bank
        self._several = several
        self._void_ms = void_ms
        self._epoch = 0
        """The latest epoch in which the bank was lent to this router."""
        self._begins_ms: int | None = None
        """When to begin with empty buckets; None: it has begun."""
        self._until_ms = 0
        """When the loan ends."""
        self._told_ms: int | None = None
        """The first time that a worker was told. A loan that names an earlier one is for an earlier process."""

    def told(self, now_ms: int) -> None:
        """Note that a worker is told the time. A loan names one of these times."""
        if self._told_ms is None:
            self._told_ms = now_ms

    def lend(self, lease: BankLease, now_ms: int) -> None:
        """Hold the bank for a time. A loan of an earlier epoch, or that names a time that was never told, changes nothing."""
        if self._told_ms is None or not self._told_ms <= lease.at_ms <= now_ms or lease.epoch < self._epoch:
            return
        until_ms = lease.at_ms + lease.for_ms
        if lease.epoch > self._epoch:
            self._epoch, self._begins_ms, self._until_ms = lease.epoch, now_ms + self._void_ms, until_ms
        else:
            self._until_ms = max(self._until_ms, until_ms)

    def epoch(self, now_ms: int) -> int:
        """Return the epoch of the bank that this router may grant from; 0: it may grant nothing."""
        if not self._several:
            return ALONE
        if now_ms >= self._until_ms or (self._begins_ms is not None and now_ms < self._begins_ms):
            return 0
        if self._begins_ms is not None:
            self._begins_ms = None
            self._bank.begin(now_ms)
        return self._epoch
