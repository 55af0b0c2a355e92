"""``fila-cluster node``: hosts that are started as an operator starts them, on one log."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from fila_cluster.run.config.settings import Address
from fila_cluster.run.supervisor.auth import init_auth
from fila_cluster.run.supervisor.endpoints import Ports
from fila_proto_zmq.names import shard_of
from tests.support.cluster.cluster import PATIENCE_S, Cluster, eventually
from tests.support.hosts.kafka import Kafka, kafka_cluster

SHARDS = 2


class Node:
    """A host with an address of the loopback's own, through all its lives. ``auth``: whether its cluster has keys."""

    def __init__(self, home: Path, address: Address, bootstrap: str) -> None:
        self.address, self._home, self._bootstrap = address, home, bootstrap
        self.auth = False
        self.running: Cluster | None = None

    def start(self, *flags: object) -> Cluster:
        """Start it, and wait until it is ready."""
        self.close()
        where = ("--worker-listen", self.address)
        self.running = Cluster(
            self._home, "--log", f"kafka://{self._bootstrap}", *where, *flags,
            listen=f"{self.address.host}:0", env={"FILA_REPLICATION__REPLICAS": "1", "FILA_AUTH__ENABLED": str(self.auth).lower()}, logged="info", verb="node",
        )  # fmt: skip
        return self.running

    def close(self) -> None:
        if self.running is not None:
            self.running.close()


@contextmanager
def two_nodes(tmp_path: Path) -> Iterator[tuple[Node, Node, Kafka]]:
    with ExitStack() as stack:
        kafka = stack.enter_context(kafka_cluster(tmp_path / "kafka", brokers=1))
        ports = stack.enter_context(Ports())
        first, second = (ports.reserve(Address(f"127.0.0.{number}", 0), "") for number in (1, 2))
        a, b = Node(tmp_path / "a", first, kafka.bootstrap), Node(tmp_path / "b", second, kafka.bootstrap)
        stack.callback(a.close)
        stack.callback(b.close)
        yield a, b, kafka


def serves_all(node: Cluster) -> bool:
    """Whether its own worker leads all shards."""
    workers = [worker for worker in node.status().workers if not worker.outages]
    return any(len(worker.shards) == SHARDS for worker in workers)


def test_another_host_leads_when_one_is_killed_and_the_first_again_when_that_one_stops(tmp_path: Path) -> None:
    with two_nodes(tmp_path) as (first, second, _):
        a = first.start("--name", "a", "--shards", SHARDS)
        eventually(lambda: serves_all(a), "a leads, alone")
        with a.client() as client:
            client.create_queue("orders")
            client.enqueue("orders", b"1")
            client.enqueue("orders", b"2")
        with pytest.raises(AssertionError, match=r"partitions is 3, wanted 4"):
            second.start("--name", "b", "--shards", 3)
        b = second.start("--name", "b", "--shards", SHARDS)  # nothing was made before
        (follower,) = (worker for worker in b.status().workers if worker.name == "b/worker-0")
        assert {outage.state for outage in follower.outages} == {"following"}, "it is ready although it leads nothing"
        a.kill_all()
        with b.client() as client:
            eventually(lambda: serves_all(b), "b leads")
            (delivery,) = client.receive("orders", 1, wait=30)
            assert delivery.payload == b"1"
            client.ack([delivery])
        shutil.rmtree(tmp_path / "a" / f"shard-{shard_of('orders', SHARDS):04d}")  # the log has all of it
        a = first.start()  # its name and the number of shards are in its data directory
        assert b.stop() == 0
        assert len(b.events("shard.followed")) == SHARDS, "it has handed its shards over"
        with a.client() as client:
            eventually(lambda: serves_all(a), "a leads again")
            (delivery,) = client.receive("orders", 1, wait=30)
            assert delivery.payload == b"2"


def test_a_host_joins_neither_another_cluster_s_log_nor_one_that_was_made_anew(tmp_path: Path) -> None:
    with two_nodes(tmp_path) as (first, second, kafka):
        a = first.start("--name", "a", "--shards", SHARDS)
        eventually(lambda: serves_all(a), "a leads, alone")

        init_auth(tmp_path / "b")
        second.auth = True
        with pytest.raises(
            AssertionError, match=r"other keys: give this cluster a name of its own in \[replication\] cluster"
        ):
            second.start("--name", "b", "--shards", SHARDS)
        assert serves_all(a)

        first.close()
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        admin.delete_topics(["fila.main"])["fila.main"].result(PATIENCE_S)
        second.auth = False
        b = second.start("--name", "b", "--shards", SHARDS)
        eventually(lambda: bool(b.status().workers), "b has made the topic anew")
        with pytest.raises(
            AssertionError, match=r"fila\.main is the log fila\.main-\w+, and this host's copies are of fila\.main-\w+"
        ):
            first.start("--name", "a", "--shards", SHARDS)


def test_a_copy_of_a_host_deposes_nobody_and_ends(tmp_path: Path) -> None:
    with two_nodes(tmp_path) as (first, second, _):
        a = first.start("--name", "a", "--shards", SHARDS)
        eventually(lambda: serves_all(a), "a leads")
        assert a.stop() == 0
        shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns("*.ipc"))
        a = first.start()
        eventually(lambda: serves_all(a), "a leads again")
        opened = len(a.events("shard.opened"))
        twin = second.start()  # it is ready before it finds out
        assert twin.wait() == 1
        assert serves_all(a)
        assert [line for line in twin.log if "has the name 'a' of this one, and was there before" in line], twin.log
        assert not [line for line in twin.log if "shard.opened" in line], "it has led nothing"
        assert (len(a.events("shard.opened")), a.events("child.died")) == (opened, [])
