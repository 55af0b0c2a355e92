"""Deficit round robin over fairness keys: which key has its turn.

Deficit round robin (Shreedhar & Varghese, "Efficient Fair Queueing using Deficit Round Robin", 1995) gives each key ``weight
× quantum`` a round, at O(1) a delivery. Three things differ here:

* A key's round is served in *turns* of ``weight``, so that any window of deliveries is shared by weight, not only a whole
  round of ``Σ weights × quantum``.
* A key that becomes active is served next, as in the new-flow list of FQ-CoDel (RFC 8290, section 4.2): a quiet tenant does
  not wait for a round of the busy ones.
* A key with any credit left may deliver a message that costs more, and pays the debt with its next turns. So no cost is read
  before it is the message's turn, and a round never passes without a delivery.

FQ-CoDel has two lists, of new and of old flows. Here they are ``fresh`` and ``busy``. Each part beyond these two has a case
that fails without it, in ``tests/unit/worker/model/test_drr.py`` and ``test_drr_debts.py``. The properties that all parts
must keep are in ``tests/property/scheduling/test_fairness_bounds.py``. The further parts:

* ``again``. FQ-CoDel keeps an emptied flow among the old ones for a round, so that it cannot be new at once. Here a key that
  comes back right after its own turn must not wait for a round: it waits for one turn of a key with a backlog.
* ``debtors``, a heap. A key may owe 1,000,000 rounds, and 100,000 keys may owe. To visit them turn by turn would take
  seconds.
* Both ends of ``fresh``. After a restart, or when the first consumer comes, all keys are new and have a backlog. A key that
  becomes active later goes before them: it is at the other end.
* A limit for new keys. Without it an endless stream of new keys stops the busy ones. After ``fresh_turns_max`` turns of new
  keys, a key that has waited for ``busy_wait_turns_max`` turns goes before keys that came later.

A turn that delivered nothing (its messages wait for tokens, for example) does not count: the key keeps its place among new
keys.

Rejected: virtual finish times (weighted fair queueing), whose accuracy below one turn costs O(log n) a delivery.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import chain, islice
from typing import Final

from fila_worker.core.model.fairness_keys import MILLI, FairnessKey
from fila_worker.core.settings import DEFAULTS, Limits

NEVER: Final = 1 << 62
"""A round that never comes."""


class Line:
    """Keys in a circle, each with links to its neighbours. Any key leaves without a search, and no table grows.

    The last key is before the first. The first key becomes the last when ``first`` moves on. Rejected: an ``OrderedDict``
    (110 bytes a key, where the links take 24), and a deque (a search for each key that leaves).
    """

    __slots__ = ("first",)

    def __init__(self) -> None:
        self.first: FairnessKey | None = None

    def __iter__(self) -> Iterator[FairnessKey]:
        key = self.first
        while key is not None:
            yield key
            key = key.behind if key.behind is not self.first else None

    def append(self, key: FairnessKey) -> None:
        """Put a key that is in no line at the end."""
        first = self.first
        key.line = self
        if first is None:
            self.first = key.before = key.behind = key
        else:
            last = first.before
            assert last is not None, "a key in line has neighbours"
            key.before, key.behind = last, first
            last.behind = first.before = key

    def remove(self, key: FairnessKey) -> None:
        """Take a key out of this line."""
        before, behind = key.before, key.behind
        assert before is not None
        assert behind is not None
        if behind is key:
            self.first = None
        else:
            before.behind, behind.before = behind, before
            if self.first is key:
                self.first = behind
        key.line = key.before = key.behind = None


class Debtors:
    """Active keys that owe more than their next turn gives them, in a heap by the round in which they have paid: ``key.due``.

    An entry of a key that left is void: the key is elsewhere, or is due in another round.
    """

    __slots__ = ("_count", "_entries", "_heap", "_void_max", "due")

    def __init__(self, void_max: int) -> None:
        self.due = NEVER
        """The round in which the first of them has paid, or one before it."""
        self._heap: list[tuple[int, int, FairnessKey]] = []
        self._entries = 0
        self._count = 0
        self._void_max = void_max

    def __iter__(self) -> Iterator[FairnessKey]:
        return (key for _, _, key in sorted(self._valid()))

    def append(self, key: FairnessKey) -> None:
        """Append a key that is in no list to the list of its round."""
        key.line = self
        self._count += 1
        self._entries += 1
        heappush(self._heap, (key.due, self._entries, key))
        self.due = self._heap[0][0]

    def remove(self, key: FairnessKey) -> None:
        """Remove a key; it keeps its debt."""
        key.line = None
        self._count -= 1
        if not self._count or len(self._heap) > max(self._void_max, 2 * self._count):
            self._heap = self._valid()
            heapify(self._heap)
        self.due = self._heap[0][0] if self._heap else NEVER

    def pop(self) -> FairnessKey | None:
        """Remove the first entry, and return its key; None if the entry was void."""
        entry = heappop(self._heap)
        key = entry[2]
        found = self._is_valid(entry)
        if found:
            self.remove(key)
        else:
            self.due = self._heap[0][0]
        return key if found else None

    def _valid(self) -> list[tuple[int, int, FairnessKey]]:
        """Return one entry for each key."""
        return list({entry[2]: entry for entry in self._heap if self._is_valid(entry)}.values())

    def _is_valid(self, entry: tuple[int, int, FairnessKey]) -> bool:
        due, _, key = entry
        return key.line is self and key.due == due


class Ring:
    """The active keys of a queue in the order of their turns.

    Invariants: an active key is in exactly one of ``fresh``, ``again``, ``busy`` and ``debtors``, or is ``current``. A
    current key may be in ``busy`` too, where it is the last. A key that is not active is in none of them.
    """

    __slots__ = (
        "_began", "_busy_turn", "_credit", "_keys", "_limits", "_old_turn", "_round", "_skipped", "_spent", "_turns", "again",
        "busy", "current", "debtors", "fresh", "weight",
    )  # fmt: skip

    def __init__(self, limits: Limits = DEFAULTS) -> None:
        self._limits = limits
        self.fresh = Line()
        """Keys that became active and had no turn since then, in the order in which they came."""
        self.again = Line()
        """Likewise, but no key with a backlog had a turn since their own last one. They become fresh when one has."""
        self.busy = Line()
        """Keys that had a turn and have more to deliver; the first is next."""
        self.debtors = Debtors(limits.void_entries_max)
        """Keys that are busy again in a later round. Their credit is the credit that they will have then."""
        self.current: FairnessKey | None = None
        """The key whose turn is in progress."""
        self._credit = self._spent = 0
        """The current key's credit and ``spent`` before its turn."""
        self._keys = 0
        """The number of active keys."""
        self._turns = 0
        """The number of turns so far. The first turn has the number 1."""
        self._old_turn = 0
        """The last turn of a key with a backlog."""
        self._busy_turn = 0
        """The last turn of a busy key, or of a fresh key that had waited for too long."""
        self._round = 0
        self._began = 0
        """The first turn of the round in progress."""
        self.weight = 0
        """The sum of the weights of the active keys."""
        self._skipped = 0
        """Rounds without busy keys. They count only for keys that owe."""

    def __len__(self) -> int:
        return self._keys

    @property
    def turns(self) -> int:
        """The number of turns so far."""
        return self._turns

    @property
    def rounds(self) -> int:
        """The number of rounds of the busy keys that have begun."""
        return self._round - self._skipped

    # --- keys come and go ---------------------------------------------------------------------------------------------

    def join(self, key: FairnessKey) -> None:
        """Add a key that has something to deliver. It is served next, if it owes no more than its next turn gives."""
        key.joined_at = key.spent
        if not self._enter(key):
            key.joined_turn = self._turns
            (self.again if key.last_turn >= self._old_turn and self._has_backlog() else self.fresh).append(key)

    def rejoin(self, key: FairnessKey) -> None:
        """Add a key that waited for tokens or for a settlement. It gets no more than one turn a round by such returns."""
        if self._turns - key.last_turn >= self._keys:
            self.join(key)
        elif not self._enter(key):
            self.busy.append(key)

    def _enter(self, key: FairnessKey) -> bool:
        """Count a key, and return whether it has to pay off a debt first.

        The rounds since it left pay its debt. If no other key is active, the debt is paid at once.
        """
        key.active = True
        self._keys += 1
        self.weight += key.weight
        if key.credit < 0 or key.due > self._round:
            if key.due <= self._round or self._keys == 1:
                key.credit = key.due = 0
            elif key.due > self._round + 1:
                self.debtors.append(key)
                return True
        return False

    def _has_backlog(self) -> bool:
        """Return whether some key has more to deliver than one turn, as far as this is known without a search."""
        first = self.fresh.first
        return self.busy.first is not None or (first is not None and first.pending > first.weight)

    def leave(self, key: FairnessKey) -> None:
        """Take out a key that has nothing more to deliver. It loses its credit and keeps its debt."""
        if not key.active:
            return
        key.active = False
        self._keys -= 1
        self.weight -= key.weight
        owing = key.line is self.debtors
        if key.line is not None:
            key.line.remove(key)
        if self.current is key:
            self.current = None
            if key.spent == self._spent:
                key.credit = self._credit
            else:
                key.last_turn = self._turns
        if key.credit >= 0:
            key.credit = 0
        elif not owing:
            self._owe(key)

    def active_keys(self) -> list[FairnessKey]:
        """Return the active keys, the one in turn first."""
        current = [self.current] if self.current else []
        others = chain(self.fresh, self.again, self.busy, self.debtors)
        return [*current, *(key for key in others if key is not self.current)]

    def upcoming(self, count: int) -> list[FairnessKey]:
        """Return about the next keys to have a turn, in about their order."""
        return list(islice(chain(self.fresh, self.busy), count))

    # --- turns --------------------------------------------------------------------------------------------------------

    def begin_turn(self) -> FairnessKey | None:
        """Start the next key's turn, with ``weight`` of credit, and return the key; None if no key is active."""
        while True:
            key = self._next_fresh() if self.fresh.first is not None else None
            turn = self._turns + 1
            if key is None:
                if self._round >= self.debtors.due:
                    self._admit()
                key = self.busy.first
                if key is None or key.last_turn >= self._began:
                    if key is not None and self._round + 1 < self.debtors.due:
                        self._round += 1  # what _begin_round() does in the usual case: with one busy key, for each message
                        self._began = turn
                    elif not self._begin_round(turn):
                        return None
                    elif (key := self.busy.first) is None:
                        continue
                self.busy.first = key.behind
                self._busy_turn = self._old_turn = turn
                if self.again.first is not None:
                    self._refresh()
            self._turns = turn
            self._credit, self._spent = key.credit, key.spent
            credit = key.credit = key.credit + key.weight * MILLI
            if credit > 0:
                self.current = key
                return key
            self.end_turn(key)  # its weight was lowered

    def end_turn(self, key: FairnessKey) -> None:
        """End the turn of a key whose credit is used up and that has more to deliver."""
        self.current = None
        key.last_turn = self._turns
        if key.line is None:
            self._old_turn = self._turns
            if self.again.first is not None:
                self._refresh()
            self.busy.append(key)
        if key.credit <= -key.weight * MILLI:
            self.busy.remove(key)
            self._owe(key)
            self.debtors.append(key)

    def _next_fresh(self) -> FairnessKey | None:
        """Remove the next key from ``fresh``, and return it; None if a busy key has waited for too long.

        The next key is the first one, or the last one if that came later and the first one has a backlog.
        """
        if self.busy.first is None:
            self._skip_round()
        first, busy = self.fresh.first, self.busy.first
        assert first is not None
        key, last = first, first.before
        assert last is not None
        if last.joined_turn > first.joined_turn and first.pending > first.weight:
            key = last
        if self._turns - self._busy_turn > self._limits.fresh_turns_max:
            if busy is not None and (key is first or busy.last_turn <= first.joined_turn):
                if self._starves(busy.last_turn, key):
                    return None
            elif key is not first and self._starves(first.joined_turn, key):
                key, self._busy_turn = first, self._turns + 1
        self.fresh.remove(key)
        return key

    def _starves(self, since: int, newer: FairnessKey) -> bool:
        """Return whether a key that has waited since this turn goes before one that came later."""
        return self._turns - since > self._limits.busy_wait_turns_max and newer.joined_turn >= since

    def _refresh(self) -> None:
        """Move keys from ``again`` to ``fresh`` after a turn of a key with a backlog: as many as may go before the next."""
        for _ in range(self._limits.fresh_turns_max):
            key = self.again.first
            if key is None:
                break
            self.again.remove(key)
            key.joined_turn = self._turns
            self.fresh.append(key)

    def charge(self, key: FairnessKey, milli: int) -> None:
        """Take more of a key's share than its deliveries have taken. Below 0: give some back.

        What is given back pays a debt, and is worth one turn at most beyond that, and nothing to a key without messages: no
        key can save up a share with which it stops the others.
        """
        key.spent += milli
        turn = key.weight * MILLI
        if key is self.current:
            credit = min(key.credit - milli, max(key.credit, turn))
            self._credit += credit - key.credit
            self._spent += milli
            key.credit = credit
            return
        credit = self._credit_now(key)
        credit = min(credit - milli, max(credit, turn if key.active else 0))
        if not key.active:
            key.credit, key.due = credit, 0
            if credit < 0:
                self._owe(key)
            return
        if key.line is not self.debtors and credit > -turn:
            key.credit = credit
            return
        assert key.line is not None, "an active key that is not in its turn is in a list"
        key.line.remove(key)
        key.credit = credit
        if credit <= -turn:
            self._owe(key)
            self.debtors.append(key)
        else:
            self.busy.append(key)

    def _credit_now(self, key: FairnessKey) -> int:
        """Return a key's credit, with the turns that it owes."""
        if key.line is self.debtors or (not key.active and key.due > self._round):
            return key.credit - max(0, key.due - self._round - 1) * key.weight * MILLI
        return key.credit if key.active else 0

    # --- rounds and debts ---------------------------------------------------------------------------------------------

    def _owe(self, key: FairnessKey) -> None:
        """Make a key wait for as many rounds as it owes turns."""
        turn = key.weight * MILLI
        rounds = -key.credit // turn
        key.credit += rounds * turn
        key.due = self._round + 1 + rounds

    def _begin_round(self, turn: int) -> bool:
        """Begin a round, if each busy key had its turn in the last one. Return whether any key is active."""
        if self.busy.first is None:
            if self.again.first is not None:
                self._refresh()
                return True
            if self.debtors.due == NEVER:
                return False
        self._began = turn
        self._round += 1
        if self.busy.first is not None and self._round >= self.debtors.due:
            self._admit()
        while self.busy.first is None:
            self._round = max(self._round, self.debtors.due)  # no other key is active: the rounds until then are empty
            self._admit()
        return True

    def _skip_round(self) -> None:
        """Count a turn without busy keys as a round for keys that owe. Keys that wait for a busy key's turn become fresh."""
        self._began = self._turns + 1
        self._round += 1
        self._skipped += 1
        if self._round >= self.debtors.due:
            self._admit()
        if self.again.first is not None and not self._has_backlog():
            self._refresh()

    def _admit(self) -> None:
        """Make one key that has paid its debt the next busy one. Only one a turn: many may have paid in the same round."""
        key = self.debtors.pop()
        if key is not None:
            self.busy.append(key)
            self.busy.first = key
