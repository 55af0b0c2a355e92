"""A queue whose partitions are on three hosts, of which one is killed under load."""

from collections import defaultdict
from pathlib import Path

from fila_cluster import Client, Message
from fila_worker.log.placement import PlacementLimits
from tests.support.cluster.cluster import PATIENCE_S, eventually, settling_may_fail
from tests.support.cluster.partition_load import DELIVERED, ENQUEUED, PartitionLoad
from tests.support.hosts.hosts import hosts_on
from tests.support.hosts.kafka import kafka_cluster

SHARDS = 6
PLACEMENT = PlacementLimits(settle_ms=2000)
MEANWHILE = 5


def numbers_by_key(client: Client, count: int) -> dict[str, list[int]]:
    """Receive and ack so many messages; the numbers of each key in their order."""
    got: dict[str, list[int]] = defaultdict(list)
    while sum(map(len, got.values())) < count:
        for delivery in client.receive("orders", 50, wait=PATIENCE_S):
            got[delivery.fairness_key].append(int(delivery.payload))
            delivery.ack()
    return got


@settling_may_fail
def test_a_queue_goes_on_without_the_partitions_of_a_host_that_is_killed_and_loses_nothing(tmp_path: Path) -> None:
    with (
        kafka_cluster(tmp_path / "kafka", brokers=1) as kafka,
        hosts_on(tmp_path, kafka.bootstrap, hosts=3, shards=SHARDS, placement=PLACEMENT, together=True) as hosts,
    ):
        eventually(lambda: hosts.spread() == [2, 2, 2], "the shards are spread evenly")
        with hosts.client() as client:
            client.create_queue("orders", partitions=2)
            client.enqueue_many("orders", [Message(b"%d" % number, fairness_key=f"k{number % 9}") for number in range(90)])
            client.update_queue("orders", partitions=SHARDS)
            client.enqueue_many(
                "orders", [Message(b"%d" % number, fairness_key=f"k{number % 9}") for number in range(90, 180)]
            )
            assert numbers_by_key(client, 180) == {f"k{key}": [*range(key, 180, 9)] for key in range(9)}
        load = PartitionLoad(hosts.endpoint, "orders", SHARDS)
        with load.running():
            everything = range(SHARDS)
            load.goes_on(*everything)
            leaders = hosts.leaders()
            its = {partition for partition, shard in load.shards().items() if leaders[shard] == "b"}
            assert len(its) == 2
            since = len(load.noted)
            hosts.kill_host("b")
            load.goes_on(*everything)
            # The first answer after the kill may have been under way.
            again = min(load.noted.index(load.of(ENQUEUED, each, since)[1]) for each in its)
            for each in {*everything} - its:
                for what in (ENQUEUED, DELIVERED):
                    meanwhile = [noted for noted in load.of(what, each, since) if load.noted.index(noted) < again]
                    assert len(meanwhile) >= MEANWHILE, f"partition {each} waited for others"
            hosts.start_host("b")
            eventually(lambda: hosts.spread() == [2, 2, 2], "it has its part again")
            load.goes_on(*everything)
        assert load.lost() == set()
