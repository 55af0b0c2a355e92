"""Who is next: deficit round robin over fairness keys.

Deficit round robin (Shreedhar & Varghese, "Efficient Fair Queueing using Deficit Round Robin", 1995) gives each key
``weight × quantum`` a round, at O(1) a delivery. Three things are done differently:

* A key's round is served in *turns* of ``weight`` instead of in one go, so that any window of deliveries is shared by
  weight, not only a whole round of ``Σ weights × quantum``.
* A key that becomes active is served next, before the keys that have been busy, as the new-flow list of FQ-CoDel does
  (RFC 8290, section 4.2): a quiet tenant does not wait for a round of the noisy ones.
* A key with any credit left may deliver a message that costs more, and pays the debt with its next turns. So nobody has to
  look at a cost before it is a message's turn, and a round never passes without a delivery.

FQ-CoDel keeps an emptied flow in its ring for a round, so that it cannot be new again at once. Here a key with nothing to
deliver leaves, and starvation is prevented otherwise: a key that comes back right after its own turn waits for one turn of
a busy key, and a busy key that has waited for :data:`BUSY_WAIT_TURNS_MAX` turns goes before keys that came later.

Left out: virtual finish times (weighted fair queueing), whose accuracy below one turn nobody would see, for O(log n).
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Final

from fila_worker.core.keys import FIRST_PLACE
from fila_worker.core.lanes import Lane

if TYPE_CHECKING:
    from fila_worker.core.queues import Queue

MILLI: Final = 1000
"""Credit and costs are counted in thousandths."""


BUSY_WAIT_TURNS_MAX: Final = 1000
"""Turns of new keys while a busy one waits: a flood of one-message tenants must not starve the others."""

VOID_MAX: Final = 1000
"""Entries of keys that left which a ring may hold, or as many as of those that did not."""


class FairnessKey:
    """One fairness key of a queue: its lanes, its weight, its place in the ring, its counters.

    Invariant: ``active`` if and only if :attr:`deliverable`; then it is in exactly one of the ring's ``fresh``, ``again``,
    ``busy`` and ``current``.
    """

    __slots__ = (
        "absent",
        "active",
        "blocked",
        "credit",
        "delivered",
        "heads",
        "held",
        "joined_at",
        "joined_turn",
        "lanes",
        "last_turn",
        "name",
        "paused",
        "queue",
        "ready",
        "sole",
        "spent",
        "stuck",
        "weight",
    )  # fmt: skip

    def __init__(self, name: str, queue: "Queue") -> None:
        self.name = name
        self.queue = queue
        self.lanes: dict[tuple[str, ...], Lane] = {}
        """By throttle keys (sorted, distinct)."""
        self.sole: Lane | None = None
        """Its only lane, if there is nothing more to think about: no throttle, no cap on what is in flight."""
        self.heads: list[tuple[bytes, int, Lane]] = []
        """The lanes that may deliver, by the place of their first message; an entry that is not its lane's
        ``head_place`` is stale. Not kept while there is a ``sole`` lane."""
        self.ready = 0
        """Lanes that are active and not blocked."""
        self.blocked = 0
        """Lanes that wait for tokens."""
        self.weight = 1
        self.active = False
        self.paused = False
        self.stuck = b""
        """Strictly ordered, and its first message, whose place this is, waits for tokens: so do the others behind it."""
        self.credit = 0
        """What is left of the turn in progress, in thousandths of a unit of cost; below 0 it is owed."""
        self.held = 0
        """Messages leased or waiting for a retry; counted only where the queue has a cap for it."""
        self.joined_turn = 0
        """How many turns there had been when it last became active."""
        self.last_turn = -1
        """The number of its last turn, as the ring counts them."""
        self.absent = 0
        """How many entries the ring has of it that are void."""
        self.delivered = 0
        self.spent = 0
        """Cost of what was delivered, in thousandths."""
        self.joined_at = 0
        """``spent`` when the key last became active."""

    @property
    def deliverable(self) -> bool:
        """Whether one of its messages may be delivered now, if somebody wants it."""
        return self.ready > 0 and not self.stuck and self.open

    @property
    def open(self) -> bool:
        """Whether neither a pause nor its cap holds it up."""
        cap = self.queue.options.max_in_flight_per_key
        return not self.paused and (cap is None or self.held < cap)

    @property
    def pending(self) -> int:
        """Messages in line."""
        return sum(lane.pending for lane in self.lanes.values())

    def settle_shape(self) -> None:
        """Lanes came or went, or the queue's options changed: see whether there is a sole lane."""
        lanes = list(self.lanes.values())
        simple = len(lanes) == 1 and lanes[0].throttle is None and self.queue.options.max_in_flight_per_key is None
        self.sole = lanes[0] if simple else None
        self.heads = []
        if self.sole is None:
            for lane in lanes:
                lane.head_place = b""
                if lane.active and not lane.blocked:
                    self.note_head(lane, lane.prefix + FIRST_PLACE)

    def note_head(self, lane: Lane, message_key: bytes) -> None:
        """The lane's first message may be this one."""
        place = message_key[8:]
        if not lane.head_place or place < lane.head_place:
            lane.head_place = place
            heappush(self.heads, (place, lane.id, lane))

    def first_lane(self, head_of: Callable[[Lane], bytes]) -> Lane | None:
        """The lane whose first message has the smallest place; ``head_of`` looks up a lane's first key."""
        heads = self.heads
        while heads:
            place, _, lane = heads[0]
            if place != lane.head_place or not lane.active or lane.blocked:
                if place == lane.head_place:
                    lane.head_place = b""
                heappop(heads)
                continue
            first = head_of(lane)[8:]
            if first <= place:
                return lane
            lane.head_place = first
            heapreplace(heads, (first, lane.id, lane))
        return None

    def first_is_blocked(self) -> None:
        """The lane that :meth:`first_lane` found has to wait."""
        _, _, lane = heappop(self.heads)
        lane.head_place = b""
        self.ready -= 1
        self.blocked += 1

    def deficit(self, quantum: int) -> float:
        """What is left of ``weight × quantum`` in the key's round; 0 while it has nothing to deliver."""
        if not self.active:
            return 0
        entitled = self.weight * quantum * MILLI
        return (entitled - (self.spent - self.joined_at) % entitled) / MILLI


