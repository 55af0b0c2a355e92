"""The ledger's folds, a step a turn."""

from typing import TYPE_CHECKING

from fila_worker.core.model.acked_messages import purge
from fila_worker.core.model.component import Component, Steps
from fila_worker.core.timer import AT_ONCE

if TYPE_CHECKING:
    from fila_worker.core.model.state import State


class LedgerFolds(Component):
    """The ledger's folds, at the end of a turn: by then every message that left its line is in a lease."""

    in_passing = True

    def __init__(self, state: "State") -> None:
        super().__init__(state, state.ledger.timer)

    def recover(self, now_ms: int) -> Steps:
        """Fold what the entries record, and drop the lanes without messages; with them, their keys."""
        state = self.state
        while True:
            for lane in state.ledger.fold(state.batch):
                state.forget_lane(lane)
            if not state.ledger.folding:
                return
            yield

    def tick(self, now_ms: int) -> int | None:
        """Take a step of a fold, and forget the idle lanes it visits in queues that keep too many."""
        state, ledger = self.state, self.state.ledger
        if not ledger.fold_due:
            return None
        if not ledger.folding:
            purge(state)  # a lane is idle only when its acked messages are removed
        forgotten = []
        for lane in ledger.fold(state.batch):
            if lane.key.queue.lanes > state.settings.limits.idle_lanes_max:
                state.forget_lane(lane)
                forgotten.append(lane)
            else:
                lane.key.queue.resting[lane.id] = lane
        ledger.forget(forgotten, state.batch)
        return AT_ONCE if ledger.folding else None
