"""Kill workers and move shards while a queue with 8 partitions is consumed: nothing may be lost, and then it is fair again.

Keys have weights from 1 to 10, unevenly over the partitions, and all have a backlog. Consumers take it slowly while each of two
workers is killed with kill -9, and while shards are moved to the other worker and back. When all is served again, the same
consumers take the rest as fast as it comes. Windows of 20 turns of each key a partition that begin then must be as fair as if
nothing had happened: within 5 %, in the order in which the broker leases.
"""

import time
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path

from benchmarks.harness.fila import WAYS, Fila
from benchmarks.harness.messages import Load
from benchmarks.harness.processes import CONTEXT, ClientProcess, Gate
from benchmarks.harness.report.results import Verified
from benchmarks.harness.workload import Benchmark, Run, choice, number
from benchmarks.partitions.group import KINDS, Group, Taken, Tasks
from benchmarks.partitions.uneven import SHARE_MAX, TURNS, Uneven
from fila_cluster import Delivery
from fila_proto_zmq.commands import MoveShard
from tests.support.cluster.cluster import Cluster, eventually, running
from tests.support.cluster.faults import kill, wait_until_served

QUEUE = "uneven"
WORKERS = ("worker-0", "worker-1")
WORK_S = 0.02
"""On a message, until all faults are over: the backlog must last."""
BETWEEN = 20
"""Messages that are acked after a fault, before the next one."""
SPARE = 0.8
"""Of the backlog, for what is taken between faults."""
LEASE_S = 5.0
"""A message whose delivery got lost with a worker comes again after that."""
AFTERWARDS = "After kills and moves"


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    keys: int = number("Fairness keys.")
    kills: int = number("Kills of each worker.")
    moves: int = number("Shards that are moved to the other worker and back.")
    consumers: int = number("Consumers.", 3)
    prefetch: int = number("Prefetch of a consumer.", 10)
    clients: str = number("Kinds of clients, divided by commas.", ",".join(KINDS))
    turns: int = number("Turns of each key and partition in a window.", TURNS)
    partitions: int = number("Partitions.", 8)
    way: str = choice("How clients reach the workers.", WAYS)


class _Disturbed(Tasks):
    """Tasks that take long until all is calm. They are over when each message came at least once."""

    def __init__(self, load: Load, calm: Event) -> None:
        super().__init__(load)
        self._calm, self._came = calm, set[bytes]()
        self.calm_at = 0.0

    def begin(self, consumer: int, delivery: Delivery) -> float:
        super().begin(consumer, delivery)
        self._came.add(delivery.payload)
        if not self._calm.is_set():
            return WORK_S
        self.calm_at = self.calm_at or time.time()
        return 0.0

    def over(self) -> bool:
        return super().over() and len(self._came) >= self._load.count


async def _consume(gate: Gate, address: str, load: Load, group: Group, calm: Event) -> Taken:
    tasks = _Disturbed(load, calm)
    gate.wait()
    await group.work(address, QUEUE, tasks)
    return Taken(gate.spent(), tasks.verified(), tasks.numbers(), tasks.leased(tasks.calm_at))


def measure(run: Run[Scale]) -> None:
    """Measure each kind of client in a cluster of its own."""
    scale = run.scale
    system = Fila(workers=len(WORKERS), way=scale.way)
    run.system(system.name, system.facts())
    keys = Uneven(scale.keys, scale.partitions, scale.turns, SPARE)
    for kind in run.rounds(1, scale.clients.split(","), "faults"):
        with run.directory() as path:
            _measure(run, system, keys, kind, path)


def _measure(run: Run[Scale], system: Fila, keys: Uneven, kind: str, path: Path) -> None:
    scale, group = run.scale, Group(run.scale.consumers, run.scale.prefetch, kind)
    calm = CONTEXT.Event()
    with running(path / "data", "--shards", scale.partitions, workers=len(WORKERS)) as cluster:
        keys.fill(cluster.endpoint, QUEUE, visibility_timeout=LEASE_S)
        consuming = ClientProcess(_consume, cluster.endpoint, keys.load, group, calm, env=system.environment())
        try:
            consuming.await_ready()
            consuming.go()
            _disturb(cluster, scale)
            calm.set()
            taken: Taken = consuming.result()
            with cluster.client() as client:
                eventually(lambda: client.queue_stats(QUEUE).depth == 0, "all acks are confirmed")
        finally:
            consuming.end()
    found = taken.verified
    run.verify(Verified(found.sent, found.received - found.repeated, found.missing, damaged=found.damaged))
    deviation, most = keys.deviation(taken.leased), max(SHARE_MAX, 1 / scale.turns)
    run.figure(AFTERWARDS, "largest distance of a key from its entitlement, %", kind, "", 100 * deviation)
    run.figure(AFTERWARDS, "kills", kind, "", scale.kills * len(WORKERS))
    run.figure(AFTERWARDS, "moves", kind, "", 2 * scale.moves)
    run.figure(AFTERWARDS, "messages", kind, "", found.sent)
    run.figure(AFTERWARDS, "lost", kind, "", found.missing)
    run.figure(AFTERWARDS, "deliveries that came again", kind, "", found.repeated)
    run.promise(
        f"{kind}: {100 * deviation:.1f} % from the entitlement after the faults, at most {100 * most:g}", deviation <= most
    )


def _disturb(cluster: Cluster, scale: Scale) -> None:
    """Kill and move."""
    _go_on(cluster)
    for worker in WORKERS * scale.kills:
        kill(cluster, worker)
        wait_until_served(cluster, QUEUE)
        _go_on(cluster)
    for shard in range(scale.moves):
        home = cluster.worker_of(shard).name
        for target in (next(worker for worker in WORKERS if worker != home), home):
            with cluster.client() as client:
                client.request(MoveShard(shard, target))
            wait_until_served(cluster, QUEUE)
        _go_on(cluster)


def _go_on(cluster: Cluster) -> None:
    """Wait until some more are acked."""
    with cluster.client() as client:
        target = client.queue_stats(QUEUE).acked + BETWEEN
        eventually(lambda: client.queue_stats(QUEUE).acked >= target, "messages are acked")


BENCHMARK = Benchmark(
    "partition_faults",
    measure,
    tiny=Scale(16, 1, 1, clients="asyncio", turns=2),
    small=Scale(20, 2, 4),
    full=Scale(100, 5, 8),
)
