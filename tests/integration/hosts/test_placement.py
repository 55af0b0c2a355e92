"""Shards spread over hosts by themselves: at the start, when a host stops, and when it is back."""

from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path

from fila_proto_zmq.commands import DrainWorker
from fila_worker.log.placement import PlacementLimits
from tests.support.cluster.cluster import eventually
from tests.support.hosts.hosts import Hosts, hosts_on
from tests.support.hosts.kafka import kafka_cluster

SHARDS = 6
PLACEMENT = PlacementLimits(settle_ms=2000)
MOVES_MAX = 2
"""Of a shard whose host stops or is back. On a busy machine its successor may be too late, and gets it from another host."""


@contextmanager
def three_hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Three hosts that start at the same moment on a new log."""
    with (
        kafka_cluster(tmp_path / "kafka", brokers=1) as kafka,
        hosts_on(tmp_path, kafka.bootstrap, hosts=3, shards=SHARDS, placement=PLACEMENT, together=True) as hosts,
    ):
        eventually(lambda: hosts.spread() == [2, 2, 2], "the shards are spread evenly")
        yield hosts
        assert not [event for worker in hosts.workers.values() for event in worker.events("process.deposed")], "a duel"


def opened(hosts: Hosts) -> int:
    """How often a shard was opened by any host."""
    return sum(len(worker.events("shard.opened")) for worker in hosts.workers.values())


def test_hosts_spread_the_shards_of_a_new_log_and_of_a_host_that_stops(tmp_path: Path) -> None:
    with three_hosts(tmp_path) as hosts:
        before = opened(hosts)
        assert hosts.workers["b"].stop() == 0
        eventually(lambda: hosts.spread() == [3, 3], "its shards are led by both others")
        assert opened(hosts) <= before + 2 * MOVES_MAX
        hosts.workers["b"].start()
        eventually(lambda: hosts.spread() == [2, 2, 2], "it has its part again")
        assert opened(hosts) <= before + 4 * MOVES_MAX


def test_a_host_that_drains_gives_up_one_shard_after_the_other_and_gets_its_part_back(tmp_path: Path) -> None:
    with three_hosts(tmp_path) as hosts, hosts.client() as client:
        client.request(DrainWorker("worker-a", undo=False))
        eventually(lambda: "a" not in hosts.leaders().values() and hosts.spread() == [3, 3], "it leads nothing")
        # The next leader may serve before this host has written the line.
        eventually(lambda: len(hosts.workers["a"].events("shard.followed")) == 2, "it says what it gave up")
        first, second = hosts.workers["a"].events("shard.followed")
        opened = (event for name in "bc" for event in hosts.workers[name].events("shard.opened"))
        again = max((event for event in opened if event["shard"] == first["shard"]), key=itemgetter("epoch"))
        assert again["timestamp"] < second["timestamp"], "the first one has a leader before the second one goes"
        assert hosts.follows("a"), "it follows on"
        client.request(DrainWorker("worker-a", undo=True))
        eventually(lambda: hosts.spread() == [2, 2, 2], "it has its part again")
