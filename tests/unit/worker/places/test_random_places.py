"""Places under random faults: frames are lost, repeated and reordered, shards restart, limits change, and the limit holds."""

from random import Random

import pytest

from fila_proto_zmq.commands import Command, Verb
from tests.support.shard.placed_shards import PlacedShards
from tests.support.shard.shard import Got

KEYS = ([], ["j"], ["k"], ["k"], ["j", "k"])
STEPS = 120


class RandomCluster(PlacedShards):
    """Shards, with what their consumers hold, and the limits."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.calm = True
        super().__init__()
        self.held: dict[int, list[Got]] = {shard: [] for shard in range(self.count)}
        self.limits = {"j": 2, "k": 3}
        for key, most in self.limits.items():
            self.limit(key, most)
        for shard in range(self.count):
            self.consume(shard, prefetch=4)
        self.calm = False
        self.copies = lambda command: 1 if self.calm else self.random.choice([0, 1, 1, 1, 2])

    def collect(self) -> None:
        super().collect()
        if not self.calm:
            commands = list(self.road)
            self.random.shuffle(commands)
            self.road.clear()
            self.road.extend(commands)

    def deliver(self, command: Command) -> None:
        before = self.outstanding()
        super().deliver(command)
        self.look(before)

    def outstanding(self) -> dict[str, int]:
        """The places that the bank counts."""
        return {key: each.outstanding for key, each in self.bank.keys.items()}

    def look(self, before: dict[str, int]) -> None:
        """The bank grants below the limit only, and each lease has a place that the bank counts."""
        for key, now in self.outstanding().items():
            assert self.leased(key) <= now <= max(self.limits[key], before.get(key, now)), key

    def step(self) -> None:
        random = self.random
        shard = random.randrange(self.count)
        match random.randrange(8):
            case 0 | 1:
                self.enqueue(shard, random.choice([1, 3]), *random.choice(KEYS), fairness_key=random.choice("ab"))
            case 2 | 3 | 4:
                self.settle_some(shard)
            case 5:
                key = random.choice("jk")
                self.limits[key] = random.choice([1, 2, 4])
                self.limit(key, self.limits[key])
            case 6:
                self[shard].restart()
                self.held[shard] = []
                self.consume(shard, prefetch=4)
            case 7:
                self.pass_time(random.choice([10, 300, 2000]))
        for each in range(self.count):
            self.held[each] += self.taken(each)
            self[each].heartbeat(b"consumer %d" % each)

    def settle_some(self, shard: int) -> None:
        self.held[shard] += self.taken(shard)
        count = self.random.randint(0, len(self.held[shard]))
        some, self.held[shard] = self.held[shard][:count], self.held[shard][count:]
        if some:
            self[shard].settle(Verb.ACK, some)
            self.carry()


@pytest.mark.parametrize("seed", range(25))
def test_the_limit_holds_whatever_happens_and_all_messages_come_in_the_end(seed: int) -> None:
    cluster = RandomCluster(seed)
    for _ in range(STEPS):
        cluster.step()
    cluster.calm = True
    for _ in range(200):
        cluster.pass_time(1000)
        for shard in range(cluster.count):
            cluster[shard].heartbeat(b"consumer %d" % shard)
            cluster.held[shard] += cluster.taken(shard)
            got, cluster.held[shard] = cluster.held[shard], []
            if got:
                cluster[shard].settle(Verb.ACK, got)  # those of an earlier life of the shard may be refused
                cluster.carry()
        if all(cluster[shard].counts() == (0, 0, 0) for shard in range(cluster.count)):
            return
    raise AssertionError([cluster[shard].counts() for shard in range(cluster.count)])
