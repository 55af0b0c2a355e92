"""`fila-cluster backup` and `restore` as an operator uses them, and backups on schedule."""

import json
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fila_cluster import Message
from fila_cluster.cli.root import root
from fila_cluster.errors import LeaseExpiredError, StorageError
from fila_cluster.run.backup import taking
from tests.support.cluster.cluster import PATIENCE_S, Cluster, command, environment, eventually, running
from tests.support.cluster.faults import queue_on


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster") / "data", "--shards", 2) as cluster:
        yield cluster


def run(*arguments: object, exit_code: int = 0) -> str:
    result = CliRunner().invoke(root, list(map(str, arguments)))
    assert result.exit_code == exit_code, result.output
    return result.output


def facts(*arguments: object) -> Any:
    return json.loads(run("--json", *arguments))


def backed_up(cluster: Cluster, target: Path) -> Any:
    return facts("--endpoint", cluster.endpoint, "backup", target)


def test_a_backup_is_made_listed_verified_restored_and_pruned(cluster: Cluster, tmp_path: Path) -> None:
    target, restored = tmp_path / "target", tmp_path / "restored"
    with cluster.client() as client:
        queue = queue_on(client, 1, visibility_timeout=600)
        ids = client.enqueue_many(queue, [Message(b"%d" % number, fairness_key=f"k{number % 3}") for number in range(300)])
        client.set_config("throttle:provider:rate", "5")
        first = backed_up(cluster, target)
        second = backed_up(cluster, target)
    assert first["size_bytes"] >= first["copied_bytes"] > 0
    assert second["copied_bytes"] < first["copied_bytes"]
    assert [each["id"] for each in facts("backup", target, "--list")] == [first["id"], second["id"]]
    assert facts("backup", target, "--verify") == {first["id"]: [], second["id"]: []}
    assert facts("backup", target, "--prune", "--keep", 1)["removed"] == [first["id"]]
    assert facts("restore", target, "--data-dir", restored)["id"] == second["id"]
    modes = {stat.S_IMODE(path.stat().st_mode) for path in restored.rglob("*")}
    assert modes == {0o600, 0o700}
    assert "is not empty" in run("restore", target, "--data-dir", restored, exit_code=1)
    with running(restored, workers=None) as again, again.client() as client:
        assert {view.id for view in client.browse(queue, limit=1000)} == set(ids)
        assert client.get_config("throttle:provider:rate") == "5"


def test_what_was_leased_comes_again_after_its_visibility_timeout(cluster: Cluster, tmp_path: Path) -> None:
    with cluster.client() as client:
        queue = queue_on(client, 0, "leases", visibility_timeout=1)
        client.enqueue(queue, b"leased")
        (delivery,) = client.receive(queue)
        backed_up(cluster, tmp_path / "target")
        with suppress(LeaseExpiredError):
            delivery.ack()
    run("restore", tmp_path / "target", "--data-dir", tmp_path / "restored")
    with running(tmp_path / "restored", workers=None) as restored, restored.client() as client:
        (again,) = client.receive(queue, wait=PATIENCE_S / 2)
        assert (again.id, again.attempts, again.error) == (delivery.id, 1, "lease expired")
        again.ack()


def test_files_on_another_machine_are_an_error_that_says_where(cluster: Cluster, tmp_path: Path) -> None:
    with cluster.client() as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr(taking.Path, "is_file", lambda self: False)
        with pytest.raises(StorageError, match="run `fila-cluster backup` there"), taking.cut_of(client, "backup-of-another"):
            pass


@pytest.mark.parametrize(
    "arguments", [("--list", "--verify"), ("--prune",), ("--keep", 2), ("--id", "x"), ("--prune", "--keep", 0)]
)
def test_flags_that_do_not_go_together_are_a_usage_error(tmp_path: Path, arguments: tuple[object, ...]) -> None:
    run("backup", tmp_path, *arguments, exit_code=2)


def test_a_damaged_backup_fails_verify_and_restore_and_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    target = tmp_path / "target"
    backed_up(cluster, target)
    victim = max((target / "files").glob("*/*"), key=lambda path: path.stat().st_size)
    victim.write_bytes(bytes(victim.stat().st_size))
    assert "cannot be restored" in run("backup", target, "--verify", exit_code=1)
    assert "is damaged" in run("restore", target, "--data-dir", tmp_path / "new", exit_code=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["target"]


def test_a_restored_directory_lists_its_shards(cluster: Cluster, tmp_path: Path) -> None:
    """Also that of a backup of an earlier version, which has no list. One without the file, or with another number, is refused."""
    target, identity = tmp_path / "target", cluster.data_dir / "fila.json"
    whole = json.loads(identity.read_text())
    shards = whole["shards"]
    try:
        for content in (None, {"format": 1, "shards": shards + 1}, {"format": 1, "shards": shards}):
            identity.unlink() if content is None else identity.write_text(json.dumps(content))
            backed_up(cluster, target)
            restored = tmp_path / "restored"
            if content is None or content["shards"] != shards:
                assert f"it has {shards} shards, and" in run("restore", target, "--data-dir", restored, exit_code=1)
                assert not restored.exists()
    finally:
        identity.write_text(json.dumps(whole))
    run("restore", target, "--data-dir", restored)
    with running(restored, workers=None) as again:
        assert again.stop() == 0
    assert json.loads((restored / "fila.json").read_text())["made"] == list(range(shards))


@pytest.mark.whole
def test_backups_on_schedule(tmp_path: Path) -> None:
    target = tmp_path / "target"
    env = {"FILA_BACKUP__TARGET": str(target), "FILA_BACKUP__EVERY": "1s", "FILA_BACKUP__KEEP": "2"}
    with running(tmp_path / "data", env=env, logged="info") as cluster:
        eventually(lambda: len(cluster.events("backup.taken")) >= 4, "some backups")
        assert cluster.stop() == 0
        taken = cluster.events("backup.taken")
    kept = [path.stem for path in sorted((target / "backups").iterdir())]
    assert [each["backup"] for each in taken][-2:] == kept[:2]
    assert cluster.events("backup.failed", "child.died") == []
    assert run("backup", target, "--verify").count("good") == len(kept)


def test_a_target_that_cannot_be_used_is_an_error_at_the_start(tmp_path: Path) -> None:
    done = subprocess.run(
        command("up", "--data-dir", tmp_path / "data", "--no-dashboard"),
        env=environment(FILA_BACKUP__TARGET="nosuchthing://x"), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "nosuchthing" in done.stderr
    assert not (tmp_path / "data").exists()
