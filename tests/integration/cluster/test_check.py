"""``fila-cluster check`` over the directories of real clusters: running, stopped, killed and damaged."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree, rmtree

import pytest

from fila_cluster import Message
from fila_proto_zmq.names import shard_of
from fila_worker.storage.made import mark_of
from tests.support.cluster.cluster import command, running

MESSAGES = 300
FIRST, SECOND = (next(name for name in map("q{}".format, range(99)) if shard_of(name, 2) == shard) for shard in (0, 1))
NAMESPACED = next(name for name in map("team/q{}".format, range(99)) if shard_of(name, 2) == 1)


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a cluster that was killed, with messages on both shards."""
    data_dir = tmp_path_factory.mktemp("killed") / "data"
    with running(data_dir, "--shards", 2) as cluster:
        with cluster.client() as client:
            for name in (FIRST, SECOND, NAMESPACED):
                client.create_queue(name)
                client.enqueue_many(name, [Message(b"%06d" % number + b"x" * 500) for number in range(MESSAGES)])
            client.enqueue(
                FIRST, b"\xff\x00", headers={"a": "ü"}, fairness_key="k", weight=3, throttle_keys=["t"], priority=-2, cost=2.5
            )
            client.enqueue(FIRST, b"later", delay=3600, ttl=7200, lease=9)
        cluster.kill_all()
    return data_dir


