"""A token bucket of the whole cluster, the accounts that wait for its tokens, and when a bucket is due."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from sortedcontainers import SortedDict, SortedSet

from fila_proto_zmq.runtime_config import Limit

PATIENCE_MS: Final = 20
"""How long tokens of one bucket are held for an account that waits for another's; doubled after each hold in vain."""


class SessionState(Enum):
    """The state of a session."""

    OPEN = "its tokens count as outstanding"
    SUSPENDED = "its worker is lost, or leaves: its tokens count as spent, until it returns"
    OVER = "its tokens are void"


@dataclass(slots=True, eq=False)
class ShardSession:
    """A shard's session. ``epoch`` keeps the sessions of a shard's different lives apart."""

    shard: int
    epoch: int
    number: int
    state: SessionState = SessionState.OPEN
    accounts: dict[tuple[str, ...], "Account"] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Account:
    """The tokens of one shard for one set of keys.

    Invariants: ``outstanding >= 0``; it has a ``turn`` if and only if it waits; ``line`` and ``holders`` only if it waits.
    """

    session: ShardSession
    keys: tuple[str, ...]
    granted: int
    consumed: int
    returned: int
    seen_ms: int
    least: int = 0
    most: int = 0
    turn: int = 0
    """Its place in the order of all wants; 0: it does not wait."""
    line: "Bucket | None" = None
    """The bucket at which it waits: the one that will take longest."""
    claim: int = 0
    """Its share of that bucket's ``queued``."""
    holders: list["Bucket"] = field(default_factory=list)
    """The buckets that hold tokens for it."""
    patience_ms: int = PATIENCE_MS
    updated_ms: int | None = None
    """When the shard last got an update of this account."""
    reported_until_ms: int | None = None
    """The end of the wait in that update."""
    refused: bool = False
    """Whether a bucket had too few tokens for its last want."""

    @property
    def outstanding(self) -> int:
        """The tokens that were granted, and were not reported as consumed or returned."""
        return self.granted - self.consumed - self.returned

    @property
    def wanting(self) -> bool:
        """Whether the least that is of use to it is missing."""
        return self.outstanding < self.least

    @property
    def settled(self) -> bool:
        """Whether it can be forgotten without losing anything."""
        return not self.turn and not self.outstanding


NEVER_MS: Final = 24 * 3600 * 1000
"""The wait that is reported when it has no end."""

HANDFUL_MS: Final = 4
"""Where tokens are scarce, the income of this time is gathered, so that a frame carries many tokens."""


_NO_LINE: Final[SortedDict[int, Account]] = SortedDict()
_NO_HOLDS: Final[dict[Account, int]] = {}
"""The line and the holds of buckets at which nobody waits: most of a million tenants' buckets."""


