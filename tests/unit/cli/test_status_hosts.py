"""``fila-cluster status --hosts``."""

import json

from click.testing import CliRunner, Result

from fila_cluster.cli.root import root
from fila_proto_zmq.commands import (
    ClusterStatus,
    Histogram,
    HostCopy,
    HostList,
    HostWorker,
    LogReplicas,
    Reply,
    ShardOutage,
    WorkerStatus,
)
from tests.unit.client.peer import answering, broker

TOOK = Histogram([1_000_000, 10_000_000], [50, 50, 0], 0)
A = HostWorker(
    "a",
    "a/worker-0",
    "10.0.0.1",
    [
        HostCopy(0, "leads", 7, 1200, -1, 0, 2048, 300, 5, "", TOOK, LogReplicas(3, 3, 2)),
        HostCopy(1, "follows", 6, 90, 91, 0),
    ],
)
B = HostWorker(
    "b",
    "b/worker-0",
    "10.0.0.2",
    [HostCopy(0, "follows", 7, 900, 1201, 300), HostCopy(1, "leads", 6, 90, -1, 0, 0, 200, 1)],
    True,
)
TWO = HostList([A, B], 2, [], [0, 1])


def run(*arguments: str, **answers: Reply) -> Result:
    with broker(answering(**answers)) as peer:
        result = CliRunner().invoke(root, ["--endpoint", peer.endpoint, *arguments])
        assert result.exit_code == 0, result.output
        return result


def test_hosts_shards_and_what_is_at_risk():
    hosts, shards, at_risk = run("status", "--hosts", GetHosts=TWO).stdout.split("\n\n")
    assert [line.split() for line in hosts.splitlines()[1:]] == [
        ["a", "10.0.0.1", "worker-0", "1", "1", "0", "2", "KiB", "5"],
        ["b,", "draining", "10.0.0.2", "worker-0", "1", "1", "300", "0", "B", "1"],
    ]
    assert [line.split() for line in shards.splitlines()[1:]] == [
        ["0", "a", "b", "(300)", "3", "of", "3", "1,200", "9.8", "ms", "0.3", "s", "ago"],
        ["1", "b", "a", "(0)", "–", "90", "–", "0.2", "s", "ago"],
    ]
    assert at_risk.splitlines()[0] == "warning: one more loss makes shard 0 wait for a recovery from the log"
    assert "info: b catches up with shard 0, up to 300 records behind" in at_risk


def test_a_shard_without_a_leader_and_a_worker_that_does_not_answer():
    text = run("status", "--hosts", GetHosts=HostList([A], 2, ["b/worker-0"], [0])).stdout
    assert "critical: no host leads shard 1 now: a standby takes over in at most 10 s" in text
    assert "warning: b/worker-0 does not answer" in text
    assert [line.split()[:2] for line in text.split("\n\n")[1].splitlines()[1:]] == [["0", "a"], ["1", "none"]]


def test_nothing_at_risk_is_said_too():
    caught_up = HostWorker("b", "b/worker-0", "", [HostCopy(0, "follows", 7, 1200, 1201, 0), B.copies[1]])
    text = run("status", "--hosts", GetHosts=HostList([A, caught_up], 2, [], [0, 1])).stdout
    assert text.splitlines()[-1] == "nothing is at risk: each shard has a leader, and a standby that has caught up"


def test_a_cluster_of_one_host_says_so():
    assert run("status", "--hosts", GetHosts=HostList([], 4, [], [0, 1, 2, 3])).stdout.startswith("this cluster has one host")


def test_for_programs():
    told = json.loads(run("--json", "status", "--hosts", GetHosts=TWO).stdout)
    assert (told["shards"], told["silent"], told["served"]) == (2, [], [0, 1])
    copy = told["workers"][0]["copies"][0]
    assert (copy["role"], copy["behind"], copy["end"], copy["proof_age"]) == ("leads", 0, None, 0.3)


def test_the_status_does_not_call_a_followed_shard_out_of_order():
    follows = [ShardOutage(0, "following", "this host follows it"), ShardOutage(1, "following", "this host follows it")]
    workers = [WorkerStatus("a", 1, "up", [0], 1, 1, follows[1:]), WorkerStatus("b", 2, "up", [], 1, 1, follows)]
    text = run("status", GetClusterStatus=ClusterStatus("1", 2, workers)).stdout
    assert "shard 0 on" not in text
    assert "shard 1 on a is following" in text, "nobody serves it"