@pytest.fixture
def data_dir(killed: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of it, to be damaged."""
    copy = tmp_path / "data"
    copytree(killed, copy, ignore=lambda _, names: [name for name in names if name.endswith(".ipc")])
    yield copy
    rmtree(copy)


def log_of(data_dir: Path, shard: int) -> Path:
    return max((data_dir / f"shard-{shard:04d}").glob("*.log"), key=lambda log: log.stat().st_size)


def test_a_killed_cluster_is_clean(data_dir: Path) -> None:
    done = run("check", "--data-dir", data_dir)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["shard 0: clean", "shard 1: clean"])


@pytest.mark.whole
def test_a_running_cluster_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with running(tmp_path / "data") as cluster:
        done = run("check", "--data-dir", tmp_path / "data")
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1
        assert f"in use by process {cluster.supervisor.pid}: stop the cluster to check it, or use --online" in done.stderr
        assert cluster.stop() == 0
    assert run("check", "--data-dir", tmp_path / "data").returncode == 0


@pytest.mark.whole
def test_a_running_cluster_is_checked_by_checkpoints(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with running(data_dir, "--shards", 2) as cluster:
        with cluster.client() as client:
            for name in (FIRST, SECOND):
                client.create_queue(name)
                client.enqueue_many(name, [Message(b"%06d" % number) for number in range(MESSAGES)])
            held = client.receive(FIRST, max_messages=3)
        done = run("--endpoint", cluster.endpoint, "check", "--online")
        assert (done.returncode, done.stdout.splitlines()) == (0, ["shard 0: clean", "shard 1: clean"])
        assert not any((data_dir / "checkpoints").glob("*")), "they are removed at once"
        with cluster.client() as client:
            assert client.queue_stats(FIRST).depth == MESSAGES
        assert len(held) == 3
        done = run("--endpoint", cluster.endpoint, "check", "--online", "--repair")
        assert (done.returncode, "--online only reads" in done.stderr) == (2, True)
        assert cluster.stop() == 0


def test_what_is_no_data_directory_is_refused(tmp_path: Path) -> None:
    done = run("check", "--data-dir", tmp_path)
    assert (done.returncode, "is no data directory" in done.stderr) == (1, True)


def test_a_damaged_shard_is_named_the_other_one_checked_and_nothing_written(data_dir: Path) -> None:
    log = log_of(data_dir, 1)
    content = bytearray(log.read_bytes())
    content[content.index(b"000150xxx")] ^= 1
    log.write_bytes(content)
    done = run("check", "--data-dir", data_dir, "--json", "--repair")
    outcome = json.loads(done.stdout)
    first, second = outcome["shards"]
    assert (done.returncode, outcome["clean"], first["clean"], second["clean"]) == (1, False, True, False)
    assert second["findings"][0]["kind"] == "damaged"
    assert "--salvage" in second["refused"]
    assert log.read_bytes() == bytes(content)


def test_a_log_that_was_cut_off_is_named_and_repaired(data_dir: Path) -> None:
    log = log_of(data_dir, 0)
    log.write_bytes(log.read_bytes()[:-3])
    done = run("check", "--data-dir", data_dir)
    assert done.returncode == 1
    assert f"{log} ends in the middle of a record" in done.stdout
    assert "--repair" in done.stdout
    done = run("check", "--data-dir", data_dir, "--repair")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "shard 0: clean, after 1 repair")


@pytest.mark.whole
@pytest.mark.parametrize("content", [None, "{", '{"format": 1, "shards": 7}'])
def test_a_lost_identity_is_named_and_written_again(data_dir: Path, content: str | None) -> None:
    identity = data_dir / "fila.json"
    whole = identity.read_text()
    identity.unlink() if content is None else identity.write_text(content)
    done = run("check", "--data-dir", data_dir)
    assert (done.returncode, "fila.json" in done.stdout) == (1, True)
    assert run("check", "--data-dir", data_dir, "--repair").returncode == 0
    assert identity.read_text() == whole


@pytest.mark.parametrize("marked", [True, False])
def test_a_missing_shard_is_named(data_dir: Path, marked: bool) -> None:
    rmtree(data_dir / "shard-0001")
    if not marked:
        mark_of(data_dir / "shard-0001").unlink()
    done = run("check", "--data-dir", data_dir)
    assert (done.returncode, "is empty or missing" in done.stdout) == (1, True)


def test_salvaged_messages_can_be_enqueued(data_dir: Path, tmp_path: Path) -> None:
    log = log_of(data_dir, 1)
    content = bytearray(log.read_bytes())
    content[content.rindex(b"000299xxx")] ^= 1
    log.write_bytes(content)
    (data_dir / "shard-0000" / "CURRENT").write_text("nothing\n")
    out = tmp_path / "out"
    done = run("check", "--data-dir", data_dir, "--salvage", out)
    assert done.returncode == 1
    files = {file.name: len(file.read_text().splitlines()) for file in out.iterdir()}
    assert files.pop(f"{FIRST}.jsonl") == MESSAGES + 2
    assert files.pop(f"{SECOND}.jsonl") == MESSAGES, "the batch of the other queue has the damage"
    assert sum(files.values()) < MESSAGES
    assert oct((out / f"{FIRST}.jsonl").stat().st_mode)[-3:] == "600"
    with running(tmp_path / "fresh") as cluster, cluster.client() as client:
        client.create_queue(FIRST)
        done = run("--endpoint", cluster.endpoint, "enqueue", FIRST, "--file", out / f"{FIRST}.jsonl")
        assert done.returncode == 0, done.stderr
        assert client.queue_stats(FIRST).delayed == 1
        got = {bytes(each.payload): each for each in client.receive(FIRST, MESSAGES + 1, wait=5)}
        assert got.keys() == {b"%06d" % number + b"x" * 500 for number in range(MESSAGES)} | {b"\xff\x00"}
        unusual = got[b"\xff\x00"]
        assert (unusual.headers, unusual.fairness_key, unusual.weight, unusual.priority, unusual.cost) == (
            {"a": "ü"}, "k", 3, -2, 2.5,
        )  # fmt: skip
        assert tuple(unusual.throttle_keys) == ("t",)


def test_salvage_does_not_write_between_other_files(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("")
    done = run("check", "--data-dir", data_dir, "--salvage", tmp_path)
    assert (done.returncode, "is not empty" in done.stderr) == (1, True)
