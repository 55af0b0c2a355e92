"""What a shard counts for those who watch it."""

import pytest

from fila_proto_zmq.commands import (
    EndReservation,
    Enqueue,
    Enqueued,
    GetMetrics,
    Grant,
    Grants,
    HookMetrics,
    Metrics,
    PutConfig,
    Redrive,
    Reserve,
)
from fila_proto_zmq.errors import FilaError, QueueNotFoundError
from fila_proto_zmq.frames import pack_header
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.metrics import meter
from fila_worker.core.metrics.meter import report
from fila_worker.core.settings import ShardSettings
from fila_worker.process.shard_process import ShardProcess
from fila_worker.process.slots import Slot
from tests.support.shard.cluster_of_shards import ClusterOfShards
from tests.support.shard.shard import SHARDS, ShardHarness
from tests.unit.worker.metrics.reports import metrics_of, report_of


def refused(shard: ShardHarness, command: Enqueue, queue: str = "q") -> str:
    with pytest.raises(FilaError) as caught:
        shard.ask(command, queue)
    return caught.value.code


# --- queues -----------------------------------------------------------------------------------------------------------


def test_the_numbers_are_those_of_the_queue_s_statistics(shard: ShardHarness):
    shard.enqueue(*[b"x"] * 6, key="a")
    shard.enqueue(*[b"x"] * 3, key="b", weight=2)
    shard.enqueue(b"later", delay_ms=60_000)
    got = shard.receive(5)
    shard.ack(got[:2])
    shard.nack(got[2:3])
    shard.pass_time(1500)
    told, stats = metrics_of(shard), shard.stats()
    assert told.info == stats.info
    assert told.oldest_pending_ms == stats.oldest_pending_ms == 1500
    for name in ("enqueued", "delivered", "acked", "nacked", "expired", "dead_lettered"):
        assert getattr(told, name) == getattr(stats, name), name
    assert {(key.fairness_key, key.weight, key.pending, key.delivered) for key in told.keys} == {
        (key.fairness_key, key.weight, key.pending, key.delivered) for key in stats.keys
    }
    assert told.known_keys == 3
    assert told.active_keys == 2  # the third has only what is delayed
    assert told.turns > 0


def test_leases_that_run_out_and_dead_letters_that_go_back_are_counted():
    shard = ShardHarness()
    shard.create("q", max_attempts=1, visibility_timeout_ms=1000)
    shard.enqueue(b"x", b"y")
    shard.receive(2)
    shard.pass_time(1001)
    assert (metrics_of(shard).expired, metrics_of(shard).dead_lettered) == (2, 2)
    shard.ask(Redrive(1), "q.dlq")
    assert metrics_of(shard, "q.dlq").redriven == 1
    assert metrics_of(shard).redriven == 0


def test_the_oldest_message_is_found_on_disk_too():
    shard = ShardHarness(settings=ShardSettings(buffer_bytes=0))
    shard.create("q")
    shard.enqueue(b"x", b"y")
    shard.pass_time(700)
    assert metrics_of(shard).oldest_pending_ms == 700
    shard.restart()
    assert metrics_of(shard).oldest_pending_ms == 700
    shard.ack(shard.receive(2))
    assert metrics_of(shard).oldest_pending_ms == 0


# --- dwell ------------------------------------------------------------------------------------------------------------


def test_dwell_is_observed_once_a_delivery_for_all_its_messages(shard: ShardHarness):
    assert metrics_of(shard).dwell_ms is None
    shard.enqueue(*[b"x"] * 4)
    shard.pass_time(30)
    shard.receive(3)
    shard.pass_time(70)
    shard.receive(3)
    dwell = metrics_of(shard).dwell_ms
    assert dwell is not None
    assert dwell.total == 3 * 30 + 100
    assert {bound: count for bound, count in zip(dwell.bounds, dwell.counts, strict=False) if count} == {50: 3, 100: 1}


def test_a_second_attempt_says_nothing_of_dwell(shard: ShardHarness):
    shard.enqueue(b"x")
    shard.nack(shard.receive())
    shard.pass_time(5000)
    shard.receive()
    dwell = metrics_of(shard).dwell_ms
    assert dwell is not None
    assert (sum(dwell.counts), dwell.total) == (1, 0)


