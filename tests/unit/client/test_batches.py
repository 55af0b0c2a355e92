"""``consume_batches`` of both clients over a real socket: batches, settlements that are confirmed later, and how it ends."""

import asyncio
import gc
import inspect
import logging
import os
import signal
import threading
import time

import pytest

from fila_cluster import AsyncBatch, AsyncBatchConsumer, AsyncClient, Batch, BatchConsumer, Client
from fila_cluster.errors import (
    AlreadySettledError,
    BatchError,
    FilaError,
    InvalidArgumentError,
    LeaseExpiredError,
    QueueNotFoundError,
    RateLimitedError,
)
from fila_proto_zmq.codec import encode_reply, to_fault
from fila_proto_zmq.commands import Enqueue, Settle, Settled, Subscribe, Unsubscribe, Verb
from tests.support.cluster.cluster import PATIENCE_S, eventually
from tests.unit.client.conftest import until
from tests.unit.client.peer import answering, batch, broker

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")

EXPIRED = LeaseExpiredError("its lease has ended")


class Settling:
    """Answers settlements: with the faults of ``bad`` leases, or, while ``holding``, not at all."""

    def __init__(self, *bad, holding=False):
        self.bad = set(bad)
        self.holding = holding
        self.held = []

    def answer(self, sent):
        return Settled([(lease, -1, to_fault(EXPIRED)) for lease, _ in sent.command.fences if lease in self.bad])

    def __call__(self, sent):
        if self.holding:
            self.held.append(sent)
            return None
        return self.answer(sent)

    def release(self, peer):
        self.holding = False
        for sent in self.held:
            peer.send(*encode_reply(Settle.opcode, sent.header.request, self.answer(sent), sent.key))


def opened(peer, client, **options):
    """A consumer of batches whose subscription the broker has seen."""
    consumer = client.consume_batches("q", **{"max_messages": 2, "max_wait": 0.01, **options})
    eventually(lambda: peer.seen_of(Subscribe), "a subscription")
    return consumer


def settled(peer):
    return [
        (Verb(sent.command.verb), sent.command.fences) for sent in peer.seen_of(Settle) if sent.command.verb != Verb.RELEASE
    ]


# --- batches ----------------------------------------------------------------------------------------------------------


def test_signatures():
    def shape(function):
        return [(each.name, each.default, each.kind) for each in inspect.signature(function).parameters.values()]

    assert shape(Client.consume_batches) == shape(AsyncClient.consume_batches)
    assert [(name, default) for name, default, _ in shape(Client.consume_batches)[2:]] == [
        ("max_messages", 500),
        ("max_wait", 0.05),
        ("prefetch", None),
    ]
    for kinds in ((Batch, AsyncBatch), (BatchConsumer, AsyncBatchConsumer)):
        here, there = ({name for name in dir(kind) if not name.startswith("_")} for kind in kinds)
        assert here == there - {"aclose"}


def test_a_full_batch_is_handed_over_at_once_and_a_smaller_one_after_a_while(connect):
    with broker() as peer, connect(peer.endpoint) as client, opened(peer, client, max_wait=0.2) as batches:
        peer.push("q", 1, batch(1, 5))
        sizes = []
        for each in batches:
            sizes.append(len(each))
            each.ack()
            if len(sizes) == 3:
                break
        assert sizes == [2, 2, 1]
        assert peer.seen_of(Subscribe)[0].command.prefetch == 8


def test_it_waits_for_the_first_message_however_long(connect):
    with broker() as peer, connect(peer.endpoint) as client, opened(peer, client, max_wait=0.0) as batches:
        threading.Timer(0.1, lambda: peer.push("q", 1, batch(1, 1))).start()
        each = next(batches)
        assert len(each) == 1
        each.ack()


def test_a_batch_fills_up_while_it_waits(connect):
    with broker() as peer, connect(peer.endpoint) as client, opened(peer, client, max_wait=PATIENCE_S) as batches:
        peer.push("q", 1, batch(1, 1))
        threading.Timer(0.05, lambda: peer.push("q", 1, batch(2, 1))).start()
        each = next(batches)
        assert len(each) == 2
        each.ack()


def test_a_batch_is_a_sequence(connect):
    with broker() as peer, Client(peer.endpoint) as client, opened(peer, client, max_messages=3) as batches:
        peer.push("q", 1, batch(1, 3))
        each = next(batches)
        assert (len(each), each[0], each[-1], each[:2]) == (3, next(iter(each)), list(each)[2], list(each)[:2])
        assert each[0] in each
        assert "Batch of 3 deliveries" in repr(each)
        each.ack()


