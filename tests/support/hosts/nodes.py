"""Hosts of one cluster as their operators run them: ``fila-cluster node``, with brokers of a log beside them.

    with cluster_of_nodes(tmp_path, hosts=3, brokers=3) as nodes, nodes.client() as client:
        nodes["a"].kill()
        nodes["a"].start()

A host is killed as a machine is that loses its power, but for its disk. With ``apart`` each host has a network of its own, which can be cut.
"""

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from fila_cluster import Client, ClusterStatus
from fila_cluster.errors import FilaError
from fila_cluster.run.config.settings import Address
from fila_cluster.run.supervisor.endpoints import Ports
from tests.support.cluster.cluster import command, environment, eventually
from tests.support.external.brokers.properties import HOST
from tests.support.hosts.kafka import Kafka, kafka_cluster
from tests.support.hosts.network import Network, network

NAMES = "abcdef"
START_S_MAX = 120.0
SERVES_S_MAX = 180.0


class Node:
    """One host. ``settings``: its sections of ``fila.toml``; ``inside``: what brings a command into its network."""

    def __init__(
        self,
        name: str,
        home: Path,
        listen: Address,
        workers_join: Address,
        settings: Mapping[str, Mapping[str, Any]],
        inside: list[str],
        env: Mapping[str, str] = {},
    ) -> None:
        self.name, self.home, self.listen = name, home, listen
        self.data_dir, self.log = home / "data", home / "log"
        self.workers_join = workers_join
        self._inside, self._env = inside, dict(env)
        self._process: subprocess.Popen[bytes] | None = None
        home.mkdir(parents=True)
        self._config = home / "fila.toml"
        self._config.write_text(_toml(settings))

    # --- its processes ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it; :meth:`is_ready` says when it serves or follows."""
        assert not self.runs, f"{self.name} runs"
        flags = ["node", "--config", self._config, "--worker-listen", self.workers_join.endpoint, "--insecure"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._inside, *command(*flags)],
                cwd=self.home,
                env=environment(FILA_TELEMETRY__LOG_LEVEL="info", FILA_TELEMETRY__LOG_FORMAT="json", **self._env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def processes(self) -> dict[str, psutil.Process]:
        """What runs of it now: ``supervisor``, ``router``, ``worker-0`` and so on."""
        if self._process is None:
            return {}
        found = {}
        with suppress(psutil.NoSuchProcess):
            top = psutil.Process(self._process.pid)
            found["supervisor"] = top
            for child in top.children(recursive=True):
                with suppress(psutil.NoSuchProcess, IndexError):
                    found[child.cmdline()[-1].rpartition("/")[2].removeprefix("fila_")] = child
        return found

    def workers(self) -> list[psutil.Process]:
        return [process for name, process in self.processes().items() if name.startswith("worker")]

    def send(self, number: signal.Signals, *names: str) -> None:
        """Send a signal to some of its processes; to all without names, the supervisor first."""
        for name, process in self.processes().items():
            if not names or name in names:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(number)

    def kill_process(self, name: str) -> None:
        """Kill one of its processes, and wait until another one is in its place."""
        eventually(lambda: name in self.processes(), f"{name} on {self.name}")
        victim = self.processes()[name]
        victim.kill()
        eventually(lambda: self.processes().get(name, victim) != victim, f"another {name} on {self.name}")

    def kill(self) -> None:
        """Kill all of it at once."""
        assert self._process is not None
        children = list(self.processes().values())
        self.send(signal.SIGSTOP)  # so that none of them reacts to the end of another
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        self._process.wait(SERVES_S_MAX)
        psutil.wait_procs(children, SERVES_S_MAX)

    def stop(self) -> int:
        """Ask it to end, and return the exit code."""
        self.send(signal.SIGTERM, "supervisor")
        assert self._process is not None
        return self._process.wait(SERVES_S_MAX)

    def lose_disk(self) -> None:
        """Remove its data: another machine takes its place."""
        assert not self.runs
        shutil.rmtree(self.data_dir)

    # --- what it says -------------------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        return self.listen.endpoint

    def events(self, *names: str) -> list[dict[str, Any]]:
        """What its processes have logged."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [event for event in found if not names or event["event"] in names]

    def status(self, timeout: float = 2.0) -> ClusterStatus | None:
        """The cluster as its router knows it; None if it does not answer."""
        with suppress(FilaError), Client(self.endpoint, timeout=timeout) as client:
            return client.cluster_status()
        return None

    def tail(self, lines: int = 30) -> str:
        text = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join([f"--- {self.log}", *text[-lines:]])


class Nodes:
    """All hosts of a cluster, with their log."""

    def __init__(self, nodes: list[Node], kafka: Kafka, shards: int, net: Network | None) -> None:
        self.nodes, self.kafka, self.shards, self.net = nodes, kafka, shards, net

    def __getitem__(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    @property
    def endpoint(self) -> str:
        """All routers, as a client takes them."""
        return ",".join(node.endpoint for node in self.nodes)

    def client(self, timeout: float = 30.0) -> Client:
        return Client(self.endpoint, timeout=timeout)

    def leaders(self) -> dict[int, str]:
        """The process that serves each shard, as ``HOST/WORKER``, as some router knows it; shards without one are missing."""
        for node in self.nodes:
            status = node.status() if node.runs else None
            if status is not None:
                return _leaders(status)
        return {}

    def host_of(self, shard: int) -> Node:
        return self[self.leaders()[shard].partition("/")[0]]

    def is_whole(self) -> bool:
        """Whether the router of each host that runs sees all shards led, and all other copies followed."""
        running = [node for node in self.nodes if node.runs]
        return bool(running) and all(self._sees_all(node, len(running)) for node in running)

    def _sees_all(self, node: Node, hosts: int) -> bool:
        status = node.status()
        if status is None:
            return False
        up = [worker for worker in status.workers if worker.state == "up"]
        copies = sum(len({*worker.shards} | {outage.shard for outage in worker.outages}) for worker in up)
        settled = all(outage.state == "following" for worker in up for outage in worker.outages)
        return settled and len(_leaders(status)) == self.shards and copies == hosts * self.shards

    def until_whole(self, patience_s: float = SERVES_S_MAX) -> None:
        """Wait until all that runs serves or follows."""
        eventually(self.is_whole, "all shards are led, and followed by the other hosts", patience_s)

    def start(self) -> None:
        """Start all hosts at once."""
        for node in self.nodes:
            node.start()
        self.until_whole(START_S_MAX)

    def close(self) -> None:
        for node in self.nodes:
            if node.runs:
                node.kill()


def _leaders(status: ClusterStatus) -> dict[int, str]:
    return {
        shard: worker.name
        for worker in status.workers
        if worker.state == "up"
        for shard in {*worker.shards}.difference(outage.shard for outage in worker.outages)
    }


def _toml(settings: Mapping[str, Mapping[str, Any]]) -> str:
    lines = []
    for section, values in settings.items():
        lines += [f"[{section}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items()), ""]
    return "\n".join(lines)


@contextmanager
def cluster_of_nodes(
    directory: Path,
    *,
    hosts: int = 3,
    brokers: int = 3,
    shards: int = 6,
    workers: int = 2,
    apart: bool = False,
    settings: Mapping[str, Mapping[str, Any]] = {},
    env: Mapping[str, Mapping[str, str]] = {},
) -> Iterator[Nodes]:
    """Start brokers and hosts. ``apart``: with networks of their own. ``env``: variables of some hosts, by name."""
    with ExitStack() as stack:
        net = stack.enter_context(network(hosts)) if apart else None
        ports = stack.enter_context(Ports())
        kafka = stack.enter_context(
            kafka_cluster(directory / "kafka", brokers=brokers, host=HOST if net is None else net.brokers)
        )
        addresses = ["127.0.0.1" if net is None else net.address(number) for number in range(hosts)]

        def place(number: int, port: int) -> Address:
            if net is not None:
                return Address(addresses[number], port)
            return ports.reserve(Address(addresses[number], 0), "listen")

        joins = [place(number, 5556) for number in range(hosts)]
        nodes = []
        for number, name in enumerate(NAMES[:hosts]):
            own: dict[str, dict[str, Any]] = {
                "server": {"listen_addr": str(listen := place(number, 5555)), "data_dir": str(directory / name / "data"),
                           "shards": shards, "workers": workers},
                "replication": {"log": f"kafka://{kafka.bootstrap}", "replicas": min(3, brokers), "in_sync": min(2, brokers)},
                "hosts": {"name": name, "address": addresses[number]},
                "dashboard": {"enabled": False},
            }  # fmt: skip
            merged = {section: {**own.get(section, {}), **settings.get(section, {})} for section in {**own, **settings}}
            inside = [] if net is None else net.enter(number)
            nodes.append(Node(name, directory / name, listen, joins[number], merged, inside, env.get(name, {})))
        made = Nodes(nodes, kafka, shards, net)
        try:
            made.start()
            yield made
        except BaseException:
            for node in nodes:
                print(node.tail())
            raise
        finally:
            made.close()
