"""Patience: what is sent again, after which pause, and when it ends."""

from collections import deque
from random import Random

import pytest

from fila_cluster.client.requests.call import PendingCall
from fila_cluster.errors import (
    InvalidArgumentError,
    OverloadedError,
    PayloadTooLargeError,
    QueueNotFoundError,
    RateLimitedError,
    RequestTimeoutError,
    ShardUnavailableError,
)
from fila_cluster.spark.feed import PAUSE_S_MAX, Feed
from fila_cluster.spark.frames import Framing, RowIds, scope_of
from fila_proto_zmq.codec import to_fault
from fila_proto_zmq.commands import Enqueued
from fila_proto_zmq.record import open_envelope


class Broker:
    """Stands in for a client: answers each frame with the next of ``script``, all rows accepted when that is used up.

    An answer is an error for the frame, or errors for some rows by their payloads. ``stored`` has the payloads accepted.
    """

    def __init__(self, *script):
        self.script = deque(script)
        self.now = 100.0
        self.sent = []
        self.stored = []
        self.pauses = []
        self.waiting = deque()
        self.in_flight_most = 0

    def start(self, request):
        queue, command = request
        payloads = [open_envelope(envelope)[1] for envelope in command.envelopes]
        self.sent.append(payloads)
        call = PendingCall(queue, command, self.now, 30.0)
        self.waiting.append((call, payloads))
        self.in_flight_most = max(self.in_flight_most, len(self.waiting))
        return call

    def outcome(self, wanted):
        while not wanted.done:
            self._answer(*self.waiting.popleft())
        return wanted.outcome()

    def _answer(self, call, payloads):
        answer = self.script.popleft() if self.script else {}
        if isinstance(answer, Exception):
            call.finish(error=answer)
            return
        faults = [(index, to_fault(answer[payload])) for index, payload in enumerate(payloads) if payload in answer]
        accepted = [payload for payload in payloads if payload not in answer]
        self.stored += accepted
        call.finish(Enqueued(1, 1, len(accepted), faults))

    def sleep(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds

    def feed(self, *batches, retry_for_s=120.0):
        """Send the batches, a frame each; the rows accepted."""
        feed = Feed(self, retry_for_s, now=lambda: self.now, sleep=self.sleep, random=Random(1))
        framing = Framing("q", RowIds(scope_of("test")))
        feed.send_all(frame for batch in batches for frame in framing.frames({"payload": batch}))
        assert not self.waiting
        return feed.accepted


ROWS = [b"a", b"b", b"c"]


def test_all_at_once():
    broker = Broker()
    assert broker.feed(ROWS, [b"d"]) == 4
    assert broker.stored == [*ROWS, b"d"]
    assert broker.pauses == []


def test_several_frames_are_in_flight_and_not_more():
    broker = Broker()
    assert broker.feed(*[[b"x"]] * 10) == 10
    assert broker.in_flight_most == 4


@pytest.mark.parametrize("error", [ShardUnavailableError("down"), RequestTimeoutError("late"), RateLimitedError("slow")])
def test_a_frame_that_was_refused_goes_again(error):
    broker = Broker(error, error)
    assert broker.feed(ROWS) == 3
    assert broker.sent == [ROWS, ROWS, ROWS]
    assert broker.pauses == sorted(broker.pauses)
    assert 0 < broker.pauses[0] < broker.pauses[1] < 0.2


def test_the_broker_says_how_long_to_wait():
    broker = Broker(OverloadedError("full", retry_after=7.5))
    assert broker.feed(ROWS) == 3
    assert broker.pauses == [7.5]


def test_of_rows_that_were_refused_only_these_go_again():
    broker = Broker(
        {b"a": OverloadedError("full"), b"c": RateLimitedError("slow", retry_after=3.0)}, {b"c": OverloadedError("full")}
    )
    assert broker.feed(ROWS) == 3
    assert broker.sent == [ROWS, [b"a", b"c"], [b"c"]]
    assert broker.stored == [b"b", b"a", b"c"]
    assert broker.pauses[0] == 3.0


def test_patience_ends_when_no_row_was_accepted_for_a_while():
    broker = Broker(*[OverloadedError("queue 'q' holds 5 messages", retry_after=4.0)] * 100)
    with pytest.raises(
        OverloadedError, match=r"no row was accepted for 10 s \(option retry_for\).*: queue 'q' holds 5 messages"
    ):
        broker.feed(ROWS, retry_for_s=10.0)
    assert broker.pauses == [4.0, 4.0, 2.0]


def test_patience_does_not_end_while_there_is_progress():
    full = OverloadedError("full", retry_after=9.0)
    broker = Broker({b"b": full, b"c": full}, {b"c": full})
    assert broker.feed(ROWS, retry_for_s=10.0) == 3
    assert sum(broker.pauses) == 18.0


def test_rows_that_are_long_in_coming_cost_no_patience():
    broker = Broker(ShardUnavailableError("down"))
    feed = Feed(broker, 10.0, now=lambda: broker.now, sleep=broker.sleep, random=Random(1))

    def slow_frames():
        broker.now += 1000.0
        yield from Framing("q", RowIds(scope_of("test"))).frames({"payload": ROWS})

    feed.send_all(slow_frames())
    assert feed.accepted == 3


def test_pauses_grow_to_a_bound():
    broker = Broker(*[ShardUnavailableError("down")] * 12)
    assert broker.feed(ROWS) == 3
    assert all(PAUSE_S_MAX / 2 <= pause <= PAUSE_S_MAX for pause in broker.pauses[6:])


@pytest.mark.parametrize("error", [PayloadTooLargeError("too large"), InvalidArgumentError("no good")])
def test_a_row_that_can_never_be_accepted_is_named(error):
    broker = Broker({}, {b"e": error})
    with pytest.raises(type(error), match=f"row 4 of its partition: {error.message}"):
        broker.feed(ROWS, [b"d", b"e"])
    assert broker.sent == [ROWS, [b"d", b"e"]]


def test_a_row_that_is_named_after_a_part_was_sent_again():
    broker = Broker({b"a": OverloadedError("full"), b"c": OverloadedError("full")}, {b"c": PayloadTooLargeError("too large")})
    with pytest.raises(PayloadTooLargeError, match="row 2 of"):
        broker.feed(ROWS)


def test_what_ends_a_frame_ends_the_task():
    broker = Broker(QueueNotFoundError("no queue 'q'"))
    with pytest.raises(QueueNotFoundError, match=r"^no queue 'q'$"):
        broker.feed(ROWS)
    with pytest.raises(PayloadTooLargeError, match="row 0 of its partition: a message of 9 bytes"):
        Broker(PayloadTooLargeError("a message of 9 bytes")).feed([b"alone"])
