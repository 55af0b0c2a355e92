"""The futures of threads: an id comes from the receipt of a batch, and a thread that waits is woken whatever comes first."""

import concurrent.futures
import threading

import pytest

from fila_cluster.client.io import confirming
from fila_cluster.client.io.confirming import Confirmation
from fila_cluster.client.protocol.pipelining import Pipeline, Receipt
from fila_cluster.errors import OverloadedError
from fila_proto_zmq.codec import to_fault
from fila_proto_zmq.commands import Enqueue, Enqueued
from fila_proto_zmq.ids import format_id, high_half, low_half
from tests.unit.client.peer import BORN_MS, Peer, row

HIGH, LOW = high_half(BORN_MS, 3), low_half(40)


class Sent:
    """A batch of three messages that is under way, and their futures."""

    def __init__(self):
        self.peer = Peer()
        self.pipelines = self.peer.session.pipelines
        self.pipelines.gives_receipts = True
        pipe = Pipeline(self.pipelines, 0.005, 3, 100)
        self.futures = [Confirmation(None, None) for _ in range(3)]  # type: ignore[arg-type]
        for future in self.futures:
            pipe.put("q", row(b"x"), future)
        pipe.tend(self.peer.now)
        (self.frame,) = self.peer.sent(Enqueue)

    def answer(self, *faults):
        self.peer.reply(self.frame, Enqueued(HIGH, LOW, 3 - len(faults), list(faults)))
        self.pipelines.resolve()


def id_of(place):
    return format_id(HIGH, LOW + place)


def test_a_future_that_is_asked_afterwards_costs_no_condition():
    sent = Sent()
    sent.answer()
    assert [future.result(0) for future in sent.futures] == [id_of(0), id_of(1), id_of(2)]
    assert all(future.done() and future.exception(0) is None for future in sent.futures)
    assert not any("_condition" in vars(future) for future in sent.futures)


def test_a_future_may_be_asked_before_and_after():
    sent, called = Sent(), []
    _, second, third = sent.futures
    second.add_done_callback(called.append)
    with pytest.raises(TimeoutError):
        third.result(0)
    assert not third.done()
    sent.answer()
    third.add_done_callback(called.append)
    assert called == [second, third]
    assert concurrent.futures.wait(sent.futures, 0).not_done == set()
    assert [future.result(0) for future in sent.futures] == [id_of(0), id_of(1), id_of(2)]
    assert "finished returned str" in repr(sent.futures[0])


def test_after_a_fault_each_future_has_its_own_result():
    sent = Sent()
    sent.answer((1, to_fault(OverloadedError("full"))))
    first, second, third = sent.futures
    assert (first.result(0), third.result(0)) == (id_of(0), id_of(1))
    assert isinstance(second.exception(0), OverloadedError)


@pytest.mark.parametrize("before", [True, False], ids=["before the condition is there", "after it"])
def test_an_answer_that_comes_while_a_thread_begins_to_wait_wakes_it(before, monkeypatch):
    sent, made = Sent(), threading.Condition

    def answered_meanwhile():
        condition = made()
        if before:
            sent.peer.reply(sent.frame, Enqueued(HIGH, LOW, 3))
            resolver.start()
        return condition

    resolver = threading.Thread(target=sent.pipelines.resolve)
    monkeypatch.setattr(confirming.threading, "Condition", answered_meanwhile)
    sent.futures[1].add_done_callback(lambda future: None)
    monkeypatch.undo()
    if not before:
        sent.peer.reply(sent.frame, Enqueued(HIGH, LOW, 3))
        resolver.start()
    resolver.join(10)
    assert sent.futures[1].result(10) == id_of(1)
    assert concurrent.futures.wait(sent.futures, 10).not_done == set()


def test_an_answer_between_two_looks_at_the_receipt_is_found():
    class Late(list):
        """Accepts the batch when a future asks for a result."""

        def append(self, item):
            super().append(item)
            receipt.accepted = Enqueued(HIGH, LOW, 3)

    receipt = Receipt()
    receipt.asked = Late()
    future = Confirmation(None, None)  # type: ignore[arg-type]
    future.joins(receipt, 2)
    called = []
    future.add_done_callback(called.append)
    assert called == [future]
    future.conclude(id_of(2))  # the resolver finds it among those that have asked
    assert called == [future]