class Bucket:
    """Tokens of one key, from ``since_ms`` on.

    Invariants: ``level + outstanding <= burst``; ``line`` has the accounts whose ``line`` this is, by their turns; ``queued``
    is the sum of their claims.
    """

    __slots__ = ("burst", "due_ms", "holds", "key", "level", "line", "new", "outstanding", "queued", "rate", "since_ms")

    def __init__(self, key: str, limit: Limit, outstanding: int, now_ms: int, *, full: bool) -> None:
        """``outstanding``: the tokens that shards hold and that were granted while there was no limit."""
        self.key = key
        self.rate, self.burst = limit
        self.outstanding = outstanding
        self.level = min(self.burst if full else 0, self.burst - outstanding)
        self.new = full
        """Full, and nothing was drawn from it yet."""
        self.since_ms = now_ms
        self.due_ms: int | None = None
        """When the head of the line may be served, as :class:`DueBuckets` has it."""
        self.line = _NO_LINE
        self.queued = 0
        self.holds = _NO_HOLDS
        """Tokens kept for accounts that wait at another bucket. Accounts that came later can't have them."""

    def accrue(self, now_ms: int) -> None:
        """Add the tokens since the last call, up to the burst."""
        gain = min(self.rate * (now_ms - self.since_ms), self.room)
        self.since_ms = max(self.since_ms, now_ms)
        if gain > 0:
            self.level += gain

    @property
    def room(self) -> int:
        """How much the level can rise before a shard reports."""
        return self.burst - self.level - self.outstanding

    def change(self, limit: Limit, now_ms: int) -> None:
        """Apply a new limit. The bucket keeps its tokens, clamped to the burst; a new one stays full.

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

    def charge(self, amount: int) -> None:
        """Take tokens for deliveries that cost more than they took, down into debt. Below 0: give some back."""
        self.new = False
        self.level = min(self.level - amount, self.burst - self.outstanding)

    def settle(self, consumed: int, returned: int) -> None:
        """Settle outstanding tokens. Call :meth:`accrue` before."""
        self.outstanding -= consumed + returned
        self.level = min(self.level + returned, self.burst - self.outstanding)

    def take_back(self, outstanding: int) -> None:
        """Count tokens that were taken for spent as outstanding again."""
        self.outstanding += outstanding
        self.level = min(self.level, self.burst - self.outstanding)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def free_for(self, account: Account) -> int:
        """Return the level less the tokens that are held for accounts that came earlier."""
        if not self.holds:
            return self.level
        return self.level - sum(amount for holder, amount in self.holds.items() if holder.turn < account.turn)

    def required(self, account: Account) -> int:
        """Return the level at which ``account`` can be granted its least: all of the burst if it wants more than that.

        A bucket with a burst of 0 and no income is never full. A bucket with income lets through at its rate.
        """
        full = self.burst if self.burst or self.rate else account.least
        return min(account.least, full) - account.outstanding

    def shortfall(self, account: Account) -> int:
        """Return the missing tokens until this account's turn here with its least; 0 or less: it is its turn."""
        missing = self.required(account) - self.free_for(account)
        if self.line and account.line is not self and self.line.peekitem(0)[0] < account.turn:
            missing += self.queued
        return missing

    def wait_ms(self, shortfall: int) -> int:
        """Return how long this many tokens take to come in."""
        if shortfall <= 0:
            return 0
        return min(NEVER_MS, -(-shortfall // self.rate)) if self.rate else NEVER_MS

    def join(self, account: Account) -> None:
        """Put an account in line, by its turn."""
        account.line = self
        account.claim = account.least - account.outstanding
        if self.line is _NO_LINE:
            self.line = SortedDict()
        self.queued += account.claim
        self.line[account.turn] = account

    def leave(self, account: Account) -> None:
        """Take an account out of the line."""
        del self.line[account.turn]
        self.queued -= account.claim
        account.line = None
        if not self.line:
            self.line = _NO_LINE

    def hold(self, account: Account) -> None:
        """Keep the tokens that an account needs, while it waits at another bucket."""
        if self.holds is _NO_HOLDS:
            self.holds = {}
        self.holds[account] = account.least - account.outstanding
        account.holders.append(self)

    def let_go(self, account: Account) -> None:
        """Keep tokens for an account no longer."""
        del self.holds[account]
        if not self.holds:
            self.holds = _NO_HOLDS

    @property
    def at_rest(self) -> bool:
        """Whether it is as full as a new one, and nobody waits or has tokens of it: it can be forgotten."""
        return self.outstanding == 0 and self.level >= self.burst and not self.line and not self.holds

    @property
    def head(self) -> Account | None:
        """The account whose turn is next."""
        return self.line.peekitem(0)[1] if self.line else None

    def head_due_ms(self, now_ms: int) -> int | None:
        """Return when the head may be served, after :meth:`accrue`; None: not before a shard reports or holds end."""
        head = self.head
        if head is None:
            return None
        shortfall, room = self.shortfall(head), max(0, self.room)
        if shortfall > room or (shortfall > 0 and not self.rate):
            return None
        return now_ms + self.wait_ms(max(shortfall, min(self._handful(head) - self.level, room)))

    def _handful(self, head: Account) -> int:
        """Return how many tokens are worth a frame; fewer where the bucket might overflow meanwhile."""
        handful = self.rate and self.rate * min(HANDFUL_MS, self.burst // (2 * self.rate))
        return handful if len(self.line) > 1 else min(handful, head.most - head.outstanding)


class DueBuckets:
    """Buckets by the time at which they are due. Invariant: a bucket is in it at its ``due_ms``, or has none."""

    def __init__(self) -> None:
        self._dates: SortedSet[tuple[int, str]] = SortedSet()

    def put_down(self, bucket: Bucket, due_ms: int | None) -> None:
        """Serve ``bucket`` at ``due_ms`` instead of an earlier entry's time; None: not at all."""
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
