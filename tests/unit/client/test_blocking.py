"""The blocking client over a real socket: threads, time, loss, and how it ends."""

import gc
import inspect
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings

import pytest

from fila_cluster import AsyncClient, Client, Consumer, Message
from fila_cluster.client.protocol.producing import FRAMES_IN_FLIGHT
from fila_cluster.errors import (
    AlreadySettledError,
    BatchError,
    FilaError,
    InvalidArgumentError,
    QueueNotFoundError,
    RequestTimeoutError,
    ShardUnavailableError,
    UnsupportedVersionError,
)
from fila_proto_zmq.codec import encode_reply
from fila_proto_zmq.commands import (
    CancelReceive,
    Delivered,
    Enqueue,
    Enqueued,
    GetQueueStats,
    Goodbye,
    ListQueues,
    QueueList,
    Receive,
    Redrive,
    Redriven,
    Settle,
    Subscribe,
    Unsubscribe,
    Verb,
)
from fila_proto_zmq.ids import high_half, low_half
from tests.support.cluster import PATIENCE_S, eventually
from tests.unit.client.peer import BORN_MS, batch, broker, give_up, usual_answer


def stray_threads():
    return [thread for thread in threading.enumerate() if thread.name == "fila-cluster-keeper"]


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    descriptors = len(os.listdir("/proc/self/fd"))
    yield
    assert stray_threads() == []
    gc.collect()
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors, "descriptors are closed")


def answering(**answers):
    """The usual answers, but for the commands named: a value, or a function of the frame."""

    def answer(sent):
        special = answers.get(type(sent.command).__name__, usual_answer)
        return special(sent) if callable(special) else special

    return answer


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# --- opening ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", ["localhost:5555", "http://x", "tcp://x", "", 3, "tcp://127.0.0.1:port"])
def test_bad_endpoints(endpoint, monkeypatch):
    monkeypatch.delenv("FILA_ENDPOINT", raising=False)
    with pytest.raises(InvalidArgumentError, match="endpoint"):
        Client(endpoint)
    gc.collect()


@pytest.mark.parametrize("timeout", [0, -1, None, "5", float("inf")])
def test_bad_timeouts(timeout):
    with pytest.raises(InvalidArgumentError, match="timeout"):
        Client("tcp://127.0.0.1:1", timeout=timeout)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_key_that_would_protect_nothing_is_refused_and_not_told(kind):
    for name in ("api_key", "server_key"):
        with pytest.raises(InvalidArgumentError, match=name) as caught:
            kind("tcp://127.0.0.1:1", **{name: "s3cret"})
        assert "s3cret" not in str(caught.value)
    assert inspect.signature(kind).parameters["api_key"].default is None
    gc.collect()


def test_the_endpoint_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("FILA_ENDPOINT", "tcp://127.0.0.1:7")
    with Client() as client:
        assert client.endpoint == "tcp://127.0.0.1:7"
    monkeypatch.delenv("FILA_ENDPOINT")
    with Client() as client:
        assert client.endpoint == "tcp://127.0.0.1:5555"


def test_where_nobody_listens_a_call_ends_in_time_and_says_so():
    with Client(f"tcp://127.0.0.1:{free_port()}", timeout=0.2) as client:
        begun = time.monotonic()
        with pytest.raises(RequestTimeoutError, match=r"no broker answers at tcp://127.*fila-cluster up"):
            client.list_queues()
        assert 0.2 <= time.monotonic() - begun < PATIENCE_S


def test_a_broker_of_another_version_is_told_at_once():
    with broker(answering(Hello=UnsupportedVersionError("only 9"))) as peer, Client(peer.endpoint) as client:
        with pytest.raises(UnsupportedVersionError):
            client.list_queues()
        with pytest.raises(UnsupportedVersionError):
            next(client.consume("q"))


# --- calls ------------------------------------------------------------------------------------------------------------


def test_calls_answer_or_raise():
    with broker(answering(ListQueues=QueueList([]), GetQueueStats=QueueNotFoundError("no queue 'q'"))) as peer:
        with Client(peer.endpoint) as client:
            assert client.list_queues("a") == []
            with pytest.raises(QueueNotFoundError):
                client.queue_stats("q")
        assert peer.seen_of(ListQueues)[0].command == ListQueues("a")
        assert peer.seen_of(GetQueueStats)[0].key == "q"


