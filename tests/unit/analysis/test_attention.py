import ast
import inspect

import pytest

from fila_cluster.ops.analysis.attention import (
    KINDS,
    MOVE_STILL_MS,
    PLACES_HELD_MS,
    SEVERITIES,
    UNSERVED_MS,
    Concern,
    attention,
)
from fila_cluster.ops.analysis.hosts import CODES
from fila_cluster.ops.analysis.partitions import with_whole_queues
from fila_proto_zmq.commands import KeyMetrics, Metrics, PartitionLeft, PlaceMetrics, QueueMetrics, QueueMove
from fila_proto_zmq.names import shard_of
from tests.unit.analysis.looks import STARTED_MS, hooks, look, of_queues, queue, shard, worker


def codes(now: Metrics, before: Metrics | None = None) -> list[str]:
    return [concern.code for concern in attention(now, before)]


def only(now: Metrics, before: Metrics | None = None) -> Concern:
    (concern,) = attention(now, before)
    return concern


OLD = UNSERVED_MS


def test_a_cluster_that_is_well_needs_nothing():
    busy = of_queues(queue(pending=100, in_flight=10, oldest_ms=OLD, delivered=50), queue("orders.dlq"))
    earlier = of_queues(queue(pending=90, oldest_ms=OLD, delivered=40), queue("orders.dlq"))
    assert codes(busy, earlier) == []
    assert codes(busy) == []


def test_a_shard_without_its_worker():
    concern = only(look(worker("worker-0", shard(0)), down=("worker-1",)))
    assert (concern.severity, concern.code, concern.shard) == ("critical", "shard_down", 1)
    assert "shard 1 waits for worker-1 (pid 41), which is down" in concern.text


def test_a_stalled_store():
    concern = only(look(worker("worker-0", shard(0, stalled=True))))
    assert (concern.severity, concern.code, concern.shard) == ("critical", "storage_stalled", 0)
    assert "3 MiB" in concern.text


def test_a_worker_that_is_up_and_says_nothing():
    metrics = look(worker("worker-0", shard(0)), worker("worker-1", shard(1)))
    del metrics.workers[1]
    assert (only(metrics).severity, only(metrics).code) == ("warning", "worker_silent")
    assert "worker-1 (pid 41)" in only(metrics).text


def test_a_restarted_worker():
    before, now = worker("worker-0", shard(0)), worker("worker-0", shard(0), started_ms=STARTED_MS + 1)
    assert only(look(now), look(before)).code == "worker_restarted"
    assert codes(look(now)) == []


def of_places(*shards: PlaceMetrics) -> Metrics:
    """One worker for each report of places."""
    return look(*(worker(f"worker-{index}", shard(index, places=[each])) for index, each in enumerate(shards)))


def test_places_that_a_consumer_seems_to_have_forgotten():
    holds = PlaceMetrics("tenant:acme", 20, 12, 0, 0, 540_000)
    waits = PlaceMetrics("tenant:acme", 20, 8, 70, 600_000, 0)
    concern = only(of_places(holds, waits))
    assert (concern.severity, concern.code, concern.throttle_key) == ("warning", "places_held", "tenant:acme")
    text = "tenant:acme has had all 20 places in use for 10 m, the longest lease for 9 m; 70 messages waiting"
    assert concern.text == text


@pytest.mark.parametrize(
    ("full_ms", "longest_ms"), [(PLACES_HELD_MS - 1, PLACES_HELD_MS), (PLACES_HELD_MS, PLACES_HELD_MS - 1), (0, 10**9)]
)
def test_places_that_are_in_use_as_they_should_be(full_ms: int, longest_ms: int):
    assert codes(of_places(PlaceMetrics("llm", 5, 5, 70, full_ms, longest_ms))) == []


def test_places_of_a_key_that_is_stopped_are_held_by_nobody():
    assert codes(of_places(PlaceMetrics("llm", 0, 0, 70, 600_000, 0))) == []