def test_bad_arguments(connect):
    with connect("tcp://127.0.0.1:1") as client:
        for options in (
            {"queue": "bad name"}, {"max_messages": 0}, {"max_messages": 100_001}, {"max_messages": 1.5}, {"max_wait": -1},
            {"max_wait": None}, {"prefetch": 0}, {"prefetch": 100_001},
        ):  # fmt: skip
            with pytest.raises(InvalidArgumentError):
                client.consume_batches(**{"queue": "q", **options})


def test_a_queue_that_does_not_exist(connect):
    with broker(answering(Subscribe=QueueNotFoundError("no queue 'q'"))) as peer, connect(peer.endpoint) as client:
        with pytest.raises(QueueNotFoundError), client.consume_batches("q") as batches:
            next(batches)


# --- settling ---------------------------------------------------------------------------------------------------------


def test_settling_sends_at_once_and_does_not_wait(connect):
    settling = Settling(holding=True)
    with broker(answering(Settle=settling)) as peer, connect(peer.endpoint, timeout=60) as client:
        with opened(peer, client) as batches:
            peer.push("q", 1, batch(1, 2))
            next(batches).ack()
            eventually(lambda: settled(peer) == [(Verb.ACK, [(1, [])])], "the settlement, unconfirmed")
            settling.release(peer)


def test_each_delivery_in_its_own_way(connect):
    with broker(answering(Settle=Settling())) as peer, connect(peer.endpoint) as client:
        with opened(peer, client, max_messages=7) as batches:
            peer.push("q", 1, batch(1, 7))
            each = next(batches)
            a, b, c, d, e, _, g = each
            g.ack()
            each.settle({a: "ack", b: "fail", c: ("fail", "broken"), d: ("retry", 1.5), e: ("defer", 2)})
            each.nack("the rest")
        kinds = [(Verb(sent.command.verb), sent.command.error, sent.command.after_ms) for sent in peer.seen_of(Settle)]
        assert kinds == [
            (Verb.ACK, "", 0), (Verb.ACK, "", 0), (Verb.FAIL, "", 0), (Verb.FAIL, "broken", 0), (Verb.RETRY, "", 1500), (Verb.DEFER, "", 2000),
            (Verb.NACK, "the rest", 0),
        ]  # fmt: skip
        assert peer.seen_of(Settle)[-1].command.fences == [(1, [5])]


def test_what_is_no_settlement_settles_nothing(connect):
    with broker(answering(Settle=Settling())) as peer, connect(peer.endpoint) as client, opened(peer, client) as batches:
        peer.push("q", 1, batch(1, 2))
        each = next(batches)
        first, second = each
        for outcome in (
            "bury",
            None,
            3,
            "defer",
            ("ack", 1),
            ("retry", -1),
            ("retry", "x"),
            ("fail", 3),
            ("fail", "x", 1),
            ["ack"],
            ("defer", 0),
        ):
            with pytest.raises(InvalidArgumentError):
                each.settle({first: "ack", second: outcome})
        with pytest.raises(InvalidArgumentError, match="dict of deliveries"):
            each.settle([first])
        with pytest.raises(InvalidArgumentError, match="is not a delivery"):
            each.settle({"x": "ack"})
        with pytest.raises(InvalidArgumentError):
            each.nack(ValueError("x"))
        assert settled(peer) == []
        each.ack()
        each.ack()
        each.settle({})
    assert settled(peer) == [(Verb.ACK, [(1, [])])]


def test_settling_again_is_an_error_at_once_and_the_others_are_settled(connect):
    with broker(answering(Settle=Settling())) as peer, connect(peer.endpoint) as client, opened(peer, client) as batches:
        peer.push("q", 1, batch(1, 2))
        each = next(batches)
        first, second = each
        first.ack()
        with pytest.raises(BatchError) as caught:
            each.settle({first: "ack", second: "ack"})
        assert [type(error) for error in caught.value.results] == [AlreadySettledError, type(None)]
    assert settled(peer) == [(Verb.ACK, [(1, [0])]), (Verb.ACK, [(1, [1])])]


def test_a_failed_settlement_is_raised_by_the_next_step(connect):
    with broker(answering(Settle=Settling(1))) as peer, connect(peer.endpoint) as client, opened(peer, client) as batches:
        peer.push("q", 1, batch(1, 2), batch(2, 2))
        first = next(batches)
        first.ack()
        with pytest.raises(
            BatchError, match=r"2 of 2 deliveries were not settled; the first is number 0: its lease"
        ) as caught:
            next(batches)
        assert [type(error) for error in caught.value.results] == [LeaseExpiredError] * 2
        assert caught.value.details["message_ids"] == [each.id for each in first]
        next(batches).ack()  # it is raised once


