"""The token bank's frames, and the router that holds it: shards ask for tokens, and the bank (:mod:`token_bank`) grants them.

Of several routers only one may grant tokens, else the limits would hold for each router alone. The worker that leads shard 0
lends the bank to a router, for a time, and lends it again before that time ends.

Each loan names the router's own time of an answer to a pulse, which it follows. So it ends by the router's own clock, no
later than its lender counts, however long a frame was under way. To another router the bank is lent with a new epoch, once
all earlier loans have ended. That router waits until all earlier grants are void (a worker uses tokens for no longer than
this after a pulse that their router has answered), and begins with empty buckets. So ``burst + rate × t`` holds in every
window. Left out: the debt of a bucket, from a message that cost more than its burst, is forgotten with the bank.
"""

from typing import Final

from fila_admission.limits import TRUST_MS
from fila_proto_zmq.commands import BankLease, Pulse, Pulsed, Tokens
from fila_router.core.feature import Registration, RouterFeature, RouterState
from fila_router.core.routing import CLUSTER_SHARD
from fila_router.core.tokens.token_bank import TokenBank
from fila_router.core.worker_state import WorkerState

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


class TokenGrants(RouterFeature):
    """The grants of the bank, and the token sessions of the shards as workers come and go."""

    def __init__(self, state: RouterState, bank: TokenBank) -> None:
        super().__init__(state)
        self.messages = {Tokens: self._ask}
        self._several = state.settings.several
        self._bank = bank
        self._holding = Holding(bank, several=self._several)

    def _ask(self, worker: WorkerState, tokens: Tokens, request: int, now_ms: int) -> None:
        table = self.state.table
        if table.owner_of(tokens.shard) is worker and self._holding.epoch(now_ms):
            self._bank.ask(tokens, table.epochs[tokens.shard], now_ms)

    def next_due(self, now_ms: int) -> int | None:
        """Return the milliseconds until :meth:`serve` has work; None: not before a frame comes."""
        return self._bank.next_due(now_ms) if self._holding.epoch(now_ms) else None

    def serve(self, now_ms: int) -> None:
        """Send the grants that are due to the shards' workers."""
        if not self._holding.epoch(now_ms) or self._bank.next_due(now_ms) != 0:
            return
        for grants in self._bank.serve(now_ms):
            owner = self.state.table.owner_of(grants.shard)
            if owner is not None and owner.routable:
                self.state.outgoing.send([owner.identity], grants)

    def on_register(self, registration: Registration) -> None:
        """End the token sessions that a registration ends.

        A worker with one router begins new sessions when it registers. One with several begins them when another router holds
        the bank, because it registers at each router.
        """
        offered = {shard for shard, _ in registration.offer.shards}
        void = set[int]().union(*(shards for _, shards in registration.superseded))
        for shard in void if self._several else void | offered:
            self._bank.close(shard, registration.now_ms)
        if self._several:  # those of a worker that was about to leave
            self._bank.resume(offered, registration.now_ms)

    def on_return(self, worker: WorkerState, now_ms: int) -> None:
        """Count the tokens of its shards as outstanding again."""
        self._bank.resume(self.state.table.shards_of(worker), now_ms)

    def on_pulse(self, worker: WorkerState, pulse: Pulse, answer: Pulsed, now_ms: int) -> None:
        """Add the time and the epoch of the bank. Only the leader of shard 0 lends the bank, with its pulse."""
        if pulse.bank is not None and self.state.table.owners[CLUSTER_SHARD] is worker:
            self._holding.lend(pulse.bank, now_ms)
        self._holding.pulse_answered(now_ms)
        answer.bank = self._holding.epoch(now_ms)

    def on_absent(self, worker: WorkerState, now_ms: int) -> None:
        """Count the tokens of its shards as spent, until it returns."""
        self._bank.suspend(self.state.table.shards_of(worker), now_ms)

    def sweep(self, now_ms: int) -> None:
        """Forget the accounts that shards use no longer."""
        self._bank.sweep(now_ms)
