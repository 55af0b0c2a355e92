"""``fila-cluster reshard`` on the data directory of a real cluster."""

import json
import subprocess
from pathlib import Path

import pytest

from fila_cluster import Message
from fila_cluster.run.supervisor import CannotStartError
from fila_cluster.run.supervisor.reshard import CopyProgress, cancel, reshard
from tests.support.cluster.cluster import Cluster, command, environment

pytestmark = pytest.mark.whole

QUEUES = [f"q{number}" for number in range(12)]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A stopped cluster of 2 shards."""
    cluster = Cluster(tmp_path / "data", "--shards", 2, workers=2)
    with cluster.client() as client:
        for queue in QUEUES:
            client.create_queue(queue)
            client.enqueue_many(queue, [Message(f"{queue} {number}".encode()) for number in range(20)])
        client.set_config("greeting", "hello")
    stop(cluster)
    return tmp_path / "data"


def stop(cluster: Cluster) -> None:
    assert cluster.stop() == 0
    cluster.close()


def run(data_dir: Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command("reshard", "--data-dir", data_dir, *arguments), capture_output=True, text=True, env=environment(), check=False
    )


def check(data_dir: Path) -> int:
    return subprocess.run(command("check", "--data-dir", data_dir), env=environment(), check=False).returncode


def test_queues_move_to_more_shards_and_to_fewer(data_dir: Path):
    for shards, workers in ((5, 3), (3, 1)):
        done = run(data_dir, "--shards", shards, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout).items() >= {"after": shards, "queues": 12, "messages": 240}.items()
        assert check(data_dir) == 0
        cluster = Cluster(data_dir, workers=workers)
        with cluster.client() as client:
            assert len(client.cluster_status().workers) == workers
            assert [info.depth for info in client.list_queues() if not info.is_dead_letter] == [20] * 12
            assert len({info.shard for info in client.list_queues()}) > 1
            assert client.get_config("greeting") == "hello"
        stop(cluster)
    cluster = Cluster(data_dir)
    with cluster.client() as client:
        for queue in QUEUES:
            got = client.receive(queue, 20)
            assert [each.payload for each in got] == [f"{queue} {number}".encode() for number in range(20)]
            for each in got:
                each.ack()
    stop(cluster)


def test_the_number_that_it_has_changes_nothing(data_dir: Path):
    done = run(data_dir, "--shards", 2)
    assert (done.returncode, done.stdout.strip()) == (0, f"{data_dir} has 2 shards already")


def test_the_space_needed_is_said_and_checked(data_dir: Path):
    assert "needs up to" in run(data_dir, "--shards", 3).stderr
    with pytest.raises(
        CannotStartError, match=r"4 shards beside the old ones may need [\d,]+ MiB, and the disk of .* has 1 MiB free"
    ):
        reshard(data_dir, 4, lambda plan, space: None, CopyProgress(), measure_free=lambda path: 1)
    assert not list(data_dir.glob("reshard*"))


def test_an_unfinished_one_can_be_cancelled(data_dir: Path):
    class StoppedError(Exception):
        pass

    def end(index: int, messages: int) -> None:
        raise StoppedError

    with pytest.raises(StoppedError):
        reshard(data_dir, 4, lambda plan, space: None, CopyProgress(shard=end))
    refused = run(data_dir, "--shards", 3)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "is being changed to 4 shards: finish that first with --shards 4, or cancel it with --cancel" in refused.stderr
    assert cancel(data_dir)
    assert not list(data_dir.glob("reshard*"))
    assert not cancel(data_dir)
    stop(Cluster(data_dir))


def test_a_shard_that_is_elsewhere_is_missed(data_dir: Path, tmp_path: Path):
    (data_dir / "shard-0001").rename(tmp_path / "elsewhere")
    refused = run(data_dir, "--shards", 3)
    assert refused.returncode == 1
    assert "shard-0001 is missing: bring all 2 shards" in refused.stderr


def test_a_running_cluster_is_left_alone(data_dir: Path):
    cluster = Cluster(data_dir)
    refused = run(data_dir, "--shards", 3)
    assert (refused.returncode, "is in use by process" in refused.stderr) == (1, True)
    stop(cluster)


def test_what_is_no_data_directory_is_refused(tmp_path: Path):
    refused = run(tmp_path / "nothing", "--shards", 3)
    assert (refused.returncode, "holds no shards" in refused.stderr) == (1, True)
    assert run(tmp_path).returncode == 2
