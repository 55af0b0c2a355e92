"""``fila-cluster drain``: of a worker, and of a host."""

import json

from click.testing import CliRunner, Result

from fila_cluster.cli.root import root
from fila_proto_zmq.commands import ClusterStatus, Done, DrainWorker, ShardOutage, WorkerStatus
from tests.unit.client.peer import answering, broker


def worker(name: str, *shards: int, follows: tuple[int, ...] = (), state: str = "following") -> WorkerStatus:
    outages = [ShardOutage(shard, state, "") for shard in follows]
    return WorkerStatus(name, 7, "up", [*shards, *follows], 1, 0, outages=outages, draining=True)


def run(*arguments: str, workers: list[WorkerStatus]) -> tuple[Result, list[str]]:
    status = ClusterStatus("1", 4, workers)
    with broker(answering(GetClusterStatus=status, DrainWorker=Done())) as peer:
        result = CliRunner().invoke(root, ["--endpoint", peer.endpoint, *arguments])
        return result, [sent.command.worker for sent in peer.seen if isinstance(sent.command, DrainWorker)]


def test_a_host_stands_for_its_workers():
    """They have copies of all shards, which they go on to follow."""
    hosts = [worker(name, follows=(0, 1)) for name in ("a/worker-0", "ab/worker-0", "a/worker-1")]
    result, asked = run("drain", "a", workers=hosts)
    assert (result.exit_code, asked) == (0, ["a/worker-0", "a/worker-1"])
    assert result.stdout == "a is drained: it has no shards, and takes none (a/worker-0, a/worker-1)\n"


def test_a_worker_is_drained_by_its_own_name():
    workers = [worker("a"), worker("a/worker-0", 1)]
    result, asked = run("--json", "drain", "a", workers=workers)
    assert (result.exit_code, asked) == (0, ["a"])
    assert json.loads(result.stdout) == {"worker": "a", "shards": [], "draining": True}


def test_a_shard_that_can_not_move_is_named():
    result, _ = run("drain", "worker-0", workers=[worker("worker-0", follows=(3,), state="quarantined")])
    assert result.exit_code == 1
    assert "worker-0 keeps 3: a shard can only be moved while it serves" in result.stderr


def test_a_name_that_nobody_has_is_an_error():
    result, asked = run("drain", "b", workers=[worker("a/worker-0")])
    assert (result.exit_code, asked) == (1, ["b"]), "the router says so"
    assert "b is gone" in result.stderr
