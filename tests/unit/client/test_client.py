"""Both clients over a real socket: calls, deliveries, loss, and how it ends."""

import gc
import inspect
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fila_cluster import AsyncClient, Client, Message, Request
from fila_cluster.client import checks
from fila_cluster.client.forwarding import CommandsAhead
from fila_cluster.client.protocol.ordering import CHUNKS_UNDER_WAY
from fila_cluster.errors import (
    AlreadySettledError,
    BatchError,
    FilaError,
    InvalidArgumentError,
    LeaseExpiredError,
    QueueNotFoundError,
    RequestTimeoutError,
    ShardUnavailableError,
    UnsupportedVersionError,
)
from fila_proto_zmq.codec import encode_reply
from fila_proto_zmq.commands import (
    CancelReceive,
    ClusterStatus,
    Delivered,
    DescribeQueue,
    Enqueue,
    Enqueued,
    GetClusterStatus,
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
from tests.support.cluster.cluster import PATIENCE_S, eventually
from tests.unit.client.peer import BORN_MS, answering, batch, broker, free_port, usual_answer

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")


# --- opening ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", ["localhost:5555", "http://x", "tcp://x", "", 3, "tcp://127.0.0.1:port"])
def test_bad_endpoints(connect, endpoint, monkeypatch):
    monkeypatch.delenv("FILA_ENDPOINT", raising=False)
    with pytest.raises(InvalidArgumentError, match="endpoint"):
        connect(endpoint)
    gc.collect()


@pytest.mark.parametrize("timeout", [0, -1, None, "5", float("inf")])
def test_bad_timeouts(connect, timeout):
    with pytest.raises(InvalidArgumentError, match="timeout"):
        connect("tcp://127.0.0.1:1", timeout=timeout)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    "keys",
    [
        {"server_key": "s3cret"},
        {"server_key": "s" * 39 + "é"},
        {"server_key": "#" * 40},
        {"server_key": 7},
        {"api_key": 7},
        {"api_key": "s3cret" * 100},
    ],
)
def test_what_can_be_no_key_is_refused_and_not_quoted(kind, keys):
    with pytest.raises(InvalidArgumentError, match=next(iter(keys))) as caught:
        kind("tcp://127.0.0.1:1", **keys)
    assert "s3cret" not in str(caught.value)
    assert inspect.signature(kind).parameters["api_key"].default is None
    gc.collect()


def test_keys_may_come_from_the_environment_or_a_file(monkeypatch, tmp_path):
    file = tmp_path / "key"
    file.write_text("fila_from_file\n")
    monkeypatch.setenv("FILA_API_KEY_FILE", str(file))
    assert checks.api_key_or_default(None) == "fila_from_file"
    monkeypatch.setenv("FILA_API_KEY", "fila_from_variable")
    assert checks.api_key_or_default(None) == "fila_from_variable"
    assert checks.api_key_or_default("fila_given") == "fila_given"
    monkeypatch.delenv("FILA_API_KEY")
    monkeypatch.setenv("FILA_API_KEY_FILE", str(tmp_path / "missing"))
    with pytest.raises(InvalidArgumentError, match="FILA_API_KEY_FILE="):
        checks.api_key_or_default(None)
    assert checks.server_key_or_default(None) is None
    monkeypatch.setenv("FILA_SERVER_KEY", "x" * 40)
    assert checks.server_key_or_default(None) == "x" * 40
    two = f"{'x' * 40},{'y' * 40}"
    assert checks.server_key_or_default(two) == two
    for wrong in ("", "x" * 39, f"{two},", ",".join(["x" * 40] * 5), 7, "é" * 40):
        with pytest.raises(InvalidArgumentError, match="auth init"):
            checks.server_key_or_default(wrong)


