"""Throttles as properties of several shards and their bank: whatever happens, no window has more than burst + rate × its length;
every message is delivered in the end, in line order within its lane; and who is at rest stays so.
"""

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from fila_proto_zmq.commands import Pause, Verb
from tests.support.shard.cluster_of_shards import ClusterOfShards, Consumer, worst_excess
from tests.support.shard.shard import ADMIN, Got

SHARDS = 3
LIMITS = {"t": (50, 5), "u": (20, 20), "v": (200, 1)}
"""Rate and burst of each throttle key."""

THROTTLES = st.sampled_from(["", "t", "u", "v", "t u", "t v", "t u v"])
SHARD = st.integers(0, SHARDS - 1)
MISHAPS = st.lists(
    st.tuples(
        st.sampled_from(["restart", "session", "bank", "rate", "pause", "resume", "none"]), SHARD, st.integers(1, 1500)
    ),
    max_size=6,
)  # fmt: skip


def moody(verbs: list[Verb]) -> object:
    """A way to settle: one verb after the other, again and again; acks what was deferred or retried before."""
    tried: set[str] = set()

    def settle(cluster: ClusterOfShards, consumer: Consumer, got: list[Got]) -> None:
        harness = cluster.shards[consumer.shard]
        for each in got:
            verb = verbs[len(tried) % len(verbs)] if each.id not in tried else Verb.ACK
            tried.add(each.id)
            harness.settle(verb, [each], consumer.queue, after_ms=100 if verb in {Verb.RETRY, Verb.DEFER} else 0)

    return settle


def happen(cluster: ClusterOfShards, mishap: str, shard: int) -> None:
    match mishap:
        case "restart":
            cluster.restart(shard)
            for consumer in cluster.consumers:
                if consumer.shard == shard:
                    cluster.resubscribe(consumer, 10)
        case "session":
            cluster.new_session(shard)
        case "bank":
            cluster.restart_bank()
        case "rate":
            cluster.limit("t", 51, 5)  # both limits allow what the higher one does
        case "pause" | "resume":
            cluster.shards[shard].ask(Pause(mishap == "pause"), "q", ADMIN)


@settings(deadline=None, max_examples=40)
@given(
    backlog=st.lists(
        st.tuples(SHARD, THROTTLES, st.sampled_from("ab"), st.integers(1, 12), st.sampled_from([1000, 300, 2500, 7000])),
        min_size=1, max_size=10,
    ),
    consumers=st.lists(st.tuples(st.integers(1, 10), st.sampled_from([0, 5, 60])), min_size=1, max_size=2),
    verbs=st.lists(st.sampled_from([Verb.ACK, Verb.ACK, Verb.RETRY, Verb.DEFER, Verb.RELEASE, Verb.NACK]), min_size=1, max_size=5),
    mishaps=MISHAPS, loss=st.sampled_from([0.0, 0.0, 0.05]), cap=st.sampled_from([None, None, 1, 3]), seed=st.integers(0, 1000),
)  # fmt: skip
def test_limits_hold_and_everything_is_delivered(
    backlog: list[tuple[int, str, str, int, int]],
    consumers: list[tuple[int, int]],
    verbs: list[Verb],
    mishaps: list[tuple[str, int, int]],
    loss: float,
    cap: int | None,
    seed: int,
) -> None:
    cluster = ClusterOfShards(SHARDS, loss=loss, seed=seed)
    for key, (rate, burst) in LIMITS.items():
        cluster.limit(key, rate, burst)
    for shard in range(SHARDS):
        cluster.create(shard, max_in_flight_per_key=cap)
    settle = moody(verbs)
    for prefetch, hold_ms in consumers:
        for shard in range(SHARDS):
            cluster.consume(shard, prefetch=prefetch, hold_ms=hold_ms, settle=settle)  # type: ignore[arg-type]
    sent = 0
    for index, (shard, throttles, key, count, cost_milli) in enumerate(backlog):
        cluster.enqueue(shard, count, throttles, key, cost_milli=cost_milli)
        cluster.run(7 * index)
        sent += count
    for mishap, shard, wait_ms in mishaps:
        happen(cluster, mishap, shard)
        cluster.run(wait_ms)
    for shard in range(SHARDS):
        cluster.shards[shard].ask(Pause(False), "q", ADMIN)
    cluster.run(240_000)
    assert [harness.counts() for harness in cluster.shards] == [(0, 0, 0)] * SHARDS
    assert len({each.got.id for each in cluster.deliveries}) == sent
    dearest = max(cost_milli for *_, cost_milli in backlog) / 1000
    new_banks = sum(mishap == "bank" for mishap, _, _ in mishaps)  # each forgets what a cost above the burst left as debt
    for key, (rate, burst) in LIMITS.items():
        bound = max(burst, dearest) + new_banks * max(0, dearest - burst)
        assert worst_excess(cluster.deliveries, key, rate + (key == "t")) <= bound
    assert_first_deliveries_are_in_order(cluster)
    frames = cluster.frames
    cluster.run(3600_000)
    assert cluster.frames == frames


def assert_first_deliveries_are_in_order(cluster: ClusterOfShards) -> None:
    """Of each lane on each shard: a set of throttle keys never lets a later message overtake."""
    lanes: dict[object, dict[str, int]] = defaultdict(dict)
    for each in cluster.deliveries:
        lanes[each.shard, each.got.key, each.got.throttle_keys].setdefault(each.got.id, each.now_ms)
    for first_ms in lanes.values():
        times = [now_ms for _, now_ms in sorted(first_ms.items())]
        assert times == sorted(times)
