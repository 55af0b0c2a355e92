"""``producer`` and ``consume_batches`` of both clients against a real cluster."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from fila_cluster import AsyncClient, Client, Message
from fila_cluster.errors import BatchError, FilaError, OverloadedError, PayloadTooLargeError, QueueNotFoundError
from tests.support.cluster.cluster import PATIENCE_S, Cluster, eventually, running

Connect = Callable[..., Any]


def drained(client: Client, queue: str, count: int, **options: Any) -> list[Any]:
    """Take and ack so many messages in batches."""
    taken: list[Any] = []
    with client.consume_batches(queue, **options) as batches:
        for each in batches:
            taken += each
            each.ack()
            if len(taken) >= count:
                return taken
    raise AssertionError("the queue has ended")


def test_messages_are_in_once_and_in_order_per_key(client: Client, queue: str):
    total = 3000
    with client.producer(queue, batch=100) as producer:
        futures = [producer.send(b"%d" % number, fairness_key=f"key-{number % 7}") for number in range(total)]
    ids = [future.result(0) for future in futures]
    assert ids == sorted(ids)
    taken = drained(client, queue, total, max_messages=250)
    by_key = defaultdict(list)
    for delivery in taken:
        by_key[delivery.fairness_key].append(int(delivery.payload))
    assert {key: numbers == sorted(numbers) for key, numbers in by_key.items()} == {
        f"key-{number}": True for number in range(7)
    }
    assert sorted(delivery.id for delivery in taken) == ids
    eventually(lambda: client.queue_stats(queue).depth == 0, "all are acked")


def test_queues_of_both_shards(client: Client, queue: str):
    queues = [f"{queue}-{number}" for number in range(6)]
    for name in queues:
        client.create_queue(name)
    with client.producer(linger=0.001) as producer:
        for number in range(600):
            producer.send(b"%d" % number, queue=queues[number % 6])
    assert [client.queue_stats(name).pending for name in queues] == [100] * 6


def test_errors_of_single_messages(client: Client, queue: str):
    seen: list[FilaError] = []
    with client.producer(queue, on_error=seen.append) as producer:
        large, missing = producer.send(bytes(17 * 1024 * 1024)), producer.send(b"x", queue=f"{queue}-missing")
        good = producer.send(b"x")
        producer.send(b"y", queue=f"{queue}-missing")
    assert isinstance(large.exception(0), PayloadTooLargeError)
    assert isinstance(missing.exception(0), QueueNotFoundError)
    assert good.result(0)
    eventually(lambda: [type(error) for error in seen] == [QueueNotFoundError], "the error of the dropped future")


def test_large_messages_wait_for_room_and_do_not_fail(client: Client, queue: str):
    with client.producer(queue) as producer:
        futures = [producer.send(bytes(2**20)) for _ in range(200)]
    assert all(future.result(0) for future in futures)
    assert client.purge_queue(queue) == 200


def test_a_generator_of_messages(client: Client, queue: str):
    ids = client.enqueue_many(queue, (Message(b"%d" % number) for number in range(5000)))
    assert ids == sorted(ids)
    assert [int(each.payload) for each in drained(client, queue, 5000)] == list(range(5000))


def test_a_batch_may_be_settled_in_many_ways(client: Client, queue: str):
    client.enqueue_many(queue, [Message(b"%d" % number) for number in range(10)])
    with client.consume_batches(queue, max_messages=10) as batches:
        each = next(batches)
        numbers = {int(delivery.payload): delivery for delivery in each}
        each.settle({numbers[0]: "ack", numbers[1]: ("fail", "broken"), numbers[2]: ("retry", 3600), numbers[3]: "fail"})
        numbers[4].ack()
        each.nack("again")
        again = next(batches)
        assert sorted(int(delivery.payload) for delivery in again) == [5, 6, 7, 8, 9]
        assert {(delivery.attempts, delivery.error) for delivery in again} == {(1, "again")}
        again.ack()
    assert sorted((view.payload, view.error) for view in client.browse(f"{queue}.dlq")) == [(b"1", "broken"), (b"3", "")]
    stats = client.queue_stats(queue)
    assert (stats.pending, stats.in_flight, stats.delayed) == (0, 0, 1)


def test_a_settlement_that_fails_is_raised(client: Client, queue: str):
    client.enqueue_many(queue, [Message(b"x")] * 3)
    batches = client.consume_batches(queue, max_messages=3)
    each = next(batches)
    client.delete_queue(queue, force=True)
    each.ack()
    with pytest.raises((BatchError, QueueNotFoundError)):
        next(batches)
    batches.close()


def test_leaving_gives_back_what_was_not_handed_over(client: Client, queue: str):
    client.enqueue_many(queue, [Message(b"%d" % number) for number in range(100)])
    with client.consume_batches(queue, max_messages=10) as batches:
        next(batches).ack()
    eventually(lambda: client.queue_stats(queue).pending == 90, "the others are back")
    assert {view.attempts for view in client.browse(queue)} == {0}


def test_leases_of_batches_are_renewed_while_the_caller_works(connect: Connect, queue: str):
    with connect() as client:
        client.update_queue(queue, visibility_timeout=0.3)
        client.enqueue_many(queue, [Message(b"x")] * 4)
        with client.consume_batches(queue, max_messages=2) as batches:
            each = next(batches)
            expires = client.queue_stats(queue).expired
            eventually(
                lambda: all(view.lease_expires_at > each[0].lease_expires_at for view in client.browse(queue)), "renewals"
            )
            each.ack()
            next(batches).ack()
        assert client.queue_stats(queue).expired == expires


def test_a_full_queue_refuses_single_messages_and_keeps_the_order(tmp_path: Any, open_client: Connect):
    config = tmp_path / "fila.toml"
    config.write_text("[limits]\nmax_queue_messages = 50\n")
    with (
        running(tmp_path / "data", "--config", config) as cluster,
        open_client(cluster.endpoint, timeout=PATIENCE_S) as client,
    ):
        client.create_queue("q")
        with client.producer("q", batch=20) as producer:
            futures = [producer.send(b"%d" % number) for number in range(100)]
        errors = [future.exception(0) for future in futures]
        assert [error is None for error in errors] == [True] * 50 + [False] * 50
        assert {type(error) for error in errors[50:]} == {OverloadedError}
        assert [int(each.payload) for each in drained(client, "q", 50)] == list(range(50))


def test_producing_and_consuming_at_once_with_asyncio(shared_cluster: Cluster, queue: str):
    async def produce(client: AsyncClient) -> list[str]:
        async with client.producer(queue) as producer:
            futures = [await producer.send(b"%d" % number) for number in range(2000)]
        return await asyncio.gather(*futures)

    async def consume(client: AsyncClient) -> list[str]:
        taken: list[str] = []
        async with client.consume_batches(queue, max_messages=100) as batches:
            async for batch in batches:
                taken += [delivery.id for delivery in batch]
                await batch.ack()
                if len(taken) == 2000:
                    break
        return taken

    async def main() -> None:
        async with AsyncClient(shared_cluster.endpoint, timeout=PATIENCE_S) as client:
            sent, taken = await asyncio.gather(produce(client), consume(client))
            assert taken == sent

    asyncio.run(main())
