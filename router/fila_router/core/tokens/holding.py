"""The router that holds the token bank.

Of several routers only one may grant tokens, else the limits would hold for each router alone. The worker that leads shard 0
lends the bank to a router, for a time, and lends it again before that time ends. A router that does not hold the bank grants
nothing.

Each loan names the router's own time of an answer to a pulse, which it follows. So it ends by the router's own clock, no
later than its lender counts, however long a frame was under way. To another router the bank is lent with a new epoch, once
all earlier loans have ended. That router waits until all earlier grants are void (a worker uses tokens for no longer than
this after a pulse that their router has answered), and begins with empty buckets. So ``burst + rate × t`` holds in every
window. Left out: the debt of a bucket, from a message that cost more than its burst, is forgotten with the bank.
"""

from typing import Final

from fila_admission.in_flight import TRUST_MS
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
        self._answered_ms: int | None = None
        """The first time in an answer to a pulse. A loan that names an earlier one is for an earlier process."""

    def pulse_answered(self, now_ms: int) -> None:
        """Note that the answer to a pulse names the time. A loan names one of these times."""
        if self._answered_ms is None:
            self._answered_ms = now_ms

    def lend(self, lease: BankLease, now_ms: int) -> None:
        """Hold the bank for a time. A loan of an earlier epoch, or with a time that no answer named, changes nothing."""
        if self._answered_ms is None or not self._answered_ms <= lease.at_ms <= now_ms or lease.epoch < self._epoch:
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