def test_messages_that_no_consumer_takes():
    concern = only(of_queues(queue(pending=1200, consumers=0, oldest_ms=12_000)))
    assert (concern.severity, concern.code, concern.queue) == ("warning", "no_consumers", "orders")
    assert "1,200 messages waiting, the oldest for 12.0 s" in concern.text


@pytest.mark.parametrize(
    "fine",
    [
        queue(pending=1, consumers=0, oldest_ms=OLD - 1),
        queue(pending=0, delayed=5, consumers=0),
        queue(pending=1, consumers=1, oldest_ms=OLD),
        queue(pending=5, consumers=0, oldest_ms=OLD, delivered=7),  # read now and then
    ],
)
def test_messages_that_a_consumer_takes(fine: QueueMetrics):
    assert codes(of_queues(fine), of_queues(queue())) == []


def test_consumers_that_get_nothing():
    before = of_queues(queue(pending=7, delivered=5))
    concern = only(of_queues(queue(pending=7, in_flight=3, delivered=5, consumers=2, oldest_ms=OLD)), before)
    assert (concern.severity, concern.code) == ("warning", "standing_still")
    assert "2 consumers, 7 messages waiting, 3 in flight" in concern.text
    assert "fila-cluster why orders" in concern.action


def test_an_open_breaker():
    concern = only(of_queues(queue(hooks=hooks(failed=9, breaker_open=True))))
    assert (concern.severity, concern.code) == ("critical", "breaker_open")
    assert "9 of 10 runs" in concern.text
    assert codes(of_queues(queue(hooks=hooks(failed=9, breaker_open=False)))) == []


def test_messages_that_are_refused():
    before = of_queues(queue(rejected={"OVERLOADED": 3, "PAYLOAD_TOO_LARGE": 1}))
    full = only(of_queues(queue(rejected={"OVERLOADED": 8, "PAYLOAD_TOO_LARGE": 1})), before)
    assert (full.severity, full.code) == ("critical", "rejecting")
    assert "5 OVERLOADED" in full.text
    assert "PAYLOAD" not in full.text
    large = only(of_queues(queue(rejected={"OVERLOADED": 3, "PAYLOAD_TOO_LARGE": 2})), before)
    assert large.severity == "warning"
    assert codes(before, before) == codes(before) == []


def test_dead_letters_that_come_and_those_that_are_there():
    before = of_queues(queue(dead_lettered=1), queue("orders.dlq", pending=1, consumers=0, oldest_ms=OLD))
    now = of_queues(queue(dead_lettered=4), queue("orders.dlq", pending=4, consumers=0, oldest_ms=OLD))
    growing, there = attention(now, before)
    assert (growing.severity, growing.code, growing.queue) == ("warning", "dead_letters_growing", "orders")
    assert "3 messages" in growing.text
    assert (there.severity, there.code, there.queue) == ("info", "dead_letters", "orders.dlq")
    assert "orders has 4 dead letters" in there.text
    assert codes(now, now) == codes(now) == ["dead_letters"]


def partitions(*pending: int, **more: object) -> Metrics:
    """A queue with these messages in its partitions, each on its shard."""
    more = {"oldest_ms": OLD, "delivered": 5} | more
    queues = [queue(f"orders@{number}", pending=count, **more) for number, count in enumerate(pending)]
    for number, each in enumerate(queues):
        each.info.shard = number
    return with_whole_queues(look(worker("worker-0", *(shard(number, each) for number, each in enumerate(queues)))))


def test_a_partition_that_has_nearly_all_messages():
    found = only(partitions(50, 0, 4000, 10, keys=[KeyMetrics("acme", 1, 3000, 0, 1.0)]))
    assert (found.code, found.queue, found.shard) == ("partition_behind", "orders", 2)
    assert "4,000 messages waiting in its partition 2 on shard 2, 20 in each of the others" in found.text
    assert "'acme'" in found.text
    assert "spread=message" in found.action
    assert "acme" not in only(partitions(0, 4000, keys=[KeyMetrics("acme", 1, 300, 0, 1.0)])).text
    assert codes(partitions(3000, 1000, 4000, 2000)) == []
    assert codes(partitions(0, 0, 900, 0)) == []
    assert codes(partitions(4000)) == []


