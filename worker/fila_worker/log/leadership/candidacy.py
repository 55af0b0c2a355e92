"""When a standby claims: the length of the silence, the reason of a vacancy, and the standby's place in the line."""

from typing import Final, NamedTuple

from fila_worker.log.bodies import Node
from fila_worker.log.leadership.term import LeadershipLimits


class EndOfLog:
    """Questions for the end of one partition, and their answers. ``asked_ms`` identifies a question."""

    def __init__(self, now_ms: int, limits: LeadershipLimits) -> None:
        self._limits = limits
        self.next_offset, self._end = 0, -1
        """Where the standby reads next, and where the log ended."""
        self.asked_ms = now_ms - limits.ask_idle_ms
        """When the last question was asked."""
        self.answered_ms: int | None = None
        """When the question was asked that has the last answer."""
        self.waits = False
        """Whether no answer has come since the last question."""
        self._answering_ms: int | None = None
        """Since when each answer came in time."""

    def read(self, offset: int) -> None:
        """Note that a record was read."""
        self.next_offset = max(self.next_offset, offset + 1)

    def take(self, next_offset: int, end: int | None, asked_ms: int | None) -> None:
        """Note where the tail is, and the answer of the partition (see ``log.partition``)."""
        self.next_offset = next_offset
        if end is None or asked_ms is None or (self.answered_ms is not None and asked_ms <= self.answered_ms):
            return
        if self.answered_ms is None or asked_ms - self.answered_ms > self._gap_ms_max():
            self._answering_ms = asked_ms
        self.answered_ms, self._end, self.waits = asked_ms, end, False

    def asked(self, now_ms: int) -> None:
        """Note that a question is asked."""
        self.asked_ms, self.waits = now_ms, True

    def was_away(self) -> None:
        """Note that this process did not run: answers from before do not count."""
        self._answering_ms = self.answered_ms = None

    def begin_again(self) -> None:
        """Note that the log is read again from some offset."""
        self.next_offset, self.answered_ms = 0, None

    @property
    def at_end(self) -> bool:
        """Whether all is read that was there when the partition last answered."""
        return self.answered_ms is not None and self.next_offset >= self._end

    def fresh(self, now_ms: int) -> bool:
        """Whether the partition has just answered."""
        return self.answered_ms is not None and now_ms - self.answered_ms <= self._limits.answer_ms_max

    def since(self, time_ms: int) -> bool:
        """Whether a question has its answer that was asked then or later."""
        return self.answered_ms is not None and self.answered_ms >= time_ms

    def for_long(self, now_ms: int) -> bool:
        """Whether the partition has answered all the time until now, for as long as a delayed record may take."""
        return self._answering_ms is not None and now_ms - self._answering_ms >= self._limits.answering_ms

    @property
    def watch_ms(self) -> int:
        """How long before a claim the questions have to come often."""
        return self._limits.answering_ms + self._gap_ms_max()

    def _gap_ms_max(self) -> int:
        """Between two answers, if the partition answers all the time."""
        return self._limits.ask_ms + self._limits.answer_ms_max

    def due_ms(self, now_ms: int, need_ms: int | None, idle: bool) -> int:
        """Return when to ask. ``need_ms``: an earlier question does not help. ``idle``: no claim is due soon.

        If a question was under way too early, its answer is not enough: ask again after it.
        """
        if need_ms is not None and not self.since(need_ms):
            if self.asked_ms < need_ms or not self.waits:
                return max(need_ms, now_ms)
        elif idle:
            return self.asked_ms + self._limits.ask_idle_ms
        return self.asked_ms + self._limits.ask_ms


FIRST_IN_LINE: Final = 0


class Vacancy(NamedTuple):
    """Why the shard has no leader, according to the log."""

    since_ms: int
    to: str = ""
    """The host that may claim first."""
    own: bool = False
    """This node may claim at once: no other node has led since."""
    new: bool = False
    """The log has no marker yet."""


class Candidacy:
    """One standby's place in the line, and the last record that it has read."""

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
        """Whether its own vacancy does not count: another process may have this name, or this node is not fit to lead."""

    def place(self, rank: int, now_ms: int) -> None:
        """Take a place in the line."""
        if rank != self.rank:
            self.rank, self._ranked_ms = rank, now_ms

    @property
    def by_silence(self) -> bool:
        """Whether only a silence can show that the shard has no leader."""
        return self.vacancy is None or (self.vacancy.own and self.holds_back)

    def claim_due_ms(self, leader: Node | None) -> int:
        """Return when to claim if no record counts until then. ``leader``: the last known one."""
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
