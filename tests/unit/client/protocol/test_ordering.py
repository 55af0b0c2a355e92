"""A line of enqueues: several under way, and in order whatever is refused."""

import pytest

from fila_cluster.client.protocol.ordering import CHUNKS_UNDER_WAY, Chunk
from fila_cluster.client.protocol.producing import results_of
from fila_cluster.errors import (
    FilaError,
    OverloadedError,
    PayloadTooLargeError,
    QueueNotFoundError,
    RequestTimeoutError,
    ShardUnavailableError,
)
from fila_proto_zmq.codec import to_fault
from fila_proto_zmq.commands import Enqueue, Enqueued
from fila_proto_zmq.errors import PartitionedError
from fila_proto_zmq.ids import format_id, high_half, low_half
from fila_proto_zmq.record import seal_envelope
from tests.unit.client.peer import BORN_MS, Peer

AWAY = ShardUnavailableError("no live worker", details={"refused": True})
FULL = OverloadedError("too many requests", details={"refused": True})
LATE = OverloadedError("no time", details={"refused": True, "late": True})
HIGH = high_half(BORN_MS, 3)
LOST = ShardUnavailableError("its worker died: it may or may not have been done")


def behind(sent):
    return ShardUnavailableError("out of order", details={"refused": True, "after": sent.command.after})


class Lined:
    """A line of a session, and its peer."""

    def __init__(self, **options):
        self.peer = Peer(**options)
        self.line = self.peer.session.sender("q")
        self.ended = []

    def send(self, *payloads, dedup_id=""):
        chunks = [Chunk(Enqueue([seal_envelope(payload)], dedup_id=dedup_id)) for payload in payloads]
        for chunk in chunks:
            chunk.wake = lambda chunk=chunk: self.ended.append(chunk)
            self.peer.session.send(self.line, chunk, self.peer.now)
        return chunks

    def sent(self):
        return self.peer.sent(Enqueue)

    def accept(self, *frames):
        for frame in frames:
            self.peer.reply(frame, Enqueued(high_half(BORN_MS, 3), low_half(1), 1))

    def refuse(self, error, *frames):
        for frame in frames:
            self.peer.refuse(frame, behind(frame) if error is behind else error)


def payloads(frames):
    return [frame.command.envelopes[0][4:] for frame in frames]


def chained(frames):
    """Whether the frames are one whole sequence."""
    return [frame.command.after for frame in frames] == [0, *(frame.header.request for frame in frames[:-1])]


def test_several_are_under_way_and_each_names_the_one_before():
    lined = Lined()
    chunks = lined.send(*(b"%d" % number for number in range(6)))
    first = lined.sent()
    assert len(first) == CHUNKS_UNDER_WAY
    assert chained(first)
    lined.accept(*first[:2])
    more = lined.sent()
    assert chained(first + more)
    lined.accept(*first[2:], *more)
    assert lined.ended == chunks
    assert lined.line.idle


def test_what_is_refused_is_sent_again_when_all_have_their_answers():
    lined = Lined()
    chunks = lined.send(b"1", b"2", b"3")
    first, second, third = lined.sent()
    lined.refuse(FULL, second)
    lined.peer.advance(1)
    assert lined.sent() == []
    lined.accept(first)
    lined.refuse(behind, third)
    lined.peer.advance(0.05)
    again = lined.sent()
    assert payloads(again) == [b"2", b"3"]
    assert chained(again)
    lined.accept(*again)
    assert [chunk.error for chunk in chunks] == [None] * 3


def test_answers_in_another_order_do_not_change_that_of_the_chunks():
    lined = Lined()
    lined.send(b"1", b"2", b"3")
    first, second, third = lined.sent()
    lined.refuse(AWAY, third, first, second)
    lined.peer.advance(0.05)
    assert payloads(lined.sent()) == [b"1", b"2", b"3"]


def test_nothing_new_overtakes_what_was_refused():
    lined = Lined()
    lined.send(b"1")
    lined.refuse(AWAY, *lined.sent())
    lined.send(b"2")
    assert lined.sent() == []
    lined.peer.advance(0.05)
    assert payloads(lined.sent()) == [b"1", b"2"]


def test_a_chunk_behind_a_failed_one_is_sent_at_once():
    lined = Lined()
    failed, follower = lined.send(b"1", b"2")
    first, second = lined.sent()
    lined.refuse(QueueNotFoundError("no queue 'q'"), first)
    lined.refuse(behind, second)
    assert isinstance(failed.error, QueueNotFoundError)
    again = lined.sent()
    assert chained(again)
    lined.accept(*again)
    assert follower.error is None


def test_what_may_be_stored_is_surfaced_and_the_rest_goes_on():
    lined = Lined()
    doubtful, follower = lined.send(b"1", b"2")
    first, second = lined.sent()
    lined.refuse(LOST, first)
    lined.refuse(AWAY, second)
    assert isinstance(doubtful.error, ShardUnavailableError)
    assert "refused" not in doubtful.error.details
    lined.peer.advance(0.05)
    lined.accept(*lined.sent())
    assert follower.error is None