def test_the_endpoint_may_come_from_the_environment(connect, monkeypatch):
    monkeypatch.setenv("FILA_ENDPOINT", "tcp://127.0.0.1:7")
    with connect() as client:
        assert client.endpoint == "tcp://127.0.0.1:7"
    monkeypatch.delenv("FILA_ENDPOINT")
    with connect() as client:
        assert client.endpoint == "tcp://127.0.0.1:5555"


def test_without_a_broker_a_call_ends_in_time_with_the_reason(connect):
    with connect(f"tcp://127.0.0.1:{free_port()}", timeout=0.2) as client:
        begun = time.monotonic()
        with pytest.raises(RequestTimeoutError, match=r"no broker answers at tcp://127.*fila-cluster up"):
            client.list_queues()
        assert 0.2 <= time.monotonic() - begun < PATIENCE_S


def test_a_broker_of_another_version_is_an_error_at_once(connect):
    with broker(answering(Hello=UnsupportedVersionError("only 9"))) as peer, connect(peer.endpoint) as client:
        with pytest.raises(UnsupportedVersionError):
            client.list_queues()
        with pytest.raises(UnsupportedVersionError):
            next(client.consume("q"))


# --- calls ------------------------------------------------------------------------------------------------------------


def test_calls_answer_or_raise(connect):
    with broker(answering(ListQueues=QueueList([]), GetQueueStats=QueueNotFoundError("no queue 'q'"))) as peer:
        with connect(peer.endpoint) as client:
            assert client.list_queues("a") == []
            with pytest.raises(QueueNotFoundError):
                client.queue_stats("q")
        assert peer.seen_of(ListQueues)[0].command == ListQueues("a")
        assert peer.seen_of(GetQueueStats)[0].key == "q"


def test_a_silent_broker(connect):
    with broker(answering(ListQueues=None)) as peer, connect(peer.endpoint, timeout=1.0) as client:
        client.enqueue("q", b"x")
        for _ in range(2):
            with pytest.raises(RequestTimeoutError, match="no answer"):
                client.list_queues()


def test_a_refusal_is_ridden_out_without_the_caller_s_help(connect):
    refusals = [ShardUnavailableError("down", details={"refused": True})] * 3
    answer = answering(ListQueues=lambda _: refusals.pop() if refusals else QueueList([]))
    with broker(answer) as peer, connect(peer.endpoint) as client:
        assert client.list_queues() == []


def test_enqueue_and_enqueue_many(connect):
    with broker() as peer, connect(peer.endpoint) as client:
        first = client.enqueue("q", b"x", {"a": "b"}, fairness_key="k", priority=3)
        assert client.enqueue_many("q", [Message(b"x")] * 2)[0] == first
        assert peer.seen_of(Enqueue)[0].command.priority == 3


def test_ids_of_enqueue_are_those_of_the_broker(connect):
    with broker(answering(Enqueue=Enqueued(high_half(BORN_MS, 3), low_half(9), 1))) as peer, connect(peer.endpoint) as client:
        assert client.enqueue("q", b"x").endswith("000000000009")


def test_enqueue_many_keeps_several_frames_in_flight(connect):
    """And no more than that: the peer answers nothing."""
    with broker(answering(Enqueue=None, ListQueues=QueueList([]))) as peer, connect(peer.endpoint, timeout=1.0) as client:
        with pytest.raises(BatchError):
            client.enqueue_many("q", [Message(b"x")] * 20_000)
        eventually(lambda: len(peer.seen_of(Enqueue)) >= CHUNKS_UNDER_WAY, "all that may be in flight has arrived")
        client.list_queues()  # comes after whatever else was sent
        assert len(peer.seen_of(Enqueue)) == CHUNKS_UNDER_WAY


