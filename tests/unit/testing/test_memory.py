"""The kit's broker in memory: what a client sees is what a cluster does, and time goes on when it should."""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from fila_cluster import Client, Message
from fila_cluster.errors import (
    AlreadySettledError,
    FilaError,
    InvalidArgumentError,
    LeaseExpiredError,
    LuaCompilationError,
    OverloadedError,
    QueueExistsError,
    QueueNotFoundError,
    RequestTimeoutError,
    ShardUnavailableError,
)
from fila_cluster.testing import Fila, broker
from tests.support.cluster.cluster import PATIENCE_S, eventually


@pytest.fixture
def fila() -> Iterator[Fila]:
    with broker() as opened:
        opened.create_queue("q")
        yield opened


def seconds_of(fila: Fila, act: Callable[[], object]) -> float:
    """How far the broker's clock goes on meanwhile."""
    before = fila.clock.now()
    act()
    return (fila.clock.now() - before).total_seconds()


# --- a broker ---------------------------------------------------------------------------------------------------------


def test_each_broker_begins_empty() -> None:
    for _ in range(2):
        with broker("same") as fila:
            assert fila.list_queues() == []
            fila.create_queue("q")
            fila.set_config("key", "value")
    with broker("same") as fila:
        assert fila.list_config() == {}


def test_two_brokers_know_nothing_of_each_other() -> None:
    with broker() as one, broker() as other:
        one.create_queue("q")
        assert other.list_queues() == []
        one.clock.advance(60)
        assert one.clock.now() - other.clock.now() > timedelta(seconds=59)


def test_a_name_is_for_one_broker_at_a_time() -> None:
    with broker("taken"):
        with pytest.raises(InvalidArgumentError, match="memory://taken"), broker("taken"):
            pass


def test_errors_are_those_of_a_cluster(fila: Fila) -> None:
    with pytest.raises(QueueExistsError):
        fila.create_queue("q")
    with pytest.raises(QueueNotFoundError):
        fila.enqueue("nowhere", b"")
    with pytest.raises(LuaCompilationError):
        fila.create_queue("bad", on_enqueue="function on_enqueue(")
    (delivery,) = enqueued(fila, b"x")
    delivery.ack()
    with pytest.raises(AlreadySettledError):
        delivery.ack()


def enqueued(fila: Fila, *payloads: bytes) -> list:
    fila.enqueue_many("q", [Message(payload) for payload in payloads])
    return fila.receive("q", len(payloads))


def test_limits_hold() -> None:
    with broker(max_queue_messages=2) as fila:
        fila.create_queue("q")
        fila.enqueue_many("q", [Message(b"1"), Message(b"2")])
        with Client(fila.endpoint, timeout=0.1) as hasty, pytest.raises(OverloadedError):
            hasty.enqueue("q", b"3")


def test_the_status_names_one_worker(fila: Fila) -> None:
    status = fila.cluster_status()
    assert (status.shards, [worker.state for worker in status.workers]) == (1, ["up"])


def test_fair_delivery_and_hooks_are_the_real_ones(fila: Fila) -> None:
    fila.create_queue("h", on_enqueue="function on_enqueue(msg) return {fairness_key = msg.headers.tenant, weight = 2} end")
    fila.enqueue_many("h", [Message(b"", {"tenant": "a"})] * 5 + [Message(b"", {"tenant": "b"})])
    deliveries = fila.receive("h", 6)
    assert [each.fairness_key for each in deliveries][:4].count("b") == 1
    assert {each.weight for each in deliveries} == {2}
    fila.ack(deliveries)


def test_a_hook_reads_the_runtime_config(fila: Fila) -> None:
    fila.create_queue("h", on_enqueue="function on_enqueue(msg) return {fairness_key = fila.get('tenant')} end")
    fila.set_config("tenant", "from config")
    fila.enqueue("h", b"")
    (delivery,) = fila.receive("h")
    assert delivery.fairness_key == "from config"
    delivery.ack()


def test_large_messages_and_many(fila: Fila) -> None:
    payloads = [bytes([number]) * 1_000_000 for number in range(20)]
    fila.enqueue_many("q", [Message(payload) for payload in payloads])
    fila.enqueue_many("q", [Message(b"small")] * 3000)
    taken = []
    with fila.consume_batches("q") as batches:
        for batch in batches:
            taken += [each.payload for each in batch]
            batch.ack()
            if len(taken) == 3020:
                break
    assert taken == payloads + [b"small"] * 3000


# --- time -------------------------------------------------------------------------------------------------------------


def test_time_stands_still(fila: Fila) -> None:
    def act() -> None:
        fila.enqueue("q", b"x")
        fila.receive("q")[0].ack()
        time.sleep(0.01)

    assert seconds_of(fila, act) == 0


def test_time_stands_still_while_a_change_of_the_config_goes_round(fila: Fila) -> None:
    assert seconds_of(fila, lambda: fila.set_config("throttle.provider", "10,10")) == 0
    assert seconds_of(fila, lambda: fila.delete_config("throttle.provider")) == 0