def test_what_the_broker_would_know_again_is_sent_again():
    lined = Lined()
    (chunk,) = lined.send(b"1", dedup_id="d")
    lined.refuse(LOST, *lined.sent())
    lined.peer.advance(0.05)
    lined.accept(*lined.sent())
    assert chunk.error is None


def test_a_lost_link_loses_what_was_sent_and_nothing_else():
    lined = Lined()
    sent, unsent = lined.send(b"1")[0], None
    lined.sent()
    unsent = lined.send(b"2")[0]  # still to be given to the socket
    lined.peer.session.disconnected(lined.peer.now)
    assert isinstance(sent.error, ShardUnavailableError)
    assert "refused" not in sent.error.details
    assert not unsent.done
    lined.peer.welcome()
    lined.peer.advance(0.05)
    lined.accept(*lined.sent())
    assert unsent.error is None


def test_pauses_grow_and_follow_the_broker_s_wish():
    lined = Lined(timeout_s=60.0)
    lined.send(b"1")
    begun, pauses = lined.peer.now, []
    for _ in range(6):
        lined.refuse(FULL, *lined.sent())
        lined.peer.now = lined.peer.session.next_deadline()
        pauses.append(lined.peer.now - begun)
        begun = lined.peer.now
    assert 0.025 <= pauses[0] <= 0.05
    assert 0.5 <= pauses[-1] <= 1.0
    lined.refuse(OverloadedError("later", retry_after=7.0, details={"refused": True}), *lined.sent())
    assert lined.peer.session.next_deadline() == pytest.approx(begun + 7.0)


def test_a_chunk_is_not_tried_for_longer_than_the_timeout():
    lined = Lined(timeout_s=5.0)
    (chunk,) = lined.send(b"1")
    while not chunk.done:
        lined.refuse(AWAY, *lined.sent())
        lined.peer.advance(0.05)
    assert 1004 < lined.peer.now <= 1005.1
    assert chunk.error.details["refused"] is True


def test_a_refusal_for_longer_than_the_timeout_is_an_error_at_once():
    lined = Lined(timeout_s=5.0)
    first, second = lined.send(b"1", b"2")
    lined.refuse(OverloadedError("later", retry_after=60.0, details={"refused": True}), *lined.sent())
    assert [type(chunk.error) for chunk in (first, second)] == [OverloadedError] * 2


def test_an_outage_does_not_take_a_timeout_for_each_chunk():
    lined = Lined(timeout_s=5.0, connected=False)
    chunks = lined.send(*(b"%d" % number for number in range(50)))
    lined.peer.advance(5.01)
    lined.peer.sent()
    lined.peer.advance(1.0)
    lined.peer.sent()
    assert [type(chunk.error) for chunk in chunks] == [RequestTimeoutError] * 50
    assert all(chunk.error.details["refused"] for chunk in chunks[CHUNKS_UNDER_WAY:])


def test_a_slow_broker_is_no_outage():
    """Each chunk has its timeout from when it is sent, as long as others are stored."""
    lined = Lined(timeout_s=5.0)
    chunks = lined.send(*(b"%d" % number for number in range(40)))
    while not lined.line.idle:
        frames = lined.sent()
        lined.peer.advance(4.0)
        lined.accept(*frames)
    assert [chunk.error for chunk in chunks] == [None] * 40


def test_the_time_of_a_chunk_begins_anew_with_each_that_is_stored():
    """The broker works on them one after the other: the last one has waited for 16 s, and never for 5 s without progress."""
    lined = Lined(timeout_s=5.0)
    chunks = lined.send(*(b"%d" % number for number in range(CHUNKS_UNDER_WAY)))
    for frame in lined.sent():
        lined.peer.advance(4.0)
        lined.accept(frame)
    assert [chunk.error for chunk in chunks] == [None] * CHUNKS_UNDER_WAY


def test_a_refused_chunk_has_fresh_time_when_another_was_stored():
    lined = Lined(timeout_s=5.0)
    chunks = lined.send(b"1", b"2")
    one, two = lined.sent()
    lined.peer.advance(4.0)
    lined.accept(one)
    lined.refuse(FULL, two)
    lined.peer.advance(0.2)
    (again,) = lined.sent()
    lined.peer.advance(4.0)
    lined.accept(again)
    assert [chunk.error for chunk in chunks] == [None, None]


def test_a_broker_that_stores_nothing_is_waited_for_once():
    lined = Lined(timeout_s=5.0)
    chunks = lined.send(*(b"%d" % number for number in range(CHUNKS_UNDER_WAY)))
    lined.peer.advance(4.0)
    lined.accept(lined.sent()[0])
    lined.peer.advance(4.9)
    lined.sent()
    assert not any(chunk.done for chunk in chunks[1:])
    lined.peer.advance(0.2)
    lined.sent()
    assert [type(chunk.error) for chunk in chunks[1:]] == [RequestTimeoutError] * (CHUNKS_UNDER_WAY - 1)


