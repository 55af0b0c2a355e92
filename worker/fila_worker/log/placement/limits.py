"""How often a node speaks, how long it is believed, and how fast shards move."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlacementLimits:
    """Spans of time in milliseconds, and counts."""

    say_ms: int = 1000
    """How often a node says what it has, if nothing changes."""
    hear_ms: int = 200
    """How often it looks for what others say."""
    live_ms: int = 4000
    """A node that has said nothing for longer is not planned with. Less than a leader's silence, so that the line is known when it ends."""
    answer_ms_max: int = 2500
    """A control partition that has not answered for longer tells nothing. Less than ``live_ms``: else all others would seem to be dead."""
    learn_ms: int = 2000
    """How long to listen before deciding anything: all that live have spoken by then."""
    decide_ms: int = 1000
    """Between two decisions."""
    apart_ms: int = 2000
    """How long a node that is apart listens before it gives up its shards: those that are apart from it have said so by then."""
    settle_ms: int = 10_000
    """A wish needs a plan that is as old as that."""
    wish_ms: int = 5000
    """For how long a wish is the only one."""
    give_ms: int = 1000
    """Between two shards that a node gives away, at least. The first one must have a leader again, too."""
    behind_max: int = 200
    """Records: a copy that is further behind has not caught up."""
    nodes_max: int = 1000
    """Of which something is known; the ones that were silent for longest are forgotten."""
    read_max: int = 1000
    """Records of the control partition that are read at once."""
    keep_records: int = 4096
    """What the control partition keeps. Readers begin at its end, so this is for slow ones."""
    trim_ms: int = 60_000
    """How often the rest is forgotten."""

    def __post_init__(self) -> None:
        assert self.hear_ms <= self.say_ms < self.learn_ms, "all that live speak while a node only listens"
        assert self.say_ms < self.answer_ms_max < self.live_ms, "silence of the partition is noticed before that of nodes"
        assert self.say_ms < self.apart_ms, "two nodes that are apart from each other know that of each other"