def test_a_delayed_message_comes_at_its_time(fila: Fila) -> None:
    fila.enqueue("q", b"x", delay=30)
    fila.clock.advance(29.999)
    assert fila.receive("q") == []
    fila.clock.advance(0.001)
    fila.receive("q")[0].ack()


def test_a_date_is_of_the_world(fila: Fila) -> None:
    fila.enqueue("q", b"x", deliver_at=fila.clock.now() + timedelta(hours=1))
    assert fila.receive("q") == []
    fila.clock.advance(3600)
    fila.receive("q")[0].ack()


def test_a_dropped_delivery_stays_leased_as_long_as_its_client_lives(fila: Fila) -> None:
    fila.create_queue("slow", visibility_timeout=60)
    fila.enqueue("slow", b"x")
    with pytest.warns(ResourceWarning, match="never settled"):
        assert len(fila.receive("slow")) == 1
    fila.clock.advance(59)
    assert fila.queue("slow").in_flight == 1
    fila.clock.advance(2)
    (again,) = fila.receive("slow")
    assert (again.attempts, again.error) == (1, "lease expired")
    again.ack()


def test_a_lease_ends(fila: Fila) -> None:
    (delivery,) = enqueued(fila, b"x")
    fila.clock.advance(31)
    (again,) = fila.receive("q")
    assert (again.attempts, again.error) == (1, "lease expired")
    again.ack()
    with pytest.raises(LeaseExpiredError):
        delivery.ack()


def test_a_lease_of_a_consumer_is_renewed(fila: Fila) -> None:
    fila.enqueue("q", b"x")
    with fila.consume("q") as consumer:
        delivery = next(consumer)
        fila.clock.advance(300)
        delivery.ack()
    fila.assert_acked("q", 1)


def test_a_consumer_that_lives_is_not_lost_while_time_goes_on(fila: Fila) -> None:
    fila.create_queue("long", visibility_timeout=3600)
    fila.enqueue("long", b"x")
    (delivery,) = fila.receive("long")
    fila.clock.advance(600)
    delivery.ack()


def test_a_message_grows_too_old(fila: Fila) -> None:
    fila.enqueue("q", b"x", ttl=10)
    fila.clock.advance(16)
    (letter,) = fila.queue("q").dead
    assert letter.reason == "expired"


def test_tokens_come_at_their_rate(fila: Fila) -> None:
    fila.set_config("throttle.api", "2,2")
    fila.enqueue_many("q", [Message(b"", throttle_keys=["api"])] * 10)
    counts = []
    for _ in range(4):
        deliveries = fila.receive("q", 10)
        fila.ack(deliveries)
        counts.append(len(deliveries))
        fila.clock.advance(1)
    assert counts == [2, 2, 2, 2]


def test_a_dedup_window_ends() -> None:
    with broker(dedup_window=60) as fila:
        fila.create_queue("q")
        first = fila.enqueue("q", b"x", dedup_id="1")
        assert fila.enqueue("q", b"x", dedup_id="1") == first
        fila.clock.advance(61)
        assert fila.enqueue("q", b"x", dedup_id="1") != first


def test_an_idle_queue_goes(fila: Fila) -> None:
    fila.create_queue("brief", idle_expiry=60)
    fila.clock.advance(59)
    assert "brief" in names_of(fila)
    fila.clock.advance(30)
    assert "brief" not in names_of(fila)


def names_of(fila: Fila) -> set[str]:
    return {info.name for info in fila.list_queues()}


def test_a_receive_that_waits_gets_what_comes_in_its_time(fila: Fila) -> None:
    fila.enqueue("q", b"x", delay=5)
    assert seconds_of(fila, lambda: fila.ack(fila.receive("q", wait=10))) == pytest.approx(5, abs=0.01)
    assert seconds_of(fila, lambda: fila.receive("q", wait=10)) == pytest.approx(10, abs=0.01)


def test_a_receive_of_several_queues_waits_for_the_first(fila: Fila) -> None:
    fila.create_queue("other")
    fila.enqueue("other", b"x", delay=7)
    (delivery,) = fila.receive_any({"q": 1, "other": 1}, wait=60)
    assert delivery.queue == "other"
    delivery.ack()


def test_a_consumer_waits_for_the_next_attempt(fila: Fila) -> None:
    fila.enqueue("q", b"x")
    seen = []
    with fila.consume("q") as consumer:
        for delivery in consumer:
            seen.append(delivery.attempts)
            if delivery.attempts < 2:
                delivery.retry(after=20)
            else:
                delivery.ack()
                break
    assert seen == [0, 1, 2]


def test_a_consumer_of_nothing_does_not_hang(fila: Fila) -> None:
    with fila.consume("q") as consumer, pytest.raises(RequestTimeoutError, match="a real broker would let this call wait on"):
        next(consumer)
    fila.enqueue("q", b"x")  # and the client is as good as before
    fila.receive("q")[0].ack()


