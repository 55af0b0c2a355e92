"""When a standby claims: how long it has heard nothing, why nobody leads, and which place it has in the line."""

from typing import Final, NamedTuple

from fila_worker.log.bodies import Node
from fila_worker.log.leadership.limits import LeadershipLimits

FIRST_IN_LINE: Final = 0


class Vacancy(NamedTuple):
    """Why nobody leads, as far as the log tells."""

    since_ms: int
    to: str = ""
    """The host that may claim first."""
    own: bool = False
    """This node may claim at once: nobody else led."""
    new: bool = False
    """The log has no marker yet."""


class Standing:
    """One standby's place, and what it has heard."""

    def __init__(self, node: Node, now_ms: int, limits: LeadershipLimits) -> None:
        self._node, self._limits = node, limits
        self.rank = FIRST_IN_LINE
        self._ranked_ms = now_ms
        """When it got this place."""
        self.heard_ms = now_ms
        """When something that counts was read last."""
        self.not_before_ms = now_ms
        self.vacancy: Vacancy | None = None
        self.holds_back = False
        """Whether an own vacancy is none: another process may have this name, or this node is not fit to lead."""

    def place(self, rank: int, now_ms: int) -> None:
        """Take a place in the line."""
        if rank != self.rank:
            self.rank, self._ranked_ms = rank, now_ms

    @property
    def by_silence(self) -> bool:
        """Whether only a silence tells that nobody leads."""
        return self.vacancy is None or (self.vacancy.own and self.holds_back)

    def claim_due_ms(self, leader: Node | None) -> int:
        """Return when to claim if nothing is heard until then. ``leader``: the last one that is known."""
        limits, vacancy = self._limits, self.vacancy
        rank_ms = min(self.rank, limits.ranks_max) * (limits.new_rank_ms if vacancy and vacancy.new else limits.rank_ms)
        if vacancy is None or self.by_silence:
            due = self.heard_ms + limits.silence_ms + rank_ms
        elif vacancy.own or vacancy.to == self._node.host:
            due = vacancy.since_ms
        elif leader == self._node:
            due = vacancy.since_ms + limits.silence_ms  # it has just left, and others shall have it
        else:
            # Those who get their places when the shard is vacant already keep their distance, too.
            due = max(vacancy.since_ms + (limits.succession_ms if vacancy.to else 0), self._ranked_ms) + rank_ms
        return max(due, self.not_before_ms)
