"""Producers of both clients over a real socket: confirmation, backpressure, errors that are not looked at, and how it ends."""

import asyncio
import concurrent.futures
import gc
import inspect
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref

import pytest

from fila_cluster import AsyncClient, AsyncProducer, Client, Producer
from fila_cluster.errors import (
    FilaError,
    InvalidArgumentError,
    OverloadedError,
    QueueNotFoundError,
    RequestTimeoutError,
)
from fila_proto_zmq.codec import encode_reply, to_fault
from fila_proto_zmq.commands import Enqueue, Enqueued, ListQueues, QueueList
from fila_proto_zmq.ids import high_half, low_half
from tests.support.cluster.cluster import PATIENCE_S, eventually
from tests.unit.client.conftest import stray_threads, until
from tests.unit.client.peer import BORN_MS, answering, broker

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")

HIGH = high_half(BORN_MS, 3)


def numbered():
    """An answer to enqueues with a new id for each message."""
    count = 0

    def answer(sent):
        nonlocal count
        first, count = count, count + len(sent.command.envelopes)
        return Enqueued(HIGH, low_half(first), count - first)

    return answering(Enqueue=answer, ListQueues=QueueList([]))


def batches(peer):
    return [[envelope[4:] for envelope in sent.command.envelopes] for sent in peer.seen_of(Enqueue)]


# --- sending ----------------------------------------------------------------------------------------------------------


def test_both_clients_have_the_same_signatures():
    def shape(function):
        return [(each.name, each.default, each.kind) for each in inspect.signature(function).parameters.values()]

    assert shape(Client.producer) == shape(AsyncClient.producer)
    assert shape(Producer.send) == shape(AsyncProducer.send)
    assert str(inspect.signature(Client.producer)).startswith(
        "(self, queue: str | None = None, *, linger: float = 0.005, batch: int = 500, max_outstanding: int = 10000, on_error:"
    )


def test_messages_travel_in_batches_and_each_future_gets_its_id(connect):
    with broker(numbered()) as peer, connect(peer.endpoint) as client:
        with client.producer("q", batch=3, linger=60) as producer:
            futures = [producer.send(b"%d" % number, {"n": str(number)}) for number in range(8)]
        ids = [future.result(0) for future in futures]
        assert ids == sorted(ids)
        assert len(set(ids)) == 8
        assert batches(peer) == [[b"0", b"1", b"2"], [b"3", b"4", b"5"], [b"6", b"7"]] or len(batches(peer)) == 3


def test_a_lone_message_goes_after_its_linger_though_no_thread_waits(connect):
    with broker(numbered()) as peer, connect(peer.endpoint) as client, client.producer("q", linger=0.01) as producer:
        future = producer.send(b"x")
        eventually(future.done, "its confirmation")
        assert future.result(0)
        eventually(lambda: producer.send(b"y").result(PATIENCE_S), "another one, after a pause")


def test_options_and_queues_of_single_messages(connect):
    with broker(numbered()) as peer, connect(peer.endpoint) as client:
        with client.producer() as producer:
            producer.send(b"1", queue="a", fairness_key="k", weight=2, priority=-1, delay=1.5, dedup_id="d")
            producer.send(b"2", queue="b")
            with pytest.raises(InvalidArgumentError, match=r"producer\(queue\)"):
                producer.send(b"3")
        with client.producer("a") as producer:
            producer.send(b"4")
            producer.send(b"5", queue="b")
        sent = {(each.key, each.command.envelopes[0][4:]): each.command for each in peer.seen_of(Enqueue)}
        assert set(sent) == {("a", b"1"), ("b", b"2"), ("a", b"4"), ("b", b"5")}
        first = sent["a", b"1"]
        assert (first.fairness_key, first.weight, first.priority, first.delay_ms, first.dedup_id) == ("k", 2, -1, 1500, "d")


