"""Random states of a cluster, copied to another number of shards: whatever is asked, the answers are the same.

The process dies at steps by chance, and the next run goes on with what the shards have.
"""

from random import Random

import pytest

from fila_worker.check.shard import check_shard
from fila_worker.reshard.copying import ReshardProgress, Shards, copy_all
from fila_worker.storage.memory import MemoryStore
from tests.support.shard.random_cluster import Life, RandomCluster, answers

pytestmark = pytest.mark.whole


class KilledError(Exception):
    """The end of the process, as far as the shards can tell."""


def resharded(stores: list[MemoryStore], after: int, now_ms: int, chance: Random, kills: int = 0) -> list[MemoryStore]:
    """Copy shards into ``after`` new ones; the process dies ``kills`` times, at steps by chance."""
    news = [MemoryStore() for _ in range(after)]
    shards = Shards(len(stores), after, stores.__getitem__, news.__getitem__)
    while True:
        left = chance.randint(1, 12) if kills else 0

        def step(name: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise KilledError(name)

        try:
            copy_all(shards, now_ms, lambda: chance.getrandbits(64), ReshardProgress(step=step))
        except KilledError:
            kills -= 1
        else:
            return news


def findings(stores: list[MemoryStore]) -> list[str]:
    """What ``fila-cluster check`` says of shards."""
    return [finding.text for index, store in enumerate(stores) for finding in check_shard(store, index, len(stores))]


@pytest.mark.parametrize("seed", range(20))
def test_all_answers_are_the_same(seed: int) -> None:
    chance = Random(seed)
    before, after, kills = chance.randint(1, 5), chance.randint(1, 5), chance.choice([0, 0, 3, 20])
    random_cluster = RandomCluster([MemoryStore() for _ in range(before)])
    life = Life(random_cluster, seed)
    life.go_on(400)
    expected = answers(random_cluster.copy(), life)
    stores = resharded(random_cluster.copy(), after, random_cluster.now_ms, chance, kills)
    assert findings(stores) == []
    assert answers(stores, life) == expected


@pytest.mark.parametrize("seed", range(10))
def test_life_goes_on_between_one_copy_and_the_next(seed: int) -> None:
    chance = Random(seed)
    life = Life(RandomCluster([MemoryStore() for _ in range(5)]), seed)
    for after in (3, 5, 1, chance.randint(1, 5)):
        life.go_on(100)
        stores = resharded(life.random_cluster.copy(), after, life.random_cluster.now_ms, chance, kills=3)
        assert findings(stores) == []
        assert answers(stores, life) == answers(life.random_cluster.copy(), life)
        life.move(RandomCluster(stores, life.random_cluster.now_ms))
    assert life.repeated == set(), "ids were given out twice"