def test_a_silent_broker():
    with broker(answering(ListQueues=None)) as peer, Client(peer.endpoint, timeout=1.0) as client:
        client.enqueue("q", b"x")
        for _ in range(2):
            with pytest.raises(RequestTimeoutError, match="no answer"):
                client.list_queues()


def test_a_refusal_is_ridden_out_without_the_caller_s_help():
    refusals = [ShardUnavailableError("down", details={"refused": True})] * 3
    answer = answering(ListQueues=lambda _: refusals.pop() if refusals else QueueList([]))
    with broker(answer) as peer, Client(peer.endpoint) as client:
        assert client.list_queues() == []


def test_enqueue_and_enqueue_many():
    with broker() as peer, Client(peer.endpoint) as client:
        first = client.enqueue("q", b"x", {"a": "b"}, fairness_key="k", priority=3)
        assert client.enqueue_many("q", [Message(b"x")] * 2)[0] == first
        assert peer.seen_of(Enqueue)[0].command.priority == 3


def test_enqueue_many_keeps_several_frames_in_flight():
    """And no more than that: the peer answers nothing."""
    with broker(answering(Enqueue=None, ListQueues=QueueList([]))) as peer, Client(peer.endpoint, timeout=1.0) as client:
        with pytest.raises(BatchError):
            client.enqueue_many("q", [Message(b"x")] * 20_000)
        eventually(lambda: len(peer.seen_of(Enqueue)) >= FRAMES_IN_FLIGHT, "all that may be in flight has arrived")
        client.list_queues()  # comes after whatever else was sent
        assert len(peer.seen_of(Enqueue)) == FRAMES_IN_FLIGHT


def test_arguments_are_checked_before_anybody_is_asked():
    with Client("tcp://127.0.0.1:1") as client:
        for call in (
            lambda: client.enqueue("bad name", b""),
            lambda: client.enqueue("q", "text"),
            lambda: client.enqueue("q", b"", delay=-1),
            lambda: client.enqueue("q", b"", delay=False),
            lambda: client.enqueue("q", b"", delay=""),
            lambda: client.enqueue_many("q", Message(b"")),
            lambda: client.enqueue_many("bad name", []),
            lambda: client.create_queue("x.dlq"),
            lambda: client.create_queue("x", visibility_timeout=0),
            lambda: client.create_queue("x", max_attempts=0),
            lambda: client.delete_queue(""),
            lambda: client.list_queues(None),
            lambda: client.receive("q", 0),
            lambda: client.receive("q", wait=-1),
            lambda: client.receive_any({}),
            lambda: client.receive_any(["q"]),
            lambda: client.receive_any({"q": 0}),
            lambda: client.receive_any({"bad name": 1}),
            lambda: client.consume("q", prefetch=0),
            lambda: client.redrive("q.dlq", -1),
            lambda: client.ack([None]),
            lambda: client.ack(None),
            lambda: client.nack([], ValueError("x")),
        ):
            with pytest.raises(InvalidArgumentError):
                call()


def test_redriving_goes_step_by_step():
    steps = [Redriven(1000, 700), Redriven(500, 200)]
    with broker(answering(Redrive=lambda _: steps.pop(0))) as peer, Client(peer.endpoint) as client:
        assert client.redrive("q.dlq", 1500) == 1500
        assert [sent.command.count for sent in peer.seen_of(Redrive)] == [1000, 500]


@pytest.mark.parametrize("steps", [[Redriven(10, 0)], [Redriven(10, 5), Redriven(0, 5)]])
def test_redriving_all_ends_when_nothing_moves(steps):
    with broker(answering(Redrive=lambda _: steps.pop(0))) as peer, Client(peer.endpoint) as client:
        assert client.redrive("q.dlq") == 10


# --- receiving --------------------------------------------------------------------------------------------------------


def test_receive_and_settle():
    with broker(answering(Receive=Delivered(0, [batch(7, 4)]))) as peer, Client(peer.endpoint) as client:
        first, second, third, fourth = client.receive("q", 4)
        first.ack()
        second.nack("why", metadata=b"m")
        third.retry(1.5)
        fourth.defer(0.25)
        with pytest.raises(AlreadySettledError):
            first.ack()
        settled = [(sent.command.verb, sent.command.after_ms) for sent in peer.seen_of(Settle)]
        assert settled == [(Verb.ACK, 0), (Verb.NACK, 0), (Verb.RETRY, 1500), (Verb.DEFER, 250)]