# --- from the lease to the ack ----------------------------------------------------------------------------------------


def settled(shard: ShardHarness) -> dict[int, int]:
    """How many messages were acked after a time up to a bound, ms."""
    settle = metrics_of(shard).settle_ms
    assert settle is not None
    return {bound: count for bound, count in zip(settle.bounds, settle.counts, strict=False) if count}


def test_the_time_until_the_ack_is_observed_for_all_that_are_acked_together(shard: ShardHarness):
    shard.enqueue(*[b"x"] * 10)
    first, second = shard.receive(6), shard.receive(4)
    assert metrics_of(shard).settle_ms is None
    shard.pass_time(40)
    shard.ack(first)
    assert settled(shard) == {50: 6}
    shard.pass_time(300)
    shard.ack(second[:1])
    shard.ack(second[1:] + first)
    assert settled(shard) == {50: 6, 500: 4}
    settle = metrics_of(shard).settle_ms
    assert settle is not None
    assert settle.total == 6 * 40 + 4 * 340


def test_it_counts_from_the_lease_that_was_acked(shard: ShardHarness):
    shard.enqueue(b"x")
    held = shard.receive()
    shard.pass_time(900)
    shard.nack(held)
    assert metrics_of(shard).settle_ms is None
    held = shard.receive()
    shard.pass_time(5)
    shard.ack(held)
    assert settled(shard) == {5: 1}


def test_what_is_reserved_counts_when_its_reservation_is_acked(shard: ShardHarness):
    shard.enqueue(*[b"x"] * 3)
    shard.ask(Reserve("r", 0, 3, 60_000))
    shard.pass_time(2000)
    shard.ask(EndReservation("r"))
    assert settled(shard) == {2500: 3}


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_refused_messages_are_counted_by_code_whether_all_of_a_batch_or_some():
    shard = ShardHarness(settings=ShardSettings(max_payload_bytes=3))
    shard.create("q")
    good, long = seal_envelope(b"abc"), seal_envelope(b"abcd")
    reply = shard.ask(Enqueue([good, long, long]))
    assert isinstance(reply, Enqueued)
    assert len(reply.faults) == 2
    assert metrics_of(shard).rejected == {"PAYLOAD_TOO_LARGE": 2}
    shard.shard.settings = ShardSettings(min_free_disk_bytes=1)
    shard.shard.free_disk_bytes = 0
    assert refused(shard, Enqueue([good] * 5)) == "OVERLOADED"
    assert metrics_of(shard).rejected == {"PAYLOAD_TOO_LARGE": 2, "OVERLOADED": 5}
    assert report_of(shard).refused == {"OVERLOADED": 1}


def test_requests_for_unknown_queues_are_the_shard_s(shard: ShardHarness):
    with pytest.raises(QueueNotFoundError):
        shard.stats("nowhere")
    assert refused(shard, Enqueue([seal_envelope(b"")]), "nowhere") == "QUEUE_NOT_FOUND"
    assert report_of(shard).refused == {"QUEUE_NOT_FOUND": 2}
    assert metrics_of(shard).rejected == {}


def test_what_a_namespace_may_not_take_in_is_rejected_message_by_message():
    shard = ShardHarness()
    shard.create("ns/q")
    shard.shard.put_config(PutConfig(1, {"namespace:ns:max_enqueues_per_minute": "600"}), shard.now_ms)
    shard.send(Enqueue([seal_envelope(b"")] * 5), "ns/q")
    grant = Grant(["\0ns"], 2_000_000, wait_ms=700)
    shard.shard.granted(Grants(shard.index, shard.shard.token_client.session, [grant]), shard.now_ms)
    told = metrics_of(shard, "ns/q")
    assert (told.enqueued, told.rejected) == (2, {"RATE_LIMITED": 3})


# --- queues, hooks, throttles, stores ---------------------------------------------------------------------------------


def test_of_many_queues_the_busiest_are_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(meter, "QUEUES_SHOWN_MAX", 2)
    shard = ShardHarness()
    for name in "abc":
        shard.create(name, dead_letter="discard")  # type: ignore[arg-type]
    shard.enqueue(b"x", queue="c")
    shard.enqueue(b"x", b"y", queue="a")
    told = report_of(shard)
    assert [queue.info.name for queue in told.queues] == ["a", "c"]
    assert told.queues_left_out == 1


