"""How long a leader is heard, waited for and believed."""

from dataclasses import dataclass


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
    """The same on a log without a marker: hosts that start together do not know at the same moment which places they have."""
    ranks_max: int = 8
    """The longest line: it bounds the silence."""
    pause_ms: int = 1000
    """A longer gap between two steps of this process means that it did not listen."""
    answering_ms: int = 2000
    """How long the partition must have answered before a silence counts: longer than a leader takes to get a delayed beat through."""
    ask_ms: int = 500
    """Between two questions when a claim may be due soon."""
    ask_idle_ms: int = 2000
    """Between two questions otherwise: they tell how far a copy is behind."""
    answer_ms_max: int = 1000
    """An older answer is none."""
    succession_ms: int = 1000
    """How long the others leave a shard to the named successor."""
    again_ms: int = 2000
    """Between a claim that failed and the next one."""
    wish_ms: int = 5000
    """Between two wishes."""
    proof_ms_max: int = 8000
    """A leader that can show no younger proof stops serving. Contract: less than 10 s."""

    def __post_init__(self) -> None:
        assert 0 < self.beat_ms < self.proof_ms_max < 10_000, (
            "a leader ends its reign by itself within 10 s, and beats more often"
        )
        assert self.beat_ms + self.answering_ms < self.silence_ms, "a silence is longer than the time between two beats"
        assert self.ask_ms < self.answer_ms_max <= self.answering_ms, "an answer is young when the next one comes"
