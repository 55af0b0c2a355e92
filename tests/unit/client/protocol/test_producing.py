"""Coalescing enqueues, and batches."""

import pytest

from fila_cluster import Message
from fila_cluster.client.protocol.producing import MESSAGES_PER_FRAME, Bulk
from fila_cluster.errors import (
    BatchError,
    InvalidArgumentError,
    InvalidFrameError,
    PayloadTooLargeError,
    QueueNotFoundError,
    ShardUnavailableError,
)
from fila_proto_zmq.codec import to_fault
from fila_proto_zmq.commands import Enqueue, Enqueued
from fila_proto_zmq.ids import format_id, high_half, low_half
from fila_proto_zmq.limits import FRAME_BYTES_MAX
from fila_proto_zmq.partitions import Plan
from tests.unit.client.peer import BORN_MS, Peer

HIGH = high_half(BORN_MS, 3)


def enqueued(first, count, faults=(), known=()):
    return Enqueued(HIGH, low_half(first), count, list(faults), [(index, HIGH, low_half(old)) for index, old in known])


def id_of(sequence):
    return format_id(HIGH, low_half(sequence))


# --- single enqueues --------------------------------------------------------------------------------------------------


def test_what_comes_together_travels_together_per_queue():
    peer = Peer()
    pendings = [peer.enqueue(queue, queue.encode()) for queue in ("a", "b", "a", "a")]
    frames = {sent.key: sent for sent in peer.sent()}
    assert {key: len(sent.command.envelopes) for key, sent in frames.items()} == {"a": 3, "b": 1}
    peer.reply(frames["b"], enqueued(10, 1))
    peer.reply(frames["a"], enqueued(20, 3))
    assert [pending.outcome() for pending in pendings] == [id_of(20), id_of(10), id_of(21), id_of(22)]


def test_a_lone_message_has_scalar_columns():
    peer = Peer()
    peer.enqueue("q", b"x", fairness_key="k", weight=3, priority=-2, delay=1, lease=2)
    command = peer.one(Enqueue).command
    assert command == Enqueue([b"\0\0\0\0x"], "k", 3, -2, 1000, 0, 2000)


def test_a_fault_is_its_message_s_alone():
    peer = Peer()
    pendings = [peer.enqueue("q") for _ in range(4)]
    faults = [(2, to_fault(InvalidArgumentError("bad"))), (0, to_fault(PayloadTooLargeError("large")))]
    peer.reply(peer.one(Enqueue), enqueued(5, 2, faults))
    assert [pending.error and type(pending.error) for pending in pendings] == [
        PayloadTooLargeError,
        None,
        InvalidArgumentError,
        None,
    ]
    assert [pendings[1].outcome(), pendings[3].outcome()] == [id_of(5), id_of(6)]


def test_a_lone_message_s_fault():
    peer = Peer()
    pending = peer.enqueue("q")
    peer.reply(peer.one(Enqueue), enqueued(5, 0, [(0, to_fault(PayloadTooLargeError("large")))]))
    with pytest.raises(PayloadTooLargeError, match="large"):
        pending.outcome()


def test_a_frame_s_error_is_everybody_s_and_each_has_a_copy():
    peer = Peer()
    pendings = [peer.enqueue("q") for _ in range(2)]
    peer.refuse(peer.one(Enqueue), QueueNotFoundError("no queue 'q'"))
    errors = [pending.error for pending in pendings]
    assert [type(error) for error in errors] == [QueueNotFoundError] * 2
    assert errors[0] is not errors[1]


def test_what_the_broker_knows_already_keeps_its_id():
    peer = Peer()
    pendings = [peer.enqueue("q", dedup_id=str(number)) for number in range(5)]
    faults = [(1, to_fault(PayloadTooLargeError("large")))]
    peer.reply(peer.one(Enqueue), enqueued(50, 2, faults, known=[(4, 8), (0, 7)]))
    assert isinstance(pendings[1].error, PayloadTooLargeError)
    assert [pendings[index].outcome() for index in (0, 2, 3, 4)] == [id_of(7), id_of(50), id_of(51), id_of(8)]


def test_a_lone_message_that_the_broker_knows():
    peer = Peer()
    pending = peer.enqueue("q", dedup_id="d")
    sent = peer.one(Enqueue)
    assert sent.command.dedup_id == "d"
    peer.reply(sent, enqueued(50, 0, known=[(0, 7)]))
    assert pending.outcome() == id_of(7)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_ids_is_no_answer(count):
    peer = Peer()
    pendings = [peer.enqueue("q") for _ in range(2)]
    peer.reply(peer.one(Enqueue), enqueued(5, count))
    for pending in pendings:
        with pytest.raises(InvalidFrameError, match="answered for"):
            pending.outcome()