def test_enqueue_many_reads_a_generator_no_further_than_it_may_send(connect):
    read, unanswered = 0, []

    def messages():
        nonlocal read
        for _ in range(20_000):
            read += 1
            yield Message(b"x")

    def answer(sent):
        return usual_answer(sent) if read < 5000 else unanswered.append(sent)

    def enqueue(client):
        with pytest.raises(BatchError):
            client.enqueue_many("q", messages())

    with broker(answering(Enqueue=answer)) as peer:
        client = connect(peer.endpoint, timeout=60)
        thread = threading.Thread(target=enqueue, args=(client,))
        thread.start()
        eventually(lambda: len(unanswered) == CHUNKS_UNDER_WAY, "as much as may be under way")
        assert read <= sum(len(each.command.envelopes) for each in peer.seen_of(Enqueue)) + 500
        client.close()
        thread.join(PATIENCE_S)


def test_arguments_are_checked_before_anybody_is_asked(connect):
    with connect("tcp://127.0.0.1:1") as client:
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


def test_redriving_goes_step_by_step(connect):
    steps = [Redriven(1000, 700), Redriven(500, 200)]
    with broker(answering(Redrive=lambda _: steps.pop(0))) as peer, connect(peer.endpoint) as client:
        assert client.redrive("q.dlq", 1500) == 1500
        assert [sent.command.count for sent in peer.seen_of(Redrive)] == [1000, 500]


@pytest.mark.parametrize("steps", [[Redriven(10, 0)], [Redriven(10, 5), Redriven(0, 5)]])
def test_redriving_all_ends_when_nothing_moves(connect, steps):
    answers = iter(steps)
    with broker(answering(Redrive=lambda _: next(answers))) as peer, connect(peer.endpoint) as client:
        assert client.redrive("q.dlq") == 10


def test_calls_of_many_threads_each_get_their_own_answer(connect):
    answer = answering(GetQueueStats=lambda sent: QueueNotFoundError(sent.key))
    with broker(answer) as peer, connect(peer.endpoint) as client:
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


def test_a_call_is_answered_while_another_one_waits(connect):
    released = threading.Event()

    def slow(sent):
        return None if sent.command.wait_ms else Delivered(0, [])

    with broker(answering(Receive=slow, ListQueues=QueueList([]))) as peer, connect(peer.endpoint) as client:

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


def test_any_command_may_be_sent(connect):
    status = ClusterStatus("1.0", 4, [])
    with (
        broker(answering(GetClusterStatus=status, DescribeQueue=QueueNotFoundError("no queue 'q'"))) as peer,
        connect(peer.endpoint) as client,
    ):
        assert client.request(GetClusterStatus()) == status
        with pytest.raises(QueueNotFoundError):
            client.request(Request("q", DescribeQueue()))
        assert peer.seen_of(DescribeQueue)[0].key == "q"


def test_several_commands_may_be_on_their_way():
    with broker(answering(ListQueues=lambda sent: QueueList([], sent.command.prefix == "b"))) as peer:
        with Client(peer.endpoint) as client:
            commands = CommandsAhead(client)
            first, second = commands.start(ListQueues("a")), commands.start(ListQueues("b"))
            assert commands.outcome(second).more
            assert not commands.outcome(first).more


@pytest.mark.parametrize(
    "command", ["ListQueues", None, ListQueues, Request("bad name", DescribeQueue()), Request("q", None)]
)
def test_what_is_no_command_is_not_sent(connect, command):
    with connect("tcp://127.0.0.1:1") as client, pytest.raises(InvalidArgumentError):
        client.request(command)


# --- receiving --------------------------------------------------------------------------------------------------------


def test_receive_and_settle(connect):
    with broker(answering(Receive=Delivered(0, [batch(7, 4)]))) as peer, connect(peer.endpoint) as client:
        first, second, third, fourth = client.receive("q", 4)
        first.ack()
        second.nack("why", metadata=b"m")
        third.retry(1.5)
        fourth.defer(0.25)
        with pytest.raises(AlreadySettledError):
            first.ack()
        settled = [(sent.command.verb, sent.command.after_ms) for sent in peer.seen_of(Settle)]
        assert settled == [(Verb.ACK, 0), (Verb.NACK, 0), (Verb.RETRY, 1500), (Verb.DEFER, 250)]