def test_the_rest_of_a_cut_chunk_is_sent_before_what_follows():
    """The broker had no time for two of four, one of which it would have refused alone; each part has its own ids."""
    lined = Lined(timeout_s=5.0)
    envelopes = [seal_envelope(b"%d" % number) for number in range(5)]
    cut = lined.peer.session.send(lined.line, Chunk(Enqueue(envelopes, priority=[*range(5)])), lined.peer.now)
    (follower,) = lined.send(b"5")
    whole, behind_it = lined.sent()
    bad, late = to_fault(PayloadTooLargeError("large")), to_fault(LATE)
    lined.peer.advance(4.0)
    lined.peer.reply(whole, Enqueued(HIGH, low_half(1), 2, [(1, bad), (3, late), (4, late)]))
    lined.refuse(behind, behind_it)
    again = lined.sent()
    assert payloads(again) == [b"3", b"5"]
    assert again[0].command.priority == [3, 4]
    assert chained(again)
    lined.peer.advance(4.0)
    lined.peer.reply(again[0], Enqueued(HIGH, low_half(7), 1, [], [(1, HIGH, low_half(3))]))
    lined.accept(again[1])
    assert (cut.error, follower.error) == (None, None)
    results = [each if isinstance(each, str) else type(each) for each in results_of(cut, 5)]
    ids = [format_id(HIGH, low_half(number)) for number in (1, 2, 7, 3)]
    assert results == [ids[0], PayloadTooLargeError, *ids[1:]]


def test_what_is_stored_of_a_chunk_stays_when_its_rest_fails():
    lined = Lined(timeout_s=5.0)
    chunk = lined.peer.session.send(lined.line, Chunk(Enqueue([seal_envelope(b"x")] * 3)), lined.peer.now)
    (whole,) = lined.sent()
    lined.peer.reply(whole, Enqueued(HIGH, low_half(1), 2, [(2, to_fault(LATE))]))
    lined.refuse(QueueNotFoundError("no queue 'q'"), *lined.sent())
    first, second, error = results_of(chunk, 3)
    assert (first, second) == (format_id(HIGH, low_half(1)), format_id(HIGH, low_half(2)))
    assert isinstance(error, QueueNotFoundError)


def test_a_chunk_of_which_nothing_is_stored_in_time_is_not_sent_for_ever():
    lined = Lined(timeout_s=5.0)
    (chunk,) = lined.send(b"1")
    lined.peer.reply(lined.sent()[0], Enqueued(HIGH, low_half(1), 0, [(0, to_fault(LATE))]))
    assert lined.sent() == []
    assert isinstance(results_of(chunk, 1)[0], OverloadedError)


def test_no_answer_is_an_unknown_outcome():
    lined = Lined(timeout_s=5.0)
    (chunk,) = lined.send(b"1")
    lined.sent()
    lined.peer.advance(5.01)
    lined.sent()
    assert isinstance(chunk.error, RequestTimeoutError)
    assert "refused" not in chunk.error.details


def test_a_message_too_large_for_the_broker_is_its_own_error():
    lined = Lined(pipe_bytes_max=2**30)
    large = bytes(40 * 1024 * 1024)
    first, failed, last = lined.send(b"1", large, b"3")
    assert isinstance(failed.error, PayloadTooLargeError)
    for payload in (b"1", b"3"):
        frames = lined.sent()
        assert payloads(frames) == [payload]
        lined.accept(*frames)
    assert (first.error, last.error) == (None, None)


def test_a_client_without_room_sends_later():
    lined = Lined(kept_bytes_max=3000)
    chunks = lined.send(*[bytes(1500)] * 3)
    for _ in range(3):
        lined.accept(*lined.sent())
        lined.peer.advance(0.2)
        lined.accept(*lined.sent())
    assert [chunk.error for chunk in chunks] == [None] * 3


@pytest.mark.parametrize("refused", [False, True])
def test_a_closed_client_ends_them_all(refused):
    lined = Lined()
    chunks = lined.send(*(b"%d" % number for number in range(9)))
    frames = lined.sent()
    if refused:
        lined.refuse(AWAY, *frames)
    closed = FilaError("closed")
    lined.peer.session.goodbye(lined.peer.now, closed)
    lined.peer.session.fail_all(closed)
    assert [str(chunk.error) for chunk in chunks] == ["closed"] * 9


def test_what_is_sent_when_the_partitions_are_known_stays_behind_what_is_still_refused():
    lined = Lined()
    lined.send(b"0", b"1")
    first, second = lined.sent()
    spread = PartitionedError("several", details={"partitions": 1, "spread": "key"})
    lined.refuse(spread, first)
    lined.send(b"2")
    lined.refuse(spread, second)
    frames = lined.sent()
    assert payloads(frames) == [b"0", b"1", b"2"]
    assert {frame.key for frame in frames} == {"q@0"}


def test_a_frame_that_is_sent_again_comes_to_its_partition_before_later_ones():
    lined = Lined()
    lined.send(b"0", b"1")
    first, second = lined.sent()
    spread = PartitionedError("several", details={"partitions": 1, "spread": "key"})
    lined.refuse(AWAY, first)
    lined.refuse(spread, second)
    frames = lined.sent()
    assert [frame.key for frame in frames] == ["q@0", "q@0"]
    assert payloads(frames) == [b"0", b"1"]