def test_a_failed_settlement_is_raised_though_no_message_comes(connect):
    with broker(answering(Settle=Settling(1))) as peer, connect(peer.endpoint) as client, opened(peer, client) as batches:
        peer.push("q", 1, batch(1, 2))
        next(batches).ack()
        with pytest.raises(BatchError):
            next(batches)


def test_a_failed_settlement_is_raised_on_leaving(connect):
    with broker(answering(Settle=Settling(1))) as peer, connect(peer.endpoint) as client:
        batches = opened(peer, client)
        peer.push("q", 1, batch(1, 2))
        next(batches).ack()
        with pytest.raises(BatchError, match="its lease has ended"):
            batches.close()
        batches.close()


def test_an_error_of_the_body_keeps_its_place_and_names_the_failed_settlement(connect):
    def work():
        with opened(peer, client) as batches:
            peer.push("q", 1, batch(1, 2))
            next(batches).ack()
            raise LookupError("mine")

    with broker(answering(Settle=Settling(1))) as peer, connect(peer.endpoint) as client:
        with pytest.raises(LookupError, match="mine") as caught:
            work()
        (note,) = caught.value.__notes__
        assert "its lease has ended" in note


def test_while_settlements_succeed_one_may_be_under_way(connect):
    """So the broker settles one batch while the caller works on the next. More than one is waited for."""
    settling = Settling()
    with broker(answering(Settle=settling)) as peer, connect(peer.endpoint, timeout=60) as client:
        with opened(peer, client, max_messages=100) as batches:
            peer.push("q", 1, *(batch(lease, 100) for lease in range(1, 6)))
            next(batches).ack()
            second = next(batches)
            settling.holding = True
            second.ack()
            third = next(batches)
            eventually(lambda: settling.held, "a settlement without an answer")
            third.ack()
            taken = threading.Event()
            fourth = []

            def take():
                fourth.append(next(batches))
                taken.set()

            thread = threading.Thread(target=take)
            thread.start()
            eventually(lambda: len(settling.held) == 2, "two of them")
            assert not taken.wait(0.05)
            settling.release(peer)
            thread.join(PATIENCE_S)
            fourth[0].ack()


def test_a_small_batch_is_confirmed_before_the_next_one(connect):
    settling = Settling(2)
    with broker(answering(Settle=settling)) as peer, connect(peer.endpoint) as client, opened(peer, client) as batches:
        peer.push("q", 1, *(batch(lease, 2) for lease in range(1, 5)))
        next(batches).ack()
        next(batches).ack()
        with pytest.raises(BatchError):
            next(batches)


def test_a_later_failure_is_not_lost(connect):
    settling = Settling(2)
    with broker(answering(Settle=settling)) as peer, connect(peer.endpoint, timeout=60) as client:
        batches = opened(peer, client, max_messages=100)
        peer.push("q", 1, *(batch(lease, 100) for lease in range(1, 5)))
        next(batches).ack()
        second = next(batches)
        settling.holding = True
        second.ack()
        third = next(batches)
        eventually(lambda: settling.held, "its settlement")
        settling.release(peer)
        third.ack()
        with pytest.raises(BatchError) as caught:
            next(batches)
        assert caught.value.details["message_ids"] == [each.id for each in second]
        batches.close()


def test_several_failures_are_one_error(connect):
    with broker(answering(Settle=Settling(1, 2))) as peer, connect(peer.endpoint) as client:
        batches = opened(peer, client)
        peer.push("q", 1, batch(1, 1), batch(2, 1))
        first, second = each = next(batches)
        each.settle({first: "ack"})
        each.settle({second: "fail"})
        with pytest.raises(BatchError, match="2 of 2") as caught:
            batches.close()
        assert len(caught.value.details["message_ids"]) == 2


def test_after_a_retryable_failure_a_delivery_may_be_settled_again(connect):
    answers = [RateLimitedError("too fast"), Settled()]
    with broker(answering(Settle=lambda _: answers.pop(0))) as peer, connect(peer.endpoint) as client:
        with opened(peer, client) as batches:
            peer.push("q", 1, batch(1, 2))
            each = next(batches)
            each.ack()
            with pytest.raises(BatchError, match="too fast"):
                next(batches)
            each.ack()
        assert len(settled(peer)) == 2


# --- interrupts -------------------------------------------------------------------------------------------------------


def test_an_interrupt_while_it_confirms_loses_no_failure(connect):
    settling = Settling(1, holding=True)
    with broker(answering(Settle=settling)) as peer, connect(peer.endpoint, timeout=60) as client:
        batches = opened(peer, client)
        peer.push("q", 1, batch(1, 2))
        next(batches).ack()

        def interrupt():
            eventually(lambda: settling.held, "a settlement under way")
            time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        thread.join()
        settling.release(peer)
        with pytest.raises(BatchError):
            batches.close()


