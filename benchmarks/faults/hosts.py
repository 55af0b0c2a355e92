"""Kill processes, brokers and whole hosts of a cluster at random; show what survives, and how long queues are away.

Hosts run ``fila-cluster node`` on a log of Kafka brokers, all on this machine. There are queues on all shards, 4 producers
with dedup ids, 8 consumers that ack, nack and retry, one queue with strict order within its keys, and one throttle key over
several queues. Again and again a random choice of these is killed with kill -9: a process of a host, a host with all its
processes, a broker, a worker and a broker at once. The next fault comes when all shards are led and followed, and all brokers
are in sync again: two brokers lost at once are no quorum. At the end all queues are emptied and the records of the clients are
balanced. A probe for each shard enqueues all the time: the longest span without success is the outage of the shard's queues.

Not one message may be lost, come back after its ack, be stored twice or come again without a reason; no window of time may
have more deliveries of the throttle key than its limit, and no message of a key may overtake another one. Queues of a host
that was killed are away for less than 10 s, with a broker for less than 15 s.
"""

import random
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.faults.load.host_load import Strike, clients_of, led_by, promise_away, report
from benchmarks.faults.load.outages import percentile
from benchmarks.faults.load.stories import stories, take_over_parts
from benchmarks.harness.workload import Benchmark, Run, number
from tests.support.hosts.nodes import Node, Nodes, cluster_of_nodes

PARTS_OF = "Parts of a take-over from a host that was killed"
WORKERS = 2
"""Of each host."""
AWAY_S_MAX = {"worker killed": 10.0, "host killed": 10.0, "worker and broker killed": 15.0}


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    kills: int = number("Kills.")
    hosts: int = number("Hosts.", 3)
    brokers: int = number("Brokers of the log.", 3)
    shards: int = number("Shards.", 6)
    seed: int = number("Seed of the choice of victims.", 1)


class Killer:
    """Chooses victims, kills them, and brings them back."""

    def __init__(self, nodes: Nodes, seed: int) -> None:
        self._nodes, self._choice = nodes, random.Random(seed)
        self._kinds: list[Callable[[], Strike]] = [self._worker, self._router, self._host]
        if len(nodes.kafka.brokers) > 1:
            self._kinds += [self._broker, self._both]

    def __call__(self) -> Strike:
        """Kill something, and bring it back."""
        return self._choice.choice(self._kinds)()

    def _node(self) -> Node:
        return self._choice.choice(self._nodes.nodes)

    def _worker(self, kind: str = "worker killed") -> Strike:
        node = self._node()
        name = f"worker-{self._choice.randrange(WORKERS)}"
        strike = led_by(self._nodes, kind, f"{node.name}/{name}")
        node.kill_process(name)
        return strike

    def _router(self) -> Strike:
        node = self._node()
        strike = led_by(self._nodes, "router killed")
        node.kill_process("router")
        return strike

    def _host(self) -> Strike:
        node = self._node()
        strike = led_by(self._nodes, "host killed", f"{node.name}/")
        node.kill()
        time.sleep(self._choice.choice((0.0, 3.0, 10.0)))  # before or after another host has taken over
        node.start()
        return strike

    def _broker(self) -> Strike:
        strike = led_by(self._nodes, "broker killed")
        self._kill_broker()
        return strike

    def _both(self) -> Strike:
        strike = self._worker("worker and broker killed")
        self._kill_broker()
        return strike

    def _kill_broker(self) -> None:
        kafka = self._nodes.kafka
        victim = self._choice.choice([*kafka.brokers])
        kafka.kill(victim)
        time.sleep(self._choice.choice((1.0, 5.0, 10.0)))
        kafka.start(victim)


def measure(run: Run[Scale]) -> None:
    """Run, and judge."""
    scale = run.scale
    with warnings.catch_warnings(), run.directory() as directory:
        warnings.simplefilter("ignore", ResourceWarning)  # deliveries whose settlement was lost are dropped unsettled
        with (
            cluster_of_nodes(
                directory, hosts=scale.hosts, brokers=scale.brokers, shards=scale.shards, workers=WORKERS
            ) as nodes,
            clients_of(nodes, scale.seed) as clients,
        ):
            kill = Killer(nodes, scale.seed)
            for _ in range(scale.kills):
                clients.strike(kill)
                nodes.kafka.until_in_sync()
            found = clients.stop()
            codes = [node.stop() for node in nodes.nodes]
            for story in stories(nodes.nodes, clients.strikes, found.moments):
                run.note(story)
            parts = take_over_parts(nodes.nodes, clients.strikes, found.moments, "host killed")
    found.counts = {"kills": scale.kills, **found.counts}
    report(run, found)
    for part, spans in parts.items():
        for column, share in (("p50", 0.5), ("longest", 1.0)):
            run.figure(PARTS_OF, part, column, "s", percentile(spans, share))
    promise_away(run, found, AWAY_S_MAX)
    run.promise(f"the hosts end with {codes}, all 0", not any(codes))


BENCHMARK = Benchmark("hosts", measure, Scale(6, hosts=2, brokers=1, shards=2), Scale(30), Scale(100))
