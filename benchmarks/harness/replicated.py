"""One host of ``fila-cluster node`` on Kafka brokers, as a system beside ``fila-cluster up``."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness.fila import Fila
from benchmarks.harness.systems import Processes
from tests.support.hosts.nodes import Nodes, cluster_of_nodes


class NodesServer(Processes):
    """The processes of all hosts and brokers."""

    def __init__(self, nodes: Nodes, directory: Path, facts: Mapping[str, str]) -> None:
        super().__init__(self.processes, directory)
        self._nodes = nodes
        self.address, self.facts = nodes.endpoint, facts

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Return the processes by kind: brokers are one."""
        found: dict[str, list[psutil.Process]] = {
            "broker": [psutil.Process(broker.pid) for broker in self._nodes.kafka.brokers.values()]
        }
        for node in self._nodes.nodes:
            for name, process in node.processes().items():
                kind = name.partition("-")[0]
                if kind != "supervisor":
                    found.setdefault(kind, []).append(process)
        return found


@dataclass(frozen=True)
class Replicated:
    """Hosts on a log of so many brokers, with the clients of the usual cluster."""

    hosts: int = 1
    brokers: int = 1
    clients: Fila = field(default_factory=Fila)

    @property
    def name(self) -> str:
        """As tables show it."""
        brokers = "1 broker" if self.brokers == 1 else f"{self.brokers} brokers"
        return brokers if self.hosts == 1 else f"{brokers}, {self.hosts} hosts"

    @contextmanager
    def serve(self, directory: Path) -> Iterator[NodesServer]:
        """Start brokers and hosts."""
        facts = self.clients.facts() | {"durability": f"{min(2, self.brokers)} of {self.brokers} brokers have it"}
        with cluster_of_nodes(directory, hosts=self.hosts, brokers=self.brokers, shards=1, workers=1) as nodes:
            yield NodesServer(nodes, directory, facts)

    def environment(self) -> Mapping[str, str]:
        """Return what makes clients go straight to workers."""
        return self.clients.environment()

    def connect(self, address: str) -> AbstractAsyncContextManager[Any]:
        """Open a client."""
        return self.clients.connect(address)
