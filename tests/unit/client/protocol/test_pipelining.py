"""Producers without I/O: how messages become batches, what holds a producer back, and what becomes of it all."""

from contextlib import nullcontext

import pytest

from fila_cluster.client.protocol import pipelining
from fila_cluster.client.protocol.pipelining import COLLECTED, FULL, TO_TEND, Pipeline, Pipelines
from fila_cluster.errors import FilaError, OverloadedError, QueueNotFoundError, RequestTimeoutError
from fila_proto_zmq.codec import to_fault
from fila_proto_zmq.commands import Enqueue, Enqueued
from fila_proto_zmq.ids import format_id, high_half, low_half
from fila_proto_zmq.limits import FRAME_BYTES_MAX
from tests.unit.client.interrupts import Interrupt, interrupted_at
from tests.unit.client.peer import BORN_MS, Peer, row

HIGH = high_half(BORN_MS, 3)


class Future:
    def __init__(self):
        self.result = None

    def conclude(self, result):
        assert self.result is None
        self.result = result


class Piped:
    """A producer of a session, its peer, and its futures."""

    def __init__(self, *, linger=0.005, batch=3, max_outstanding=100, bytes_max=None, **options):
        self.peer = Peer(**options)
        self.pipelines = self.peer.session.pipelines
        if bytes_max is not None:
            self.pipelines.bytes_max = bytes_max
        self.pipe = Pipeline(self.pipelines, linger, batch, max_outstanding)
        self.sequence = 0

    def put(self, *payloads, queue="q", pipe=None, **options):
        futures = [Future() for _ in payloads]
        for payload, future in zip(payloads, futures, strict=True):
            taken = (pipe or self.pipe).put(queue, row(payload, **options), future)
            assert taken != FULL
            if taken == TO_TEND:
                (pipe or self.pipe).tend(self.peer.now)
        return futures

    def sent(self):
        return self.peer.sent(Enqueue)

    def accept(self, *frames):
        for frame in frames:
            count = len(frame.command.envelopes)
            self.peer.reply(frame, Enqueued(HIGH, low_half(self.sequence), count))
            self.sequence += count

    def resolve(self):
        self.pipelines.resolve()

    def linger(self):
        self.peer.advance(0.0051)
        return self.sent()


def id_of(sequence):
    return format_id(HIGH, low_half(sequence))


def payloads(frame):
    return [envelope[4:] for envelope in frame.command.envelopes]


# --- batches ----------------------------------------------------------------------------------------------------------


def test_a_full_batch_goes_at_once_and_the_rest_after_a_while():
    piped = Piped()
    futures = piped.put(b"1", b"2", b"3", b"4")
    (first,) = piped.sent()
    assert payloads(first) == [b"1", b"2", b"3"]
    assert piped.peer.session.next_deadline() == pytest.approx(piped.peer.now + 0.005)
    (rest,) = piped.linger()
    assert payloads(rest) == [b"4"]
    piped.accept(first, rest)
    piped.resolve()
    assert [future.result for future in futures] == [id_of(number) for number in range(4)]


def test_it_lingers_from_the_first_message_of_a_batch():
    piped = Piped(batch=100)
    piped.put(b"1")
    for _ in range(4):
        piped.peer.advance(0.001)
        piped.put(b"x")
        assert piped.sent() == []
    piped.peer.advance(0.0011)
    assert len(payloads(piped.sent()[0])) == 5


def test_without_lingering_a_message_goes_with_the_next_frames():
    piped = Piped(linger=0.0)
    piped.put(b"1")
    assert [payloads(frame) for frame in piped.sent()] == [[b"1"]]


def test_only_the_first_message_and_the_last_one_of_a_batch_need_tending():
    piped = Piped()
    taken = []
    for _ in range(4):
        taken.append(piped.pipe.put("q", row(b"x"), Future()))
        if taken[-1] == TO_TEND:
            piped.pipe.tend(piped.peer.now)
    assert taken == [TO_TEND, COLLECTED, TO_TEND, TO_TEND]


def test_each_queue_has_batches_of_its_own_and_keeps_its_order():
    piped = Piped()
    for number in range(6):
        piped.put(b"%d" % number, queue="ab"[number % 2])
    frames = {sent.key: sent for sent in piped.sent()}
    assert {key: payloads(sent) for key, sent in frames.items()} == {"a": [b"0", b"2", b"4"], "b": [b"1", b"3", b"5"]}


