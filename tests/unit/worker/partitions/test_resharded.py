"""Queues with partitions on another number of shards, and what ``fila-cluster check`` says of them."""

from random import Random

import pytest

from fila_proto_zmq.commands import Cancel, Cancelled, TransferMessages, Verb
from fila_proto_zmq.ids import parse_id
from fila_proto_zmq.names import partition_name
from tests.property.replication.test_reshard import findings, resharded
from tests.support.shard.hooked import on_enqueue
from tests.support.shard.partitioned import ORDERS, PartitionedShards, key_of, payloads
from tests.support.shard.random_cluster import copied


def filled(before: int) -> tuple[PartitionedShards, list[list[str]]]:
    """Partitions with pending, delayed, leased and dead messages, and with strays, some of them on their way. The ids of those
    that stay and of those that do not, by partition.
    """
    cluster = PartitionedShards(before)
    cluster.define(max_attempts=9, on_enqueue=on_enqueue("return {}"))
    ids = [cluster.enqueue(each, b"%d" % each, b"second", key=key_of(each)) for each in range(4)]
    for partition in range(4):
        queue, shard = partition_name(ORDERS, partition), cluster.of(partition)
        cluster.enqueue(partition, b"later", key=key_of(partition), delay_ms=60_000)
        dead = key_of(partition, prefix="dead")
        cluster.enqueue(partition, b"dead", key=dead)
        got = cluster.receive(partition)
        shard.settle(Verb.FAIL, [each for each in got if each.key == dead], queue)
        shard.settle(Verb.RELEASE, [each for each in got if each.key != dead], queue)
    cluster.settle_down()
    cluster.enqueue(1, b"arrived", key=key_of(2, prefix="stray"))
    cluster.settle_down()
    cluster.copies = lambda command: not isinstance(command, TransferMessages)
    cluster.enqueue(1, b"on its way", key=key_of(3, prefix="stray"))
    cluster.settle_down()
    cluster.of(1).shard.jobs.start_own = lambda work: work.close()  # type: ignore[method-assign]
    cluster.enqueue(1, b"not sent", key=key_of(0, prefix="stray"))
    return cluster, ids


@pytest.mark.parametrize(("before", "after"), [(4, 3), (4, 1), (1, 4), (3, 5), (4, 4)])
@pytest.mark.parametrize("kills", [0, 4])
def test_partitions_move_with_all_that_is_in_them(before: int, after: int, kills: int) -> None:
    cluster, ids = filled(before)
    stores = [copied(station.store) for station in cluster.stations.values()]
    assert findings(stores) == []
    now_ms = cluster[0].now_ms
    news = resharded(stores, after, now_ms, Random(kills), kills=kills)
    assert findings(news) == []
    cluster = PartitionedShards(after, stores=dict(enumerate(news)), now_ms=now_ms)
    cluster.pass_time(5_000)
    assert [cluster.counts(each)[2] for each in range(4)] == [1] * 4
    assert [cluster.dead_counts(each)[0] for each in range(4)] == [1] * 4
    strays = {0: [b"not sent"], 1: [], 2: [b"arrived"], 3: [b"on its way"]}
    for partition in range(4):
        high, low = parse_id(ids[partition][1])
        queue, shard = partition_name(ORDERS, partition), cluster.of(partition)
        assert shard.ask(Cancel(high, low), queue) == Cancelled(True)
        assert sorted(payloads(cluster.receive(partition))) == sorted([b"%d" % partition, *strays[partition]])
        assert shard.redrive(queue=f"{ORDERS}.dlq@{partition}").count == 1
        assert payloads(cluster.receive(partition)) == [b"dead"]
    cluster.update(max_attempts=4)
    cluster.pass_time(5_000)
    for partition in range(4):
        assert cluster.of(partition).shard.queues[partition_name(ORDERS, partition)].options.max_attempts == 4
    cluster.delete()
    cluster.pass_time(5_000)
    assert not any(station.shard.queues.by_id for station in cluster.stations.values())
    assert findings([copied(station.store) for station in cluster.stations.values()]) == []
