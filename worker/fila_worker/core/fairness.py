"""Who is next: deficit round robin over fairness keys.

Deficit round robin (Shreedhar & Varghese, "Efficient Fair Queueing using Deficit Round Robin", 1995) gives each key
``weight × quantum`` a round, at O(1) a delivery. Two things are done differently:

* A key's round is served in *turns* of ``weight`` instead of in one go, so that any window of deliveries is shared by
  weight, not only a whole round of ``Σ weights × quantum``.
* A key that becomes active is served next, before the keys that have been busy, as the new-flow list of FQ-CoDel does
  (RFC 8290, section 4.2): a quiet tenant does not wait for a round of the noisy ones.

FQ-CoDel keeps an emptied flow in its ring for a round, so that it cannot be new again at once. Here a key with nothing to
deliver leaves, and starvation is prevented otherwise: a key that comes back right after its own turn waits for one turn of
a busy key, and a busy key that has waited for :data:`BUSY_WAIT_TURNS_MAX` turns goes before keys that came later.

Left out: virtual finish times (weighted fair queueing), whose accuracy below one turn nobody would see, for O(log n).
"""

from collections import deque
from typing import TYPE_CHECKING, Final

from fila_worker.core.lanes import Lane

if TYPE_CHECKING:
    from fila_worker.core.queues import Queue


BUSY_WAIT_TURNS_MAX: Final = 1000
"""Turns of new keys while a busy one waits: a flood of one-message tenants must not starve the others."""


class FairnessKey:
    """One fairness key of a queue: its weight, its place in the ring, its counters.

    Invariant: ``active`` if and only if its lane has a pending message; then it is in exactly one of the ring's
    ``fresh``, ``again``, ``busy`` and ``current``.
    """

    __slots__ = ("active", "credit", "delivered", "joined_at", "joined_turn", "lane", "last_turn", "name", "queue", "weight")

    def __init__(self, name: str, queue: "Queue", lane_id: int) -> None:
        self.name = name
        self.queue = queue
        self.lane = Lane(lane_id, self)
        self.weight = 1
        self.active = False
        self.credit = 0
        """What is left of the turn in progress, in units of cost."""
        self.joined_turn = 0
        """How many turns there had been when it last became active."""
        self.last_turn = -1
        """The number of its last turn, as the ring counts them."""
        self.delivered = 0
        self.joined_at = 0
        """``delivered`` when the key last became active."""

    def deficit(self, quantum: int) -> int:
        """What is left of ``weight × quantum`` in the key's round; 0 while it has nothing to deliver."""
        if not self.active:
            return 0
        entitled = self.weight * quantum
        return entitled - (self.delivered - self.joined_at) % entitled


class Ring:
    """The active keys of a queue in the order of their turns."""

    __slots__ = ("_busy_turn", "_turns", "again", "busy", "current", "fresh")

    def __init__(self) -> None:
        self.fresh: deque[FairnessKey] = deque()
        """Keys that became active and had no turn since."""
        self.again: deque[FairnessKey] = deque()
        """Like ``fresh``, but no busy key had a turn since their last one: they are fresh when one has."""
        self.busy: deque[FairnessKey] = deque()
        """Keys that had a turn and have more to deliver."""
        self.current: FairnessKey | None = None
        """The key whose turn is in progress."""
        self._turns = 0
        """Turns so far."""
        self._busy_turn = 0
        """The number of the last turn of a busy key."""

    def __len__(self) -> int:
        return len(self.fresh) + len(self.again) + len(self.busy) + (self.current is not None)

    def join(self, key: FairnessKey) -> None:
        """A key has something to deliver: it is served next."""
        key.active = True
        key.joined_at = key.delivered
        key.joined_turn = self._turns
        (self.again if key.last_turn >= self._busy_turn else self.fresh).append(key)

    def begin_turn(self) -> FairnessKey | None:
        """Start the next key's turn, with ``weight`` of credit; None if no key is active."""
        turn = self._turns
        if self.fresh and not self._busy_key_starves():
            key = self.fresh.popleft()
        elif self.busy or self.again:
            key = self.busy.popleft() if self.busy else self.again.popleft()
            self._busy_turn = turn
            if self.again:
                self.fresh.extend(self.again)
                self.again.clear()
        else:
            return None
        key.last_turn = turn
        self._turns = turn + 1
        key.credit += key.weight
        self.current = key
        return key

    def _busy_key_starves(self) -> bool:
        if not self.busy:
            return False
        last_turn = self.busy[0].last_turn
        return self._turns - last_turn > BUSY_WAIT_TURNS_MAX and self.fresh[0].joined_turn > last_turn

    def end_turn(self, key: FairnessKey) -> None:
        """The key's credit is used up, and it has more to deliver."""
        self.current = None
        self.busy.append(key)

    def leave(self, key: FairnessKey) -> None:
        """A key has nothing more to deliver: it leaves, and takes no credit along."""
        key.active = False
        key.credit = 0
        if self.current is key:
            self.current = None
            return
        for line in (self.fresh, self.again, self.busy):
            if key in line:
                line.remove(key)

    def active_keys(self) -> list[FairnessKey]:
        """The active keys, the one in turn first."""
        current = [self.current] if self.current else []
        return [*current, *self.fresh, *self.again, *self.busy]
