"""A token bucket of the whole cluster, and the accounts that wait for its tokens.

The bucket does not know when granted tokens are spent, only when a shard says so. Until then they are *outstanding*, and count as
still being in the bucket: ``level + outstanding`` never grows beyond the burst. So whatever shards hold back and spend at
once, together they never spend more than ``burst + rate × t`` in any time t. The price: with a burst smaller than what comes
in while a report is under way, the rate is not reached.

A level below zero is a debt: of a single want larger than the burst, or of a burst that was lowered while tokens were out.

Amounts are millionths of a token, rates millionths a millisecond, all integers: nothing drifts.
"""

from typing import Final

from sortedcontainers import SortedDict

from fila_proto_zmq.runtime_config import Limit
from fila_router.core.account import Account

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
        """The level, without what is held for accounts that came earlier."""
        if not self.holds:
            return self.level
        return self.level - sum(amount for holder, amount in self.holds.items() if holder.turn < account.turn)

    def required(self, account: Account) -> int:
        """The level at which ``account`` can be granted its least: all of the burst if it wants more than that.

        A bucket that holds nothing and gets nothing is never full. One that gets something lets through at its rate.
        """
        full = self.burst if self.burst or self.rate else account.least
        return min(account.least, full) - account.outstanding

    def shortfall(self, account: Account) -> int:
        """What is missing until it is this account's turn here, and its least is there; not above 0: nothing."""
        missing = self.required(account) - self.free_for(account)
        if self.line and account.line is not self and self.line.peekitem(0)[0] < account.turn:
            missing += self.queued
        return missing

    def wait_ms(self, shortfall: int) -> int:
        """How long so many tokens take to come in."""
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
        """When the head may be served; None: not before a shard reports or somebody lets go of tokens. After :meth:`accrue`."""
        head = self.head
        if head is None:
            return None
        shortfall, room = self.shortfall(head), max(0, self.room)
        if shortfall > room or (shortfall > 0 and not self.rate):
            return None
        return now_ms + self.wait_ms(max(shortfall, min(self._handful(head) - self.level, room)))

    def _handful(self, head: Account) -> int:
        """How many tokens are worth a frame; not so many that the bucket might overflow meanwhile."""
        handful = self.rate and self.rate * min(HANDFUL_MS, self.burst // (2 * self.rate))
        return handful if len(self.line) > 1 else min(handful, head.most - head.outstanding)