def test_arguments_are_checked_at_once(connect):
    with connect("tcp://127.0.0.1:1") as client:
        for options in (
            {"queue": "bad name"}, {"queue": 3}, {"linger": -1}, {"linger": "x"}, {"linger": 61}, {"batch": 0}, {"batch": 10_001},
            {"batch": 1.5}, {"max_outstanding": 0}, {"max_outstanding": None}, {"on_error": "print"},
        ):  # fmt: skip
            with pytest.raises(InvalidArgumentError):
                client.producer(**options)
        producer = client.producer("q")
        for options in (
            {"payload": "text"}, {"payload": b"", "headers": {"a": 1}}, {"payload": b"", "queue": "bad name"}, {"payload": b"", "cost": 0},
            {"payload": b"", "priority": False}, {"payload": b"", "delay": -1}, {"payload": b"", "fairness_key": ""},
        ):  # fmt: skip
            with pytest.raises(InvalidArgumentError):
                producer.send(**options)
        with pytest.raises(InvalidArgumentError, match="timeout"):
            producer.flush(-1)
        producer.close()


def test_several_threads_share_a_producer():
    with broker(numbered()) as peer, Client(peer.endpoint) as client, client.producer("q", max_outstanding=50) as producer:
        futures: list = []

        def send(name):
            futures.extend(producer.send(b"%d %d" % (name, number)) for number in range(300))

        threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
        assert len({future.result(0) for future in futures}) == 1200
        got = [payload.split() for batch in batches(peer) for payload in batch]
        for name in range(4):
            assert [int(number) for each, number in got if int(each) == name] == list(range(300))


def test_the_futures_are_those_of_concurrent_futures():
    with broker(numbered()) as peer, Client(peer.endpoint) as client, client.producer("q", linger=0.02) as producer:
        futures = [producer.send(b"x") for _ in range(5)]
        assert all(isinstance(future, concurrent.futures.Future) for future in futures)
        assert not futures[0].cancel()
        called: list = []
        futures[1].add_done_callback(called.append)
        done, not_done = concurrent.futures.wait(futures, PATIENCE_S)
        assert (len(done), not_done, called) == (5, set(), [futures[1]])
        futures[2].add_done_callback(called.append)
        assert called == futures[1:3]
        assert "finished" in repr(futures[3])
        assert sorted(future.result() for future in concurrent.futures.as_completed(futures)) == [
            future.result() for future in futures
        ]
        later = producer.send(b"y")
        with pytest.raises(TimeoutError):
            later.result(0.0001)
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            _ = later.nothing

        async def wait():
            return await asyncio.wrap_future(producer.send(b"z"))

        assert asyncio.run(wait())


def test_threads_that_wait_for_futures_get_their_results():
    with broker(numbered()) as peer, Client(peer.endpoint) as client, client.producer("q", batch=7, linger=0.001) as producer:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            ids = list(pool.map(lambda number: producer.send(b"%d" % number).result(PATIENCE_S), range(400)))
        assert len(set(ids)) == 400


# --- backpressure -----------------------------------------------------------------------------------------------------


class Gate:
    """Answers enqueues only once it is open."""

    def __init__(self):
        self.held = []
        self.open = False

    def __call__(self, sent):
        if self.open:
            return Enqueued(HIGH, low_half(1), len(sent.command.envelopes))
        self.held.append(sent)
        return None

    def release(self, peer):
        self.open = True
        for sent in self.held:
            reply = Enqueued(HIGH, low_half(1), len(sent.command.envelopes))
            peer.send(*encode_reply(Enqueue.opcode, sent.header.request, reply, sent.key))


def test_sending_waits_while_too_many_are_unconfirmed(connect):
    gate = Gate()
    with broker(answering(Enqueue=gate)) as peer, connect(peer.endpoint, timeout=60) as client:
        with client.producer("q", max_outstanding=3) as producer:
            futures = [producer.send(b"x") for _ in range(3)]
            entered = threading.Event()

            def send():
                futures.append(producer.send(b"4"))
                entered.set()

            thread = threading.Thread(target=send)
            thread.start()
            eventually(lambda: gate.held, "what was collected is sent, because a caller waits")
            assert not entered.is_set()
            gate.release(peer)
            thread.join(PATIENCE_S)
            assert entered.is_set()
        assert [future.done() for future in futures] == [True] * 4


