"""Pause hosts, cut them off from the log or from their clients, and set a clock wrong; show that a deposed leader confirms
nothing.

Each host has a network of its own (network namespaces: Linux, root), and the clock of one of them is a minute ahead. Clients
are those of the benchmark ``hosts``. Round by round one host is

- *paused*: its processes are stopped (SIGSTOP),
- *cut off from the log*, but not from clients and other hosts,
- *cut off from clients and other hosts*, but not from the log,
- *cut off from all*,

each for 20 s.

The log of the host says when it ceased to lead: at the latest 10 s after it lost its proof. Nothing may be lost, doubled or
reordered, and each time all queues are served again within 10 s, by that host or another one.
"""

import random
import signal
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from benchmarks.faults.load.host_load import Strike, clients_of, led_by, promise_away, report
from benchmarks.faults.load.outages import percentile
from benchmarks.harness.workload import Benchmark, Run, number
from tests.support.cluster.cluster import eventually
from tests.support.external.shim import Shim
from tests.support.hosts.nodes import Node, Nodes, cluster_of_nodes

AWAY_S_MAX = dict.fromkeys(("paused", "cut off from the log", "cut off from clients and hosts", "cut off from all"), 10.0)
END_S_MAX = 10.0
NOTED_S_MAX = 30.0
AHEAD_MS = 60_000
ENDED = "Seconds until the host's log says that it leads no more"


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    rounds: int = number("Rounds of all four.")
    lasts: float = number("Seconds of each pause or cut.", 20.0)
    hosts: int = number("Hosts.", 3)
    brokers: int = number("Brokers of the log.", 3)
    shards: int = number("Shards.", 6)
    seed: int = number("Seed of the choice of hosts.", 1)


class Trouble:
    """Chooses hosts and does things to them."""

    def __init__(self, nodes: Nodes, scale: Scale) -> None:
        self._nodes, self._lasts_s, self._choice = nodes, scale.lasts, random.Random(scale.seed)
        self.ended_s: dict[str, list[float]] = {}
        self.kinds: list[Callable[[], Strike]] = [self.paused, self.without_log, self.without_clients, self.alone]

    def _begin(self, kind: str) -> tuple[int, Node, Strike]:
        index = self._choice.randrange(len(self._nodes.nodes))
        node = self._nodes.nodes[index]
        return index, node, led_by(self._nodes, kind, f"{node.name}/")

    def paused(self) -> Strike:
        _, node, strike = self._begin("paused")
        node.send(signal.SIGSTOP)
        time.sleep(self._lasts_s)
        resumed = time.time()
        node.send(signal.SIGCONT)
        self._note(node, strike, resumed)
        return strike

    def without_log(self) -> Strike:
        return self._cut("cut off from the log", log=True, others=False)

    def without_clients(self) -> Strike:
        return self._cut("cut off from clients and hosts", log=False, others=True)

    def alone(self) -> Strike:
        return self._cut("cut off from all", log=True, others=True)

    def _cut(self, kind: str, *, log: bool, others: bool) -> Strike:
        net = self._nodes.net
        assert net is not None
        index, node, strike = self._begin(kind)
        began = time.time()
        away = [net.address(other) for other in range(net.hosts) if other != index]
        net.cut(index, *([net.brokers] if log else []), *([net.clients, *away] if others else []))
        time.sleep(self._lasts_s)
        net.heal(index)
        if log:
            self._note(node, strike, began)
        return strike

    def _note(self, node: Node, strike: Strike, since: float) -> None:
        """Note how long after ``since`` the host's processes ceased to lead, if it led something."""
        if not strike.led:
            return
        eventually(lambda: bool(self._ends(node, since)), f"{node.name} leads no more", NOTED_S_MAX)
        self.ended_s.setdefault(strike.kind, []).append(max(self._ends(node, since)[: len(strike.led)]))

    def _ends(self, node: Node, since: float) -> list[float]:
        """Return how long after ``since`` processes of a host have logged that they lead no more."""
        ahead_s = AHEAD_MS / 1000 if node is self._nodes.nodes[-1] else 0.0
        noted = node.events("shard.followed", "process.deposed")
        ends = [datetime.fromisoformat(event["timestamp"]).timestamp() - ahead_s - since for event in noted]
        return [end for end in ends if end >= -0.1]


def measure(run: Run[Scale]) -> None:
    """Run, and judge."""
    scale = run.scale
    with warnings.catch_warnings(), run.directory() as directory:
        warnings.simplefilter("ignore", ResourceWarning)
        shim = Shim(directory, directory / "nothing")
        shim.step_clock(AHEAD_MS)
        env = {"abcdef"[scale.hosts - 1]: shim.env}
        with (
            cluster_of_nodes(
                directory, hosts=scale.hosts, brokers=scale.brokers, shards=scale.shards, apart=True, env=env
            ) as nodes,
            clients_of(nodes, scale.seed, ahead_ms=AHEAD_MS) as clients,
        ):
            trouble = Trouble(nodes, scale)
            for _ in range(scale.rounds):
                for action in trouble.kinds:
                    clients.strike(action)
            found = clients.stop()
    report(run, found)
    promise_away(run, found, AWAY_S_MAX)
    for kind, spans in trouble.ended_s.items():
        for column, share in (("p50", 0.5), ("longest", 1.0)):
            run.figure(ENDED, kind, column, "s", percentile(sorted(spans), share))
        run.promise(f"{kind}: led for {max(spans):.1f} s more, at most {END_S_MAX:g}", max(spans) <= END_S_MAX)


BENCHMARK = Benchmark("cuts", measure, Scale(1, 8.0, hosts=2, brokers=1, shards=2), Scale(1), Scale(5))
