"""The ledger's folds, a step a turn."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fila_worker.core.due_time import AT_ONCE
from fila_worker.core.model.acked_messages import purge
from fila_worker.core.model.component import Component, Steps

if TYPE_CHECKING:
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.queues import Queue
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
        """Take a step of a fold, and forget idle lanes in queues that keep more than their share, the oldest first."""
        state, ledger = self.state, self.state.ledger
        if not ledger.fold_due:
            return None
        if not ledger.folding:
            purge(state)  # a lane is idle only when its acked messages are removed
        forgotten: list[Lane] = []
        most = self._share()
        for lane in ledger.fold(state.batch):
            if lane.id in state.lanes:  # else it was the oldest one of its queue
                resting = lane.key.queue.resting
                resting.pop(lane.id, None)
                resting[lane.id] = lane  # the last one now
                forgotten += self._forget_oldest(lane.key.queue, most)
        ledger.forget(forgotten, state.batch)
        return AT_ONCE if ledger.folding else None

    def _share(self) -> int:
        """Return how many lanes a queue may have before its idle ones are forgotten."""
        limits = self.state.settings.limits
        return min(limits.idle_lanes_max, max(1, limits.idle_lanes_of_shard_max // max(1, len(self.state.queues.by_id))))

    def _forget_oldest(self, queue: "Queue", most: int) -> "Iterator[Lane]":
        """Forget up to two idle lanes of a queue for each that comes, so that it is down at its share before long."""
        for _ in range(2):
            if queue.lanes <= most or not queue.resting:
                return
            lane = queue.resting.pop(next(iter(queue.resting)))
            if lane.idle:  # else it has messages again, and comes back when it has none
                self.state.forget_lane(lane)
                yield lane