def test_a_send_that_is_interrupted_is_not_in_and_the_producer_goes_on(connect):
    gate = Gate()
    with broker(answering(Enqueue=gate)) as peer, connect(peer.endpoint, timeout=60) as client:
        with client.producer("q", max_outstanding=1) as producer:
            first = producer.send(b"1")

            def interrupt():
                eventually(lambda: gate.held, "a thread that waits for room")
                time.sleep(0.02)  # it is about to wait: if the signal comes first, the test is the weaker, not wrong
                os.kill(os.getpid(), signal.SIGINT)

            thread = threading.Thread(target=interrupt)
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                producer.send(b"2")
            thread.join()
            gate.release(peer)
            assert producer.send(b"3").result(PATIENCE_S)
            assert first.done()
        assert batches(peer) == [[b"1"], [b"3"]]


def test_a_send_that_is_cancelled_is_not_in():
    async def main(peer, gate):
        async with AsyncClient(peer.endpoint, timeout=60) as client, client.producer("q", max_outstanding=1) as producer:
            await producer.send(b"1")
            waiting = asyncio.create_task(producer.send(b"2"))
            await until(lambda: gate.held, "a task that waits for room")
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            gate.release(peer)
            assert await asyncio.wait_for(await producer.send(b"3"), PATIENCE_S)

    gate = Gate()
    with broker(answering(Enqueue=gate)) as peer:
        asyncio.run(main(peer, gate))
        assert batches(peer) == [[b"1"], [b"3"]]


def test_a_task_that_only_sends_lets_others_run():
    async def main(peer):
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        async with AsyncClient(peer.endpoint) as client, client.producer("q", batch=10) as producer:
            ticking = asyncio.create_task(tick())
            for _ in range(1000):
                await producer.send(b"x")
            assert ticks >= 100
            ticking.cancel()

    with broker(numbered()) as peer:
        asyncio.run(main(peer))


# --- errors -----------------------------------------------------------------------------------------------------------


def refusing(sent):
    """Refuses each message that says so."""
    faults = [
        (index, to_fault(OverloadedError("full")))
        for index, envelope in enumerate(sent.command.envelopes)
        if envelope[4:] == b"bad"
    ]
    return Enqueued(HIGH, low_half(1), len(sent.command.envelopes) - len(faults), faults)


def test_an_error_reaches_the_future_and_nothing_else(connect):
    seen: list = []
    with broker(answering(Enqueue=refusing)) as peer, connect(peer.endpoint) as client:
        with client.producer("q", on_error=seen.append) as producer:
            good, bad, asked = producer.send(b"good"), producer.send(b"bad"), producer.send(b"bad")
        with pytest.raises(OverloadedError, match="full"):
            bad.result(0)
        assert good.result(0)
        assert isinstance(asked.exception(0), OverloadedError)
    del good, bad, asked
    gc.collect()
    assert seen == []


def test_an_error_that_is_not_looked_at_reaches_on_error(connect):
    seen: list = []
    with broker(answering(Enqueue=refusing)) as peer, connect(peer.endpoint) as client:
        with client.producer("q", on_error=seen.append) as producer:
            producer.send(b"bad")
            producer.send(b"good")
            kept = producer.send(b"bad")
        eventually(lambda: seen, "the error of the dropped future")
        assert [type(error) for error in seen] == [OverloadedError]
        assert kept.done()
        del kept
        gc.collect()
        eventually(lambda: len(seen) == 2, "the error of the future that was kept")


