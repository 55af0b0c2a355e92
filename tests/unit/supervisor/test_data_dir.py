"""Whose a data directory is, and what was fixed when it was made."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from fila_cluster.run.supervisor import CannotStartError
from fila_cluster.run.supervisor import data_dir as module
from fila_cluster.run.supervisor.data_dir import DataDir, HostDirectoryError
from fila_worker.log.kafka.settings import KafkaSettings
from fila_worker.settings import Replication
from fila_worker.storage.made import mark_made

BERLIN = Replication(
    kafka=KafkaSettings(bootstrap_servers="k:9092", topic="fila.main", partitions=5),
    host="berlin",
    log="fila.main-1",
    keys="k1",
)

HOLD = """
import sys, os
from pathlib import Path
from fila_cluster.run.supervisor.data_dir import DataDir
directory = DataDir(Path(sys.argv[1]))
directory.claim(2)
print("held", flush=True)
sys.stdin.read()
"""

ORPHAN = """
import sys, os, subprocess
from pathlib import Path
from fila_cluster.run.supervisor.data_dir import DataDir
directory = DataDir(Path(sys.argv[1]))
directory.claim(2)
subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], pass_fds=[directory.lock])
print("held", flush=True)
"""


def close(directory: DataDir) -> None:
    if directory._lock_fd is not None:
        module.os.close(directory._lock_fd)


@contextmanager
def holding(path: Path, script: str = HOLD) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the directory until its standard input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        yield holder


def test_opening_touches_nothing(tmp_path: Path):
    directory = DataDir(tmp_path / "new")
    assert directory.shards is None
    assert not (tmp_path / "new").exists()


def test_claiming_fixes_the_number_of_shards(tmp_path: Path):
    first = DataDir(tmp_path / "a" / "b")
    first.claim(3)
    assert json.loads((tmp_path / "a" / "b" / "fila.json").read_text()) == {"format": 1, "shards": 3, "made": []}
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    close(first)
    second = DataDir(tmp_path / "a" / "b")
    assert second.shards == 3
    second.claim(3)
    close(second)


def test_its_files_are_private_in_a_directory_that_others_may_read(tmp_path: Path):
    tmp_path.chmod(0o755)
    (tmp_path / "lock").touch(0o644)
    directory = DataDir(tmp_path)
    directory.claim(2)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
    close(directory)


def test_a_second_cluster_is_refused_with_the_first_ones_process(tmp_path: Path):
    with holding(tmp_path) as holder, pytest.raises(CannotStartError, match=f"in use by process {holder.pid}: stop that one"):
        DataDir(tmp_path)


def test_the_lock_ends_with_its_holder(tmp_path: Path):
    with holding(tmp_path) as holder:
        holder.kill()
    close(DataDir(tmp_path))


def test_the_orphans_of_a_dead_holder_are_waited_for(tmp_path: Path):
    with holding(tmp_path, ORPHAN) as holder:
        holder.wait()
        looks: list[float] = []

        def look(seconds: float) -> None:
            looks.append(seconds)
            holder.stdin.close()  # the orphan's standard input, too

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module.time, "sleep", look)
            close(DataDir(tmp_path))
        assert looks


def test_orphans_that_do_not_go_are_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "ORPHANS_S_MAX", 0.0)
    with holding(tmp_path, ORPHAN) as holder:
        holder.wait()
        with pytest.raises(CannotStartError, match="in use by process"):
            DataDir(tmp_path)


def test_a_directory_that_another_process_made_meanwhile_is_not_touched(tmp_path: Path):
    late = DataDir(tmp_path)
    early = DataDir(tmp_path)
    early.claim(2)
    close(early)
    with pytest.raises(CannotStartError, match="start again"):
        late.claim(8)
    close(late)
    assert json.loads((tmp_path / "fila.json").read_text())["shards"] == 2


def test_single_shards_share_the_directory_but_not_with_a_cluster(tmp_path: Path):
    first = DataDir(tmp_path, shared=True)
    first.claim(2)
    second = DataDir(tmp_path, shared=True)
    second.claim(2)
    script = "import sys; from pathlib import Path; from fila_cluster.run.supervisor.data_dir import DataDir; DataDir(Path(sys.argv[1]))"
    cluster = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert f"in use by process {module.os.getpid()}" in cluster.stderr
    close(first)
    close(second)


@pytest.mark.parametrize("content", ["", "{}", "[]", "{nonsense", '{"format": 1}'])
def test_a_damaged_identity_is_said_so(tmp_path: Path, content: str):
    (tmp_path / "fila.json").write_text(content)
    with pytest.raises(CannotStartError, match=r"fila.json is damaged"):
        DataDir(tmp_path)


def test_a_later_format_is_not_touched(tmp_path: Path):
    (tmp_path / "fila.json").write_text('{"format": 3, "shards": 3}')
    with pytest.raises(CannotStartError, match="has format 3, this version reads 1 and 2"):
        DataDir(tmp_path)


def test_shards_without_an_identity_are_not_touched(tmp_path: Path):
    (tmp_path / "shard-0000").mkdir()
    with pytest.raises(CannotStartError, match=r"holds shards but no fila.json"):
        DataDir(tmp_path)


def test_what_is_no_directory_is_said_so(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotStartError, match="cannot use data directory"):
        DataDir(tmp_path / "file").claim(1)
    with pytest.raises(CannotStartError, match="cannot use data directory"):
        DataDir(tmp_path / "file" / "below").claim(1)


# --- what was made in it ----------------------------------------------------------------------------------------------


def made_in(path: Path) -> list[int]:
    return json.loads((path / "fila.json").read_text())["made"]


def test_shards_are_listed_as_they_are_made(tmp_path: Path):
    directory = DataDir(tmp_path)
    directory.claim(3)
    for index in (2, 0, 2):
        mark_made(tmp_path / f"shard-{index:04d}")
    assert made_in(tmp_path) == [0, 2]
    close(directory)
    again = DataDir(tmp_path)
    again.claim(3)
    assert (again.identity.made, made_in(tmp_path)) == ([0, 2], [0, 2]), "shard 1 may still begin"
    again.renumber(2)
    assert made_in(tmp_path) == [0, 1]
    close(again)


@pytest.mark.parametrize(("there", "shared", "made"), [((), False, []), ((1,), False, [0, 1, 2]), ((1,), True, [1])])
def test_a_directory_of_an_earlier_version_gets_its_list_at_the_next_start(tmp_path: Path, there, shared: bool, made: list):
    (tmp_path / "fila.json").write_text('{"format": 1, "shards": 3}')
    for index in there:
        (tmp_path / f"shard-{index:04d}").mkdir()
    directory = DataDir(tmp_path, shared=shared)
    assert directory.identity.made is None
    directory.claim(3)
    assert made_in(tmp_path) == made
    close(directory)


def test_a_lost_identity_lists_what_is_there(tmp_path: Path):
    (tmp_path / "shard-0001").mkdir()
    directory = DataDir(tmp_path, damaged=True)
    directory.restore_identity(2)
    assert made_in(tmp_path) == [1]
    directory.release()


# --- of one host of several -------------------------------------------------------------------------------------------


def test_a_host_keeps_its_name(tmp_path: Path):
    first = DataDir(tmp_path / "a", of_host=True)
    assert first.identity.host is None
    first.claim(4, BERLIN)
    first.release()
    again = DataDir(tmp_path / "a", of_host=True)
    assert again.identity == (4, "berlin", "fila.main-1", "k1", None)
    again.claim(4, BERLIN)
    close(again)


@pytest.mark.parametrize("kind", [{}, {"shared": True}, {"damaged": True}, {"resharding": True}])
def test_nothing_else_opens_a_host_s_directory(tmp_path: Path, kind: dict):
    host = DataDir(tmp_path, of_host=True)
    host.claim(4, BERLIN)
    host.release()
    with pytest.raises(HostDirectoryError, match=r"copies of host 'berlin'.*only `fila-cluster node` may open"):
        DataDir(tmp_path, **kind)
    close(DataDir(tmp_path, of_host=True))  # it has let the lock go


def test_a_host_does_not_open_the_only_copies_of_a_cluster(tmp_path: Path):
    alone = DataDir(tmp_path)
    alone.claim(4)
    alone.release()
    with pytest.raises(HostDirectoryError, match="are in no log: choose another --data-dir"):
        DataDir(tmp_path, of_host=True)
    close(DataDir(tmp_path))


def test_a_host_s_directory_has_the_log_and_the_keys_of_its_last_start(tmp_path: Path):
    (tmp_path / "fila.json").write_text('{"format": 2, "shards": 4, "host": "berlin"}')
    directory = DataDir(tmp_path, of_host=True)
    assert directory.identity == (4, "berlin", "", "", None), "of an earlier version"
    directory.claim(4, BERLIN)
    directory.release()
    again = DataDir(tmp_path, of_host=True)
    again.claim(4, msgspec.structs.replace(BERLIN, keys="k2"))
    again.release()
    assert DataDir(tmp_path, of_host=True).identity == (4, "berlin", "fila.main-1", "k2", None)


def test_a_host_without_a_name_is_damaged(tmp_path: Path):
    (tmp_path / "fila.json").write_text('{"format": 2, "shards": 3}')
    with pytest.raises(CannotStartError, match="is damaged"):
        DataDir(tmp_path, of_host=True)
