"""Tokens for the shards: the bank's frames, and who has it.

Shards ask for tokens, and the bank grants them (:mod:`token_bank`). Of several routers one holds the bank (:mod:`holding`).
"""

from fila_proto_zmq.commands import Pulse, Pulsed, Tokens
from fila_router.core.feature import Registration, RouterFeature, RouterState
from fila_router.core.routing import CLUSTER_SHARD
from fila_router.core.tokens.holding import Holding
from fila_router.core.tokens.token_bank import TokenBank
from fila_router.core.worker_state import WorkerState


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

    # --- workers ------------------------------------------------------------------------------------------------------

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
