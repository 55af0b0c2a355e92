"""What one shard has had of the tokens for one set of throttle keys, and what it wants.

Totals count from the start of a *session*: the time in which both sides remember them. A shard starts a new one whenever it has
registered; tokens of an older one are void. An account that is settled may be forgotten, because the shard's own totals bring
it back: then everything granted has been consumed or returned.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fila_router.core.bucket import Bucket

PATIENCE_MS: Final = 20
"""For how long tokens of one bucket are held for an account that waits for another's; doubled whenever that was in vain."""


class Standing(Enum):
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
    standing: Standing = Standing.OPEN
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
