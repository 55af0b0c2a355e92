"""What of the counters somebody sees who may see only some queues."""

from fila_cluster.ops.analysis.attention import attention
from fila_cluster.ops.analysis.history import History
from fila_cluster.ops.analysis.rates import all_queues
from fila_cluster.ops.analysis.visitor import visible
from tests.unit.observer.told import cluster, queue


def mine(name: str) -> bool:
    return name.startswith("mine")


def test_other_queues_leave_no_trace() -> None:
    told = cluster(queue("mine"), queue("other"))
    told.workers[0].shards[0].queues_left_out = 7
    seen = visible(told, mine)
    assert [each.info.name for each in all_queues(seen)] == ["mine"]
    text = repr(seen) + repr(attention(seen, visible(told, mine)))
    for secret in ("'other'", "'api'", "'llm'", "queues_left_out=7", "LEASE_EXPIRED"):
        assert secret not in text
        assert secret in repr(told)
    assert seen.router is None
    assert seen.status == told.status


def test_sums_are_those_of_the_queues_that_are_seen_without_dead_letters() -> None:
    history = History()
    history.record(1.0, cluster(queue("mine"), queue("other")))
    history.record(6.0, cluster(queue("mine"), queue("mine.b", oldest_pending_ms=9000), queue("mine.dlq"), queue("other")))
    history.record(11.0, None)
    sums = history.of_some(mine)()
    assert sums["pending"][:2] == [3, 6]
    assert sums["oldest_age_s"][:2] == [1.5, 9.0]
    assert sums["pending"][2] != sums["pending"][2]  # there was no answer
    assert sums.keys() < history.of_all().keys()
    assert len(history.of_some(lambda _: False)()["pending"]) == 3