def test_on_error_may_use_the_client_whenever_a_future_is_collected():
    """A garbage collection may come while the client's lock is held."""
    answers = answering(Enqueue=refusing, ListQueues=QueueList([]))
    with broker(answers) as peer, Client(peer.endpoint) as client:
        seen: list = []
        with client.producer("q", on_error=lambda error: seen.append(client.list_queues())) as producer:
            kept = [producer.send(b"bad")]
        with client._io._lock:
            kept.clear()
            gc.collect()
            assert seen == []
        eventually(lambda: seen == [[]], "the report, once the lock is free")
        with client.producer("q", on_error=seen.append) as producer:
            kept = [producer.send(b"bad")]
    kept.clear()
    gc.collect()
    assert isinstance(seen[-1], OverloadedError)


def test_without_on_error_there_is_a_log_line(connect, caplog):
    with broker(answering(Enqueue=QueueNotFoundError("no queue 'q'"))) as peer, connect(peer.endpoint) as client:
        with caplog.at_level(logging.ERROR), client.producer("q") as producer:
            for _ in range(1000):
                producer.send(b"x")
        gc.collect()
    assert 1 <= len(caplog.records) <= 4
    assert "no queue 'q'" in caplog.text
    assert sum(record.args[0] for record in caplog.records) == 1000


def test_an_on_error_that_fails_disturbs_nothing(connect, caplog):
    def fail(error):
        raise LookupError

    with broker(answering(Enqueue=refusing)) as peer, connect(peer.endpoint) as client:
        with client.producer("q", on_error=fail) as producer:
            producer.send(b"bad")
            good = producer.send(b"good")
        assert good.result(0)
        eventually(lambda: "on_error of a producer raised" in caplog.text, "a log line")


def test_callbacks_may_use_the_client():
    """They run outside of its lock, in whichever thread."""
    with broker(numbered()) as peer, Client(peer.endpoint) as client, client.producer("q", batch=2, linger=0.001) as producer:
        results: list = []

        def after(future):
            results.append((client.list_queues(), producer.send(b"more").result))

        for _ in range(5):
            producer.send(b"x").add_done_callback(after)
        eventually(lambda: len(results) == 5, "five callbacks")
        assert all(result(PATIENCE_S) for _, result in results)


def test_what_a_cancelled_waiter_did_not_see_reaches_on_error():
    async def main(peer, gate):
        seen: list = []
        async with AsyncClient(peer.endpoint) as client, client.producer("q", on_error=seen.append, linger=0.0) as producer:
            waiting = asyncio.ensure_future(asyncio.wait_for(await producer.send(b"x"), PATIENCE_S))
            await until(lambda: gate.held, "an enqueue")
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            (sent,) = gate.held
            reply = Enqueued(HIGH, low_half(1), 0, [(0, to_fault(OverloadedError("full")))])
            peer.send(*encode_reply(Enqueue.opcode, sent.header.request, reply, sent.key))
            await until(lambda: seen, "the error")

    gate = Gate()
    with broker(answering(Enqueue=gate)) as peer:
        asyncio.run(main(peer, gate))


# --- flushing and ending ----------------------------------------------------------------------------------------------


def test_flushing(connect):
    gate = Gate()
    with broker(answering(Enqueue=gate)) as peer, connect(peer.endpoint, timeout=60) as client:
        with client.producer("q", linger=60) as producer:
            producer.flush()
            future = producer.send(b"x")
            with pytest.raises(RequestTimeoutError, match="1 messages are not confirmed"):
                producer.flush(0.02)
            gate.release(peer)
            producer.flush()
            assert future.done()


def test_a_closed_producer_takes_nothing(connect):
    with broker(numbered()) as peer, connect(peer.endpoint) as client:
        with client.producer("q") as producer:
            pass
        producer.close()
        with pytest.raises(FilaError, match="this producer is closed"):
            producer.send(b"x")


def test_leaving_with_an_error_flushes_too(connect):
    with broker(numbered()) as peer, connect(peer.endpoint) as client:
        futures: list = []

        def work():
            with client.producer("q", linger=60) as producer:
                futures.append(producer.send(b"x"))
                raise LookupError

        with pytest.raises(LookupError):
            work()
        assert futures[0].result(0)


