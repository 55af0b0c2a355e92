"""Restart and drain the hosts of a cluster one after the other under load, then kill all at once; show what clients see.

Clients are those of the benchmark ``hosts``. Each host is stopped with SIGTERM and started again, as for an upgrade; then
each is drained and filled again. Clients may see no error of either. At last all hosts are killed at the same moment, and one
of them starts with an empty disk: everything that was confirmed is there.
"""

import subprocess
import time
import warnings
from dataclasses import dataclass
from functools import partial

from benchmarks.faults.load.host_load import Strike, clients_of, led_by, report
from benchmarks.harness.workload import Benchmark, Run, number
from tests.support.cluster.cluster import command, environment
from tests.support.hosts.nodes import Node, Nodes, cluster_of_nodes

DRAINED_S_MAX = 60.0
CLIENTS, ERRORS = "Clients", "errors before all were killed"


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    rounds: int = number("Rounds of restarts and drains.")
    hosts: int = number("Hosts.", 3)
    brokers: int = number("Brokers of the log.", 3)
    shards: int = number("Shards.", 6)
    seed: int = number("Seed of the clients.", 1)


def restarted(nodes: Nodes, node: Node) -> Strike:
    """Stop a host as for an upgrade, and start it again."""
    strike = led_by(nodes, "restarted", f"{node.name}/")
    code = node.stop()
    assert code == 0, f"{node.name} ended with {code}"
    node.start()
    return strike


def drained(nodes: Nodes, node: Node) -> Strike:
    """Let a host give away all that it leads, and take part again."""
    strike = led_by(nodes, "drained", f"{node.name}/")
    _drain(nodes, node.name)
    _drain(nodes, node.name, "--undo")
    return strike


def _drain(nodes: Nodes, *arguments: str) -> None:
    done = subprocess.run(
        command("--endpoint", nodes.endpoint, "drain", *arguments),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DRAINED_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def all_killed(nodes: Nodes) -> Strike:
    """Kill all hosts at once; one of them has an empty disk when it comes back."""
    strike = led_by(nodes, "all killed", *(f"{node.name}/" for node in nodes.nodes))
    for node in nodes.nodes:
        node.kill()
    nodes.nodes[0].lose_disk()
    for node in nodes.nodes:
        node.start()
    return strike


def measure(run: Run[Scale]) -> None:
    """Run, and judge."""
    scale = run.scale
    with warnings.catch_warnings(), run.directory() as directory:
        warnings.simplefilter("ignore", ResourceWarning)
        with (
            cluster_of_nodes(directory, hosts=scale.hosts, brokers=scale.brokers, shards=scale.shards) as nodes,
            clients_of(nodes, scale.seed, timeout=10.0) as clients,
        ):
            for _ in range(scale.rounds):
                for action in (restarted, drained):
                    for node in nodes.nodes:
                        clients.strike(partial(action, nodes, node))
                        time.sleep(1.0)
            errors = list(clients.records.refused)
            clients.strike(partial(all_killed, nodes))
            found = clients.stop()
    report(run, found)
    run.figure(CLIENTS, ERRORS, "fila-cluster", "", len(errors))
    run.promise(f"errors that clients saw of restarts and drains: {len(errors)}, none may; {errors[:3]}", not errors)


BENCHMARK = Benchmark("restarts", measure, Scale(1, hosts=2, brokers=1, shards=2), Scale(1), Scale(5))
