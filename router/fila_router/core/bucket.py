"""A token bucket of the whole cluster, the accounts that wait for its tokens, and when which bucket is due."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from sortedcontainers import SortedDict, SortedSet

from fila_proto_zmq.runtime_config import Limit

PATIENCE_MS: Final = 20
"""For how long tokens of one bucket are held for an account that waits for another's; doubled whenever that was in vain."""


class SessionState(Enum):
    """How it is with a session."""

    OPEN = "its tokens count as outstanding"
    SUSPENDED = "its worker is lost, or leaves: its tokens count as spent, until it returns"
    OVER = "its tokens are void"


@dataclass(slots=True, eq=False)
class Session:
    """A shard's session. ``epoch`` keeps the sessions of a shard's different lives apart."""

    shard: int
    epoch: int
    number: int
    standing: SessionState = SessionState.OPEN
    accounts: dict[tuple[str, ...], "Account"] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Account:
    """Invariants: ``outstanding >= 0``; it has a ``turn`` if and only if it waits; ``line`` and ``holders`` only if it waits."""

    session: Session
    keys: tuple[str, ...]
    granted: int
    consumed: int
    returned: int
    heard_ms: int
    least: int = 0
    most: int = 0
    turn: int = 0
    """Its place in the order in which wants came, over all accounts; 0: it waits for nothing."""
    line: "Bucket | None" = None
    """The bucket it waits at: the one that will keep it waiting longest."""
    claim: int = 0
    """What it added to that bucket's ``queued``."""
    holders: list["Bucket"] = field(default_factory=list)
    """Buckets that hold tokens for it."""
    patience_ms: int = PATIENCE_MS
    told_ms: int | None = None
    """When the shard was last told something of this account."""
    told_until_ms: int | None = None
    """How long it was told to wait."""

    @property
    def outstanding(self) -> int:
        """Granted, and neither consumed nor returned as far as is known."""
        return self.granted - self.consumed - self.returned

    @property
    def wanting(self) -> bool:
        """Whether the least that is of use to it is missing."""
        return self.outstanding < self.least

    @property
    def settled(self) -> bool:
        """Whether nothing would be lost if it was forgotten."""
        return not self.turn and not self.outstanding


NEVER_MS: Final = 24 * 3600 * 1000
"""How long a wait is said to be that has no end."""

HANDFUL_MS: Final = 4
"""Where tokens are scarce, as many are gathered as come in in this time, so that a frame carries many."""