def test_hooks_are_timed_and_their_failures_and_bypasses_counted():
    shard = ShardHarness()
    script = "n = 0 function on_enqueue(msg) n = n + 1 if msg.headers.bad then error('no') end return {} end"
    shard.create("q", on_enqueue=script)  # type: ignore[arg-type]
    good, bad = seal_envelope(b""), seal_envelope(b"", {"bad": "1"})
    shard.ask(Enqueue([good, good]))
    told = _hooks_of(shard)
    assert (told.runs, told.failed, told.bypassed, told.breaker_open) == (2, 0, 0, False)
    assert told.run_ns.total > 0
    shard.ask(Enqueue([bad] * 5))
    told = _hooks_of(shard)
    assert (told.runs, told.failed, told.bypassed, told.breaker_open) == (5, 3, 2, True)
    shard.ask(Enqueue([good] * 4))
    assert _hooks_of(shard).bypassed == 6
    shard.pass_time(10_001)
    assert not _hooks_of(shard).breaker_open


def _hooks_of(shard: ShardHarness) -> HookMetrics:
    hooks = metrics_of(shard).hooks
    assert hooks is not None
    return hooks


def test_throttles_count_who_passed_and_who_waited_by_key_and_in_all():
    cluster = ClusterOfShards(1)
    cluster.create(0)
    cluster.limit("t", 10, 5)
    cluster.enqueue(0, 20, "t")
    cluster.enqueue(0, 4, "free")
    cluster.consume(0)
    cluster.run(1000)
    told = report(cluster.shards[0].shard, cluster.now_ms)
    (throttle,) = told.throttles
    delivered = metrics_of(cluster.shards[0]).delivered
    assert (throttle.key, throttle.rate, throttle.burst) == ("t", 10, 5)
    assert throttle.passes == told.throttle_passes == delivered - 4
    assert 0 < throttle.hits == told.throttle_hits
    assert throttle.tokens <= 5


def test_a_throttle_that_refuses_nothing_has_no_hits():
    cluster = ClusterOfShards(1)
    cluster.create(0)
    cluster.limit("t", 20, 20)
    cluster.run(2000)
    cluster.consume(0)
    for _ in range(30):  # six a second
        cluster.enqueue(0, 1, "t")
        cluster.run(166)
    told = report(cluster.shards[0].shard, cluster.now_ms)
    (throttle,) = told.throttles
    assert throttle.passes == 30
    assert (throttle.hits, told.throttle_hits) == (0, 0)


def test_a_fast_limit_that_binds_has_hits():
    """Each wait is shorter than what the bank announces."""
    cluster = ClusterOfShards(1)
    cluster.create(0)
    cluster.limit("t", 1000, 5)
    cluster.consume(0)
    cluster.enqueue(0, 100, "t")
    cluster.run(1000)
    (throttle,) = report(cluster.shards[0].shard, cluster.now_ms).throttles
    assert throttle.passes == 100
    assert throttle.hits > 10


def test_a_store_counts_commits_and_their_changes(shard: ShardHarness):
    before = report_of(shard).store.commit_changes
    shard.enqueue(b"x", b"y")
    after = report_of(shard).store.commit_changes
    assert sum(after.counts) == sum(before.counts) + 1
    assert after.total >= before.total + 2


# --- the host ---------------------------------------------------------------------------------------------------------


def test_a_host_answers_for_all_its_shards():
    shards = [ShardHarness(index=index) for index in (1, 3)]
    host = ShardProcess([Slot.of(each.shard) for each in shards], SHARDS, 5, "worker-7")
    host.metrics.measured(0, cpu_ms=77)
    host.metrics.turn_ns.observe(1000)
    host.accept([b"", pack_header(GetMetrics.opcode, 9), b"", b"\x90"], 10)
    (answer,) = host.turn(10)
    assert answer.client == b""
    reply = answer.reply  # type: ignore[union-attr]
    assert isinstance(reply, Metrics)
    (worker,) = reply.workers
    assert (worker.name, worker.started_ms, worker.cpu_ms, worker.turn_ns.total) == ("worker-7", 5, 77, 1000)
    assert [shard.shard for shard in worker.shards] == [1, 3]
    assert (reply.status, reply.router) == (None, None)