def test_a_long_time_passes_at_once(fila: Fila) -> None:
    fila.enqueue("q", b"x", delay=300 * 86_400)
    fila.clock.advance(300 * 86_400)
    fila.receive("q")[0].ack()


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "1", True, 1e12])
def test_time_goes_on_by_seconds(fila: Fila, seconds: object) -> None:
    with pytest.raises(InvalidArgumentError, match="advance"):
        fila.clock.advance(seconds)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"visibility_timeout": 0},
        {"dedup_window": -1},
        {"visibility_timeout": "30"},
        {"visibility_timeout": 13 * 3600},
        {"max_queue_messages": "10"},
        {"max_queue_messages": 0},
    ],
)
def test_options_are_as_in_a_configuration(options: dict) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(options))), broker(**options):
        pass


def test_a_producer_does_not_wait_for_time(fila: Fila) -> None:
    with fila.producer("q") as producer:
        lone = producer.send(b"lone")
        assert lone.result(timeout=PATIENCE_S)  # its linger passes by itself
        futures = [producer.send(b"%d" % number) for number in range(2000)]
    assert len({future.result() for future in futures}) == 2000
    fila.assert_pending("q", 2001)


# --- other clients ----------------------------------------------------------------------------------------------------


def test_a_client_that_is_closed_gives_back(fila: Fila) -> None:
    fila.enqueue("q", b"x")
    with Client(fila.endpoint) as other, pytest.warns(ResourceWarning):
        assert len(other.receive("q")) == 1
    (delivery,) = fila.receive("q")
    assert delivery.attempts == 0
    delivery.ack()


def test_a_thread_works_while_the_test_waits(fila: Fila) -> None:
    """Time does not jump while another thread uses the broker: what that is about to do comes first."""
    fila.create_queue("out")
    done = threading.Event()

    works = threading.Event()

    def work() -> None:
        with Client(fila.endpoint) as client, client.consume("q") as consumer:
            works.set()
            for delivery in consumer:
                time.sleep(0.02)
                client.enqueue("out", delivery.payload.upper())
                delivery.ack()
                if delivery.payload == b"stop":
                    return

    thread = threading.Thread(target=lambda: (work(), done.set()))
    thread.start()
    assert works.wait(PATIENCE_S)
    fila.enqueue("q", b"hello")
    (first,) = fila.receive("out", wait=PATIENCE_S)
    first.ack()
    fila.enqueue("q", b"stop", delay=60)
    fila.clock.advance(60)
    eventually(done.is_set, "the worker is done")
    thread.join()
    (last,) = fila.receive("out", wait=PATIENCE_S)
    last.ack()
    assert [first.payload, last.payload] == [b"HELLO", b"STOP"]


def test_many_threads_share_a_client(fila: Fila) -> None:
    def enqueue() -> None:
        for number in range(50):
            fila.enqueue("q", b"%d" % number)

    threads = [threading.Thread(target=enqueue) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fila.assert_pending("q", 200)


def test_a_finalizer_in_the_middle_of_a_turn_disturbs_nothing(fila: Fila, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that is collected sends what it owes at once, in whatever thread, also in one that carries out a turn."""
    with Client(fila.endpoint) as other:
        consumers = [other.consume("q")]
        fila.enqueue_many("q", [Message(b"x")] * 3)
        joined = fila._memory._joined  # type: ignore[union-attr]
        turn = joined.turn

        def collect(now_ms: int) -> None:
            consumers.clear()
            turn(now_ms)

        monkeypatch.setattr(joined, "turn", collect)
        fila.enqueue("q", b"y")
        assert not consumers
        assert fila.queue("q").pending == 4


def test_a_client_outlives_its_broker() -> None:
    """One that is made at import goes on with the broker of the next test."""
    client = Client("memory://lasting")
    with pytest.raises(ShardUnavailableError, match="no broker memory://lasting"):
        client.list_queues()
    for name in ("one", "two"):
        with broker("lasting") as fila:
            fila.create_queue(name)
            client.enqueue(name, b"x")
            assert {info.name for info in client.list_queues() if not info.is_dead_letter} == {name}
            (delivery,) = client.receive(name)
            fila.clock.advance(20)
            delivery.ack()
            fila.clock.advance(3600)
        with pytest.raises(ShardUnavailableError):
            client.list_queues()
    client.close()


def test_what_waits_ends_with_the_broker() -> None:
    errors: list[Exception] = []
    waits = threading.Event()

    def wait() -> None:
        with Client("memory://ending") as client:
            waits.set()
            try:
                client.receive("q", wait=60)
            except FilaError as error:
                errors.append(error)

    with broker("ending") as fila:
        fila.create_queue("q")
        thread = threading.Thread(target=wait)
        thread.start()
        assert waits.wait(PATIENCE_S)
        eventually(lambda: fila.why("q").state is not None, "the broker answers")
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert [type(error) for error in errors] == [ShardUnavailableError]


@pytest.mark.parametrize("endpoint", ["memory://", "memory://a b", "memory://a/b", "memory://a,tcp://127.0.0.1:5555"])
def test_an_endpoint_in_memory_is_a_name(endpoint: str) -> None:
    with pytest.raises(InvalidArgumentError, match="memory://"):
        Client(endpoint)
