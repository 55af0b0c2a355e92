"""One term of leadership: what the leader has appended, what of it counts, and since when that proves that it leads."""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class LeadershipLimits:
    """Spans of time in milliseconds."""

    beat_ms: int = 1000
    """Between two beats."""
    silence_ms: int = 6000
    """Of a leader, before the first in line claims. A log's partition that loses its own leader stalls for 4 to 7 s."""
    rank_ms: int = 500
    """More for each standby that is in line before: longer than a claim takes."""
    new_rank_ms: int = 2000
    """The same on a log without a marker: hosts that start together learn their places at different moments."""
    ranks_max: int = 8
    """The longest line, which bounds the silence."""
    pause_ms: int = 1000
    """After a longer gap between two steps of this process, a silence does not count."""
    answering_ms: int = 2000
    """How long the partition must have answered before a silence counts: longer than a delayed beat of a leader takes."""
    ask_ms: int = 500
    """Between two questions when a claim may be due soon."""
    ask_idle_ms: int = 2000
    """Between two questions otherwise. Their answers show how far a copy is behind."""
    answer_ms_max: int = 1000
    """An older answer does not count."""
    succession_ms: int = 1000
    """How long the others leave a shard to the named successor."""
    again_ms: int = 2000
    """Between a claim that failed and the next one."""
    request_ms: int = 5000
    """Between two transfer requests."""
    proof_ms_max: int = 8000
    """A leader that can show no younger proof stops serving. Contract: less than 10 s."""

    def __post_init__(self) -> None:
        assert 0 < self.beat_ms < self.proof_ms_max < 10_000, (
            "a leader ends its term by itself within 10 s, and beats more often"
        )
        assert self.beat_ms + self.answering_ms < self.silence_ms, "a silence is longer than the time between two beats"
        assert self.ask_ms < self.answer_ms_max <= self.answering_ms, "an answer is young when the next one comes"


class Proof(NamedTuple):
    """That this process leads."""

    epoch: int
    """The offset of its marker."""
    age_ms: int
    """Since the last record that counts was appended."""
    alone_ms: int
    """Since this process last read a record of another term, or began."""
    before_ms: int = 0
    """The same of the leader before, when it left. 0: it has not left, and perhaps still serves."""


class LeadershipTerm:
    """The time from a marker that counts to the end of its leader. ``claimed_ms``: when the marker was appended."""

    def __init__(self, claimed_ms: int, limits: LeadershipLimits) -> None:
        self._limits = limits
        self.appended, self.confirmed = 0, 0
        """The last number that was given, and the last one that counts."""
        self._turned = 0
        """The last number of a turn with changes of the shard."""
        self._appends: deque[tuple[int, int]] = deque()
        """Numbers with the time when they were appended, rising; some are left out."""
        self._beat_ms, self._beat_number = claimed_ms, 0
        self.proof_ms = claimed_ms
        """When the youngest record was appended that is known to count."""
        self.recovered = self.stopped = False
        """Whether the shard is ready to serve, and whether no turn will come any more."""
        self.last_number = 0
        """The number of the LEAVES; 0: it is not appended yet."""

    def append(self, number: int, now_ms: int, *, turn: bool) -> None:
        """Note the last number that was given."""
        self.appended = number
        if turn:
            self._turned = number
        if not self._appends or now_ms - self._appends[-1][1] >= self._limits.beat_ms // 10:
            self._appends.append((number, now_ms))

    def confirm(self, number: int) -> None:
        """Note the last number that counts."""
        self.confirmed = number
        while self._appends and self._appends[0][0] <= number:
            self.proof_ms = max(self.proof_ms, self._appends.popleft()[1])

    @property
    def is_what_others_have(self) -> bool:
        """Whether all turns that were written count."""
        return self.confirmed >= self._turned

    def is_proved(self, now_ms: int) -> bool:
        """Whether the proof is young enough to serve."""
        return now_ms < self.proof_due_ms

    @property
    def proof_due_ms(self) -> int:
        """When the proof becomes too old."""
        return self.proof_ms + self._limits.proof_ms_max

    @property
    def beat_due_ms(self) -> int | None:
        """When to beat; None: one is on the way, or the LEAVES is appended."""
        if self.confirmed < self._beat_number or self.last_number:
            return None
        return self._beat_ms + self._limits.beat_ms

    def beat(self, now_ms: int) -> None:
        """Note that the next record is a beat."""
        self._beat_ms, self._beat_number = now_ms, self.appended + 1

    def leave(self) -> None:
        """Note that the next record is the LEAVES."""
        self.last_number = self.appended + 1
