"""Shards whose messages share the throttle key ``t``."""

from tests.support.shard.cluster_of_shards import ClusterOfShards

RATE, BURST = 100, 10


def cluster_of(count: int = 2, **options: float) -> ClusterOfShards:
    """Shards with a queue each, and a limit on the throttle key ``t``."""
    cluster = ClusterOfShards(count, **options)  # type: ignore[arg-type]
    for shard in range(count):
        cluster.create(shard)
    cluster.limit("t", RATE, BURST)
    return cluster


def busy_cluster(count: int = 2, **options: float) -> ClusterOfShards:
    """One whose shards all have messages and consumers for the same tokens, and had for half a second."""
    cluster = cluster_of(count, **options)
    for shard in range(count):
        cluster.enqueue(shard, 600, "t")
        cluster.consume(shard)
    cluster.run(500)
    return cluster