def stuck(*left: PartitionLeft, still_ms: int = MOVE_STILL_MS) -> Metrics:
    """A queue on its way from two partitions to three, each on a worker of its own."""
    parts = [queue(f"orders@{number}") for number in range(3)]
    for each in parts:
        each.info.shard = shard_of(each.info.name, 3)
        each.move = QueueMove(2, 3, 1, [0], [1], list(left) if each is parts[1] else [], still_ms)
    return with_whole_queues(look(*(worker(f"worker-{each.info.shard}", shard(each.info.shard, each)) for each in parts)))


def test_messages_that_do_not_get_to_their_new_partitions():
    there = shard_of("orders@1", 3)
    found = only(stuck(PartitionLeft(1, there, 30, 0, True, [4])))
    assert (found.severity, found.code, found.queue, found.shard) == ("warning", "partitions_stuck", "orders", there)
    assert f"partition 1 on shard {there} of worker-{there} (to send on: at least 30; sent to shard 4" in found.text
    assert "from 2 to 3 partitions" in found.text
    assert "at least 30 messages left. Nothing has changed for 60.0 s" in found.text
    assert "--state leased" in only(stuck(PartitionLeft(1, there, 30, 2))).action
    assert codes(stuck(PartitionLeft(1, there, 30, 0), still_ms=MOVE_STILL_MS - 1)) == []


def test_the_shard_that_has_to_send_messages_on_is_away():
    there = shard_of("orders@1", 3)
    told = stuck()
    told.workers = [each for each in told.workers if each.name != f"worker-{there}"]
    found = next(each for each in attention(told, None) if each.code == "partitions_stuck")
    assert f"partition 1 on shard {there} of no worker that answers (not known: no answer)" in found.text
    assert "when that shard is served again" in found.action


def test_partitions_that_were_silent_are_no_growth():
    before = partitions(0, 0, dead_lettered=5)
    some = partitions(0, dead_lettered=5)
    assert codes(before, some) == []
    assert codes(partitions(0, 0, dead_lettered=6), before) == ["dead_letters_growing"]


def test_leases_that_run_out():
    assert only(of_queues(queue(expired=3)), of_queues(queue(expired=1))).code == "leases_expiring"


def test_a_paused_queue_is_worth_knowing_if_messages_wait():
    assert only(of_queues(queue(pending=5, paused=True, consumers=0, oldest_ms=OLD))).code == "paused"
    assert codes(of_queues(queue(paused=True))) == []


def test_queues_that_are_not_shown():
    assert only(of_queues(queue(), left_out=500)).code == "queues_left_out"


def test_the_most_urgent_comes_first_then_the_deepest():
    now = of_queues(
        queue("some", pending=5, consumers=0, oldest_ms=OLD),
        queue("idle", pending=1, paused=True),
        queue("many", pending=9, consumers=0, oldest_ms=OLD),
        queue("broken", hooks=hooks(failed=3, breaker_open=True)),
    )
    told = [(concern.severity, concern.queue) for concern in attention(now, None)]
    assert told == [("critical", "broken"), ("warning", "many"), ("warning", "some"), ("info", "idle")]


def test_every_concern_says_what_to_do():
    now = look(
        worker("worker-0", shard(0, queue(pending=5, paused=True), queue("x.dlq", pending=1), stalled=True, left_out=1)),
        down=("worker-1",),
    )
    assert len(attention(now, None)) == 5
    assert all(concern.action and concern.text for concern in attention(now, None))


def test_every_code_is_in_the_catalogue():
    """The table in docs/top.md is made from it."""
    source = ast.parse(inspect.getsource(inspect.getmodule(attention)))
    made = [call.args for call in ast.walk(source) if isinstance(call, ast.Call) and ast.unparse(call.func) == "Concern"]
    assert {code.value for _, code, *_ in made if isinstance(code, ast.Constant)} | CODES == set(KINDS)
    assert {severity for kind in KINDS.values() for severity in kind.severities} == set(SEVERITIES)