def test_receive_asks_again_if_a_frame_could_carry_no_more():
    answers = [Delivered(0, [batch(1, 500)]), Delivered(0, [batch(2, 100)])]
    with broker(answering(Receive=lambda _: answers.pop(0))) as peer, Client(peer.endpoint) as client:
        deliveries = client.receive("q", 1000, wait=0.1)
        assert len(deliveries) == 600
        assert [(sent.command.count, sent.command.wait_ms) for sent in peer.seen_of(Receive)] == [(1000, 100), (500, 0)]
        client.ack(deliveries)
        assert peer.seen_of(Settle)[0].command.fences == [(1, []), (2, [])]


def test_what_was_received_is_not_lost_to_an_error_of_the_second_frame():
    answers = [Delivered(0, [batch(1, 500)]), QueueNotFoundError("deleted")]
    with broker(answering(Receive=lambda _: answers.pop(0))) as peer, Client(peer.endpoint) as client:
        deliveries = client.receive("q", 1000)
        assert len(deliveries) == 500
        client.ack(deliveries)


def test_receiving_from_several_queues():
    def answer(sent):
        return Delivered(0, [batch(7, 2)]) if sent.key == "b" else Delivered(0, [])

    with broker(answering(Receive=answer)) as peer, Client(peer.endpoint) as client:
        deliveries = client.receive_any({"a": 1, "b": 2}, wait=5)
        assert [delivery.queue for delivery in deliveries] == ["b", "b"]
        client.ack(deliveries)
        assert client.receive_any({"a": 1, "c": 1}) == []


def test_a_receive_that_is_interrupted_leaves_nothing_leased():
    """The broker is told, and what it sends all the same goes back."""

    def answer(sent):
        return Delivered(0, []) if sent.command.wait_ms == 0 else None

    with broker(answering(Receive=answer)) as peer, Client(peer.endpoint) as client:

        def waiting():
            return {sent.key: sent.header.request for sent in peer.seen_of(Receive) if sent.command.wait_ms}

        def interrupt():
            eventually(lambda: len(waiting()) == 2, "two queues that are waited for")
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            client.receive_any({"a": 1, "b": 1}, wait=60)
        thread.join()
        eventually(lambda: len(peer.seen_of(CancelReceive)) == 2, "that they are told")
        assert {sent.key: sent.command.request for sent in peer.seen_of(CancelReceive)} == waiting()
        peer.send(*encode_reply(30, waiting()["b"], Delivered(0, [batch(9, 2)]), "b"))
        client.enqueue("q", b"x")
        eventually(lambda: peer.seen_of(Settle), "the release")
        assert peer.seen_of(Settle)[0].command == Settle(Verb.RELEASE, [(9, [])])


def test_consuming():
    with broker() as peer, Client(peer.endpoint) as client:
        with client.consume("q", prefetch=5) as consumer:
            eventually(lambda: peer.seen_of(Subscribe), "a subscription")
            peer.push("q", 1, batch(7, 3))
            held = [next(consumer), next(consumer)]
        eventually(
            lambda: peer.seen_of(Unsubscribe) and peer.seen_of(Settle), "the end of the subscription, and what goes back"
        )
        assert peer.seen_of(Settle)[0].command == Settle(Verb.RELEASE, [(7, [2])])
        with pytest.raises(StopIteration):
            next(consumer)
        client.ack(held)


def test_a_loop_that_ends_leaves_too():
    with broker() as peer, Client(peer.endpoint) as client:
        consumer = client.consume("q")
        eventually(lambda: peer.seen_of(Subscribe), "a subscription")
        peer.push("q", 1, batch(7, 3))
        for delivery in consumer:
            delivery.ack()
            break
        del consumer
        eventually(lambda: len(peer.seen_of(Settle)) == 2, "the release")
        assert peer.seen_of(Settle)[1].command == Settle(Verb.RELEASE, [(7, [1, 2])])


