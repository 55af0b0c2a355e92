"""``reshard`` is killed at each of its steps: the next run goes on, and nothing is lost."""

import json
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from fila_cluster.run.supervisor import CannotStartError
from fila_cluster.run.supervisor.data_dir import DataDir
from fila_worker.storage.memory import MemoryStore
from tests.support.shard.random_cluster import Life, RandomCluster, answers, persist, stored

pytestmark = pytest.mark.whole

RUN = """
import os, signal, sys
from pathlib import Path
from fila_cluster.run.supervisor.reshard import reshard
from fila_cluster.run.supervisor.reshard import CopyProgress

data_dir, shards, left, whole = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "whole"

def step(*_):
    global left
    left -= 1
    if left == 0 and whole:
        os.killpg(0, signal.SIGKILL)
    elif left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

reshard(data_dir, shards, lambda plan, space: step(), CopyProgress(step, step, step))
"""


KILLS_MIN = 5
"""How often it is killed at least before a run comes to its end. How often exactly depends on how far the process that copies is ahead of the
one that reads of it and is killed: on a busy machine all is copied after a few runs, and later runs have fewer steps left."""


def run(data_dir: Path, shards: int, kill_at: int, *, whole: bool) -> bool:
    """Run a reshard that is killed at a step; ``whole``: with the process that copies. Return whether it came to its end."""
    arguments = [sys.executable, "-c", RUN, str(data_dir), str(shards), str(kill_at), "whole" if whole else "alone"]
    ended = subprocess.run(arguments, start_new_session=True, capture_output=True, check=False)
    assert ended.returncode in {0, -signal.SIGKILL}, ended.stderr.decode()
    return ended.returncode == 0


@pytest.mark.parametrize(("before", "after", "whole"), [(2, 5, True), (5, 3, False)])
def test_nothing_is_lost_whenever_it_is_killed(tmp_path: Path, before: int, after: int, whole: bool):
    life = Life(RandomCluster([MemoryStore() for _ in range(before)]), seed=before)
    life.go_on(400)
    data_dir = tmp_path / "data"
    persist(life.random_cluster.copy(), data_dir)
    (data_dir / "moved").mkdir()
    (data_dir / "moved" / "shard-0000").write_text("worker-1\n")
    kills = next(number for number in count(1) if run(data_dir, after, number, whole=whole))
    assert kills > KILLS_MIN
    assert json.loads((data_dir / "fila.json").read_text())["shards"] == after
    assert sorted(each.name for each in data_dir.glob("*shard*")) == [
        name for index in range(after) for name in (f"shard-{index:04d}", f"shard-{index:04d}.made")
    ]
    assert not list(data_dir.glob("reshard*"))
    assert not (data_dir / "moved").exists(), "it is about the old shards"
    assert answers(stored(data_dir), life) == answers(life.random_cluster.copy(), life)


def test_a_cluster_does_not_start_before_it_is_finished(tmp_path: Path):
    life = Life(RandomCluster([MemoryStore() for _ in range(2)]), seed=1)
    persist(life.random_cluster.copy(), tmp_path)
    for number in count(3):
        if run(tmp_path, 3, number, whole=True):
            break
        with pytest.raises(
            CannotStartError, match=r"from 2 to 3 shards is not finished: run `fila-cluster reshard .* --shards 3` again"
        ):
            DataDir(tmp_path)
    DataDir(tmp_path).release()