def test_batches_are_bounded_in_bytes():
    piped = Piped(batch=500, bytes_max=2**30, pipe_bytes_max=2**30)
    piped.put(*[bytes(FRAME_BYTES_MAX // 2)] * 3, bytes(2 * FRAME_BYTES_MAX), b"small")
    frames = piped.sent() + piped.linger()
    assert [len(frame.command.envelopes) for frame in frames] == [1, 1, 1, 1]
    piped.accept(*frames)
    (last,) = piped.sent()
    assert payloads(last) == [b"small"]


def test_several_batches_are_under_way_in_order():
    piped = Piped(batch=1)
    piped.put(*(b"%d" % number for number in range(9)))
    got = []
    while frames := piped.sent():
        got += [payloads(frame)[0] for frame in frames]
        piped.accept(*frames)
    assert got == [b"%d" % number for number in range(9)]


def test_columns_are_those_of_enqueue():
    piped = Piped(batch=2)
    piped.put(b"1", fairness_key="a", priority=3)
    piped.put(b"2", fairness_key="b", weight=2)
    command = piped.sent()[0].command
    assert (command.fairness_key, command.priority, command.weight) == (["a", "b"], [3, 0], [0, 2])


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_a_producer_is_full_until_something_is_confirmed():
    piped = Piped(batch=2, max_outstanding=4)
    piped.put(b"1", b"2", b"3", b"4")
    assert piped.pipe.put("q", row(b"5"), Future()) == FULL
    room = piped.pipe.want_room(piped.peer.now)
    first, second = piped.sent()
    assert not room.done
    piped.accept(first)
    assert room.done
    piped.put(b"5", b"6")
    assert piped.pipe.put("q", row(b"7"), Future()) == FULL
    piped.accept(second)
    assert piped.pipe.outstanding == 2


def test_who_waits_for_room_has_everything_sent():
    piped = Piped(batch=100, max_outstanding=2)
    piped.put(b"1", b"2")
    piped.pipe.want_room(piped.peer.now)
    assert [payloads(frame) for frame in piped.sent()] == [[b"1", b"2"]]


def test_who_does_not_wait_any_more_is_forgotten():
    piped = Piped(batch=1, max_outstanding=1)
    piped.put(b"1")
    room = piped.pipe.want_room(piped.peer.now)
    piped.pipelines.unwant(room)
    piped.accept(*piped.sent())
    assert not room.done
    assert piped.pipe.want_room(piped.peer.now).done


def test_the_bytes_of_all_producers_are_bounded():
    """Large payloads block long before the client has no room for other calls."""
    piped = Piped(max_outstanding=10_000, batch=10)
    other = Pipeline(piped.pipelines, 0.005, 500, 10_000)
    piped.put(*[bytes(2**20)] * 32)
    piped.put(*[bytes(2**20)] * 32, pipe=other)
    for pipe in (piped.pipe, other):
        assert pipe.put("q", row(b"x"), Future()) == FULL
    assert piped.pipelines.size_bytes < pipelining.PIPELINED_BYTES_MAX + 2**21
    rooms = [pipe.want_room(piped.peer.now) for pipe in (piped.pipe, other)]
    assert piped.peer.session.kept_bytes < 128 * 2**20
    piped.accept(*piped.sent())
    assert all(room.done for room in rooms)


def test_confirmed_messages_count_no_more():
    piped = Piped()
    for _ in range(10):
        piped.put(*[bytes(1000)] * 7)
        while frames := piped.sent() + piped.linger():
            piped.accept(*frames)
    assert (piped.pipelines.size_bytes, piped.pipe.outstanding, piped.pipe.idle) == (0, 0, True)


def test_a_producer_of_many_queues_keeps_nothing_of_them():
    piped = Piped(max_outstanding=10_000)
    for number in range(1000):
        piped.put(b"x", queue=f"q{number}")
    piped.accept(*piped.linger())
    piped.resolve()
    assert not piped.pipe._senders
    assert not piped.pipe._collecting
    assert not piped.pipelines._busy
    assert not piped.peer.session._around.senders
    assert len(piped.peer.session.timers) == 0


# --- results ----------------------------------------------------------------------------------------------------------


def test_a_fault_is_its_message_s_alone_and_each_error_is_a_copy():
    piped = Piped()
    futures = piped.put(b"1", b"2", b"3")
    piped.peer.reply(piped.sent()[0], Enqueued(HIGH, low_half(7), 2, [(1, to_fault(OverloadedError("full")))]))
    failed = piped.put(b"4", b"5", b"6")
    piped.peer.refuse(piped.sent()[0], QueueNotFoundError("no queue 'q'"))
    piped.resolve()
    assert [futures[0].result, futures[2].result] == [id_of(7), id_of(8)]
    assert isinstance(futures[1].result, OverloadedError)
    errors = [future.result for future in failed]
    assert [type(error) for error in errors] == [QueueNotFoundError] * 3
    assert len(set(map(id, errors))) == 3


def test_news_come_with_each_batch_and_not_when_there_is_nothing_to_wait_for():
    piped = Piped()
    assert piped.pipelines.want_news() is None
    piped.put(b"1")
    news = piped.pipelines.want_news()
    assert not news.done
    piped.accept(*piped.linger())
    assert news.done
    assert piped.pipelines.want_news().done
    piped.resolve()
    assert piped.pipelines.want_news() is None


def test_flushing_waits_for_the_messages_so_far():
    piped = Piped(batch=2)
    piped.put(b"1", b"2", b"3")
    flush = piped.pipe.flush(piped.peer.now, None)
    piped.put(b"4")
    first, second = piped.sent()
    assert payloads(second) == [b"3"]
    piped.accept(first)
    assert not flush.done
    piped.accept(second)
    assert flush.done
    assert piped.pipe.outstanding == 1
    assert Piped().pipe.flush(0.0, None).done


def test_flushing_may_take_too_long():
    piped = Piped()
    piped.put(b"1", b"2")
    flush = piped.pipe.flush(piped.peer.now, 1.5)
    frames = piped.sent()
    piped.peer.advance(1.5)
    piped.sent()
    with pytest.raises(RequestTimeoutError, match=r"2 messages are not confirmed after 1.5 s"):
        flush.outcome()
    piped.accept(*frames)
    assert piped.pipe.idle


def test_a_caller_that_flushes_no_more_leaves_no_timer():
    piped = Piped()
    piped.put(b"1")
    piped.pipe.unflush(piped.pipe.flush(piped.peer.now, 1000.0))
    done = piped.pipe.flush(piped.peer.now, 1000.0)
    piped.accept(*piped.sent())
    assert done.done
    piped.peer.session.timers.tick(1e9)
    assert done.error is None


def test_closing_ends_everything():
    piped = Piped(batch=2, max_outstanding=12)
    futures = piped.put(*(b"%d" % number for number in range(11)))
    piped.sent()
    piped.put(b"last")
    room, flush = piped.pipe.want_room(piped.peer.now), piped.pipe.flush(piped.peer.now, 5.0)
    closed = FilaError("closed")
    piped.peer.session.goodbye(piped.peer.now, closed)
    piped.peer.session.fail_all(closed)
    piped.resolve()
    assert [str(future.result) for future in futures] == ["closed"] * 11
    assert (room.done, flush.done) == (True, True)


def test_what_is_collected_when_the_client_closes_fails_too():
    piped = Piped()
    futures = piped.put(b"1", b"2")
    piped.peer.session.fail_all(FilaError("closed"))
    piped.resolve()
    assert [str(future.result) for future in futures] == ["closed"] * 2
    assert piped.pipe.idle


def test_all_that_is_not_resolved_is_known():
    piped = Piped(batch=2)
    futures = piped.put(b"1", b"2", b"3")
    piped.accept(*piped.sent())
    assert set(map(id, piped.pipelines.unresolved())) == set(map(id, futures))
    assert isinstance(piped.pipelines, Pipelines)


def test_resolving_that_is_interrupted_goes_on():
    class Callback(Future):
        def conclude(self, result):
            super().conclude(result)
            raise Interrupt

    piped = Piped(batch=3)
    (first,) = piped.put(b"1")
    piped.pipe.put("q", row(b"2"), interrupting := Callback())
    (last,) = piped.put(b"3")
    piped.accept(*piped.sent())
    with pytest.raises(Interrupt):
        piped.resolve()
    interrupting.result, interrupting.conclude = None, lambda result: None
    piped.resolve()
    assert (first.result, last.result) == (id_of(0), id_of(2))
    assert not piped.pipelines.completed


def test_a_callback_may_resolve_what_is_being_resolved():
    class Callback(Future):
        def conclude(self, result):
            if self.result is None:
                super().conclude(result)
                piped.resolve()

    piped = Piped(batch=2)
    piped.pipe.put("q", row(b"1"), Callback())
    futures = piped.put(b"2")
    futures += piped.put(b"3", b"4")
    piped.accept(*piped.sent())
    piped.resolve()
    assert [future.result for future in futures] == [id_of(1), id_of(2), id_of(3)]


# --- interrupts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", range(70))
def test_an_interrupt_at_any_line_of_a_send_loses_or_doubles_no_other_message(step):
    """The message itself may be in or not. All others are sent once, in order, and the producer does not hang."""
    piped = Piped(batch=2, max_outstanding=6)
    piped.pipelines.lock = nullcontext()  # a real interrupt comes between instructions, and finds the lock held or not
    futures = piped.put(b"1")
    interrupted_at(step, lambda: piped.put(b"2"), pipelining.__file__)
    futures += piped.put(b"3", b"4")
    flush = piped.pipe.flush(piped.peer.now, None)
    got = []
    while frames := piped.sent():
        got += [payload for frame in frames for payload in payloads(frame)]
        piped.accept(*frames)
    piped.resolve()
    assert flush.done
    assert got in ([b"1", b"2", b"3", b"4"], [b"1", b"3", b"4"])
    assert all(future.result for future in futures)
    assert (piped.pipe.outstanding, piped.pipelines.size_bytes, piped.pipe.idle) == (0, 0, True)