def test_several_threads_take_from_one_consumer():
    with broker() as peer, Client(peer.endpoint) as client, client.consume("q") as consumer:
        got = []

        def take():
            delivery = next(consumer)
            delivery.ack()
            got.append(delivery.id)

        threads = [threading.Thread(target=take) for _ in range(5)]
        for thread in threads:
            thread.start()
        eventually(lambda: peer.seen_of(Subscribe), "a subscription")
        for lease in range(5):
            peer.push("q", 1, batch(lease + 1, 1))
        for thread in threads:
            thread.join()
        assert len(set(got)) == 5


def test_leases_are_kept_alive_while_the_caller_is_busy():
    with broker() as peer, Client(peer.endpoint) as client, client.consume("q") as consumer:
        eventually(lambda: peer.seen_of(Subscribe), "a subscription")
        peer.push("q", 1, batch(7, 1, duration_ms=150))
        delivery = next(consumer)
        eventually(lambda: len([s for s in peer.seen_of(Subscribe) if s.command.renew == [7]]) >= 3, "renewals")
        delivery.ack()


# --- threads ----------------------------------------------------------------------------------------------------------


def test_calls_of_many_threads_each_get_their_own_answer():
    answer = answering(GetQueueStats=lambda sent: QueueNotFoundError(sent.key))
    with broker(answer) as peer, Client(peer.endpoint) as client:
        answers = set()

        def ask(name):
            for number in range(50):
                try:
                    client.queue_stats(f"{name}-{number}")
                except QueueNotFoundError as error:
                    answers.add(str(error) == f"{name}-{number}")

        threads = [threading.Thread(target=ask, args=(f"thread{index}",)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == {True}


def test_a_call_is_answered_while_another_one_waits():
    released = threading.Event()

    def slow(sent):
        return None if sent.command.wait_ms else Delivered(0, [])

    with broker(answering(Receive=slow, ListQueues=QueueList([]))) as peer, Client(peer.endpoint) as client:

        def wait():
            assert client.receive("q", wait=4 * PATIENCE_S) == []
            released.set()

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: peer.seen_of(Receive), "a leader")
        assert client.list_queues() == []
        assert not released.is_set()
        (sent,) = peer.seen_of(Receive)
        peer.send(*encode_reply(30, sent.header.request, Delivered(0, []), sent.key))
        thread.join()
        assert released.is_set()


def test_a_follower_s_deadline_counts_while_the_leader_waits_for_ever():
    with broker(answering(ListQueues=None)) as peer, Client(peer.endpoint, timeout=1.0) as client:
        consumer = client.consume("q")
        thread = threading.Thread(target=lambda: list(consumer))
        thread.start()
        eventually(lambda: peer.seen_of(Subscribe), "a leader")
        with pytest.raises(RequestTimeoutError):
            client.list_queues()
        consumer.close()
        thread.join()


def test_the_lead_is_passed_on():
    """The first to wait is answered first; the others still get theirs."""
    with broker(answering(Receive=None)) as peer, Client(peer.endpoint) as client:
        done = []

        def receive(queue):
            deliveries = client.receive(queue, wait=5)
            client.ack(deliveries)
            done.append(queue)

        threads = []
        for index in range(4):
            threads.append(threading.Thread(target=receive, args=(f"q{index}",)))
            threads[-1].start()
            eventually(lambda count=index + 1: len(peer.seen_of(Receive)) == count, "a receive")
        for index, sent in enumerate(peer.seen_of(Receive)):
            peer.send(*encode_reply(30, sent.header.request, Delivered(0, [batch(index + 1)]), sent.key))
            threads[index].join()
        assert done == ["q0", "q1", "q2", "q3"]


def test_enqueues_of_threads_that_wait_coalesce():
    """While one thread holds the socket, the others' messages gather."""
    with broker() as peer, Client(peer.endpoint) as client:
        client.enqueue("q", b"warm")
        with client._io._lock:
            threads = [threading.Thread(target=client.enqueue, args=("q", b"x")) for _ in range(5)]
            for thread in threads:
                thread.start()
            eventually(lambda: len(client._session._producer._new) == 5, "five messages")
        for thread in threads:
            thread.join()
        assert [len(sent.command.envelopes) for sent in peer.seen_of(Enqueue)] == [1, 5]


# --- loss -------------------------------------------------------------------------------------------------------------


def test_it_rides_through_a_restart_of_the_broker():
    with broker(answering(ListQueues=QueueList([]))) as peer, Client(peer.endpoint) as client:
        assert client.list_queues() == []
        port = int(peer.endpoint.rsplit(":", 1)[1])
        peer.close()
        with broker(answering(ListQueues=QueueList([])), port):
            assert client.list_queues() == []


def test_a_consumer_comes_back_by_itself():
    with broker() as peer, Client(peer.endpoint) as client, client.consume("q") as consumer:
        eventually(lambda: peer.seen_of(Subscribe), "a subscription")
        port = int(peer.endpoint.rsplit(":", 1)[1])
        peer.close()
        with broker(port=port) as second:
            eventually(lambda: second.seen_of(Subscribe), "the subscription, again")
            second.push("q", 1, batch(7))
            next(consumer).ack()


def test_a_call_in_flight_when_the_broker_dies_ends_at_once():
    with broker(answering(Enqueue=None)) as peer, Client(peer.endpoint, timeout=30) as client:
        errors = []

        def enqueue():
            try:
                client.enqueue("q", b"x")
            except FilaError as error:
                errors.append(error)

        thread = threading.Thread(target=enqueue)
        thread.start()
        eventually(lambda: peer.seen_of(Enqueue), "an enqueue in flight")
        peer.close()
        thread.join(PATIENCE_S)
        assert [type(error) for error in errors] == [ShardUnavailableError]


def test_after_an_idle_time_the_first_call_does_not_pay_for_an_earlier_loss():
    with broker() as peer, Client(peer.endpoint) as client:
        client.enqueue("q", b"x")
        port = int(peer.endpoint.rsplit(":", 1)[1])
        peer.close()
        with broker(port=port) as second:
            eventually(lambda: client._io._link._monitor.poll(0), "the loss is known")
            time.sleep(0.03)  # an idle time is what this is about
            client.enqueue("q", b"x")
            assert second.seen_of(Enqueue)


def test_foreign_frames_disturb_nothing():
    with broker(answering(ListQueues=QueueList([]))) as peer, Client(peer.endpoint) as client:
        assert client.list_queues() == []
        for parts in ([b"x"], [b"x" * 18, b"", b""], [b"FC" + bytes(16), b"", b"x"], [b"a", b"b", b"c", b"d", b"e"]):
            peer.send(*parts)
        assert client.list_queues() == []
        assert client.list_queues() == []


# --- closing ----------------------------------------------------------------------------------------------------------


def test_closing_says_goodbye_where_something_was_received():
    with broker(answering(Receive=Delivered(0, [batch(7, 2)]))) as peer:
        with Client(peer.endpoint) as client:
            deliveries = client.receive("q.dlq", 2)
        eventually(lambda: [sent.key for sent in peer.seen_of(Goodbye)] == ["q"], "a goodbye")
        assert client.closed
        del deliveries  # without a warning
        client.close()


def test_a_closed_client_says_so():
    client = Client("tcp://127.0.0.1:1")
    client.close()
    for call in (lambda: client.enqueue("q", b"x"), client.list_queues, lambda: client.consume("q")):
        with pytest.raises(FilaError, match="closed"):
            call()


def test_closing_ends_what_others_wait_for():
    with broker(answering(Receive=None)) as peer:
        client = Client(peer.endpoint)
        ended = []

        def receive():
            with pytest.raises(FilaError, match="closed"):
                client.receive("q", wait=60)
            ended.append("receive")

        def consume():
            ended.append(list(client.consume("q")))

        threads = [threading.Thread(target=receive), threading.Thread(target=consume)]
        for thread in threads:
            thread.start()
        eventually(lambda: peer.seen_of(Receive) and peer.seen_of(Subscribe), "two threads that wait")
        client.close()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert sorted(map(str, ended)) == ["[]", "receive"]


def test_closing_waits_a_second_for_a_silent_broker():
    with broker(answering(Goodbye=None)) as peer:
        client = Client(peer.endpoint, timeout=4 * PATIENCE_S)
        consumer = client.consume("q")
        eventually(lambda: peer.seen_of(Subscribe), "a subscription")
        begun = time.monotonic()
        client.close()
        assert time.monotonic() - begun < PATIENCE_S, "and not for as long as for an answer"
        del consumer


def test_a_client_that_is_never_closed_is_warned_of_and_cleaned_up():
    with broker() as peer:
        client = Client(peer.endpoint)
        consumer = client.consume("q")  # starts the keeper
        eventually(lambda: peer.seen_of(Subscribe) and stray_threads(), "a subscription")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del client, consumer
            gc.collect()
        assert ["never closed" in str(warning.message) for warning in caught] == [True]
        eventually(lambda: not stray_threads(), "the keeper ends")


def test_a_client_that_goes_with_a_cycle_is_warned_of_once_and_what_nobody_took_is_not():
    with broker() as peer:
        client = Client(peer.endpoint)
        consumer = client.consume("q")
        eventually(lambda: peer.seen_of(Subscribe), "a subscription")
        peer.push("q", 1, batch(7, 3))
        client.enqueue("q", b"x")  # takes in what was pushed before
        client.cycle = [client, consumer]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del client, consumer
            gc.collect()
        assert ["never closed" in str(warning.message) for warning in caught] == [True]
        eventually(lambda: not stray_threads(), "the keeper ends")


def test_a_delivery_that_is_dropped_is_warned_of():
    with broker(answering(Receive=Delivered(0, [batch(7, 2)]))) as peer, Client(peer.endpoint) as client:
        with pytest.warns(ResourceWarning, match="never settled"):
            client.receive("q")
        deliveries = client.receive("q")
        give_up(*deliveries)


def test_prefetched_deliveries_are_dropped_without_a_warning():
    with broker() as peer, Client(peer.endpoint) as client:
        with client.consume("q"):
            eventually(lambda: peer.seen_of(Subscribe), "a subscription")
            peer.push("q", 1, batch(7, 3))
            client.enqueue("q", b"x")  # takes in what was pushed before
        gc.collect()


def signal_once_it_waits(consumer: Consumer, number: signal.Signals) -> threading.Thread:
    """Send this process a signal as soon as somebody waits for a delivery, from the thread that is returned."""

    def watch():
        eventually(lambda: consumer._subscription.waiting, "somebody waits")
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def test_an_interrupt_leaves_the_client_usable():
    with broker(answering(ListQueues=QueueList([]))) as peer, Client(peer.endpoint) as client:
        consumer = client.consume("q")
        eventually(lambda: peer.seen_of(Subscribe), "a subscription")
        signalling = signal_once_it_waits(consumer, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            next(consumer)
        signalling.join()
        assert client.list_queues() == []
        consumer.close()


def test_a_signal_handler_may_close_the_client_while_its_call_sleeps():
    with broker() as peer:
        client = Client(peer.endpoint)
        before = signal.signal(signal.SIGUSR1, lambda *_: client.close())
        try:
            consumer = client.consume("q")
            signalling = signal_once_it_waits(consumer, signal.SIGUSR1)
            assert list(consumer) == []
            signalling.join()
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert client.closed


PROGRAM = """
import sys, warnings
from fila_cluster import Client
client = Client(sys.argv[1])
consumer = client.consume("q")
client.enqueue("q", b"x")
{ending}
"""


@pytest.mark.parametrize(
    ("ending", "code"), [("", 0), ("client.close()", 0), ("sys.exit(3)", 3), ("import os; os.kill(os.getpid(), 15)", -15)]
)
def test_a_program_that_ends_ends(ending, code):
    with broker() as peer:
        program = [sys.executable, "-c", PROGRAM.format(ending=ending), peer.endpoint]
        result = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (result.returncode, result.stderr) == (code, "")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork_the_child_is_told_to_open_its_own():
    with (
        broker(answering(Receive=Delivered(0, [batch(7, 1)]), ListQueues=QueueList([]))) as peer,
        Client(peer.endpoint) as client,
    ):
        (delivery,) = client.receive("q")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                client.list_queues()
            except FilaError as error:
                os.write(writing, str(error).encode())
            finally:
                os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        with os.fdopen(reading) as said:
            assert "before the fork" in said.read()
        assert client.list_queues() == []
        delivery.ack()


def test_ids_of_enqueue_are_those_of_the_broker():
    with broker(answering(Enqueue=Enqueued(high_half(BORN_MS, 3), low_half(9), 1))) as peer, Client(peer.endpoint) as client:
        assert client.enqueue("q", b"x").endswith("000000000009")
