"""What only the blocking client has: threads that lead and follow, a thread for heartbeats, signals, forks, finalizers."""

import gc
import math
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import fila_cluster.client
from fila_cluster import Client, Consumer, Message
from fila_cluster.client.io import link
from fila_cluster.client.protocol.encoding import seal_message
from fila_cluster.errors import (
    FilaError,
    RequestTimeoutError,
)
from fila_proto_zmq.codec import encode_reply
from fila_proto_zmq.commands import (
    Delivered,
    Enqueue,
    Enqueued,
    QueueList,
    Receive,
    Subscribe,
)
from tests.support.cluster.cluster import PATIENCE_S, eventually
from tests.unit.client.conftest import stray_threads
from tests.unit.client.interrupts import interrupted_at
from tests.unit.client.peer import answering, batch, broker, give_up

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")


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
            eventually(lambda: len(client._session._singles.collected) == 5, "five messages")
        for thread in threads:
            thread.join()
        assert [len(sent.command.envelopes) for sent in peer.seen_of(Enqueue)] == [1, 5]


def test_a_thread_that_only_sends_reads_what_has_come_when_it_tends_its_producer(monkeypatch):
    monkeypatch.setattr(link, "_LOOK_S", math.inf)
    with broker(answering(Enqueue=None, ListQueues=QueueList([]))) as peer, Client(peer.endpoint) as client:
        client.list_queues()
        pending = client._session.enqueue("q", seal_message(Message(b"x")))
        client._io.ask(lambda now: None)
        eventually(lambda: peer.seen_of(Enqueue), "the message")
        (sent,) = peer.seen_of(Enqueue)
        peer.send(*encode_reply(20, sent.header.request, Enqueued(1, 1, 1), sent.key))
        eventually(lambda: client._io._links.router._socket.poll(0), "its answer")
        client._io.ask(lambda now: None)
        assert not pending.done
        client._io.ask(lambda now: None, None)
        assert pending.done


def test_after_an_idle_time_the_first_call_does_not_pay_for_an_earlier_loss():
    with broker() as peer, Client(peer.endpoint) as client:
        client.enqueue("q", b"x")
        port = int(peer.endpoint.rsplit(":", 1)[1])
        peer.close()
        with broker(port=port) as second:
            eventually(lambda: client._io._links.router._monitor.poll(0), "the loss is known")
            time.sleep(0.03)  # an idle time is what this is about
            client.enqueue("q", b"x")
            assert second.seen_of(Enqueue)


@contextmanager
def warned_once_of_a_client_that_is_never_closed() -> Iterator[None]:
    """What is dropped here is collected, with its thread."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert ["never closed" in str(warning.message) for warning in caught] == [True]
    eventually(lambda: not stray_threads(), "the end of its thread")


def test_a_client_that_is_never_closed_is_warned_of_and_cleaned_up():
    with broker() as peer:
        client = Client(peer.endpoint)
        consumer = client.consume("q")  # starts its thread
        eventually(lambda: peer.seen_of(Subscribe) and stray_threads(), "a subscription")
        with warned_once_of_a_client_that_is_never_closed():
            del client, consumer


def test_a_client_that_goes_with_a_cycle_is_warned_of_once_and_prefetched_deliveries_are_not():
    with broker() as peer:
        client = Client(peer.endpoint)
        consumer = client.consume("q")
        eventually(lambda: peer.seen_of(Subscribe), "a subscription")
        peer.push("q", 1, batch(7, 3))
        client.enqueue("q", b"x")  # takes in what was pushed before
        client.cycle = [client, consumer]
        with warned_once_of_a_client_that_is_never_closed():
            del client, consumer


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
    """Send this process a signal as soon as a call waits for a delivery, from the thread that is returned."""

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


CLIENT = str(Path(fila_cluster.client.__file__).parent)


@pytest.mark.parametrize("first", range(3))
def test_an_interrupt_at_any_line_of_the_first_call_leaves_the_client_usable(first):
    """While it connects, too: what was half done with the router is begun anew."""
    with broker(answering(ListQueues=QueueList([]))) as peer:
        step = first
        while True:
            with Client(peer.endpoint, timeout=PATIENCE_S) as client:
                was_interrupted = interrupted_at(step, client.list_queues, CLIENT)
                assert client.list_queues() == []
                client._session._calls.check()
            if not was_interrupted:
                break
            step += 3


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
def test_after_a_fork_the_child_has_to_open_its_own():
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