def test_a_step_that_is_cancelled_takes_nothing():
    async def main(peer):
        async with AsyncClient(peer.endpoint) as client, client.consume_batches("q", max_messages=2, max_wait=60) as batches:
            await until(lambda: peer.seen_of(Subscribe), "a subscription")
            peer.push("q", 1, batch(1, 1))
            step = asyncio.create_task(anext(batches))
            await until(lambda: batches._subscription.ready, "a message")
            step.cancel()
            with pytest.raises(asyncio.CancelledError):
                await step
            assert len(client._session.timers) == 0 or client._session.timers.due_at > 0
            peer.push("q", 1, batch(2, 1))
            each = await anext(batches)
            assert len(each) == 2
            await each.ack()

    with broker() as peer:
        asyncio.run(main(peer))


# --- ending -----------------------------------------------------------------------------------------------------------


def test_leaving_gives_back_what_was_not_handed_over(connect):
    with broker(answering(Settle=Settling())) as peer, connect(peer.endpoint) as client:
        with opened(peer, client) as batches:
            peer.push("q", 1, batch(1, 2), batch(2, 3))
            next(batches).ack()
        assert peer.seen_of(Unsubscribe)
        released = [sent.command.fences for sent in peer.seen_of(Settle) if sent.command.verb == Verb.RELEASE]
        assert released == [[(2, [])]]
        assert list(batches) == []


def test_what_the_caller_holds_stays_and_may_be_settled_after_leaving(connect):
    with broker(answering(Settle=Settling())) as peer, connect(peer.endpoint) as client:
        with opened(peer, client) as batches:
            peer.push("q", 1, batch(1, 2))
            each = next(batches)
        each[0].ack()
        client.ack([each[1]])


def test_deliveries_that_are_dropped_unsettled_warn():
    with broker() as peer, Client(peer.endpoint) as client, opened(peer, client) as batches:
        peer.push("q", 1, batch(1, 2))
        held = [next(batches)]
        with pytest.warns(ResourceWarning, match="was never settled"):
            held.clear()


def test_a_dropped_iterator_is_left_and_its_failures_are_logged(caplog):
    with broker(answering(Settle=Settling(1))) as peer, Client(peer.endpoint) as client:
        batches = opened(peer, client)
        peer.push("q", 1, batch(1, 2))
        next(batches).ack()
        client.enqueue("q", b"x")  # its answer comes behind that of the settlement
        with caplog.at_level(logging.ERROR):
            del batches
            gc.collect()
        assert "its lease has ended" in caplog.text
        client.enqueue("q", b"x")
        assert peer.seen_of(Unsubscribe)


def test_closing_the_client_ends_it(connect):
    with broker(answering(Settle=Settling())) as peer:
        client = connect(peer.endpoint)
        batches = opened(peer, client)
        peer.push("q", 1, batch(1, 2))
        next(batches).ack()
        client.close()
        assert list(batches) == []
        batches.close()
        with pytest.raises(FilaError, match="closed"):
            client.consume_batches("q")


def test_several_threads_take_batches():
    with (
        broker(answering(Settle=Settling())) as peer,
        Client(peer.endpoint) as client,
        opened(peer, client, max_messages=1) as batches,
    ):
        got: list = []

        def take():
            for _ in range(5):
                each = next(batches)
                got.append(each[0].id)
                each.ack()

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for lease in range(1, 21):
            peer.push("q", 1, batch(lease, 1))
        for thread in threads:
            thread.join(PATIENCE_S)
        assert len(set(got)) == 20


def test_at_most_once_deliveries_are_settled_when_they_are_handed_over(connect):
    with broker(answering(Settle=Settling())) as peer, connect(peer.endpoint) as client, opened(peer, client) as batches:
        peer.push("q", 1, batch(1, 2, at_most_once=True))
        each = next(batches)
        eventually(lambda: settled(peer), "their acks")
        each.ack()
        with pytest.raises(BatchError, match="delivered at most once"):
            each.nack()


def test_producing_while_consuming(connect):
    with broker(answering(Settle=Settling())) as peer, connect(peer.endpoint) as client:
        with opened(peer, client) as batches, client.producer("q", linger=0.0) as producer:
            for lease in range(1, 20):
                peer.push("q", 1, batch(lease, 2))
                each = next(batches)
                producer.send(b"x")
                each.ack()
        assert sum(len(sent.command.envelopes) for sent in peer.seen_of(Enqueue)) == 19
