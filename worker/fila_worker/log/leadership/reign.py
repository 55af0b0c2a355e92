"""What a leader has appended, what of it counts, and since when that proves that it leads."""

from collections import deque
from typing import NamedTuple

from fila_worker.log.leadership.limits import LeadershipLimits


class Proof(NamedTuple):
    """That this process leads."""

    epoch: int
    """The offset of its marker."""
    age_ms: int
    """Since the last record that counts was appended."""
    alone_ms: int
    """Since this process last read a record of another reign, or began."""
    before_ms: int = 0
    """The same of the leader before, when it left. 0: it has not left, and may not know yet that it leads no more."""


class Reign:
    """The time from a marker that counts to the end of its leader. ``claimed_ms``: when the marker was appended."""

    def __init__(self, claimed_ms: int, limits: LeadershipLimits) -> None:
        self._limits = limits
        self.appended, self.confirmed = 0, 0
        """The last number that was given, and the last one that counts."""
        self._turned = 0
        """The last number of a turn with changes of the shard."""
        self._appends: deque[tuple[int, int]] = deque()
        """Numbers with the time when they were appended, rising; not each of them."""
        self._beat_ms, self._beat_number = claimed_ms, 0
        self.proof_ms = claimed_ms
        """When the youngest record was appended that is known to count."""
        self.recovered = self.stopped = False
        """Whether the shard is ready to serve, and whether no turn will come any more."""
        self.last_number = 0
        """Of the LEAVES; 0: it is not appended yet."""

    def append(self, number: int, now_ms: int, *, turn: bool) -> None:
        """Take the last number that was given."""
        self.appended = number
        if turn:
            self._turned = number
        if not self._appends or now_ms - self._appends[-1][1] >= self._limits.beat_ms // 10:
            self._appends.append((number, now_ms))

    def confirm(self, number: int) -> None:
        """Take the last number that counts."""
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
        """When the proof is too old, if there is no other."""
        return self.proof_ms + self._limits.proof_ms_max

    @property
    def beat_due_ms(self) -> int | None:
        """When to beat; None: one on the way is enough, and a LEAVES is the last record."""
        if self.confirmed < self._beat_number or self.last_number:
            return None
        return self._beat_ms + self._limits.beat_ms

    def beat(self, now_ms: int) -> None:
        """Take that the next record is a beat."""
        self._beat_ms, self._beat_number = now_ms, self.appended + 1

    def leave(self) -> None:
        """Take that the next record is the LEAVES."""
        self.last_number = self.appended + 1
