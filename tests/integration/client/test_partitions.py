"""Queues with several partitions, on both clients and a real cluster: they are used as one, and lose nothing."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from fila_cluster import Client, Message, Request
from fila_cluster.errors import (
    BatchError,
    DeadLetterQueueNotEmptyError,
    FilaError,
    InvalidArgumentError,
    QueueExistsError,
    QueueNotFoundError,
)
from fila_proto_zmq.commands import DescribeQueue, GetQueueStats, QueueStats
from fila_proto_zmq.partitions import partition_of
from tests.support.cluster.cluster import PATIENCE_S, Cluster, eventually, running, settling_may_fail

Connect = Callable[..., Any]


@pytest.fixture
def other(connect: Connect) -> Iterator[Client]:
    with connect() as client:
        yield client


@pytest.fixture
def spread(client: Client, queue: str) -> str:
    """A queue with four partitions."""
    name = f"{queue}-spread"
    client.create_queue(name, partitions=4)
    return name


def messages(count: int, keys: int = 16) -> list[Message]:
    """Messages of several keys; each says its number."""
    return [Message(b"%d" % number, fairness_key=f"k{number % keys}") for number in range(count)]


def drained(client: Client, queue: str) -> list[int]:
    """Receive and ack everything; the numbers in order."""
    got: list[int] = []
    while deliveries := client.receive(queue, 100):
        got += [int(each.payload) for each in deliveries]
        client.ack(deliveries)
    return got


def consumed(client: Client, queue: str, count: int) -> list[int]:
    """Receive and ack so many, which may be on their way from another partition; the numbers in order."""
    got: list[int] = []
    while len(got) < count:
        deliveries = client.receive(queue, 100, wait=PATIENCE_S)
        got += [int(each.payload) for each in deliveries]
        client.ack(deliveries)
    return got


# --- queues -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"partitions": 4}, {"partitions": "auto"}, {"partitions": 4, "spread": "message"}])
def test_the_life_of_a_queue(client: Client, other: Client, queue: str, options: dict[str, Any]):
    name = f"ns/{queue}"
    client.create_queue(name, visibility_timeout=7, **options)
    with pytest.raises(QueueExistsError):
        client.create_queue(name, **options)
    with pytest.raises(QueueExistsError):
        client.create_queue(name)
    assert [(row.name, row.depth, row.is_dead_letter) for row in client.list_queues(name)] == [
        (name, 0, False),
        (f"{name}.dlq", 0, True),
    ]
    assert len(client.enqueue_many(name, messages(40))) == 40
    client.enqueue(name, b"40", fairness_key="single")
    stats = other.queue_stats(name)
    assert (stats.name, stats.pending, stats.enqueued, len(stats.keys)) == (name, 41, 41, 17)
    client.update_queue(name, max_attempts=3)
    assert client.request(Request(name, DescribeQueue())).options.max_attempts == 3
    assert sorted(drained(other, name)) == list(range(41))
    assert client.queue_stats(name).acked == 41
    client.delete_queue(name)
    assert client.list_queues(name) == []
    with pytest.raises(QueueNotFoundError):
        client.queue_stats(name)
    with pytest.raises(QueueNotFoundError):
        other.receive(name)
    with pytest.raises(QueueNotFoundError):
        other.enqueue(name, b"x")


def test_a_queue_without_partitions_is_not_made_one_with_some(client: Client, queue: str):
    with pytest.raises(QueueExistsError):
        client.create_queue(queue, partitions=4)


def test_the_spread_stays(client: Client, spread: str):
    with pytest.raises(InvalidArgumentError, match="keeps its spread"):
        client.update_queue(spread, spread="message")


@pytest.mark.parametrize("waiting", [False, True])
def test_the_number_of_partitions_changes_while_the_queue_is_used(
    client: Client, other: Client, connect: Connect, queue: str, waiting: bool
):
    client.enqueue_many(queue, messages(100))
    got: list[int] = []
    with connect() as consuming, consuming.consume(queue, prefetch=8) as consumer:
        for number, partitions in enumerate([4, 2, 1]):
            if waiting:
                got += taken(consumer, 100 * (1 + number) - len(got))
            client.update_queue(queue, partitions=partitions)
            for message in messages(100):
                payload = b"%d" % (100 * (1 + number) + int(message.payload))
                (client if number % 2 else other).enqueue(queue, payload, fairness_key=message.fairness_key)
            got += taken(consumer, 5)
        got += taken(consumer, 400 - len(got))
    for key in range(16):  # the order of messages is that of their keys' numbers
        mine = [number for number in range(400) if number % 100 % 16 == key]
        assert [number for number in got if number % 100 % 16 == key] == mine
    assert {each.name for each in client.list_queues(queue)} == {queue, f"{queue}.dlq"}


def taken(consumer: Any, count: int) -> list[int]:
    """Take and ack so many; their numbers."""
    numbers = []
    for _ in range(count):
        delivery = consumer.take(PATIENCE_S)
        assert delivery is not None
        delivery.ack()
        numbers.append(int(delivery.payload))
    return numbers


def test_a_template_leaves_the_number_of_partitions_of_a_queue_that_exists(client: Client, queue: str, spread: str):
    for name in queue, spread:
        client.put_template(name, partitions=3)
        client.enqueue(name, b"x")
        assert client.request(Request(name, DescribeQueue())).options.partitions == (1 if name == queue else 4)
        client.delete_template(name)


def test_why_a_message_waits_while_others_of_its_key_move(client: Client, queue: str):
    client.update_queue(queue, max_in_flight_per_key=1)
    key = next(key for number in range(100) if partition_of(key := f"k{number}", 4) == 3)
    client.enqueue_many(queue, [Message(b"old", fairness_key=key) for _ in range(2)])
    (leased,) = client.receive(queue, wait=PATIENCE_S)
    client.update_queue(queue, partitions=4)
    new = client.enqueue(queue, b"new", fairness_key=key)
    for asked in {"message_id": new}, {"fairness_key": key}:
        told = client.why(queue, **asked)
        moving, leaving = told.reasons[:2]
        assert (moving.code, moving.details["waits_for"], moving.details["partitions"]) == ("moving", [0], 4)
        assert (leaving.code, leaving.details["leased"], leaving.details["partition"]) == ("leaving", 1, 0)
        assert "@" not in str(told)
    assert "leaving" in {each.code for each in client.why(queue).reasons}
    move = client.queue_stats(queue).move
    assert move is not None
    assert (move.earlier, move.partitions, move.drained, move.waits_for) == (1, 4, [], [0])
    leased.ack()
    eventually(lambda: client.queue_stats(queue).move is None, "all messages are in their new places")
    assert "moving" not in {each.code for each in client.why(queue, message_id=new).reasons}


def test_another_number_of_partitions_keeps_the_options_and_the_dead_letters(client: Client, queue: str):
    client.update_queue(queue, max_attempts=1)
    client.enqueue(queue, b"dead", fairness_key="k3")
    (delivery,) = client.receive(queue, wait=PATIENCE_S)
    delivery.nack("boom")
    client.update_queue(queue, partitions=4)
    client.enqueue(queue, b"dead too", fairness_key="k5")
    (delivery,) = client.receive(queue, wait=PATIENCE_S)
    delivery.nack("boom")
    assert sorted(each.payload for each in client.browse(f"{queue}.dlq")) == [b"dead", b"dead too"]
    assert client.redrive(f"{queue}.dlq") == 2
    got = [client.receive(queue, wait=PATIENCE_S)[0] for _ in range(2)]
    assert sorted(each.payload for each in got) == [b"dead", b"dead too"]
    for each in got:
        each.ack()


def test_dead_letters_go_to_no_queue_that_is_missing(client: Client, queue: str, spread: str):
    missing = f"{queue}-missing"
    with pytest.raises(InvalidArgumentError, match="no such queue"):
        client.create_queue(f"{queue}-new", partitions=4, dead_letter=missing)
    for partitions in 1, 3:
        with pytest.raises(InvalidArgumentError, match="no such queue"):
            client.update_queue(spread, dead_letter=missing, max_attempts=1)
        client.create_queue(missing, partitions=partitions)
        client.update_queue(spread, dead_letter=missing)
        client.enqueue(spread, b"1", fairness_key="a")
        client.receive(spread, wait=PATIENCE_S)[0].fail("no good")
        (dead,) = client.receive(missing, wait=PATIENCE_S)
        dead.ack()
        client.delete_queue(missing)
    assert client.request(Request(spread, DescribeQueue())).options.max_attempts is None


def test_each_key_keeps_its_order_whoever_enqueues(client: Client, other: Client, spread: str):
    everything = messages(600)
    client.enqueue_many(spread, everything[:200])
    with other.producer(spread, batch=7) as producer:
        for message in everything[200:400]:
            producer.send(message.payload, fairness_key=message.fairness_key)
    for message in everything[400:440]:
        client.enqueue(spread, message.payload, fairness_key=message.fairness_key)
    other.enqueue_many(spread, everything[440:])
    got = drained(client, spread)
    assert sorted(got) == list(range(600))
    for key in range(16):
        mine = [number for number in got if number % 16 == key]
        assert mine == sorted(mine)


def test_a_message_is_received_at_once_though_its_hook_sends_it_to_another_partition(
    client: Client, other: Client, queue: str
):
    name = f"{queue}-hooked"
    client.create_queue(
        name, partitions=4, on_enqueue="function on_enqueue(msg) return { fairness_key = msg.headers.key } end"
    )
    for number in range(100):
        client.enqueue(name, b"%d" % number, {"key": f"k{number}"}, fairness_key=f"other-{number}")
        (delivery,) = (client, other)[number % 2].receive(name)
        assert delivery.payload == b"%d" % number
        delivery.ack()
    assert client.receive(name) == []


# --- what the broker does by itself -----------------------------------------------------------------------------------


def is_gone(client: Client, name: str) -> bool:
    """Whether no call finds it. Asking for it by its name would keep it."""
    if client.list_queues(name):
        return False
    with pytest.raises(QueueNotFoundError):
        client.queue_stats(name)
    return True


@pytest.mark.parametrize("used", [False, True])
def test_an_idle_queue_goes_with_all_its_partitions(client: Client, queue: str, used: bool):
    name = f"{queue}-brief"
    client.create_queue(name, partitions=4, idle_expiry=0.5)
    if used:
        client.enqueue_many(name, messages(40))
        assert sorted(consumed(client, name, 40)) == list(range(40))
    eventually(lambda: is_gone(client, name), "it is deleted")
    client.create_queue(name, partitions=2)
    client.enqueue(name, b"1")
    assert consumed(client, name, 1) == [1]


def test_nothing_is_lost_in_a_queue_that_is_used_as_it_goes(client: Client, other: Client, queue: str):
    name = f"{queue}-brief"
    client.put_template(name, partitions=4, idle_expiry=0.05)
    for number in range(60):
        client.enqueue(name, b"%d" % number, fairness_key=f"k{number}")
        assert consumed(other, name, 1) == [number]
        time.sleep(0.04 + 0.002 * (number % 30))  # now and then it is about to go, or gone
    client.delete_template(name)


def test_a_schedule_and_a_move_make_a_queue_by_template(client: Client, queue: str):
    client.put_template(f"{queue}-made-*", partitions=4)
    client.put_schedule(f"{queue}-often", f"{queue}-made-1", b"1", every=1, fairness_key="a")
    eventually(lambda: client.list_queues(f"{queue}-made-1"), "its first message makes it")
    assert set(consumed(client, f"{queue}-made-1", 1)) == {1}
    client.delete_schedule(f"{queue}-often")
    client.enqueue_many(queue, messages(40))
    assert client.move(queue, f"{queue}-made-2") == 40
    assert sorted(consumed(client, f"{queue}-made-2", 40)) == list(range(40))
    for number in 1, 2:
        assert client.request(Request(f"{queue}-made-{number}", DescribeQueue())).options.partitions == 4
    client.delete_template(f"{queue}-made-*")


def test_dead_letters_go_back_where_they_came_from(client: Client, spread: str):
    client.enqueue_many(spread, messages(40))
    while deliveries := client.receive(spread, 100):
        for delivery in deliveries:
            delivery.fail("no good")
    assert client.queue_stats(f"{spread}.dlq").depth == 40
    with pytest.raises(DeadLetterQueueNotEmptyError):
        client.delete_queue(spread)
    dead = client.browse(f"{spread}.dlq", limit=100)
    assert len({message.id for message in dead}) == 40
    (letter,) = client.receive(f"{spread}.dlq", 1)
    assert letter.queue == f"{spread}.dlq"
    letter.ack()
    assert client.redrive(f"{spread}.dlq", 7) == 7
    assert client.queue_stats(spread).depth == 7
    client.redrive(f"{spread}.dlq")
    assert client.queue_stats(spread).depth == 39
    client.delete_queue(spread, force=True)


def test_one_message_is_found_wherever_it_is(client: Client, spread: str):
    ids = client.enqueue_many(spread, messages(40))
    assert client.why(spread, message_id=ids[7]).state == "pending"
    assert client.cancel(spread, ids[7])
    pages = [message.id for message in client.browse(spread, limit=1000)]
    assert sorted(pages) == sorted(set(ids) - {ids[7]})
    assert client.purge_queue(spread, fairness_key="k3") == 3
    assert client.purge_queue(spread) == 36


# --- consumers --------------------------------------------------------------------------------------------------------


@contextmanager
def consumers(connect: Connect, queue: str, count: int, work: Callable[[Any], object], **options: Any) -> Iterator[None]:
    """Consume in threads, each with a client of its own."""
    clients = [connect() for _ in range(count)]
    failures: list[BaseException] = []

    def consume(client: Any) -> None:
        try:
            for delivery in client.consume(queue, **options):
                work(delivery)
        except FilaError as error:
            if not client.closed:
                failures.append(error)

    threads = [threading.Thread(target=consume, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for client in clients:
            client.close()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert failures == []


def test_with_a_prefetch_of_one_nobody_ever_holds_two(client: Client, connect: Connect, queue: str):
    name = f"{queue}-8"
    client.create_queue(name, partitions=8)
    client.enqueue_many(name, messages(300, 64))
    got: list[int] = []
    with ExitStack() as stack:
        taking = [stack.enter_context(stack.enter_context(connect()).consume(name, prefetch=1)) for _ in range(3)]
        while len(got) < 300:
            held = [each.take(PATIENCE_S) for each in taking]
            if len(got) % 30 == 0:
                assert client.queue_stats(name).in_flight == 3
            got += [int(delivery.payload) for delivery in held]
            for delivery in held:
                delivery.ack()
    assert sorted(got) == list(range(300))


def test_weights_are_shared_over_all_partitions(client: Client, connect: Connect, queue: str):
    name = f"{queue}-4"
    client.create_queue(name, partitions=4)
    keys: dict[int, str] = {}
    for number in range(100):
        keys.setdefault(partition_of(f"k{number}", 4), f"k{number}")
    weights = {key: partition + 1 for partition, key in keys.items()}
    for key, weight in weights.items():
        client.enqueue_many(name, [Message(b"1", fairness_key=key, weight=weight)] * 250 * weight)
    order: list[str] = []

    def work(delivery: Any) -> None:
        order.append(delivery.fairness_key)
        delivery.ack()

    with consumers(connect, name, 3, work, prefetch=4):
        eventually(lambda: len(order) >= 1500, "enough are consumed", PATIENCE_S * 2)
    counts = Counter(order[100:1500])
    for key, weight in weights.items():
        entitled = 1400 * weight / 10
        assert abs(counts[key] - entitled) <= max(0.05 * entitled, 3 * 4), counts


def test_a_consumer_that_waits_gets_what_comes_at_once(client: Client, connect: Connect, spread: str):
    with connect() as consuming, consuming.consume(spread, prefetch=1) as consumer:
        assert consumer.take() is None
        for number in range(20):
            client.enqueue(spread, b"%d" % number, fairness_key=f"k{number}")
            delivery = consumer.take(PATIENCE_S)
            assert int(delivery.payload) == number
            delivery.ack()


def test_one_task_takes_while_another_acks(client: Client, connect: Connect, spread: str):
    """The ack alone has the next message asked for, whoever waits."""
    client.enqueue_many(spread, messages(60))
    with connect() as consuming, consuming.consume(spread, prefetch=1) as consumer:
        taken: list[Any] = []
        news = threading.Semaphore(0)

        def take() -> None:
            for _ in range(60):
                taken.append(consumer.take(PATIENCE_S))
                news.release()

        thread = threading.Thread(target=take)
        thread.start()
        for number in range(60):
            assert news.acquire(timeout=PATIENCE_S)
            taken[number].ack()
        thread.join()


def test_batches_fill_over_partitions(client: Client, spread: str):
    client.enqueue_many(spread, messages(1000))
    got = 0
    with client.consume_batches(spread, max_messages=100, max_wait=PATIENCE_S) as batches:
        for batch in batches:
            assert len(batch) == 100
            got += len(batch)
            batch.ack()
            if got == 1000:
                break
    assert client.queue_stats(spread).depth == 0


def test_what_a_consumer_leaves_goes_back(client: Client, spread: str):
    client.enqueue_many(spread, messages(100))
    with client.consume(spread, prefetch=50) as consumer:
        held = [next(consumer) for _ in range(10)]
    eventually(lambda: client.queue_stats(spread).in_flight == 10, "the others are back")
    client.ack(held)
    assert client.queue_stats(spread).depth == 90


def test_what_is_delivered_at_most_once_is_gone_when_it_is_taken_and_not_before(client: Client, queue: str):
    name = f"{queue}-once"
    client.create_queue(name, partitions=4, delivery="at_most_once")
    client.enqueue_many(name, messages(40))
    with client.consume(name, prefetch=30) as consumer:
        taken = {int(next(consumer).payload) for _ in range(10)}
    eventually(lambda: client.queue_stats(name).depth == 30, "the others are back")
    assert taken | set(drained(client, name)) == set(range(40))


def test_a_receive_of_several_queues_takes_of_all(client: Client, spread: str, queue: str):
    client.enqueue_many(spread, messages(20))
    client.enqueue(queue, b"plain")
    got = client.receive_any({spread: 20, queue: 5}, wait=PATIENCE_S)
    assert len(got) == 21
    assert {delivery.queue for delivery in got} == {spread, queue}
    client.ack(got)
    assert client.receive_any({spread: 20, queue: 5}) == []


# --- templates --------------------------------------------------------------------------------------------------------


@pytest.fixture
def pattern(client: Client, queue: str) -> Iterator[str]:
    name = f"{queue}-made-"
    client.put_template(f"{name}*", partitions=4)
    yield name
    client.delete_template(f"{name}*")


def test_the_first_message_makes_the_queue_whichever_way_it_comes(client: Client, other: Client, pattern: str):
    client.enqueue(f"{pattern}one", b"0")
    client.enqueue_many(f"{pattern}many", messages(700))
    with client.producer(f"{pattern}producer", batch=10) as producer:
        for message in messages(300):
            producer.send(message.payload, fairness_key=message.fairness_key)
    for name, count in (("one", 1), ("many", 700), ("producer", 300)):
        got = drained(other, pattern + name)
        assert sorted(got) == list(range(count))
        for key in range(16):
            mine = [number for number in got if number % 16 == key]
            assert mine == sorted(mine)
    assert {row.name for row in client.list_queues(pattern)} == {
        f"{pattern}{name}{ending}" for name in ("one", "many", "producer") for ending in ("", ".dlq")
    }


def test_two_clients_may_make_it_at_the_same_time(client: Client, other: Client, pattern: str):
    name, half = f"{pattern}both", messages(500)
    threads = [
        threading.Thread(target=each.enqueue_many, args=(name, some))
        for each, some in ((client, half[:250]), (other, half[250:]))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(drained(client, name)) == list(range(500))


# --- how many are leased ----------------------------------------------------------------------------------------------


def test_max_in_flight_holds_over_all_partitions(client: Client, other: Client, queue: str):
    name = f"{queue}-few"
    client.create_queue(name, partitions=4, max_in_flight=3)
    client.enqueue_many(name, messages(40))
    held = other.receive(name, 100, wait=PATIENCE_S)
    while len(held) < 3:
        held += other.receive(name, 100, wait=PATIENCE_S)
    assert (len(held), client.receive(name, 100)) == (3, [])
    stats = client.queue_stats(name)
    assert (stats.in_flight, stats.max_in_flight) == (3, 3)
    [reason] = [each for each in client.why(name).reasons if each.code == "concurrency"]
    assert (reason.details["queue"], reason.details["limit"], reason.details["in_use"]) == (name, 3, 3)
    assert not [each.key for each in client.list_throttles() if name in each.key]
    client.update_queue(name, max_in_flight=5)
    while len(held) < 5:
        held += other.receive(name, 100, wait=PATIENCE_S)
    assert (len(held), client.receive(name, 100)) == (5, [])
    other.ack(held)
    client.update_queue(name, max_in_flight=None)
    assert len(consumed(client, name, 35)) == 35


def test_one_partition_may_have_all_that_may_be_leased(client: Client, other: Client, queue: str):
    name = f"{queue}-few"
    client.create_queue(name, partitions=8, max_in_flight=3)
    client.enqueue_many(name, messages(40, keys=1))
    with other.consume(name, prefetch=10) as consumer:
        held = [consumer.take(PATIENCE_S) for _ in range(3)]
        assert consumer.take(0.3) is None
        for _ in range(37):
            held.pop(0).ack()
            held.append(consumer.take(PATIENCE_S))
        other.ack(held)
    assert client.queue_stats(name).acked == 40


# --- another queue of that name ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (4, 1), (1, 4), (4, 4)])
def test_who_knows_the_old_queue_finds_the_new_one(client: Client, other: Client, queue: str, before: int, after: int):
    name = f"{queue}-again"
    other.create_queue(name, partitions=before)
    client.enqueue_many(name, messages(20))
    client.ack(client.receive(name, 5))
    other.delete_queue(name, force=True)
    other.create_queue(name, partitions=after)
    client.enqueue_many(name, messages(20))
    client.enqueue(name, b"20", fairness_key="single")
    with client.producer(name) as producer:
        for number in range(21, 40):
            producer.send(b"%d" % number, fairness_key=f"k{number}")
    assert sorted(consumed(client, name, 40)) == list(range(40))
    assert client.queue_stats(name).depth == 0
    client.delete_queue(name)


@settling_may_fail
@pytest.mark.whole
@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (4, 1), (1, 4)])
def test_a_consumer_and_a_producer_live_through_it(
    client: Client, other: Client, connect: Connect, queue: str, before: int, after: int
):
    name = f"{queue}-again"
    other.create_queue(name, partitions=before)
    got: set[int] = set()
    over = threading.Event()
    sent: list[int] = []
    first = 0

    def produce() -> None:
        number = 0
        while not over.is_set():
            with suppress(QueueNotFoundError):  # at this moment it is not there
                client.enqueue(name, b"%d" % number, fairness_key=f"k{number % 16}")
                sent.append(number)
            number += 1

    def work(delivery: Any) -> None:
        with suppress(FilaError):  # its queue is gone
            delivery.ack()
        got.add(int(delivery.payload))

    producing = threading.Thread(target=produce)
    with connect() as consuming:
        consumer = consuming.consume(name, prefetch=10)
        producing.start()
        try:
            for _ in range(50):
                work(consumer.take(PATIENCE_S))
            other.delete_queue(name, force=True)
            other.create_queue(name, partitions=after)
            first = len(sent)
            eventually(lambda: len(sent) >= first + 50, "it goes on to be filled")
        finally:
            over.set()
            producing.join(PATIENCE_S)
        last = sent[first + 1 :]

        def caught_up() -> bool:
            try:
                while (delivery := consumer.take(0.2)) is not None:
                    work(delivery)
            except QueueNotFoundError:  # it saw the moment between
                nonlocal_consumer()
            return set(last) <= got

        def nonlocal_consumer() -> None:
            nonlocal consumer
            consumer = consuming.consume(name, prefetch=10)

        eventually(caught_up, "all that came after is consumed")
        consumer.close()


# --- outages ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Cluster]:
    with running(tmp_path / "data", workers=2) as cluster:
        yield cluster


@settling_may_fail
def test_a_worker_that_dies_stops_its_own_partitions_only_and_nothing_is_lost(pair: Cluster, open_client: Connect):
    with open_client(pair.endpoint, timeout=PATIENCE_S) as client, open_client(pair.endpoint, timeout=PATIENCE_S) as taker:
        client.create_queue("q", partitions=4, visibility_timeout=600)
        client.enqueue_many("q", messages(400))
        seen: Counter[int] = Counter()
        acked: set[int] = set()
        with taker.consume("q", prefetch=4) as consumer:

            def consume(count: int) -> None:
                for _ in range(count):
                    delivery = consumer.take(PATIENCE_S)
                    number = int(delivery.payload)
                    seen[number] += 1
                    with suppress(FilaError):
                        delivery.ack()
                        acked.add(number)

            consume(50)
            victim = next(each for each in pair.children() if each.pid == pair.status().workers[0].pid)
            victim.kill()
            consume(20)  # of the other worker, or of this one once it is back
            eventually(pair.all_up, "it is back")
            client.enqueue_many("q", [Message(b"%d" % number, fairness_key=f"k{number % 16}") for number in range(400, 440)])
            while len(acked) < 440:
                consume(1)
        assert client.queue_stats("q").depth == 0
        assert set(seen) == set(range(440))


@settling_may_fail
def test_whatever_dies_no_more_are_leased_than_may_be(pair: Cluster, open_client: Connect):
    with open_client(pair.endpoint, timeout=PATIENCE_S) as client, open_client(pair.endpoint, timeout=PATIENCE_S) as taker:
        client.create_queue("q", partitions=8, max_in_flight=3, visibility_timeout=600)
        client.enqueue_many("q", messages(200))
        done: set[int] = set()
        with taker.consume("q", prefetch=20) as consumer:

            def consume(count: int) -> None:
                while len(done) < count:
                    delivery = consumer.take(PATIENCE_S)
                    assert client.queue_stats("q").in_flight <= 3
                    with suppress(FilaError):
                        delivery.ack()
                        done.add(int(delivery.payload))

            for victim in range(2):  # the second one is the place bank, or it was the first
                consume(40 * (victim + 1))
                pid = pair.status().workers[victim].pid
                next(each for each in pair.children() if each.pid == pid).kill()
                eventually(pair.all_up, "it is back")
            consume(200)
        assert client.queue_stats("q").depth == 0


@settling_may_fail
@pytest.mark.whole
def test_while_a_worker_is_away_the_other_partitions_are_served(pair: Cluster, open_client: Connect):
    """It is killed again and again, so that it stays away."""
    with open_client(pair.endpoint, timeout=PATIENCE_S) as client, open_client(pair.endpoint, timeout=2.0) as taker:
        client.create_queue("q", partitions=4)
        client.enqueue_many("q", messages(400))
        worker = pair.status().workers[0]
        away = {f"k{key}" for key in range(16) if client_shard(client, "q", f"k{key}") in worker.shards}
        assert 0 < len(away) < 16
        over = threading.Event()

        def kill() -> None:
            while not over.is_set():
                for child in pair.children():
                    with suppress(Exception):
                        if "fila_worker" in child.cmdline() and child.pid not in keep:
                            child.kill()
                over.wait(0.02)

        assert taker.queue_stats("q").depth == 400  # who does not know the partitions yet asks the shard of the queue's name
        keep = {each.pid for each in pair.status().workers[1:]}
        killing = threading.Thread(target=kill)
        killing.start()
        try:
            here = 25 * (16 - len(away))
            got: Counter[str] = Counter()
            with taker.consume("q", prefetch=8) as consumer:
                while sum(got[key] for key in got if key not in away) < here:
                    delivery = consumer.take(PATIENCE_S)
                    assert delivery is not None
                    got[delivery.fairness_key] += 1
                    with suppress(FilaError):
                        delivery.ack()
            with suppress(BatchError):
                client.enqueue_many(
                    "q", [Message(b"9", fairness_key=key) for key in sorted({f"k{n}" for n in range(16)} - away)]
                )
            taker.ack(taker.receive("q", 3))
        finally:
            over.set()
            killing.join()
        eventually(pair.all_up, "it is back")


def client_shard(client: Client, queue: str, key: str) -> int:
    """The shard of a key's partition."""
    stats: QueueStats = client.request(Request(f"{queue}@{partition_of(key, 4)}", GetQueueStats()))
    return stats.info.shard
