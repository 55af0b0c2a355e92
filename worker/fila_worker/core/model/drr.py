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
a busy key, and after ``fresh_turns_max`` turns of new keys in a row a busy key that has waited for
``busy_wait_turns_max`` turns goes before keys that came later.

A turn in which a key could deliver nothing (its messages turned out to wait for tokens, say) was none: when they come, it is as new as
it was.

After a restart, or when consumers come at last, all keys are new, and most have a backlog: those that have more than a turn's are
busy but for the name, and become *late* when another key becomes active after them. They come after the fresh keys, and
before the busy ones.

Left out: virtual finish times (weighted fair queueing), whose accuracy below one turn nobody would see, for O(log n).
"""

from collections import Counter, deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import chain, islice

from fila_worker.core.model.fairness_keys import MILLI, FairnessKey
from fila_worker.core.settings import DEFAULTS, Limits


class Line:
    """Keys one behind the other, each with links to its neighbours: one in the middle leaves without a search, and no table grows.

    A key is in one line at most. Rejected: an ``OrderedDict``, 110 bytes a key where the links take 24.
    """

    __slots__ = ("_length", "first", "last")

    def __init__(self) -> None:
        self.first: FairnessKey | None = None
        self.last: FairnessKey | None = None
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __bool__(self) -> bool:
        return self.first is not None

    def __iter__(self) -> Iterator[FairnessKey]:
        key = self.first
        while key is not None:
            yield key
            key = key.behind

    def append(self, key: FairnessKey) -> None:
        """A key that is in no line comes last."""
        last = self.last
        key.line, key.before = self, last
        if last is None:
            self.first = key
        else:
            last.behind = key
        self.last = key
        self._length += 1

    def pop(self) -> FairnessKey:
        """Take out the first of a line that has any."""
        key = self.first
        assert key is not None, "nobody is in line"
        behind = self.first = key.behind
        if behind is None:
            self.last = None
        else:
            behind.before = key.behind = None
        key.line = None
        self._length -= 1
        return key

    def remove(self, key: FairnessKey) -> None:
        """Take a key out of the line it is in."""
        before, behind = key.before, key.behind
        if before is None:
            self.first = behind
        else:
            before.behind = behind
        if behind is None:
            self.last = before
        else:
            behind.before = before
        key.line = key.before = key.behind = None
        self._length -= 1


class Ring:
    """The active keys of a queue in the order of their turns.

    Keys that owe more than their next turn gives them are not looked at turn by turn: their rounds pass without them. A round is
    over when each of the busy keys that it began with had its turn, or is gone.
    """

    __slots__ = (
        "_before", "_busy", "_busy_turn", "_due", "_entries", "_gone", "_left", "_limits", "_newest", "_owing", "_round", "_turns", "again",
        "current", "fresh", "late",
    )  # fmt: skip

    def __init__(self, limits: Limits = DEFAULTS) -> None:
        self._limits = limits
        self.fresh = Line()
        """Keys that became active and had no turn since."""
        self.again = Line()
        """Like ``fresh``, but no busy key had a turn since their last one, and there are some: they are fresh when one has."""
        self.late = Line()
        """Keys with a backlog that had no turn since they became active, and others became active after them."""
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
        """The number of the last turn of a busy or late key."""
        self._newest = 0
        """How many turns there had been when a key last became fresh."""
        self._before = (-1, 0, 0)
        """The ``last_turn``, ``credit`` and ``spent`` of the current key before its turn."""

    def __len__(self) -> int:
        busy = len(self._busy) - self._gone
        return len(self.fresh) + len(self.again) + len(self.late) + busy + len(self._owing) + (self.current is not None)

    @property
    def turns(self) -> int:
        """How many turns there have been."""
        return self._turns

    @property
    def rounds(self) -> int:
        """How many rounds of the busy keys have begun."""
        return self._round

    # --- keys come and go ---------------------------------------------------------------------------------------------

    def join(self, key: FairnessKey) -> None:
        """A key has something to deliver: it is served next."""
        key.active = True
        key.joined_at = key.spent
        if key.credit < 0:
            self._forgive(key)
        key.joined_turn = self._turns
        others = len(self._busy) > self._gone or self._owing or self.late.first
        if others and key.last_turn >= self._busy_turn:
            self.again.append(key)
        else:
            self.fresh.append(key)
            self._newest = self._turns

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
        if not key.active:
            return
        key.active = False
        if self.current is key:
            self.current = None
            last_turn, credit, spent = self._before
            if key.spent == spent:  # it could deliver nothing (its messages wait for tokens, say), so that was no turn
                key.last_turn, key.credit = last_turn, credit
        elif key.line is not None:
            key.line.remove(key)
        elif key in self._owing:
            self._take_along_debt(key)
        else:
            key.absent += 1
            self._gone += 1
            if self._gone > self._limits.void_entries_max and 2 * self._gone > len(self._busy):
                self._tidy_up()
        key.credit = min(0, key.credit)

    def _take_along_debt(self, key: FairnessKey) -> None:
        to_come = max(0, self._owing.pop(key) - self._round - 1)
        key.credit -= to_come * key.weight * MILLI
        key.last_turn = self._turns  # the rounds until now are paid for
        if len(self._due) > self._limits.void_entries_max and len(self._due) > 2 * len(self._owing):
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
        return [*current, *self.fresh, *self.late, *self.again, *busy, *sorted(self._owing, key=self._owing.__getitem__)]

    def upcoming(self, count: int) -> list[FairnessKey]:
        """About the next keys to have a turn, in about their order; entries of keys that left may be among them."""
        return list(islice(chain(self.fresh, self.late, self._busy), count))

    # --- turns --------------------------------------------------------------------------------------------------------

    def begin_turn(self) -> FairnessKey | None:
        """Start the next key's turn, with ``weight`` of credit; None if no key is active."""
        while True:
            key = self._next_first() if self.fresh.first or self.late.first else None
            if key is None:
                if self._left <= 0 and self._busy and not self._owing:  # the usual round: nobody pays off a debt
                    self._round += 1
                    self._left = len(self._busy)
                if self._left > 0:
                    self._left -= 1
                    key = self._busy.popleft()
                    if key.absent:
                        key.absent -= 1
                        self._gone -= 1
                        continue
                elif self._owing and self._begin_round():
                    continue
                elif self.again.first:
                    key = self.again.pop()
                else:
                    return None
                self._busy_turn = self._turns
                if self.again.first:
                    self._refresh()
            self._before = key.last_turn, key.credit, key.spent
            key.last_turn = self._turns
            self._turns += 1
            key.credit += key.weight * MILLI
            if key.credit > 0:
                self.current = key
                return key
            self._line_up(key)

    def _next_first(self) -> FairnessKey | None:
        """The next of the keys that come before the busy ones; None if there is none, or a busy one starves."""
        while self.fresh.first and not self._others_starve():
            key = self.fresh.pop()
            if not (self._newest > key.joined_turn and self.fresh.first and key.pending > key.weight):
                return key
            self.late.append(key)
        if not self.late.first or not self._late_is_next():
            return None
        key = self.late.pop()
        self._busy_turn = self._turns
        self._refresh()
        return key

    def _refresh(self) -> None:
        """A key that was not fresh has its turn: those that came again and waited for one are fresh."""
        while self.again.first:
            self.fresh.append(self.again.pop())

    def end_turn(self, key: FairnessKey) -> None:
        """The key's credit is used up, and it has more to deliver."""
        self.current = None
        if key.credit > -key.weight * MILLI:  # the usual case of what _line_up() does, without the call
            self._busy.append(key)
        else:
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
                if self._busy or self.again.first:
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

    def _late_is_next(self) -> bool:
        """Whether the first late key comes before the busy ones: always, but where fresh keys leave little, who waits for longest."""
        late = self.late.first
        return not self.fresh.first or (late is not None and late.joined_turn <= self._busy_since())

    def _busy_since(self) -> int:
        """How many turns there had been when the first of the busy keys had its last; without any, as many as now."""
        self._skip_void()
        return self._busy[0].last_turn if self._busy else self._turns

    def _others_starve(self) -> bool:
        """Whether a late or busy key has waited for too long, and a fresh one that came later has to wait for it."""
        if self._turns - self._busy_turn <= self._limits.fresh_turns_max:
            return False
        since, fresh, late = self._busy_since(), self.fresh.first, self.late.first
        if late is not None:
            since = min(since, late.joined_turn)
        return fresh is not None and self._turns - since > self._limits.busy_wait_turns_max and fresh.joined_turn > since
