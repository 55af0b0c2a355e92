"""What a run is like: which features and which faults it has, and how small its limits are. Drawn from the seed.

Each seed leaves many things out (swarm testing: Groce et al., 2012): a run that does everything does little of anything.
"""

from dataclasses import dataclass, field, replace
from random import Random

from fila_router.core.limits import RouterLimits
from fila_worker.core.settings import ShardSettings
from tests.simulation.faults.host_nature import HostsNature, draw_hosts
from tests.simulation.scaled import draw_client_limits, draw_limits, draw_router_limits
from tests.simulation.world.log import LogNature, draw_log

LAYOUTS = (((0,), (1,)), ((0, 1),), ((0,),), ((0, 2), (1,)))
FEATURES = (
    "batches", "priorities", "delays", "ttl", "dedup", "weights", "throttles", "costs", "consume", "receive", "lone_acks", "many",
    "verbs", "extend", "cancel", "purge", "pause", "redrive", "browse", "config", "strict", "caps", "max_attempts", "hooks", "reserve",
    "delete", "at_most_once", "elsewhere", "close", "forget", "quick", "leave", "update", "long_leases", "discard", "idle_expiry", "large", "slow",
)  # fmt: skip
FAULTS = (
    "kill_worker", "kill_router", "kill_client", "pause_worker", "pause_router", "pause_client", "cut", "fail_commit", "power_cut",
    "clock", "stop", "unreachable", "away", "hostile", "unread",
)  # fmt: skip
STEPS, STEP_WEIGHTS = (6, 10, 16, 30, 80), (4, 4, 4, 2, 1)
"""How long scripts are: most are short, because the end of a run costs as much as twenty steps; a few are long, for what takes long to
come about."""
SPAN_US_MAX = 11_000_000
EXTRAS = {
    "crowd": "crowded", "cancelled": "impatient", "direct": "straight", "piped": "piped", "move": "moving", "guest": "guarded", "lag": "lagging",
    "debounce": "bouncing", "own_caps": "capped", "timed": "scheduled", "together": "together", "limits": "limited", "aside": "set_aside", "priced": "priced", "in_flight": "in flight",
    "concurrency": "placed", "holders": "named", "partitions": "spread",
}  # fmt: skip
"""Features with numbers of their own, so that the seeds without them are what they would be if these did not exist: several keys with a
backlog; calls that their callers cancel; clients that reach workers directly; producers and batches that do not wait
for each answer; shards that are moved to other workers; a cluster with authentication, and guests whose API keys allow little, or not for
long; a log that confirms commits later, or never; queues that templates make, and messages that replace others; messages with
numbers of attempts of their own; schedules; batches of messages with a callback; limits of throttle keys by the calls of that name; moves
of backlogs to other queues; settlements that say what the work cost; queues with
a limit on leased messages; throttle keys with one over the cluster; questions who holds a throttle key; queues with several partitions."""
HOSTS = "hosts"
"""A cluster on several hosts. No seed has it by chance, because all others would shift: ask for it."""
HOST_FAULTS = (
    "kill_host", "pause_host", "cut_log", "stall_log", "late_log", "cut_router", "kill_all", "erase", "stop_host", "hand_over", "drain", "drain_others",
)  # fmt: skip
"""Faults that only clusters on several hosts have."""
FILL_DISK = "fill_disk"
"""Another one, drawn by itself: all other faults of a seed stay."""
HOST_FAULTS_SHARE = 0.25
NOT_WITH_HOSTS = frozenset({"move", "lag"})
"""Shards move to another host by their log, and that log confirms in its own way."""
ROUTERS = "routers"
"""A router on each of several hosts. Ask for it, too."""
DOORS, DOORS_SHARE = "shut_doors", 0.3
LOG, LOG_SHARE = "fail_log", 0.3
"""The fault that only direct connections have, and how many of their seeds have it."""
REWIND, REWIND_SHARE = "rewind", 0.1
"""An earlier state of one shard in its place, and how many of the seeds have it in which a shard's directory is all that is kept of it."""
REPARTITION, REPARTITION_SHARE = "repartition", 0.5
"""Changes of the number of partitions, and how many of the seeds with partitions have them."""
EXTRA_SHARE = 0.2
"""Of the seeds, for each of them."""
WAITS_MIN, CLIENT_WAITS_MIN, PIPE_BYTES_MIN = 60, 20, 2000
"""The least room for waits, and for a client's frames, that a run with partitions has."""


@dataclass
class Options:
    """One run's nature. Everything here follows from the seed, and a named case may set it otherwise."""

    seed: int
    layout: tuple[tuple[int, ...], ...]
    features: frozenset[str]
    faults: frozenset[str]
    clients: int
    steps: int
    span_us: int
    latency_us: tuple[int, int]
    work_us: tuple[int, int]
    timeout_s: float
    shard_settings: ShardSettings = field(default_factory=ShardSettings)
    router_limits: RouterLimits = field(default_factory=RouterLimits)
    fault_count: int = 0
    queues: int = 3
    client_limits: dict[str, int] = field(default_factory=dict)
    log: LogNature | None = None
    """How the log of the shards confirms commits; None: at once."""
    hosts: HostsNature | None = None
    """The hosts that have copies of all shards; None: each shard is on one host's disk alone."""


