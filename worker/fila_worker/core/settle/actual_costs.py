"""What deliveries really cost: the difference to their messages' costs, told with their settlement.

The fairness key's share is corrected at once (:meth:`fila_worker.core.model.drr.Ring.charge`). The buckets are the bank's, so
differences are gathered by throttle keys and sent to it in numbered batches, one at a time. The bank confirms a batch, and
takes each number once, so a frame that is lost or comes twice does no harm. Nothing of it is on disk: with the shard are lost
the differences of its last moments, as the tokens are that it held. If the bank begins anew, what it may have taken before
is sent again only where it takes tokens away: a difference that is counted twice must not exceed a limit.
"""

from typing import TYPE_CHECKING, Final

from fila_proto_zmq.commands import CostCharge, Grants, Tokens
from fila_worker.core.due_time import AT_ONCE, DueTime
from fila_worker.core.effects import Post
from fila_worker.core.model.component import Component
from fila_worker.core.model.lanes import extension_of

if TYPE_CHECKING:
    from fila_worker.core.model.leases import Lease
    from fila_worker.core.model.state import State

MICRO_PER_MILLI: Final = 1000
"""Costs are in thousandths of a token, buckets count millionths."""

REPEAT_MS: Final = 500
"""When a batch that is not confirmed is sent again."""

CHARGES_MAX: Final = 1000
"""Sets of throttle keys in one batch."""

Costs = dict[tuple[int, int], int]
"""Actual costs in thousandths, by lease and index. What is charged is removed."""


class CostCharges:
    """The differences that the bank has not confirmed."""

    def __init__(self) -> None:
        self.timer = DueTime()
        self._waiting: dict[tuple[str, ...], int] = {}
        self._sent: dict[tuple[str, ...], int] = {}
        self._number = 0
        """The number of the batch in ``_sent``, or of the last one."""

    def add(self, throttle_keys: tuple[str, ...], micro: int) -> None:
        """Add a difference: above 0 it takes tokens from the buckets of all these keys."""
        self._waiting[throttle_keys] = self._waiting.get(throttle_keys, 0) + micro
        if not self._sent:
            self.timer.by(AT_ONCE)

    def next_batch(self) -> tuple[int, list[CostCharge]]:
        """Return the batch to send, with its number."""
        if not self._sent and self._waiting:
            self._number += 1
            self._sent = {keys: self._waiting.pop(keys) for keys in list(self._waiting)[:CHARGES_MAX]}
        return self._number, [CostCharge(list(keys), micro) for keys, micro in self._sent.items()]

    def confirmed(self, number: int) -> None:
        """Forget a batch that the bank has taken."""
        if number == self._number and self._sent:
            self._sent = {}
            if self._waiting:
                self.timer.by(AT_ONCE)

    def new_session(self) -> None:
        """Send what the bank may have taken again, as far as it takes tokens away: the bank may be another one."""
        for keys, micro in self._sent.items():
            if micro > 0:
                self._waiting[keys] = self._waiting.get(keys, 0) + micro
        self._sent = {}
        self.timer.by(AT_ONCE)


def charge(state: "State", lease: "Lease", indexes: list[int], costs: Costs) -> None:
    """Charge what some open members of a lease really cost, or give the rest back."""
    if lease.at_most_once:
        return
    priced = [(index, cost) for index in indexes if (cost := costs.pop((lease.id, index), None)) is not None]
    members = [lease.members[index] for index, _ in priced]
    records = state.read([member[0] for member in members])  # type: ignore[index]  # open ones are pairs
    for (_, cost_milli), (_, lane), record in zip(priced, members, records, strict=True):  # type: ignore[misc]
        more_milli = cost_milli - extension_of(record).cost_milli
        if more_milli:
            lane.key.queue.ring.charge(lane.key, more_milli)
            if lane.throttle is not None and lane.throttle.limited:
                state.part(CostCharges).add(lane.throttle_keys, more_milli * MICRO_PER_MILLI)
    state.jobs.charge(len(priced))


class ActualCosts(Component):
    """The differences on their way to the bank."""

    def __init__(self, state: "State") -> None:
        charges = CostCharges()
        state.keep(charges)
        super().__init__(state, charges.timer)

    def tick(self, now_ms: int) -> int | None:
        """Send the next batch, or the last one again."""
        number, charges = self.state.part(CostCharges).next_batch()
        if not charges:
            return None
        self.state.effects.append(Post(Tokens(self.state.index, self.state.token_client.session, [], number, charges)))
        return now_ms + REPEAT_MS

    def on_grants(self, grants: Grants, now_ms: int) -> None:
        """Take in the bank's confirmation."""
        if grants.charged and grants.session == self.state.token_client.session:
            self.state.part(CostCharges).confirmed(grants.charged)

    def on_session(self, now_ms: int) -> None:
        """Begin a session with the bank."""
        self.state.part(CostCharges).new_session()
