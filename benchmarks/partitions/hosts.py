"""Kill one of three hosts under a queue whose partitions are on all of them; show how long which partitions were away.

Hosts run ``fila-cluster node`` on a log of three Kafka brokers, all on this machine. The queue has a partition on each of six
shards. Each partition has a producer with dedup ids, and three consumers with a prefetch of 4 take from the whole queue. A host
is killed with all its processes, and started again when the queue is whole; then the next one. The longest span without a
delivery from a partition is how long it was away: the partitions of the others should go on at once, and those of the host that
was killed within 10 s. Nothing that was confirmed may be lost.
"""

import time
import warnings
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.faults.load.outages import percentile
from benchmarks.harness.report.results import Verified
from benchmarks.harness.workload import Benchmark, Run, number
from tests.support.cluster.partition_load import DELIVERED, ENQUEUED, PartitionLoad
from tests.support.hosts.nodes import Nodes, cluster_of_nodes

QUEUE = "orders"
AWAY = "Longest span without a delivery from a partition"
OTHERS, ITS = "partitions of the other hosts", "partitions of the host that was killed"
AWAY_S_MAX = {OTHERS: 2.0, ITS: 10.0}


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    kills: int = number("Hosts that are killed, one after the other.")
    brokers: int = number("Brokers of the log.", 3)
    hosts: int = number("Hosts.", 3)
    shards: int = number("Shards, and partitions.", 6)


def measure(run: Run[Scale]) -> None:
    """Run, and judge."""
    scale, spans = run.scale, {OTHERS: list[float](), ITS: list[float]()}
    with warnings.catch_warnings(), run.directory() as directory:
        warnings.simplefilter("ignore", ResourceWarning)  # deliveries whose settlement was lost are dropped unsettled
        with cluster_of_nodes(directory, hosts=scale.hosts, brokers=scale.brokers, shards=scale.shards, workers=1) as nodes:
            with nodes.client() as client:
                client.create_queue(QUEUE, partitions=scale.shards)
            load = PartitionLoad(nodes.endpoint, QUEUE, scale.shards)
            with load.running():
                for kill in range(scale.kills):
                    for whose, found in _kill(nodes, load, nodes.nodes[kill % scale.hosts].name).items():
                        spans[whose] += found
    run.system("fila-cluster", {"durability": f"{scale.brokers} brokers", "hosts": str(scale.hosts)})
    for whose, found in spans.items():
        for column, share in (("p50", 0.5), ("longest", 1.0)):
            run.figure(AWAY, whose, column, "s", percentile(sorted(found), share))
        longest, most = max(found), AWAY_S_MAX[whose]
        run.promise(f"{whose} were away for {longest:.1f} s, at most {most:g}", longest <= most)
    sent = len({each.payload for each in load.noted if each.what == ENQUEUED})
    came = [each.payload for each in load.noted if each.what == DELIVERED]
    run.figure("Messages", "confirmed", "count", "", sent)
    run.figure("Messages", "lost", "count", "", len(load.lost()))
    run.figure("Messages", "deliveries that came again", "count", "", len(came) - len(set(came)))
    run.verify(Verified(sent, len(set(came)), len(load.lost())))


def _kill(nodes: Nodes, load: PartitionLoad, host: str) -> dict[str, list[float]]:
    """Kill a host and start it again. Return how long partitions were away."""
    everything = range(load.partitions)
    load.goes_on(*everything)
    leaders = nodes.leaders()
    its = {partition for partition, shard in load.shards().items() if leaders[shard].startswith(f"{host}/")}
    began = time.monotonic()
    nodes[host].kill()
    load.goes_on(*everything)
    ended = time.monotonic()
    found: dict[str, list[float]] = {OTHERS: [], ITS: []}
    for each in everything:
        moments = [noted.at for noted in load.of(DELIVERED, each) if began <= noted.at <= ended]
        found[ITS if each in its else OTHERS].append(max(later - at for at, later in pairwise([began, *moments])))
    nodes[host].start()
    nodes.until_whole()
    return found


BENCHMARK = Benchmark("partition_hosts", measure, Scale(1, brokers=1), Scale(3), Scale(12))