def test_closing_the_client_fails_what_is_not_confirmed(connect):
    gate = Gate()
    with broker(answering(Enqueue=gate)) as peer:
        client = connect(peer.endpoint, timeout=60)
        with client.producer("q", batch=2, linger=60) as producer:
            futures = [producer.send(b"x") for _ in range(5)]
            eventually(lambda: gate.held, "a batch under way")
            client.close()
            assert [str(future.exception(0)) for future in futures] == ["this client is closed: open another one"] * 5
            with pytest.raises(FilaError, match="this client is closed"):
                producer.send(b"y")
            with pytest.raises(FilaError, match="this client is closed"):
                producer.flush()


def test_closing_the_client_ends_a_send_that_waits(connect):
    gate = Gate()
    with broker(answering(Enqueue=gate)) as peer:
        client = connect(peer.endpoint, timeout=60)
        producer = client.producer("q", max_outstanding=1)
        future = producer.send(b"1")
        errors: list = []

        def send():
            try:
                producer.send(b"2")
            except FilaError as error:
                errors.append(str(error))

        thread = threading.Thread(target=send)
        thread.start()
        eventually(lambda: gate.held, "a thread that waits")
        client.close()
        thread.join(PATIENCE_S)
        assert errors == ["this client is closed: open another one"]
        assert future.exception(0)
        producer.close()


def test_a_dropped_producer_warns_and_its_messages_are_sent():
    with broker(numbered()) as peer, Client(peer.endpoint) as client:
        producer = client.producer("q", linger=0.02)
        future = producer.send(b"x")
        dropped = [producer]
        del producer
        with pytest.warns(ResourceWarning, match="Producer of queue 'q', 1 messages unconfirmed.*was not closed"):
            dropped.clear()
        assert future.result(PATIENCE_S)
        client.producer("q")  # without a message, without a warning


def test_a_dropped_client_goes_when_its_messages_are_confirmed():
    with broker(numbered()) as peer:
        client = Client(peer.endpoint)
        producer = client.producer("q")
        future, gone = producer.send(b"x"), weakref.ref(client)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # a recorded warning would keep its source
            del client, producer
            eventually(lambda: gc.collect() is not None and gone() is None, "the end of the client")
        assert future.result(0)
        eventually(lambda: not stray_threads(), "the end of its thread, which nobody waits for")


PROGRAM = """
import asyncio, os, sys, warnings
from fila_cluster import AsyncClient, Client
from fila_cluster.errors import FilaError

warnings.simplefilter("ignore")
seen = []
client = Client(sys.argv[1], timeout=60)
producer = client.producer("q", on_error=seen.append)
futures = [producer.send(b"x") for _ in range(1000)]
loop = asyncio.new_event_loop()

async def send():
    asynchronous = AsyncClient(sys.argv[1], timeout=60)
    sender = asynchronous.producer("q", on_error=seen.append)
    return asynchronous, sender, [await sender.send(b"x") for _ in range(1000)]

asynchronous, sender, more = loop.run_until_complete(send())
child = os.fork()
if child == 0:
    for future in [*futures, *more]:
        assert future.done()
        try:
            future.result()
        except FilaError as error:
            assert "before the fork" in str(error), error
        else:
            raise AssertionError("not refused")
    try:
        producer.send(b"x")
    except FilaError as error:
        assert "before the fork" in str(error), error
    else:
        raise AssertionError("not refused")
    with producer:
        pass
    client.close()
    del future, futures, more
    assert seen == [], seen
    os._exit(7)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
os._exit(8)
"""


def test_futures_in_the_child_of_a_fork_have_an_error_at_once():
    with broker(answering(Enqueue=None)) as peer:
        program = [sys.executable, "-c", PROGRAM, peer.endpoint]
        result = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (result.returncode, result.stderr) == (8, "")


def test_listing_works_while_a_producer_is_busy(connect):
    with broker(numbered()) as peer, connect(peer.endpoint) as client, client.producer("q", batch=5) as producer:
        for _ in range(20):
            producer.send(b"x")
            assert client.list_queues() == []
        assert peer.seen_of(ListQueues)
