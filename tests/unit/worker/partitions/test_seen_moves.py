"""Another number of partitions, as it is seen: in the answers to ``why``, the counters and the log."""

import pytest

from fila_proto_zmq.commands import GetQueueStats, PartitionLeft, QueueMove, QueueStats, TransferMessages
from fila_proto_zmq.events import PartitionsChanged, PartitionsChanging
from fila_proto_zmq.names import partition_name
from fila_proto_zmq.partitions import partition_of
from fila_worker.core.explain.backlog_reasons import explain_key
from fila_worker.core.inspect.moving import left_in
from fila_worker.core.metrics.meter import REPORT_GAP_MS_MAX, report
from tests.support.shard.explained import codes, first, why
from tests.support.shard.partitioned import ORDERS, PartitionedShards
from tests.unit.worker.partitions.test_moves import key_that_moves, put, settle

KEY = key_that_moves(2, 3, to=2)
OLD, NEW = partition_name(ORDERS, partition_of(KEY, 2)), partition_name(ORDERS, 2)


@pytest.fixture
def cluster() -> PartitionedShards:
    """Two partitions. Messages of one of them can't arrive elsewhere."""
    cluster = PartitionedShards()
    shard = cluster.of(partition_of(KEY, 2)).index
    cluster.copies = lambda command: not isinstance(command, TransferMessages) or command.from_shard != shard
    return cluster


def change(cluster: PartitionedShards, **options: object) -> None:
    cluster.define(partitions=2, **options)
    put(cluster, KEY, 2, b"old 1", b"old 2")
    cluster.update(partitions=3)


def move_in(cluster: PartitionedShards, name: str) -> QueueMove | None:
    """Of the counters, and the same of the statistics."""
    station = cluster.of(int(name[-1]))
    (counted,) = [each.move for each in report(station.shard, station.now_ms).queues if each.info.name == name]
    stats = station.ask(GetQueueStats(), name)
    assert isinstance(stats, QueueStats)
    assert counted == stats.move
    return counted


# --- why --------------------------------------------------------------------------------------------------------------


def test_a_key_waits_for_its_earlier_partition(cluster: PartitionedShards) -> None:
    change(cluster)
    (new,) = put(cluster, KEY, 3, b"new")
    settle(cluster)
    place, station = partition_of(KEY, 2), cluster.of(2)
    told = why(station, key=KEY, queue=NEW)
    details = first(told, "moving")
    shard = cluster.of(place).index
    assert (details["waits_for"], details["shards"], details["earlier"], details["partitions"]) == ([place], [shard], 2, 3)
    assert f"partition {place} on shard {shard}" in told.reasons[0].text
    assert first(why(station, new, queue=NEW), "moving") == details
    grouped = why(station, queue=NEW).reasons[1]
    assert (grouped.code, grouped.details["keys"], grouped.details["messages"]) == ("moving", 1, 1)


def test_messages_are_about_to_be_sent_on(cluster: PartitionedShards) -> None:
    change(cluster, max_in_flight_per_key=1)
    place = partition_of(KEY, 2)
    station, to = cluster.of(place), cluster.of(2).index
    details = first(explain_key(station.shard, station.shard.queues[OLD], KEY, station.now_ms), "leaving")
    assert (details["messages"], details["to"], details["partition"], details["leased"]) == (2, 2, place, 0)
    settle(cluster)
    told = why(station, key=KEY, queue=OLD)
    assert first(told, "leaving")["sent_to"] == [to]
    assert "has not confirmed it" in told.reasons[0].text
    assert first(why(station, queue=OLD), "leaving")["messages"] == 0
    cluster.copies = lambda _: 1
    settle(cluster)
    assert codes(why(station, key=KEY, queue=OLD)) == ["empty"]


def test_leased_messages_are_awaited(cluster: PartitionedShards) -> None:
    cluster.define(partitions=2, max_in_flight_per_key=1)
    place = partition_of(KEY, 2)
    put(cluster, KEY, 2, b"old 1", b"old 2")
    cluster.receive(place, 1)
    cluster.update(partitions=3)
    settle(cluster)
    for key in KEY, None:
        told = why(cluster.of(place), key=key, queue=OLD)
        (reason,) = [each for each in told.reasons if each.code == "leaving"]
        assert (reason.details["messages"], reason.details["leased"]) == (0, 1)
        assert "leased: 1" in reason.text