class Bucket:
    """Tokens of one key, from ``since_ms`` on.

    Invariants: ``level + outstanding <= burst``; ``line`` has the accounts whose ``line`` this is, by their turns; ``queued`` is
    the sum of their claims.
    """

    __slots__ = ("burst", "due_ms", "holds", "key", "level", "line", "new", "outstanding", "queued", "rate", "since_ms")

    def __init__(self, key: str, limit: Limit, outstanding: int, now_ms: int, *, full: bool) -> None:
        """``outstanding``: what shards hold of tokens that were granted while there was no limit."""
        self.key = key
        self.rate, self.burst = limit
        self.outstanding = outstanding
        self.level = min(self.burst if full else 0, self.burst - outstanding)
        self.new = full
        """Full, and nothing was drawn from it yet."""
        self.since_ms = now_ms
        self.due_ms: int | None = None
        """When the head of the line may be served, as the bank has it in its agenda."""
        self.line: SortedDict[int, Account] = SortedDict()
        self.queued = 0
        self.holds: dict[Account, int] = {}
        """Tokens kept for accounts that wait for another bucket's. They bind those who came later."""

    def accrue(self, now_ms: int) -> None:
        """Let in what came since the last time, as far as there is room."""
        gain = min(self.rate * (now_ms - self.since_ms), self.room)
        self.since_ms = max(self.since_ms, now_ms)
        if gain > 0:
            self.level += gain

    @property
    def room(self) -> int:
        """How much the level can rise before a shard reports."""
        return self.burst - self.level - self.outstanding

    def change(self, limit: Limit, now_ms: int) -> None:
        """Follow the config. The bucket keeps its tokens, clamped to the burst; a new one stays full.

        So it does not matter whether a rate and a burst are set in one call or in two.
        """
        self.accrue(now_ms)
        self.rate, self.burst = limit
        self.level = min(self.burst if self.new else self.level, self.burst - self.outstanding)

    # --- tokens go out and come back ----------------------------------------------------------------------------------

    def lend(self, amount: int) -> None:
        """Grant tokens."""
        self.new = False
        self.level -= amount
        self.outstanding += amount

    def settle(self, consumed: int, returned: int) -> None:
        """Learn what became of outstanding tokens. Call :meth:`accrue` before."""
        self.outstanding -= consumed + returned
        self.level = min(self.level + returned, self.burst - self.outstanding)

    def take_back(self, outstanding: int) -> None:
        """Count tokens as outstanding again that were taken for spent."""
        self.outstanding += outstanding
        self.level = min(self.level, self.burst - self.outstanding)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def free_for(self, account: Account) -> int:
        """Return the level, without what is held for accounts that came earlier."""
        if not self.holds:
            return self.level
        return self.level - sum(amount for holder, amount in self.holds.items() if holder.turn < account.turn)

    def required(self, account: Account) -> int:
        """Return the level at which ``account`` can be granted its least: all of the burst if it wants more than that.

        A bucket that holds nothing and gets nothing is never full. One that gets something lets through at its rate.
        """
        full = self.burst if self.burst or self.rate else account.least
        return min(account.least, full) - account.outstanding

    def shortfall(self, account: Account) -> int:
        """Return what is missing until it is this account's turn here, and its least is there; not above 0: nothing."""
        missing = self.required(account) - self.free_for(account)
        if self.line and account.line is not self and self.line.peekitem(0)[0] < account.turn:
            missing += self.queued
        return missing

    def wait_ms(self, shortfall: int) -> int:
        """Return how long so many tokens take to come in."""
        if shortfall <= 0:
            return 0
        return min(NEVER_MS, -(-shortfall // self.rate)) if self.rate else NEVER_MS

    def join(self, account: Account) -> None:
        """Put an account in line, by its turn."""
        account.line = self
        account.claim = account.least - account.outstanding
        self.queued += account.claim
        self.line[account.turn] = account

    def leave(self, account: Account) -> None:
        """Take an account out of the line."""
        del self.line[account.turn]
        self.queued -= account.claim
        account.line = None

    @property
    def head(self) -> Account | None:
        """The account that waits first."""
        return self.line.peekitem(0)[1] if self.line else None

    def head_due_ms(self, now_ms: int) -> int | None:
        """Return when the head may be served; None: not before a shard reports or somebody lets go of tokens. After :meth:`accrue`."""
        head = self.head
        if head is None:
            return None
        shortfall, room = self.shortfall(head), max(0, self.room)
        if shortfall > room or (shortfall > 0 and not self.rate):
            return None
        return now_ms + self.wait_ms(max(shortfall, min(self._handful(head) - self.level, room)))

    def _handful(self, head: Account) -> int:
        """Return how many tokens are worth a frame; not so many that the bucket might overflow meanwhile."""
        handful = self.rate and self.rate * min(HANDFUL_MS, self.burst // (2 * self.rate))
        return handful if len(self.line) > 1 else min(handful, head.most - head.outstanding)


class DueBuckets:
    """Appointments of buckets. Invariant: a bucket is in it at its ``due_ms``, or has none."""

    def __init__(self) -> None:
        self._dates: SortedSet[tuple[int, str]] = SortedSet()

    def put_down(self, bucket: Bucket, due_ms: int | None) -> None:
        """Serve ``bucket`` at ``due_ms`` and not when it was due before; None: not at all."""
        if bucket.due_ms == due_ms:
            return
        if bucket.due_ms is not None:
            self._dates.remove((bucket.due_ms, bucket.key))
        bucket.due_ms = due_ms
        if due_ms is not None:
            self._dates.add((due_ms, bucket.key))

    def first_ms(self) -> int | None:
        """Return when the first bucket is due."""
        return self._dates[0][0] if self._dates else None

    def due(self, now_ms: int) -> str | None:
        """Return the key of the bucket that is due first, if one is."""
        return self._dates[0][1] if self._dates and self._dates[0][0] <= now_ms else None

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return iter(self._dates)
