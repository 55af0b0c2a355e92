"""What a message can ask for itself, through a real cluster: throttle keys, cost, time to live, deduplication, deferral."""

import pytest

from fila_cluster import Client, Delivery, Message
from tests.support.cluster.cluster import eventually


@pytest.fixture
def bucket(client: Client, queue: str):
    """Sets the limits of a token bucket that only this test draws on; returns its key."""
    keys = []

    def bucket(rate, burst, name="bucket"):
        key = f"{queue}-{name}"
        client.set_config(f"throttle.{key}", f"{rate},{burst}")  # both at once: a new bucket is full
        keys.append(key)
        return key

    yield bucket
    for key in keys:
        client.delete_config(f"throttle.{key}")


def gather(client: Client, queues: dict[str, int], count: int) -> list[Delivery]:
    """Receive until there are so many."""
    got: list[Delivery] = []

    def enough() -> bool:
        got.extend(client.receive_any(queues, wait=1))
        return len(got) >= count

    eventually(enough, f"{count} deliveries")
    assert len(got) == count
    return got


def test_what_it_asked_for_arrives_with_it(client: Client, queue: str):
    client.enqueue(queue, b"x", throttle_keys=["b", "a", "b"], cost=2.5)
    client.enqueue(queue, b"y")
    got = {delivery.payload: delivery for delivery in client.receive(queue, 2)}
    assert (sorted(got[b"x"].throttle_keys), got[b"x"].cost) == (["a", "b"], 2.5)
    assert (got[b"y"].throttle_keys, got[b"y"].cost) == ([], 1)
    client.ack(list(got.values()))


def test_a_bucket_gives_no_more_than_its_burst_and_blocks_no_other_message(client: Client, queue: str, bucket):
    key = bucket(0.001, 3)
    client.enqueue_many(queue, [Message(b"throttled", throttle_keys=[key]) for _ in range(10)])
    client.enqueue_many(queue, [Message(b"free")] * 10)
    got = gather(client, {queue: 20}, 13)
    assert sorted(delivery.payload for delivery in got) == [b"free"] * 10 + [b"throttled"] * 3
    assert client.receive(queue, 20) == []
    (throttle,) = client.queue_stats(queue).throttles
    assert (throttle.key, throttle.rate, throttle.burst) == (key, 0.001, 3)
    client.ack(got)


def test_who_asks_again_and_again_without_waiting_gets_throttled_messages_too(client: Client, queue: str, bucket):
    key = bucket(0.001, 3)
    client.enqueue_many(queue, [Message(b"x", throttle_keys=[key]) for _ in range(10)])
    got: list[Delivery] = []
    eventually(lambda: got.extend(client.receive(queue, 20)) or len(got) == 3, "the burst")
    client.ack(got)


def test_a_cost_is_paid_in_tokens(client: Client, queue: str, bucket):
    key = bucket(0.001, 3)
    client.enqueue_many(queue, [Message(b"x", throttle_keys=[key], cost=1.5) for _ in range(10)])
    got = gather(client, {queue: 20}, 2)
    assert client.receive(queue, 20) == []
    client.ack(got)


def test_all_of_a_message_s_buckets_must_have_tokens(client: Client, queue: str, bucket):
    full, empty = bucket(0.001, 5, "full"), bucket(0.001, 1, "empty")
    client.enqueue_many(queue, [Message(b"both", throttle_keys=[full, empty]) for _ in range(5)])
    (first,) = client.receive(queue, 20, wait=60)
    assert client.receive(queue, 20) == []
    client.enqueue_many(queue, [Message(b"one", throttle_keys=[full]) for _ in range(5)])
    left = gather(client, {queue: 20}, 4)
    assert client.receive(queue, 20) == []
    client.ack([first, *left])


def test_a_rate_that_is_removed_limits_no_more(client: Client, queue: str, bucket):
    key = bucket(0.001, 1)
    client.enqueue_many(queue, [Message(b"x", throttle_keys=[key]) for _ in range(10)])
    first = client.receive(queue, 1, wait=60)
    assert client.receive(queue, 20) == []
    assert client.delete_config(f"throttle:{key}:rate")
    client.ack(first + gather(client, {queue: 20}, 9))


@pytest.mark.whole
def test_a_deferral_is_no_attempt_and_parks_its_throttle_keys_in_the_whole_cluster(client: Client, queue: str):
    others = [f"{queue}-{number}" for number in range(4)]
    for other in others:
        client.create_queue(other)
    assert {client.queue_stats(other).shard for other in others} == {0, 1}
    key = f"{queue}-provider"
    client.enqueue(queue, b"first", throttle_keys=[key])
    (first,) = client.receive(queue)
    for other in others:
        client.enqueue(other, b"later", throttle_keys=[key])
        client.enqueue(other, b"free")
    first.defer(5)
    every = dict.fromkeys(others, 2)
    free = gather(client, every, 4)
    assert {delivery.payload for delivery in free} == {b"free"}
    (again,) = client.receive(queue, wait=60)
    assert (again.id, again.attempts) == (first.id, 0)
    later = gather(client, every, 4)
    client.ack([again, *free, *later])


def test_a_dedup_id_stores_a_message_once(client: Client, queue: str):
    first = client.enqueue(queue, b"first", dedup_id="d")
    assert client.enqueue(queue, b"second", dedup_id="d") == first
    ids = client.enqueue_many(queue, [Message(b"x", dedup_id=dedup_id) for dedup_id in ("e", "d", None, "e", None)])
    assert ids[1] == first
    assert ids[3] == ids[0]
    assert len(set(ids)) == 4
    got = client.receive(queue, 10)
    assert [delivery.payload for delivery in got] == [b"first", b"x", b"x", b"x"]
    client.ack(got)
    assert client.enqueue(queue, b"third", dedup_id="d") == first
    assert client.queue_stats(queue).depth == 0


def test_a_dedup_id_is_a_queue_s_own(client: Client, queue: str):
    client.create_queue(f"{queue}-other")
    assert client.enqueue(queue, b"x", dedup_id="d") != client.enqueue(f"{queue}-other", b"x", dedup_id="d")


def test_an_expired_message_is_dead_lettered(client: Client, queue: str):
    client.enqueue(queue, b"x", ttl=0.1)
    (dead,) = client.receive(f"{queue}.dlq", wait=60)
    assert (dead.reason, dead.attempts) == ("expired", 0)
    dead.ack()
    assert client.receive(queue) == []