def test_a_partition_that_is_no_more_waits_for_all_its_messages(cluster: PartitionedShards) -> None:
    cluster.define(partitions=2, spread="message")
    cluster.enqueue(1, b"a", b"b", key="k")
    cluster.receive(1, 1)
    cluster.update(partitions=1)
    cluster.settle_down()
    move = move_in(cluster, partition_name(ORDERS, 1))
    assert move is not None
    assert (move.earlier, move.partitions, move.waits_for) == (2, 1, [1])
    assert [(each.partition, each.leased) for each in move.left] == [(1, 1)]
    assert codes(why(cluster.of(1), queue=partition_name(ORDERS, 1))) == ["leased", "leaving"]


# --- numbers and events -----------------------------------------------------------------------------------------------


def test_counters_and_statistics_say_how_far_it_has_come(cluster: PartitionedShards) -> None:
    change(cluster)
    place, since_ms = partition_of(KEY, 2), cluster[0].now_ms
    shard = cluster.of(place).index
    to = cluster.of(2).index
    assert move_in(cluster, OLD) == QueueMove(2, 3, since_ms, [], [0, 1], [PartitionLeft(place, shard, 2, 0, False, [to])])
    settle(cluster)
    left = PartitionLeft(place, shard, 0, 0, False, [to])
    assert move_in(cluster, OLD) == QueueMove(2, 3, since_ms, [1 - place], [place], [left])
    assert move_in(cluster, partition_name(ORDERS, 1 - place)) == QueueMove(2, 3, since_ms, [1 - place], [place], [])
    cluster.copies = lambda _: 1
    settle(cluster)
    assert move_in(cluster, OLD) is None


def test_not_all_keys_are_looked_at(cluster: PartitionedShards) -> None:
    cluster.define(partitions=2, max_in_flight_per_key=1)
    keys = [key for number in range(200) if partition_of(key := f"m{number}", 2) == 0 and partition_of(key, 3) == 2]
    for key in keys:
        put(cluster, key, 2, b"x")
    cluster.receive(0)
    cluster.update(partitions=3)
    settle(cluster)
    station = cluster.of(0)
    queue = station.shard.queues[partition_name(ORDERS, 0)]
    assert (left_in(station.shard, queue).leased, left_in(station.shard, queue).more) == (len(keys), False)
    assert (left_in(station.shard, queue, 9).leased, left_in(station.shard, queue, 9).more) == (9, True)


def still_ms(cluster: PartitionedShards) -> int:
    station = cluster.of(partition_of(KEY, 2))
    (move,) = [each.move for each in report(station.shard, station.now_ms).queues if each.info.name == OLD]
    assert move is not None
    return move.still_ms


def test_reports_measure_for_how_long_nothing_gets_on(cluster: PartitionedShards) -> None:
    change(cluster)
    assert still_ms(cluster) == 0
    settle(cluster)
    assert still_ms(cluster) == 0
    for seconds in 1, 2:
        cluster.pass_time(1000)
        assert still_ms(cluster) == seconds * 1000
    cluster.pass_time(REPORT_GAP_MS_MAX + 1)
    assert still_ms(cluster) == 0


def test_the_log_has_the_beginning_and_the_end(cluster: PartitionedShards) -> None:
    change(cluster)
    notes = cluster[0].shard.notes
    assert PartitionsChanging(ORDERS, 2, 3) in notes
    cluster.update(max_attempts=3)
    settle(cluster)
    assert notes.count(PartitionsChanging(ORDERS, 2, 3)) == 1
    assert not any(isinstance(each, PartitionsChanged) for each in notes)
    cluster.copies = lambda _: 1
    settle(cluster)
    (over,) = [each for each in notes if isinstance(each, PartitionsChanged)]
    assert (over.queue, over.earlier, over.partitions) == (ORDERS, 2, 3)
    assert over.took_ms > 0
