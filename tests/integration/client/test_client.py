"""Both clients against a real cluster."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fila_cluster import Client, Consumer, Delivery, Message, Request
from fila_cluster.errors import (
    AlreadySettledError,
    BatchError,
    DeadLetterQueueNotEmptyError,
    InvalidArgumentError,
    LeaseExpiredError,
    NotADeadLetterQueueError,
    PayloadTooLargeError,
    QueueExistsError,
    QueueNotFoundError,
)
from fila_proto_zmq.commands import DescribeQueue, GetClusterStatus
from tests.support.cluster.cluster import PATIENCE_S, eventually
from tests.support.descriptors import all_closed_again

Connect = Callable[..., Any]


@pytest.fixture
def other(connect: Connect) -> Iterator[Client]:
    with connect() as client:
        yield client


# --- queues -----------------------------------------------------------------------------------------------------------


def test_the_life_of_a_queue(client: Client, queue: str):
    name = f"ns/{queue}"
    client.create_queue(name, visibility_timeout=7, max_attempts=3)
    with pytest.raises(QueueExistsError):
        client.create_queue(name)
    rows = client.list_queues(name)
    assert [(row.name, row.depth, row.is_dead_letter) for row in rows] == [(name, 0, False), (f"{name}.dlq", 0, True)]
    client.delete_queue(name)
    assert client.list_queues(name) == []
    with pytest.raises(QueueNotFoundError):
        client.queue_stats(name)


def test_a_queue_with_dead_letters_is_deleted_by_force_only(client: Client, queue: str):
    client.enqueue(queue, b"x")
    client.receive(queue)[0].fail("no good")
    with pytest.raises(DeadLetterQueueNotEmptyError):
        client.delete_queue(queue)
    client.delete_queue(queue, force=True)


def test_statistics(client: Client, queue: str):
    client.enqueue_many(queue, [Message(b"x", fairness_key=key) for key in "aab"])
    held = client.receive(queue, 2)
    client.enqueue(queue, b"x", delay=60)
    stats = client.queue_stats(queue)
    assert (stats.pending, stats.in_flight, stats.delayed, stats.depth) == (1, 2, 1, 4)
    assert (stats.enqueued, stats.delivered, stats.acked) == (4, 2, 0)
    assert {key.fairness_key for key in stats.keys} == {"a", "b", "default"}
    assert stats.oldest_pending_age >= 0
    client.ack(held)


def test_cluster_status(client: Client):
    status = client.cluster_status()
    assert [worker.state for worker in status.workers] == ["up"] * 2
    assert sorted(shard for worker in status.workers for shard in worker.shards) == list(range(status.shards))


# --- a message's way --------------------------------------------------------------------------------------------------


def test_a_message_arrives_as_it_was_sent(client: Client, queue: str):
    before = datetime.now(UTC) - timedelta(seconds=1)
    message_id = client.enqueue(queue, b'{"a": 1}', {"h": "ü"}, fairness_key="k", weight=3, priority=-5)
    (got,) = client.receive(queue)
    assert (got.id, got.queue, got.json(), got.headers) == (message_id, queue, {"a": 1}, {"h": "ü"})
    assert (got.fairness_key, got.weight, got.priority, got.attempts, got.error) == ("k", 3, -5, 0, "")
    assert before < got.enqueued_at <= got.leased_at < got.lease_expires_at
    assert got.lease_expires_at - got.leased_at == timedelta(seconds=30)
    got.ack()
    with pytest.raises(AlreadySettledError):
        got.ack()
    assert client.receive(queue) == []


def test_retry_keeps_the_story(client: Client, queue: str):
    client.enqueue(queue, b"x")
    client.receive(queue)[0].nack("first", metadata=b"half done")
    (again,) = client.receive(queue)
    assert (again.attempts, again.error, again.metadata) == (1, "first", b"half done")
    again.retry(0.05, "second")
    (third,) = client.receive(queue, wait=PATIENCE_S)
    assert (third.attempts, third.error, third.metadata) == (2, "second", b"half done")
    third.fail("third")
    (dead,) = client.receive(f"{queue}.dlq")
    assert (dead.attempts, dead.error, dead.reason, dead.source_queue) == (3, "third", "failed", queue)
    assert dead.dead_lettered_at is not None
    dead.nack()
    assert client.redrive(f"{queue}.dlq") == 1
    (back,) = client.receive(queue)
    assert (back.id, back.attempts, back.reason) == (dead.id, 0, None)
    back.ack()
    with pytest.raises(NotADeadLetterQueueError):
        client.redrive(queue)


def test_redriving_more_than_one_step(client: Client, queue: str):
    client.enqueue_many(queue, [Message(b"x")] * 2500)
    with client.consume(queue, prefetch=500) as consumer:
        for _ in range(5):
            batch = [next(consumer) for _ in range(500)]
            with ThreadPoolExecutor(50) as pool:
                list(pool.map(lambda delivery: delivery.fail(), batch))
    assert client.redrive(f"{queue}.dlq", 1200) == 1200
    assert client.redrive(f"{queue}.dlq") == 1300
    assert client.queue_stats(queue).pending == 2500


def test_delays_and_dates(client: Client, queue: str):
    begun = datetime.now(UTC)
    delays = {b"later": timedelta(seconds=0.3), b"soon": timedelta(seconds=0.15), b"past": timedelta(days=-1)}
    client.enqueue(queue, b"later", delay=0.3)
    for payload in (b"past", b"soon"):
        client.enqueue(queue, payload, deliver_at=begun + delays[payload])
    got = [client.receive(queue, wait=PATIENCE_S)[0] for _ in range(3)]
    assert {delivery.payload for delivery in got} == delays.keys()
    for delivery in got:
        assert delivery.leased_at - begun >= delays[delivery.payload] - timedelta(milliseconds=2)
    client.ack(got)


def test_batches_of_every_size(client: Client, queue: str):
    ids = client.enqueue_many(queue, (Message(str(number).encode(), {"n": str(number)}) for number in range(3333)))
    assert len(set(ids)) == 3333
    assert ids == sorted(ids)
    deliveries = client.receive(queue, 3333)
    assert [delivery.id for delivery in deliveries] == ids
    assert [delivery.headers["n"] for delivery in deliveries[::1000]] == ["0", "1000", "2000", "3000"]
    client.ack(deliveries)
    assert client.queue_stats(queue).depth == 0


def test_large_messages(client: Client, queue: str):
    sizes = [0, 1, 9_000_000, 16 * 1024 * 1024, 17 * 1024 * 1024, 10]
    with pytest.raises(BatchError, match="1 of 6") as caught:
        client.enqueue_many(queue, (Message(bytes(size)) for size in sizes))
    kinds = [type(result) for result in caught.value.results]
    assert kinds == [str, str, str, str, PayloadTooLargeError, str]
    received = []
    while deliveries := client.receive(queue, 10):
        received += [len(delivery.payload) for delivery in deliveries]
        client.ack(deliveries)
    assert received == [0, 1, 9_000_000, 16 * 1024 * 1024, 10]
    with pytest.raises(PayloadTooLargeError):
        client.enqueue(queue, bytes(17 * 1024 * 1024))


def test_far_too_large_messages_do_not_cost_the_connection(client: Client, queue: str):
    client.list_queues()
    with pytest.raises(BatchError) as caught:
        client.enqueue_many(queue, [Message(b"a"), Message(bytes(64 * 1024 * 1024)), Message(b"b")])
    assert [type(result) for result in caught.value.results] == [str, PayloadTooLargeError, str]


def test_one_bad_message_does_not_spoil_the_others(client: Client, queue: str):
    with pytest.raises(BatchError) as caught:
        client.enqueue_many(queue, [Message(b"a"), Message("b"), Message(b"c")])  # type: ignore[arg-type]
    first, bad, last = caught.value.results
    assert isinstance(bad, InvalidArgumentError)
    assert [delivery.id for delivery in settled(client, client.receive(queue, 5))] == [first, last]


def test_unknown_queues(client: Client):
    with pytest.raises(QueueNotFoundError):
        client.enqueue("nowhere", b"x")
    with pytest.raises(BatchError) as caught:
        client.enqueue_many("nowhere", [Message(b"x")] * 3)
    assert [type(result) for result in caught.value.results] == [QueueNotFoundError] * 3
    with pytest.raises(QueueNotFoundError):
        client.receive("nowhere")
    with pytest.raises(QueueNotFoundError):
        next(client.consume("nowhere"))


def test_policy(client: Client, queue: str):
    client.create_queue(f"{queue}-ordered", max_in_flight_per_key=1, default_ttl=3600)
    client.update_queue(f"{queue}-ordered", default_ttl=None)
    first = client.enqueue(queue, b"x", throttle_keys=["t"], cost=2, ttl=60, dedup_id="d")
    assert client.enqueue(queue, b"x", dedup_id="d") == first
    (view,) = client.browse(queue)
    assert (view.id, view.throttle_keys, view.cost) == (first, ["t"], 2)
    (got,) = client.receive_any({queue: 1, f"{queue}-ordered": 1}, wait=PATIENCE_S)
    assert not client.cancel(queue, first)
    got.defer(0.05)
    (again,) = client.receive_any({f"{queue}-ordered": 1, queue: 1}, wait=PATIENCE_S)
    assert (again.id, again.attempts) == (first, 0)
    again.retry(3600)
    assert [info.name for info in client.active_queues(queue)] == [queue]
    client.pause(queue)
    client.resume(queue)
    assert client.purge_queue(queue) == 1
    client.set_config(f"app:{queue}", "v")
    assert client.get_config(f"app:{queue}") == "v"
    assert client.list_config(f"app:{queue}") == {f"app:{queue}": "v"}
    assert client.delete_config(f"app:{queue}")


def test_any_command_may_be_sent(client: Client, queue: str):
    assert client.request(Request(queue, DescribeQueue())).info.name == queue
    assert len(client.request(GetClusterStatus()).workers) == 2
    with pytest.raises(QueueNotFoundError):
        client.request(Request("nowhere", DescribeQueue()))


# --- leases -----------------------------------------------------------------------------------------------------------


def settled(client: Client, deliveries: list[Delivery]) -> list[Delivery]:
    client.ack(deliveries)
    return deliveries


def test_a_late_ack_is_refused_and_the_new_holder_is_left_alone(client: Client, other: Client, queue: str):
    client.update_queue(queue, visibility_timeout=0.2)
    client.enqueue(queue, b"x")
    (mine,) = client.receive(queue)
    client.update_queue(queue, visibility_timeout=600)  # for the next lease
    (theirs,) = other.receive(queue, wait=PATIENCE_S)
    assert (theirs.attempts, theirs.error) == (1, "lease expired")
    theirs.extend(30)
    with pytest.raises(LeaseExpiredError):
        mine.ack()
    with pytest.raises(LeaseExpiredError):
        mine.extend(5)
    with pytest.raises(BatchError):
        client.ack([mine])
    theirs.ack()


def test_a_late_batch_differs_from_one_that_was_in_time(client: Client, other: Client, queue: str):
    client.update_queue(queue, visibility_timeout=600)
    client.enqueue_many(queue, [Message(b"x")] * 6)
    deliveries = client.receive(queue, 6)
    for delivery in deliveries[3:]:
        delivery.extend(0.1)
    eventually(lambda: client.queue_stats(queue).expired == 3, "three expire")
    with pytest.raises(BatchError) as caught:
        client.ack(deliveries)
    assert [result and type(result) for result in caught.value.results] == [None] * 3 + [LeaseExpiredError] * 3
    assert len(settled(other, other.receive(queue, 10))) == 3


def test_extending_moves_the_end_of_a_lease(client: Client, queue: str):
    client.update_queue(queue, visibility_timeout=60)
    client.enqueue_many(queue, [Message(b"kept"), Message(b"left")])
    kept, left = client.receive(queue, 2)
    kept.extend(600)
    left.extend(0.1)
    assert kept.lease_expires_at > datetime.now(UTC) + timedelta(seconds=500)
    (again,) = client.receive(queue, 2, wait=PATIENCE_S)
    assert again.text() == "left"
    ends = {view.id: view.lease_expires_at for view in client.browse(queue, state="leased")}
    assert ends[kept.id] == kept.lease_expires_at
    kept.ack()
    with pytest.raises(LeaseExpiredError):
        left.ack()
    again.ack()


def test_a_message_may_have_a_lease_of_its_own(client: Client, queue: str):
    client.enqueue_many(queue, [Message(b"long"), Message(b"short", lease=0.2)])
    deliveries = client.receive(queue, 2)
    (again,) = client.receive(queue, wait=PATIENCE_S)
    assert again.text() == "short"
    with pytest.raises(BatchError) as caught:
        client.ack(deliveries)
    assert [result and type(result) for result in caught.value.results] == [None, LeaseExpiredError]
    with suppress(LeaseExpiredError):  # its lease is as short
        again.ack()


def test_consume_renews_what_it_prefetched_and_what_the_caller_holds(client: Client, other: Client, queue: str):
    client.update_queue(queue, visibility_timeout=4.5)
    client.enqueue_many(queue, [Message(b"x")] * 5)

    def ends() -> list[datetime]:
        return [view.lease_expires_at for view in other.browse(queue) if view.lease_expires_at is not None]

    def renewed_all(before: list[datetime]) -> bool:
        return len(now := ends()) == len(before) and min(now) > max(before)

    with client.consume(queue) as consumer:
        held = next(consumer)
        eventually(lambda: len(ends()) == 5, "all are leased")
        before = ends()
        eventually(lambda: renewed_all(before), "all are renewed")
        held.ack()
        rest = [next(consumer) for _ in range(4)]
    before = ends()
    eventually(lambda: renewed_all(before), "those that the caller holds are renewed")
    client.ack(rest)
    assert client.queue_stats(queue).expired == 0


def test_without_auto_extend_leases_run_out(client: Client, other: Client, queue: str):
    client.update_queue(queue, visibility_timeout=0.4)
    client.enqueue(queue, b"x")
    with client.consume(queue, auto_extend=False) as consumer:
        held = next(consumer)
        consumer.close()
        client.update_queue(queue, visibility_timeout=600)  # for the next lease
        (again,) = other.receive(queue, wait=PATIENCE_S)
        again.ack()
        with pytest.raises(LeaseExpiredError):
            held.ack()


# --- consuming --------------------------------------------------------------------------------------------------------


def test_leaving_gives_back_at_once_and_uncounted(client: Client, other: Client, queue: str):
    client.enqueue_many(queue, [Message(b"x")] * 10)
    with client.consume(queue) as consumer:
        held = next(consumer)
    deliveries = other.receive(queue, 20)
    assert len(deliveries) == 9
    assert {delivery.attempts for delivery in deliveries} == {0}
    held.ack()
    other.ack(deliveries)


def test_a_loop_that_breaks_gives_back(client: Client, other: Client, queue: str):
    client.enqueue_many(queue, [Message(b"x")] * 10)
    for delivery in client.consume(queue):
        delivery.ack()
        break
    eventually(lambda: client.queue_stats(queue).in_flight == 0, "given back")
    assert len(settled(other, other.receive(queue, 20))) == 9


def test_closing_gives_back_everything(connect: Connect, other: Client, queue: str):
    other.enqueue_many(queue, [Message(b"x")] * 10)
    with connect() as client:
        received = client.receive(queue, 3)
        taken = next(client.consume(queue))
    deliveries = other.receive(queue, 20)
    assert [delivery.attempts for delivery in deliveries] == [0] * 10
    other.ack(deliveries)
    del received, taken
    gc.collect()


def test_prefetch_is_a_bound(client: Client, queue: str):
    client.enqueue_many(queue, [Message(b"x")] * 50)
    with client.consume(queue, prefetch=7) as consumer:
        held = [next(consumer) for _ in range(7)]
        assert client.queue_stats(queue).in_flight == 7
        client.ack(held[:3])
        more = [next(consumer) for _ in range(3)]
        client.ack(held[3:] + more)


def test_two_consumers_share_and_another_thread_may_end_them(client: Client, other: Client, queue: str):
    client.enqueue_many(queue, [Message(str(number).encode()) for number in range(2000)])
    consumers = [worker.consume(queue, prefetch=20) for worker in (client, other)]
    seen: list[list[int]] = [[], []]
    both_have_some = threading.Barrier(2, timeout=PATIENCE_S)

    def work(consumer: Consumer, mine: list[int]):
        for delivery in consumer:
            delivery.ack()
            mine.append(int(delivery.text()))
            if len(mine) == 1:
                both_have_some.wait()

    threads = [threading.Thread(target=work, args=pair) for pair in zip(consumers, seen, strict=True)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(seen[0]) + len(seen[1]) == 2000, "everything was consumed")
    for consumer in consumers:
        consumer.close()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert sorted(seen[0] + seen[1]) == list(range(2000))
    assert all(seen)


def test_a_waiting_consumer_hears_at_once(client: Client, other: Client, queue: str):
    with client.consume(queue) as consumer:
        latencies = []
        later = threading.Timer(0.1, other.enqueue, (queue, b"first"))
        later.start()
        next(consumer).ack()
        later.join()
        for _ in range(50):
            begun = time.perf_counter()
            client.enqueue(queue, b"x")
            delivery = next(consumer)
            latencies.append(time.perf_counter() - begun)
            delivery.ack()
    assert min(latencies) < 0.05, "who asks now and then is late each time"


def test_a_receive_that_waits_is_answered_at_once(client: Client, other: Client, queue: str):
    begun = time.monotonic()
    later = threading.Timer(0.1, other.enqueue, (queue, b"x"))
    later.start()
    (delivery,) = client.receive(queue, wait=4 * PATIENCE_S)
    assert 0.1 <= time.monotonic() - begun < PATIENCE_S
    delivery.ack()
    later.join()
    begun = time.monotonic()
    assert client.receive(queue, wait=0.2) == []
    assert 0.19 < time.monotonic() - begun < PATIENCE_S  # the broker's milliseconds are whole


def test_deleting_a_queue_ends_its_consumers(client: Client, other: Client, queue: str):
    with client.consume(queue) as consumer:
        client.enqueue(queue, b"x")
        next(consumer).ack()
        other.delete_queue(queue)
        with pytest.raises(QueueNotFoundError):
            next(consumer)


# --- threads ----------------------------------------------------------------------------------------------------------


def test_one_client_many_threads(client: Client, queue: str):
    """Producers, consumers and receivers on one socket: everything arrives exactly once."""
    per_thread, producers = 300, 4
    seen: list[bytes] = []
    errors: list[BaseException] = []

    def guarded(work, *arguments):
        try:
            work(*arguments)
        except BaseException as error:
            errors.append(error)

    def produce(name: int):
        for number in range(per_thread):
            client.enqueue(queue, f"{name}-{number}".encode())

    def consume():
        with client.consume(queue, prefetch=10) as consumer:
            for delivery in consumer:
                delivery.ack()
                if not delivery.payload:
                    return
                seen.append(delivery.payload)

    makers = [threading.Thread(target=guarded, args=(produce, name)) for name in range(producers)]
    takers = [threading.Thread(target=guarded, args=(consume,)) for _ in range(3)]
    for thread in makers + takers:
        thread.start()
    for thread in makers:
        thread.join()
    eventually(lambda: errors or len(seen) == per_thread * producers, "everything was consumed")
    client.enqueue_many(queue, [Message(b"", priority=1)] * len(takers))
    for thread in takers:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert errors == []
    assert len(set(seen)) == per_thread * producers


def test_it_leaves_no_descriptors_and_no_threads(connect: Connect):
    gc.collect()
    threads = threading.active_count()
    with all_closed_again():
        for _ in range(5):
            with connect() as client:
                client.list_queues()
                with pytest.raises(QueueNotFoundError):
                    next(client.consume("nowhere"))
    assert threading.active_count() == threads
