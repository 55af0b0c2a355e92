"""A batch over four shards, whose processes are killed: its callback comes once, when all is done, with the right counts.

The whole, 10,000 messages many times over, is ``python -m benchmarks batches``.
"""

import random
from pathlib import Path

from tests.support.cluster.batch_life import live
from tests.support.cluster.cluster import running, settling_may_fail

SHARDS = 4


@settling_may_fail
def test_the_callback_of_a_batch_comes_once_though_processes_are_killed(tmp_path: Path) -> None:
    with running(tmp_path, "--shards", SHARDS, workers=2) as cluster:
        life = live(cluster, 2000, SHARDS, kills=2, chance=random.Random(7))
    assert len(life.kills) == 2
    assert [each["fila-batch-name"] for each in life.callbacks] == ["import"]
    assert (life.counts, life.open_then, life.dead_letters) == (life.expected, 0, life.expected[2])