class Ring:
    """The active keys of a queue in the order of their turns.

    Keys that owe more than their next turn gives them are not looked at turn by turn: their rounds pass without them. A round is
    over when each of the busy keys that it began with had its turn, or is gone.
    """

    __slots__ = (
        "_busy", "_busy_turn", "_due", "_entries", "_gone", "_left", "_owing", "_round", "_turns", "again", "current", "fresh",
    )  # fmt: skip

    def __init__(self) -> None:
        self.fresh: OrderedDict[FairnessKey, None] = OrderedDict()
        """Keys that became active and had no turn since."""
        self.again: OrderedDict[FairnessKey, None] = OrderedDict()
        """Like ``fresh``, but no busy key had a turn since their last one, and there are some: they are fresh when one has."""
        self.current: FairnessKey | None = None
        """The key whose turn is in progress."""
        self._busy: deque[FairnessKey] = deque()
        """Keys that had a turn and have more to deliver. As many of a key's first entries as it is ``absent`` are void: a key
        that leaves is not looked for."""
        self._gone = 0
        """Void entries in all."""
        self._left = 0
        """Entries that the round in progress has left to serve."""
        self._round = 0
        self._owing: dict[FairnessKey, int] = {}
        """Keys that pay off a debt, and the round in which they are busy again; their credit is what they will have then."""
        self._due: list[tuple[int, int, FairnessKey]] = []
        """The same as a heap; an entry that ``_owing`` does not confirm is void."""
        self._entries = 0
        self._turns = 0
        """Turns so far."""
        self._busy_turn = 0
        """The number of the last turn of a busy key."""

    def __len__(self) -> int:
        busy = len(self._busy) - self._gone
        return len(self.fresh) + len(self.again) + busy + len(self._owing) + (self.current is not None)

    # --- keys come and go ---------------------------------------------------------------------------------------------

    def join(self, key: FairnessKey) -> None:
        """A key has something to deliver: it is served next."""
        key.active = True
        key.joined_at = key.spent
        if key.credit < 0:
            self._forgive(key)
        key.joined_turn = self._turns
        others = len(self._busy) > self._gone or self._owing
        (self.again if others and key.last_turn >= self._busy_turn else self.fresh)[key] = None

    def rejoin(self, key: FairnessKey) -> None:
        """A key that waited for tokens or for a settlement may go on: it has no more than one turn a round by that."""
        if self._turns - key.last_turn > len(self):
            self.join(key)
            return
        key.active = True
        self._line_up(key)

    def _forgive(self, key: FairnessKey) -> None:
        """Take off a key's debt the turns that it would have had while it was away."""
        others = len(self)
        rounds = (self._turns - key.last_turn) // others if others else 0
        key.credit = min(0, key.credit + rounds * key.weight * MILLI) if others else 0

    def leave(self, key: FairnessKey) -> None:
        """A key has nothing more to deliver: it leaves, and takes no credit along, only debts."""
        key.active = False
        if self.current is key:
            self.current = None
        elif key in self._owing:
            self._take_along_debt(key)
        elif self.fresh.pop(key, self) is self and self.again.pop(key, self) is self:
            key.absent += 1
            self._gone += 1
            if self._gone > VOID_MAX and 2 * self._gone > len(self._busy):
                self._tidy_up()
        key.credit = min(0, key.credit)

    def _take_along_debt(self, key: FairnessKey) -> None:
        to_come = max(0, self._owing.pop(key) - self._round - 1)
        key.credit -= to_come * key.weight * MILLI
        key.last_turn = self._turns  # the rounds until now are paid for
        if len(self._due) > VOID_MAX and len(self._due) > 2 * len(self._owing):
            self._due = [entry for entry in self._due if self._owing.get(entry[2]) == entry[0]]
            heapify(self._due)

    def _tidy_up(self) -> None:
        """Drop the void entries."""
        left = self._left
        for _ in range(len(self._busy)):
            self._left -= 1
            key = self._busy.popleft()
            if key.absent:
                key.absent -= 1
                left -= self._left >= 0
            else:
                self._busy.append(key)
        self._gone, self._left = 0, left

    def active_keys(self) -> list[FairnessKey]:
        """The active keys, the one in turn first."""
        current = [self.current] if self.current else []
        void = Counter({key: key.absent for key in self._busy})
        busy = []
        for key in self._busy:
            void[key] -= 1
            if void[key] < 0:
                busy.append(key)
        return [*current, *self.fresh, *self.again, *busy, *sorted(self._owing, key=self._owing.__getitem__)]

    # --- turns --------------------------------------------------------------------------------------------------------

    def begin_turn(self) -> FairnessKey | None:
        """Start the next key's turn, with ``weight`` of credit; None if no key is active."""
        while True:
            if self.fresh and not self._busy_key_starves():
                key, _ = self.fresh.popitem(last=False)
            else:
                if self._left > 0:
                    self._left -= 1
                    key = self._busy.popleft()
                    if key.absent:
                        key.absent -= 1
                        self._gone -= 1
                        continue
                elif (self._busy or self._owing) and self._begin_round():
                    continue
                elif self.again:
                    key, _ = self.again.popitem(last=False)
                else:
                    return None
                self._busy_turn = self._turns
                if self.again:
                    self.fresh.update(self.again)
                    self.again.clear()
            key.last_turn = self._turns
            self._turns += 1
            key.credit += key.weight * MILLI
            if key.credit > 0:
                self.current = key
                return key
            self._line_up(key)

    def end_turn(self, key: FairnessKey) -> None:
        """The key's credit is used up, and it has more to deliver."""
        self.current = None
        self._line_up(key)

    def _line_up(self, key: FairnessKey) -> None:
        """Let a key have its next turn with the busy ones: in the next round, or when it has paid what it owes."""
        turn = key.weight * MILLI
        if key.credit > -turn:
            self._busy.append(key)
            return
        rounds = -key.credit // turn
        key.credit += rounds * turn
        due = self._owing[key] = self._round + 1 + rounds
        self._entries += 1
        heappush(self._due, (due, self._entries, key))

    def _begin_round(self) -> bool:
        """A round begins: keys that have paid what they owed are busy again. False if no key is.

        Then those who come again and again are served; each of their turns counts as a round for those who owe.
        """
        self._round += 1
        self._skip_void()
        while self._owing:
            due = self._due[0][0]
            if due > self._round:
                if self._busy or self.again:
                    break
                self._round = due  # nobody else is there: no need to wait
            _, _, key = heappop(self._due)
            if self._owing.get(key) == due:
                del self._owing[key]
                self._busy.append(key)
        self._left = len(self._busy)
        return self._left > 0

    def _skip_void(self) -> None:
        """Drop the void entries in front."""
        busy = self._busy
        while busy and busy[0].absent:
            busy.popleft().absent -= 1
            self._gone -= 1
            self._left -= 1

    def _busy_key_starves(self) -> bool:
        self._skip_void()
        if not self._busy:
            return False
        last_turn = self._busy[0].last_turn
        return self._turns - last_turn > BUSY_WAIT_TURNS_MAX and next(iter(self.fresh)).joined_turn > last_turn