def draw(seed: int, always: frozenset[str] = frozenset()) -> Options:
    """The nature of a seed's run. ``always``: features and faults that are not left to chance."""
    random = Random(f"{seed} options")
    features = frozenset(each for each in FEATURES if random.random() < 0.5) | (always & frozenset(FEATURES))
    features |= {each for each, label in EXTRAS.items() if each in always or Random(f"{seed} {label}").random() < EXTRA_SHARE}
    if REPARTITION in always or ("partitions" in features and Random(f"{seed} {REPARTITION}").random() < REPARTITION_SHARE):
        features |= {"partitions", REPARTITION}
    faults = frozenset(each for each in FAULTS if random.random() < 0.3)
    if random.random() < 0.5:
        faults |= {"kill_worker"}
    if random.random() < 0.15:
        faults = frozenset()
    faults |= always & frozenset(FAULTS)
    if "direct" in features and (DOORS in always or Random(f"{seed} doors").random() < DOORS_SHARE):
        faults |= {DOORS}
    if "lag" in features and (LOG in always or Random(f"{seed} log").random() < LOG_SHARE):
        faults |= {LOG}
    kept_once = "lag" not in features and HOSTS not in always
    if kept_once and (REWIND in always or Random(f"{seed} rewind").random() < REWIND_SHARE):
        faults |= {REWIND}
    if HOSTS in always:
        features = features - NOT_WITH_HOSTS | {HOSTS}
        if ROUTERS in always:
            features = features | {ROUTERS}
        faults = draw_host_faults(seed, always, faults - {DOORS, LOG}) | (always & frozenset(FAULTS))
    if not features & {"consume", "receive"}:
        features |= {random.choice(["consume", "receive"])}
    slow = random.random() < 0.3
    steps = random.choices(STEPS, STEP_WEIGHTS)[0]
    limits = draw_limits(random)
    settings = ShardSettings(
        quantum=random.choice([1, 3, 10, 1000]),
        visibility_timeout_ms=random.choice([1500, 4000, 600_000]),
        consumer_timeout_ms=random.choice([3000, 6000]),
        buffer_bytes=random.choice([0, 400, 2000, 1 << 20]),
        dedup_window_ms=random.choice([2000, 30_000]),
        limits=limits,
    )
    options = Options(
        seed, random.choice(LAYOUTS), features, faults, random.randint(2, 4), steps,
        min(SPAN_US_MAX, 1_000_000 + steps * random.choice([70_000, 130_000, 200_000])), (5_000, 60_000) if slow else (100, 3000),
        random.choice([(20, 100), (20, 2000), (1000, 20_000)]), random.choice([2.0, 5.0]), settings, draw_router_limits(random),
        0 if not faults else random.randint(1, 3 + steps // 6), random.choice([1, 2, 3, 4]),
        draw_client_limits(random), draw_log(Random(f"{seed} log nature")) if "lag" in features else None,
    )  # fmt: skip
    if "partitions" in features:
        options = with_partitions(options)
    return options if HOSTS not in always else with_hosts(options)


def with_partitions(options: Options) -> Options:
    """A run with room for queues with partitions: a consumer, or a receive, has a wait and some frames for each of them."""
    limits, pipe_bytes = options.router_limits, options.client_limits["pipe_bytes_max"]
    return replace(
        options,
        router_limits=replace(
            limits,
            waits_max=max(limits.waits_max, WAITS_MIN),
            client_waits_max=max(limits.client_waits_max, CLIENT_WAITS_MIN),
        ),
        client_limits=options.client_limits | {"pipe_bytes_max": max(pipe_bytes, PIPE_BYTES_MIN)},
    )


def draw_host_faults(seed: int, always: frozenset[str], others: frozenset[str]) -> frozenset[str]:
    """The faults that a seed has on several hosts: of each kind more, so fewer kinds."""
    random = Random(f"{seed} host faults")
    drawn = {each for each in (*HOST_FAULTS, *sorted(others)) if random.random() < HOST_FAULTS_SHARE}
    if random.random() < 0.1:
        drawn.clear()
    elif Random(f"{seed} {FILL_DISK}").random() < HOST_FAULTS_SHARE:
        drawn.add(FILL_DISK)
    return frozenset(drawn) | (always & {*HOST_FAULTS, FILL_DISK})


def with_hosts(options: Options) -> Options:
    """A run of the same nature on several hosts: longer, because it takes seconds until another host leads, and with more faults."""
    random = Random(f"{options.seed} hosts")
    nature = replace(draw_hosts(random), several=ROUTERS in options.features)
    faults = 0 if not options.faults else options.fault_count + random.randint(1, 6)
    return replace(options, hosts=nature, fault_count=faults, span_us=options.span_us + random.choice([2_000_000, 6_000_000]))