def test_receive_asks_again_if_a_frame_could_carry_no_more(connect):
    answers = [Delivered(0, [batch(1, 500)]), Delivered(0, [batch(2, 100)])]
    with broker(answering(Receive=lambda _: answers.pop(0))) as peer, connect(peer.endpoint) as client:
        deliveries = client.receive("q", 1000, wait=0.1)
        assert len(deliveries) == 600
        assert [(sent.command.count, sent.command.wait_ms) for sent in peer.seen_of(Receive)] == [(1000, 100), (500, 0)]
        client.ack(deliveries)
        assert peer.seen_of(Settle)[0].command.fences == [(1, []), (2, [])]


def test_what_was_received_is_not_lost_to_an_error_of_the_second_frame(connect):
    answers = [Delivered(0, [batch(1, 500)]), QueueNotFoundError("deleted")]
    with broker(answering(Receive=lambda _: answers.pop(0))) as peer, connect(peer.endpoint) as client:
        deliveries = client.receive("q", 1000)
        assert len(deliveries) == 500
        client.ack(deliveries)


def test_receiving_from_several_queues(connect):
    def answer(sent):
        return Delivered(0, [batch(7, 2)]) if sent.key == "b" else Delivered(0, [])

    with broker(answering(Receive=answer)) as peer, connect(peer.endpoint) as client:
        deliveries = client.receive_any({"a": 1, "b": 2}, wait=5)
        assert [delivery.queue for delivery in deliveries] == ["b", "b"]
        client.ack(deliveries)
        assert client.receive_any({"a": 1, "c": 1}) == []


def test_a_receive_that_is_interrupted_leaves_nothing_leased(connect):
    """The broker is informed, and what it sends all the same goes back."""

    def answer(sent):
        return Delivered(0, []) if sent.command.wait_ms == 0 else None

    with broker(answering(Receive=answer)) as peer, connect(peer.endpoint) as client:

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


def test_settling_many(connect):
    with broker(answering(Receive=Delivered(0, [batch(7, 5)]))) as peer, connect(peer.endpoint) as client:
        deliveries = client.receive("q", 5)
        deliveries[0].ack()
        client.ack(deliveries[1:])
        with pytest.raises(BatchError):
            client.nack(deliveries)
        with pytest.raises(AlreadySettledError):
            deliveries[0].fail()
        with pytest.raises(LeaseExpiredError):
            deliveries[0].extend(1)
        assert [sent.command.verb for sent in peer.seen_of(Settle)] == [Verb.ACK, Verb.ACK]


# --- consuming --------------------------------------------------------------------------------------------------------


def test_consuming(connect):
    with broker() as peer, connect(peer.endpoint) as client:
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


def test_a_loop_that_ends_leaves_too(connect):
    with broker() as peer, connect(peer.endpoint) as client:
        consumer = client.consume("q")
        eventually(lambda: peer.seen_of(Subscribe), "a subscription")
        peer.push("q", 1, batch(7, 3))
        for delivery in consumer:
            delivery.ack()
            break
        del consumer
        eventually(lambda: len(peer.seen_of(Settle)) == 2, "the release")
        assert peer.seen_of(Settle)[1].command == Settle(Verb.RELEASE, [(7, [1, 2])])


def test_several_threads_take_from_one_consumer(connect):
    with broker() as peer, connect(peer.endpoint) as client, client.consume("q") as consumer:
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


def test_leases_are_kept_alive_while_the_caller_is_busy(connect):
    with broker() as peer, connect(peer.endpoint) as client, client.consume("q") as consumer:
        eventually(lambda: peer.seen_of(Subscribe), "a subscription")
        peer.push("q", 1, batch(7, 1, duration_ms=150))
        delivery = next(consumer)
        eventually(lambda: len([s for s in peer.seen_of(Subscribe) if s.command.renew == [7]]) >= 3, "renewals")
        delivery.ack()