def test_frames_are_bounded_in_messages_and_bytes():
    peer = Peer(pipe_bytes_max=2**30)
    for _ in range(2 * MESSAGES_PER_FRAME + 7):
        peer.enqueue("many")
    for _ in range(3):
        peer.enqueue("large", bytes(FRAME_BYTES_MAX // 2))
    sizes = [(sent.key, len(sent.command.envelopes)) for sent in peer.sent()]
    assert sizes == [("many", MESSAGES_PER_FRAME)] * 2 + [("many", 7)] + [("large", 1)] * 3


# --- batches ----------------------------------------------------------------------------------------------------------


class Run:
    """A batch through a peer that takes everything."""

    def __init__(self, messages, window=8):
        self.peer = Peer()
        self.frames = []
        self.bulk = Bulk("q", messages)
        self.sequence = 1
        line = self.peer.session.sender("q")
        for chunk in self.bulk.chunks():
            self.peer.session.send(line, chunk, self.peer.now)
            self.frames += self.peer.sent()
            self.answer(self.frames[-1])

    def answer(self, frame):
        count = len(frame.command.envelopes)
        self.peer.reply(frame, enqueued(self.sequence, count))
        self.sequence += count

    @property
    def sizes(self):
        return [len(frame.command.envelopes) for frame in self.frames]


def test_a_batch_has_its_ids_in_order():
    total = 16 + 128 + 2 * MESSAGES_PER_FRAME + 5
    run = Run([Message(b"x")] * total)
    assert run.bulk.ids() == [id_of(number) for number in range(1, total + 1)]
    assert run.sizes == [16, 128, MESSAGES_PER_FRAME, MESSAGES_PER_FRAME, 5]


def test_a_batch_with_known_messages_is_accepted_as_a_whole():
    peer = Peer()
    bulk = Bulk("q", [Message(b"x", dedup_id=str(number)) for number in range(4)])
    peer.send_all(bulk)
    peer.reply(peer.one(Enqueue), enqueued(50, 2, known=[(3, 8), (1, 7)]))
    assert bulk.ids() == [id_of(50), id_of(7), id_of(51), id_of(8)]


def test_an_empty_batch_asks_nothing():
    run = Run([])
    assert run.bulk.ids() == []
    assert run.frames == []


def test_batches_take_any_iterable_and_read_it_as_they_go():
    read = []

    def messages():
        for number in range(40):
            read.append(number)
            yield Message(b"x")

    bulk = Bulk("q", messages())
    next(bulk.chunks())
    assert len(read) == 16


def test_large_messages_make_small_frames():
    size = FRAME_BYTES_MAX // 4
    run = Run([Message(bytes(size - 100))] * 40)
    assert all(len(frame.command.envelopes) <= 4 for frame in run.frames)
    assert sum(run.sizes) == 40
    assert run.sizes[-5:] == [4] * 5


def test_a_message_beyond_a_frame_travels_alone():
    run = Run([Message(b"a"), Message(bytes(FRAME_BYTES_MAX + 1)), Message(b"b")])
    assert run.sizes == [1, 1, 1]
    assert len(run.bulk.ids()) == 3


def test_a_bad_message_does_not_spoil_the_others():
    messages = [Message(b"a"), Message("text"), b"none", Message(b"b")]
    run = Run(messages)  # type: ignore[arg-type]
    with pytest.raises(BatchError, match=r"2 of 4 messages.*'q'.*number 1: payload is bytes-like") as caught:
        run.bulk.ids()
    results = caught.value.results
    assert [results[0], results[3]] == [id_of(1), id_of(2)]
    assert all(isinstance(result, InvalidArgumentError) for result in results[1:3])


def test_only_bad_messages_ask_nothing():
    run = Run([3, 4])
    assert run.frames == []
    with pytest.raises(BatchError) as caught:
        run.bulk.ids()
    assert len(caught.value.results) == 2


def test_faults_of_both_sides_find_their_places():
    peer = Peer()
    bulk = Bulk("q", [Message(b"0"), Message("1"), Message(b"2"), Message(b"3"), Message("4")])  # type: ignore[arg-type]
    peer.send_all(bulk)
    peer.reply(peer.one(Enqueue), enqueued(7, 2, [(1, to_fault(PayloadTooLargeError("large")))]))
    with pytest.raises(BatchError, match="3 of 5") as caught:
        bulk.ids()
    kinds = [result if isinstance(result, str) else type(result) for result in caught.value.results]
    assert kinds == [id_of(7), InvalidArgumentError, PayloadTooLargeError, id_of(8), InvalidArgumentError]


def test_a_frame_s_error_ends_the_run_and_what_follows_is_not_sent():
    peer = Peer()
    bulk = Bulk("q", [Message(b"x")] * 5000)
    sent = 0
    line = peer.session.sender("q")
    for chunk in bulk.chunks():
        peer.session.send(line, chunk, peer.now)
        (frame,) = peer.sent()
        sent += 1
        if sent == 1:
            peer.reply(frame, enqueued(1, 16))
        else:
            peer.refuse(frame, QueueNotFoundError("deleted"))
    assert sent == 2
    with pytest.raises(BatchError, match=r"4984 of 5000 .* number 16: deleted") as caught:
        bulk.ids()
    assert caught.value.results[:16] == [id_of(number) for number in range(1, 17)]
    assert all(isinstance(result, QueueNotFoundError) for result in caught.value.results[16:])


def test_a_message_too_large_for_the_broker_does_not_end_the_run():
    peer = Peer()
    bulk = Bulk("q", [Message(b"a"), Message(bytes(40 * 1024 * 1024)), Message(b"b")])
    line = peer.session.sender("q")
    for chunk in bulk.chunks():
        peer.session.send(line, chunk, peer.now)
        for frame in peer.sent():
            peer.reply(frame, enqueued(1, 1))
    with pytest.raises(BatchError, match="1 of 3") as caught:
        bulk.ids()
    assert isinstance(caught.value.results[1], PayloadTooLargeError)


def test_what_the_messages_iterator_raises_is_raised():
    def messages():
        yield Message(b"x")
        raise LookupError

    with pytest.raises(LookupError):
        Run(messages())


# --- loss -------------------------------------------------------------------------------------------------------------

LOST = ShardUnavailableError("its worker died: it may or may not have been done")


def test_what_the_broker_would_know_again_is_sent_again_when_its_worker_dies():
    peer = Peer()
    pending = peer.enqueue("q", dedup_id="d")
    peer.refuse(peer.one(Enqueue), LOST)
    peer.advance(1)
    again = peer.one(Enqueue)
    assert again.command.dedup_id == "d"
    peer.reply(again, enqueued(50, 0, known=[(0, 7)]))
    assert pending.outcome() == id_of(7)


def test_what_the_broker_would_know_again_is_sent_again_over_a_new_connection():
    peer = Peer()
    bulk = Bulk("q", [Message(b"x", dedup_id=str(number)) for number in range(3)])
    peer.send_all(bulk)
    first = peer.one(Enqueue)
    peer.session.disconnected(peer.now)
    assert peer.welcome() == []
    peer.advance(0.05)
    again = peer.one(Enqueue)
    assert again.command == first.command
    peer.reply(again, enqueued(50, 1, known=[(0, 7), (1, 8)]))
    assert bulk.ids() == [id_of(7), id_of(8), id_of(50)]


def test_it_is_not_tried_for_longer_than_the_timeout():
    peer = Peer()
    pending = peer.enqueue("q", dedup_id="d")
    while not pending.done:
        for sent in peer.sent(Enqueue):
            peer.refuse(sent, LOST)
        peer.advance(0.05)
    assert peer.now <= 1005.1
    with pytest.raises(ShardUnavailableError):
        pending.outcome()


@pytest.mark.parametrize("dedup_ids", [[None], ["d", None], [None, None]])
def test_a_frame_with_anything_that_the_broker_would_not_know_again_is_not(dedup_ids):
    peer = Peer()
    pendings = [peer.enqueue("q", dedup_id=dedup_id) for dedup_id in dedup_ids]
    peer.refuse(peer.one(Enqueue), LOST)
    assert [type(pending.error) for pending in pendings] == [ShardUnavailableError] * len(dedup_ids)
    peer.advance(1)
    assert peer.sent() == []


def answered(bulk, *, fails_at=-1):
    """Answer each chunk of a batch when it is made; return its partition and the payloads of its messages."""
    seen, sequence = [], 1
    for chunk in bulk.chunks():
        count = len(chunk.command.envelopes)
        seen.append((chunk.part, [bytes(each) for each in chunk.command.envelopes]))
        if len(seen) - 1 == fails_at:
            chunk.finish(error=QueueNotFoundError("deleted"))
            break
        chunk.finish(enqueued(sequence, count))
        sequence += count
    return seen


def numbered(total):
    """Messages whose envelopes end with their number, of 60 keys: unevenly over partitions."""
    return [Message(b"%09d" % number, fairness_key=f"k{number % 60}") for number in range(total)]


def test_messages_of_partitions_fill_frames():
    """What is left of a frame waits for later messages, and the order of each partition stays."""
    plan = Plan(4, "key")
    bulk = Bulk("q", numbered(20_000), plan=lambda _: plan)
    seen = answered(bulk)
    assert len(bulk.ids()) == 20_000
    assert len({*bulk.ids()}) == 20_000
    assert min(len(payloads) for _, payloads in seen[12:-5]) > 0.75 * MESSAGES_PER_FRAME
    for partition in range(4):
        numbers = [payload[-9:] for part, payloads in seen if part == (partition, 4) for payload in payloads]
        assert numbers == sorted(numbers)


def test_messages_that_wait_for_a_full_frame_go_before_those_by_another_plan():
    plans = iter([Plan(4, "key")] * 6 + [Plan(3, "key")] * 50)
    seen = answered(Bulk("q", numbered(20_000), plan=lambda _: next(plans)))
    counts = [part[1] for part, _ in seen]
    assert counts == sorted(counts, reverse=True)
    assert {*counts} == {3, 4}
    assert sum(len(payloads) for _, payloads in seen) == 20_000


def test_messages_that_wait_for_a_full_frame_have_the_error_of_the_run():
    bulk = Bulk("q", numbered(20_000), plan=lambda _: Plan(4, "key"))
    answered(bulk, fails_at=30)
    with pytest.raises(BatchError) as caught:
        bulk.ids()
    assert {type(each) for each in caught.value.results} == {str, QueueNotFoundError}
