"""What a shard reports of the places of throttle keys."""

from fila_proto_zmq.commands import PlaceMetrics
from fila_worker.core.metrics import meter
from fila_worker.core.metrics.meter import report
from tests.support.shard.placed_shards import PlacedShards


def reported(cluster: PlacedShards, shard: int, after_ms: int = 0) -> list[PlaceMetrics]:
    """The places of a shard, which reports once a second."""
    told = report(cluster[shard].shard, cluster[shard].now_ms)
    for _ in range(after_ms // 1000):
        cluster[shard].heartbeat(b"consumer %d" % shard)
        cluster[shard].pass_time(1000)
        told = report(cluster[shard].shard, cluster[shard].now_ms)
    return told.places


def busy() -> PlacedShards:
    cluster = PlacedShards()
    cluster.limit("llm", 3)
    cluster[1].create("slow", visibility_timeout_ms=3_600_000)
    cluster.enqueue(1, 9, "llm", queue="slow")
    cluster.consume(1, queue="slow")
    return cluster


def test_places_that_stay_in_use_while_messages_wait() -> None:
    cluster = busy()
    assert reported(cluster, 1) == [PlaceMetrics("llm", 3, 3, 6)]
    assert reported(cluster, 1, 59_000) == [PlaceMetrics("llm", 3, 3, 6, 59_000)]
    assert reported(cluster, 1, 31_000) == [PlaceMetrics("llm", 3, 3, 6, 90_000, 90_000)]


def test_the_time_starts_again_once_a_place_is_free_and_without_reports() -> None:
    cluster = busy()
    assert reported(cluster, 1, 20_000)[0].full_ms == 20_000
    cluster[1].pass_time(10_000)
    cluster[1].heartbeat(b"consumer 1")
    cluster[1].pass_time(meter.REPORT_GAP_MS_MAX - 9_999)
    assert reported(cluster, 1)[0].full_ms == 0
    assert reported(cluster, 1, 5000)[0].full_ms == 5000
    cluster.limit("llm", 9)
    assert reported(cluster, 1) == [PlaceMetrics("llm", 9, 9, 0)]
    cluster.limit("llm", 3)
    cluster.enqueue(1, 1, "llm", queue="slow")
    assert reported(cluster, 1)[0].full_ms == 0


def test_the_longest_lease_is_one_of_this_key() -> None:
    cluster = busy()
    reported(cluster, 1, 30_000)
    cluster.limit("db", 1)
    cluster.enqueue(1, 2, "db", queue="slow")
    longest = {each.key: each.longest_ms for each in reported(cluster, 1, 70_000)}
    assert longest == {"llm": 100_000, "db": 70_000}
    cluster.ack(1, [each for each in cluster.taken(1) if each.throttle_keys == ("db",)], "slow")
    assert {each.key: each.longest_ms for each in reported(cluster, 1)} == {"llm": 100_000, "db": 0}