def test_consuming_a_queue_that_does_not_exist(connect):
    with broker(answering(Subscribe=QueueNotFoundError("no queue 'q'"))) as peer, connect(peer.endpoint) as client:
        with pytest.raises(QueueNotFoundError):
            list(client.consume("q"))


# --- loss -------------------------------------------------------------------------------------------------------------


def test_it_rides_through_a_restart_of_the_broker(connect):
    with broker(answering(ListQueues=QueueList([]))) as peer, connect(peer.endpoint) as client:
        assert client.list_queues() == []
        port = int(peer.endpoint.rsplit(":", 1)[1])
        peer.close()
        with broker(answering(ListQueues=QueueList([])), port):
            assert client.list_queues() == []


def test_a_consumer_comes_back_by_itself(connect):
    with broker() as peer, connect(peer.endpoint) as client, client.consume("q") as consumer:
        eventually(lambda: peer.seen_of(Subscribe), "a subscription")
        port = int(peer.endpoint.rsplit(":", 1)[1])
        peer.close()
        with broker(port=port) as second:
            eventually(lambda: second.seen_of(Subscribe), "the subscription, again")
            second.push("q", 1, batch(7))
            next(consumer).ack()


def test_a_call_in_flight_when_the_broker_dies_ends_at_once(connect):
    with broker(answering(Enqueue=None)) as peer, connect(peer.endpoint, timeout=30) as client:
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


def test_foreign_frames_disturb_nothing(connect):
    with broker(answering(ListQueues=QueueList([]))) as peer, connect(peer.endpoint) as client:
        assert client.list_queues() == []
        for parts in ([b"x"], [b"x" * 18, b"", b""], [b"FC" + bytes(16), b"", b"x"], [b"a", b"b", b"c", b"d", b"e"]):
            peer.send(*parts)
        assert client.list_queues() == []
        assert client.list_queues() == []


def test_a_question_in_flight_when_the_broker_dies_is_asked_again(connect):
    with broker(answering(GetQueueStats=None)) as peer, connect(peer.endpoint) as client, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.queue_stats, "q")
        eventually(lambda: peer.seen_of(GetQueueStats), "a question in flight")
        port = int(peer.endpoint.rsplit(":", 1)[1])
        peer.close()
        with broker(answering(GetQueueStats=QueueNotFoundError("asked again")), port):
            with pytest.raises(QueueNotFoundError, match="asked again"):
                asked.result(PATIENCE_S)


# --- closing ----------------------------------------------------------------------------------------------------------


def test_closing_says_goodbye_where_something_was_received(connect):
    with broker(answering(Receive=Delivered(0, [batch(7, 2)]))) as peer:
        with connect(peer.endpoint) as client:
            deliveries = client.receive("q.dlq", 2)
        eventually(lambda: [sent.key for sent in peer.seen_of(Goodbye)] == ["q"], "a goodbye")
        assert client.closed
        del deliveries  # without a warning
        client.close()


def test_a_closed_client_says_so(connect):
    client = connect("tcp://127.0.0.1:1")
    client.close()
    for call in (lambda: client.enqueue("q", b"x"), client.list_queues, lambda: client.consume("q")):
        with pytest.raises(FilaError, match="closed"):
            call()


def test_closing_ends_what_others_wait_for(connect):
    with broker(answering(Receive=None)) as peer:
        client = connect(peer.endpoint)
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


def test_closing_waits_a_second_for_a_silent_broker(connect):
    with broker(answering(Goodbye=None)) as peer:
        client = connect(peer.endpoint, timeout=4 * PATIENCE_S)
        consumer = client.consume("q")
        eventually(lambda: peer.seen_of(Subscribe), "a subscription")
        begun = time.monotonic()
        client.close()
        assert time.monotonic() - begun < PATIENCE_S, "and not for as long as for an answer"
        del consumer
