"""What operators and clients see of two hosts on a real log: who leads, how far the copies are, and a log that does not confirm."""

from pathlib import Path

import pytest

from fila_cluster import Client, HostCopy, HostList, LogReplicas
from fila_cluster.errors import FilaError, ShardUnavailableError
from fila_cluster.ops.analysis.hosts import hosts_in, obstacles, risks
from fila_proto_zmq.commands import GetMetrics, Metrics
from fila_proto_zmq.names import shard_of
from tests.support.cluster.cluster import eventually
from tests.support.hosts.hosts import hosts_on
from tests.support.hosts.kafka import kafka_cluster


def copies(found: HostList, host: str) -> dict[int, HostCopy]:
    (worker,) = (worker for worker in found.workers if worker.host == host)
    return {copy.shard: copy for copy in worker.copies}


def states(client: Client) -> set[str]:
    metrics: Metrics = client.request(GetMetrics())
    return {obstacle["state"] for obstacle in obstacles(metrics, "")}


def test_hosts_are_seen_while_all_is_well_and_while_the_log_or_a_host_is_away(tmp_path: Path) -> None:
    with (
        kafka_cluster(tmp_path / "kafka", brokers=1) as kafka,
        hosts_on(tmp_path, kafka.bootstrap) as hosts,
        hosts.client() as client,
        hosts.client(timeout=2) as impatient,
    ):
        client.create_queue("orders")
        shard = shard_of("orders", hosts.shards)
        for number in range(50):
            client.enqueue("orders", str(number).encode())

        def caught_up() -> bool:
            found = client.hosts()
            led, followed = copies(found, "a")[shard], copies(found, "b")[shard]
            return followed.behind == 0 and followed.position >= led.position - 3

        eventually(caught_up, "b has caught up")
        found = client.hosts()
        led = copies(found, "a")[shard]
        assert {copy.role for copy in copies(found, "a").values()} == {"leads"}
        assert {copy.role for copy in copies(found, "b").values()} == {"follows"}
        assert (led.behind, led.problem, led.queues) == (0, "", 1)
        assert led.log == LogReplicas(in_sync=1, wanted=1, in_sync_min=1)
        assert led.confirm_p50 is not None
        assert 0 < led.confirm_p50 < 1
        assert led.proof_age is not None
        assert led.proof_age < 3
        assert (found.silent, risks(found), states(client)) == ([], [], set())

        kafka.pause(1)
        with pytest.raises(FilaError):
            impatient.enqueue("orders", b"outcome unknown")
        eventually(lambda: client.why("orders").reasons[0].code == "log_waits", "why says that the log does not confirm")
        assert "the log does not confirm: " in client.why("orders").reasons[0].text
        eventually(lambda: states(client) == {"no_quorum"}, "the cluster is not ready")
        eventually(lambda: copies(client.hosts(), "a")[shard].role == "waits", "a does not serve any more")
        with pytest.raises(ShardUnavailableError, match=f"shard {shard} waits for its log"):
            impatient.queue_stats("orders")
        kafka.resume(1)
        eventually(lambda: not risks(client.hosts()) and states(client) == set(), "all is well again")

        leader = hosts.leaders()[shard]
        other = "b" if leader == "a" else "a"
        hosts.workers[leader].kill()
        takes_over = "a standby takes over in at most 10 s"
        eventually(lambda: takes_over in client.why("orders").reasons[0].text, "why says that a standby takes over")
        assert "no_leader" in states(client)
        eventually(lambda: states(client) == set(), "the other host leads")
        found = client.hosts()
        assert copies(found, other)[shard].role == "leads"
        assert "no_standby" in {risk.code for risk in risks(found)}
        metrics: Metrics = client.request(GetMetrics())
        assert hosts_in(metrics) is not None
