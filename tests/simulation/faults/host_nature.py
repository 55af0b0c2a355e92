"""How the hosts of a run are, drawn from numbers of their own."""

from dataclasses import dataclass
from random import Random

from fila_worker.log.leadership import LeadershipLimits
from fila_worker.log.placement import PlacementLimits

LIMITS = {
    "as in the product": LeadershipLimits(),
    "short": LeadershipLimits(
        beat_ms=400, silence_ms=2000, rank_ms=200, new_rank_ms=600, pause_ms=700, answering_ms=800, ask_ms=250, ask_idle_ms=700, answer_ms_max=500,
        succession_ms=400, again_ms=700, request_ms=1500, proof_ms_max=2600,
    ),
}  # fmt: skip
"""How long leadership waits for what: most runs are too short for the product's spans."""
PLACEMENT = {
    "as in the product": PlacementLimits(),
    "short": PlacementLimits(
        append_ms=400, read_ms=100, live_ms=1600, answer_ms_max=1000, learn_ms=800, decide_ms=300, settle_ms=1200, request_ms=1500, give_ms=300,
        behind_max=40, keep_records=64, trim_ms=4000,
    ),
}  # fmt: skip
"""The same of placement, by the same names."""
UNPROVED_MAX = 10 / 8
"""So much longer than without proof a leader may go on serving: a turn, and the clocks' differences."""


@dataclass(frozen=True)
class HostsNature:
    """How the hosts of a run are. All of it is drawn from numbers of its own."""

    joined: tuple[bool, ...]
    """For each host, whether one worker has all of its shards."""
    limits: str
    follow_ms: int
    patience_ms: int
    append_us: tuple[int, int]
    record_bytes_max: int
    flush_bytes: int
    flush_records: int
    apart_us: tuple[int, ...]
    """How far each host's wall clock is off."""
    drift: tuple[float, ...]
    """How much faster each host's steady clock runs."""
    several: bool = False
    """Whether each host has a router."""
    finds: bool = False
    """Whether workers hear in the log where the routers of other hosts are, instead of being told at their start."""

    @property
    def leadership(self) -> LeadershipLimits:
        """The limits by their name."""
        return LIMITS[self.limits]

    @property
    def placement(self) -> PlacementLimits:
        """The limits of placement by their name."""
        return PLACEMENT[self.limits]

    @property
    def settles_us(self) -> int:
        """How long the hosts of a healed cluster have until all shards must serve."""
        limits = self.leadership
        longest_ms = 2 * (limits.silence_ms + limits.again_ms) + limits.answering_ms + len(self.joined) * limits.rank_ms
        return 1000 * (longest_ms + 10 * self.follow_ms)


def draw_hosts(random: Random) -> HostsNature:
    """Return the nature of a seed's hosts."""
    hosts = random.choice([2, 3, 3])
    limits = random.choice(["short", "short", "short", "as in the product"])
    apart = random.random() < 0.3
    return HostsNature(
        joined=tuple(random.random() < 0.4 for _ in range(hosts)),
        limits=limits,
        follow_ms=random.choice([60, 120, 200]),
        patience_ms=random.choice([1500, 5000, 15_000]),
        append_us=random.choice([(50, 500), (500, 4000), (4000, 60_000)]),
        record_bytes_max=random.choice([150, 1000, 1 << 20]),
        flush_bytes=random.choice([1, 1000, 10_000, 1 << 20]),
        flush_records=random.choice([5, 50, 10_000]),
        apart_us=tuple(random.choice([-60_000_000, 0, 60_000_000]) if apart else 0 for _ in range(hosts)),
        drift=tuple(random.uniform(-0.01, 0.01) for _ in range(hosts)),
        finds=random.random() < 0.5,
    )
