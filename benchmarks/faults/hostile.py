"""Send hostile frames to a cluster with authentication, beside clients that do their work; show what it costs those, and the
memory.

*Strangers* have no API key, *spies* have one that allows next to nothing. They send random bytes, frames with wrong fields
and opcodes, greetings that are none, messages of thousands of parts, and come under ever new identities; spies also come to
the worker's own door. One producer sends messages at a fixed rate, one consumer gets them pushed, both encrypted through the
router. They do so in turn with and without enemies, on the same cluster. Latencies count from the moment when a message was
to be sent.

No process may end, none may exceed its bound of memory, no enemy may get an answer that is no refusal, and the clients' p99
may not double.
"""

from dataclasses import dataclass
from statistics import median

from benchmarks.faults.load.enemies import Sent, attack
from benchmarks.harness import clients
from benchmarks.harness.cluster import OneCluster
from benchmarks.harness.fila import blocking_client
from benchmarks.harness.guarded import Guarded
from benchmarks.harness.messages import Load
from benchmarks.harness.processes import together
from benchmarks.harness.report.histogram import Histogram
from benchmarks.harness.sampling import sampled
from benchmarks.harness.workload import Benchmark, Run, number
from fila_cluster.client.calls import cluster as calls

QUEUE = "measured"
AHEAD = 1000
RSS_MIB_MAX = 400
TIMES_MAX = 2.0
QUIET, HOSTILE = "without enemies", "with enemies"
CONFIRMED = "From the time of the enqueue to its confirmation"
ARRIVED = "From the time of the enqueue to the consumer"
MEMORY = "Most memory"
FRAMES = "Hostile frames"


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    frames: int = number("Hostile frames in all.")
    rounds: int = number("How often the load runs with enemies, and without.", 1)
    rate: float = number("Hostile frames a second, of all enemies together.", 5_000.0)
    strangers: int = number("Enemies without an API key.", 1)
    spies: int = number("Enemies with an API key that allows next to nothing.", 1)
    load: float = number("Messages a second of the clients that are measured.", 300.0)


def measure(run: Run[Scale]) -> None:
    """Measure and judge."""
    system = Guarded(way="router", label="fila-cluster")
    with run.serving(system) as cluster:
        clients.create(system, cluster, *(f"{QUEUE}-{number_}" for number_ in range(2 * run.scale.rounds)))
        with blocking_client(cluster.address) as client:
            spy = client.request(calls.create_key("spy", ["consume:nothing"], None)).secret
        before = pids(cluster)
        sent = Sent()
        for number_, kind in enumerate(run.rounds(run.scale.rounds, [QUIET, HOSTILE], "hostile")):
            with sampled(lambda: max(cluster.rss_bytes().values())) as memory:
                several = one_round(run, system, cluster, kind, spy, number_)
            for each in several:
                for name in vars(sent):
                    setattr(sent, name, getattr(sent, name) + getattr(each, name))
            for process, size in cluster.rss_bytes().items():
                run.figure(MEMORY, f"{process}, at the end", kind, "MiB", size / 2**20)
            run.figure(MEMORY, "largest process meanwhile", kind, "MiB", memory.most / 2**20)
        judge(run, sent, pids(cluster) == before)


def one_round(run: Run[Scale], system: Guarded, cluster: OneCluster, kind: str, spy: str, number_: int) -> list[Sent]:
    """Let the clients work, perhaps beside enemies. Return what those did."""
    scale, queue = run.scale, f"{QUEUE}-{number_}"
    enemies = scale.strangers + scale.spies
    frames, rate = scale.frames / scale.rounds / enemies, scale.rate / enemies
    load = Load(max(1, int(scale.load * frames / rate)), first=1_000_000 * number_)
    attacks = [
        (
            attack,
            cluster.address,
            system.keys["server_key"],
            spy if each < scale.spies else "",
            int(frames),
            rate,
            100 * number_ + each,
        )
        for each in range(enemies if kind == HOSTILE else 0)
    ]
    sent, taken, *done = together(
        (clients.send_at_rate, system, cluster.address, queue, load, scale.load),
        (clients.follow, system, cluster.address, queue, load, AHEAD),
        *attacks,
        env=system.environment(),
        precise=[0],
    )
    run.verify(taken.verified)
    for table, latencies in ((ARRIVED, taken.latencies_ns), (CONFIRMED, sent.latencies_ns)):
        found = Histogram(latencies)
        for percentile in (50, 99):
            run.figure(table, f"p{percentile}", kind, "ms", found.ms(percentile))
        run.figure(table, "longest", kind, "ms", found.max_ms)
    return done


def pids(cluster: OneCluster) -> set[int]:
    """Return the processes of a cluster."""
    return {process.pid for processes in cluster.processes().values() for process in processes}


def judge(run: Run[Scale], sent: Sent, all_live: bool) -> None:
    """Add what enemies did, and whether the promises hold."""
    for name, count in vars(sent).items():
        run.figure(FRAMES, name.replace("_", " "), "all enemies", "", count)
    run.promise("no process ended", all_live)
    most = max(run.values(MEMORY, "largest process meanwhile", HOSTILE))
    run.promise(f"the largest process had {most:.0f} MiB (at most {RSS_MIB_MAX})", most <= RSS_MIB_MAX)
    run.promise(f"{sent.welcomed} answers to enemies were no refusals", sent.welcomed == 0)
    for table in (CONFIRMED, ARRIVED):
        quiet, hostile = (median(run.values(table, "p99", kind)) for kind in (QUIET, HOSTILE))
        times = hostile / quiet
        run.promise(f"{table}: p99 {times:.2f} times as long with enemies (at most {TIMES_MAX:g})", times <= TIMES_MAX)


BENCHMARK = Benchmark(
    "hostile",
    measure,
    tiny=Scale(2_000, rate=2_000),
    small=Scale(50_000, 2),
    full=Scale(1_000_000, 5),
)
