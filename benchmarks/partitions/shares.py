"""Measure how fair a queue with 8 partitions is as a whole, however unevenly its fairness keys are spread over them.

Keys have weights from 1 to 10. Half of them are in one partition, and one has a partition of its own. All have a backlog, and
1, 3 and 20 consumers take it, with a prefetch of 1, 10 and 100, with blocking and asyncio clients, through the router and
straight from the workers. The number of each is the largest distance of a key from its entitlement, in any of ten windows of
20 turns of each key a partition. It may be 5 %, which is one turn a partition.

What is judged is the order in which the broker leases. The order in which consumers get messages is shown beside it: between
both is what consumers hold. A window has at least twenty times what all of them may hold: what is on its way when it begins or
ends would be too large a part of a smaller one.
"""

from dataclasses import dataclass

from benchmarks.harness.fila import WAYS, Fila
from benchmarks.harness.processes import together
from benchmarks.harness.systems import Server
from benchmarks.harness.workload import Benchmark, Run, number
from benchmarks.partitions.group import KINDS, Group, take
from benchmarks.partitions.uneven import SHARE_MAX, TURNS, Uneven

QUEUE = "uneven"
DEVIATION = "Largest distance of a key from its entitlement, as the broker leases"
HANDED = "Largest distance of a key from its entitlement, as consumers get messages"
RATES = "Messages a second, receive and ack"


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    keys: int = number("Fairness keys.")
    consumers: str = number("Numbers of consumers, divided by commas.", "1,3,20")
    prefetches: str = number("Prefetches, divided by commas.", "1,10,100")
    clients: str = number("Kinds of clients, divided by commas.", ",".join(KINDS))
    ways: str = number("How clients reach the workers, divided by commas.", ",".join(WAYS))
    turns: int = number("Turns of each key and partition in a window.", TURNS)
    partitions: int = number("Partitions.", 8)
    workers: int = number("Workers.", 2)


def measure(run: Run[Scale]) -> None:
    """Measure each group of consumers on each way."""
    scale = run.scale
    groups = [
        Group(int(consumers), int(prefetch), kind)
        for prefetch in scale.prefetches.split(",")
        for consumers in scale.consumers.split(",")
        for kind in scale.clients.split(",")
    ]
    for way in scale.ways.split(","):
        system = Fila(workers=scale.workers, way=way, label=f"way {way}")
        with run.serving(system) as server:
            for group in run.rounds(1, groups, f"shares, way {way}"):
                _measure(run, system, server, group)
    keys = Uneven(scale.keys, scale.partitions, scale.turns)
    run.note(f"{scale.keys:,} keys, {len(keys.owners):,} messages, windows of {keys.window:,} deliveries at least.")


def _measure(run: Run[Scale], system: Fila, server: Server, group: Group) -> None:
    scale = run.scale
    keys = Uneven(scale.keys, scale.partitions, scale.turns).for_those_who_hold(group.consumers * group.prefetch)
    queue = f"{QUEUE}-{group.consumers}-{group.prefetch}-{group.kind}"
    keys.fill(server.address, queue)
    (taken,) = together((take, server.address, queue, keys.load, group), env=system.environment())
    run.verify(taken.verified)
    deviation, most = keys.deviation(taken.leased), max(SHARE_MAX, 1 / scale.turns)
    consumers = f"{group.consumers} consumer{'s' if group.consumers > 1 else ''}"
    row, column = f"prefetch {group.prefetch}, {consumers}", f"{group.kind}, {system.way}"
    run.figure(DEVIATION, row, column, "%", 100 * deviation)
    run.figure(HANDED, row, column, "%", 100 * keys.deviation(taken.order))
    run.figure(RATES, row, column, "/s", keys.load.count / taken.spent.seconds)
    run.promise(f"{row}, {column}: {100 * deviation:.1f} % from the entitlement, at most {100 * most:g}", deviation <= most)


BENCHMARK = Benchmark(
    "partition_shares",
    measure,
    tiny=Scale(16, consumers="3", prefetches="1,100", turns=2),
    small=Scale(20),
    full=Scale(1000),
)
