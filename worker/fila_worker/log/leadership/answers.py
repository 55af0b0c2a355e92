"""What a standby knows of the end of the log: what it has asked the partition, and what was answered."""

from fila_worker.log.leadership.limits import LeadershipLimits


class Answers:
    """Questions for the end of one partition, and their answers. A question has an answer or not: ``asked_ms`` says which one has."""

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
        """Take that a record was read."""
        self.next_offset = max(self.next_offset, offset + 1)

    def take(self, next_offset: int, end: int | None, asked_ms: int | None) -> None:
        """Take where the tail is, and what the partition has answered (see ``log.partition``)."""
        self.next_offset = next_offset
        if end is None or asked_ms is None or (self.answered_ms is not None and asked_ms <= self.answered_ms):
            return
        if self.answered_ms is None or asked_ms - self.answered_ms > self._gap_ms_max():
            self._answering_ms = asked_ms
        self.answered_ms, self._end, self.waits = asked_ms, end, False

    def asked(self, now_ms: int) -> None:
        """Take that a question is asked."""
        self.asked_ms, self.waits = now_ms, True

    def was_away(self) -> None:
        """Take that this process did not run: what was answered before tells nothing."""
        self._answering_ms = self.answered_ms = None

    def begin_again(self) -> None:
        """Take that the log is read anew from somewhere."""
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

        A question that was under way too early tells nothing: ask again when it is answered.
        """
        if need_ms is not None and not self.since(need_ms):
            if self.asked_ms < need_ms or not self.waits:
                return max(need_ms, now_ms)
        elif idle:
            return self.asked_ms + self._limits.ask_idle_ms
        return self.asked_ms + self._limits.ask_ms
