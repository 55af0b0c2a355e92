"""Enqueues in order to a queue that may have partitions, or get others: nothing is lost, doubled, or overtaken by its key."""

from collections import defaultdict
from random import Random

import pytest

from fila_cluster.client.protocol.ordering import Chunk
from fila_cluster.client.protocol.partitions.plans import REPLAN_S_MAX
from fila_cluster.client.protocol.producing import results_of
from fila_cluster.errors import (
    FilaError,
    OverloadedError,
    PayloadTooLargeError,
    QueueExistsError,
    QueueNotFoundError,
    ShardUnavailableError,
)
from fila_proto_zmq.codec import to_fault
from fila_proto_zmq.commands import ConfigChange, CreateByTemplate, Enqueue, Enqueued
from fila_proto_zmq.errors import InvalidArgumentError, PartitionedError
from fila_proto_zmq.ids import format_id, high_half, low_half
from fila_proto_zmq.partitions import Plan, partition_of
from fila_proto_zmq.record import seal_envelope
from tests.unit.client.peer import BORN_MS, Peer

AWAY = ShardUnavailableError("no live worker", details={"refused": True})
LATE = OverloadedError("no time", details={"refused": True, "late": True})
LOST = ShardUnavailableError("its worker died: it may or may not have been done")
GONE = QueueNotFoundError("no queue")
TEMPLATE = PartitionedError("by template", details={"template": "q*"})
HIGH = high_half(BORN_MS, 3)
SEPARATE = {partition_of(key, 2): key for key in map(str, range(50))}
"""A key of each of two partitions."""
A, B = SEPARATE[0], SEPARATE[1]


def has(partitions, spread="key"):
    return PartitionedError("partitions", details={"partitions": partitions, "spread": spread})


def behind(sent):
    return ShardUnavailableError("out of order", details={"refused": True, "after": sent.command.after})


class Sender:
    """The sender of one producer, and the broker's side of it."""

    def __init__(self, partitions=2, spread="key"):
        self.peer = Peer()
        if partitions:
            self.peer.session.plans.learn("q", has(partitions, spread))
        self.sender = self.peer.session.sender("q")
        self.numbers = 0
        self.ended = []

    def send(self, *messages, **options):
        """Send a chunk of ``(key, payload)``."""
        keys, payloads = zip(*messages, strict=True)
        chunk = Chunk(Enqueue([seal_envelope(each) for each in payloads], list(keys), **options))
        chunk.wake = lambda: self.ended.append(chunk)
        self.peer.session.send(self.sender, chunk, self.peer.now)
        return chunk

    def sent(self):
        return self.peer.sent(Enqueue)

    def one(self, key):
        (sent,) = [each for each in self.sent() if each.key == key]
        return sent

    def accept(self, *frames, **options):
        """Store frames; what their ids begin with."""
        for frame in frames:
            faults = options.get("faults", [])
            self.peer.reply(
                frame, Enqueued(HIGH, low_half(self.numbers + 1), len(frame.command.envelopes) - len(faults), **options)
            )
            self.numbers += 1000

    def refuse(self, error, *frames):
        for frame in frames:
            self.peer.refuse(frame, behind(frame) if error is behind else error)


def payloads(*frames):
    return [bytes(each[4:]) for frame in frames for each in frame.command.envelopes]


def results(chunk, count):
    return [each if isinstance(each, str) else type(each) for each in results_of(chunk, count)]


def ids(*numbers):
    return [format_id(HIGH, low_half(number)) for number in numbers]


# --- parts ------------------------------------------------------------------------------------------------------------


def test_each_partition_gets_its_keys_and_results_come_in_the_order_of_the_chunk():
    sender = Sender()
    chunk = sender.send((A, b"1"), (B, b"2"), (A, b"3"), (B, b"4"))
    frames = {each.key: each for each in sender.sent()}
    assert {key: payloads(each) for key, each in frames.items()} == {"q@0": [b"1", b"3"], "q@1": [b"2", b"4"]}
    sender.accept(frames["q@1"])
    assert not chunk.done
    sender.accept(frames["q@0"])
    assert results(chunk, 4) == ids(1001, 1, 1002, 2)
    assert sender.sender.idle


def test_the_plan_is_learned_from_the_first_refusal():
    sender = Sender(partitions=0)
    chunk = sender.send((A, b"1"), (B, b"2"))
    (first,) = sender.sent()
    assert first.key == "q"
    sender.refuse(has(2), first)
    frames = sender.sent()
    assert {each.key for each in frames} == {"q@0", "q@1"}
    sender.accept(*frames)
    assert chunk.error is None
    sender.send((A, b"3"))
    assert sender.one("q@0").command.after is not None


def test_a_queue_without_partitions_is_asked_as_it_is():
    sender = Sender(partitions=0)
    chunk = sender.send((A, b"1"), (B, b"2"))
    (first,) = sender.sent()
    sender.accept(first)
    assert (chunk.value.count, chunk.value.known) == (2, [])
    assert results(chunk, 2) == ids(1, 2)


def test_faults_and_known_dedup_ids_land_at_their_places():
    sender = Sender()
    chunk = sender.send((A, b"1"), (B, b"2"), (A, b"3"), (B, b"4"), (A, b"5"), dedup_id=list("abcde"))
    frames = {each.key: each for each in sender.sent()}
    assert frames["q@0"].command.dedup_id == ["a", "c", "e"]
    too_large = to_fault(PayloadTooLargeError("too large"))
    sender.peer.reply(frames["q@0"], Enqueued(HIGH, low_half(1), 1, faults=[(1, too_large)], known=[(2, HIGH, low_half(77))]))
    sender.peer.reply(frames["q@1"], Enqueued(HIGH, low_half(9), 2))
    assert results(chunk, 5) == [*ids(1, 9), PayloadTooLargeError, *ids(10, 77)]


def test_by_message_dedup_ids_have_their_partition_and_the_others_take_turns():
    sender = Sender(3, "message")
    sender.send(*[("k", b"%d" % each) for each in range(6)], dedup_id=["x", "x", "", "", "", "x"])
    place = {each.key: payloads(each) for each in sender.sent()}
    together = place[f"q@{partition_of('x', 3)}"]
    assert {b"0", b"1", b"5"} <= set(together)
    assert sorted(payload for some in place.values() for payload in some) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    for each in "abc":
        sender.send((each, b"whole"), (each, b"too"))
    wholes = {each.key for each in sender.sent() if payloads(each) == [b"whole", b"too"]}
    assert wholes == {"q@0", "q@1", "q@2"}


def test_a_part_that_fails_for_good_costs_its_own_messages_only():
    sender = Sender()
    chunk = sender.send((A, b"1"), (B, b"2"))
    frames = {each.key: each for each in sender.sent()}
    sender.refuse(LOST, frames["q@0"])
    sender.accept(frames["q@1"])
    assert results(chunk, 2) == [ShardUnavailableError, *ids(1)]
    assert chunk.error is None
    assert chunk.doubtful


def test_if_no_part_is_stored_the_error_is_the_chunks():
    sender = Sender()
    chunk = sender.send((A, b"1"), (B, b"2"))
    sender.refuse(InvalidArgumentError("no"), *sender.sent())
    assert isinstance(chunk.error, InvalidArgumentError)
    assert not chunk.doubtful


def test_if_one_part_fails_and_the_messages_of_another_are_refused_each_has_its_own_error():
    sender = Sender()
    chunk = sender.send((A, b"1"), (B, b"2"))
    frames = {each.key: each for each in sender.sent()}
    sender.refuse(InvalidArgumentError("no"), frames["q@0"])
    sender.peer.reply(frames["q@1"], Enqueued(0, 0, 0, faults=[(0, to_fault(PayloadTooLargeError("too large")))]))
    assert results(chunk, 2) == [InvalidArgumentError, PayloadTooLargeError]


def test_an_answer_about_too_few_messages_is_an_error_for_those_it_does_not_name():
    sender = Sender()
    chunk = sender.send((A, b"1"), (B, b"2"), (B, b"3"))
    for frame in sender.sent():
        sender.peer.reply(frame, Enqueued(HIGH, low_half(1), 1))
    assert [isinstance(each, str) for each in results_of(chunk, 3)] == [True, True, False]


# --- order ------------------------------------------------------------------------------------------------------------


def test_a_partition_that_is_away_holds_up_its_own_messages_in_their_order():
    sender = Sender()
    first, second = sender.send((A, b"1"), (B, b"2")), sender.send((A, b"3"), (B, b"4"))
    frames = sender.sent()
    sender.refuse(AWAY, *[each for each in frames if each.key == "q@0"])
    sender.accept(*[each for each in frames if each.key == "q@1"])
    assert not first.done
    sender.peer.advance(0.05)
    again = sender.sent()
    assert payloads(*again) == [b"1", b"3"]
    sender.accept(*again)
    assert [first.error, second.error] == [None, None]


def test_what_was_late_is_sent_again_and_nothing_else():
    sender = Sender()
    chunk = sender.send((A, b"1"), (A, b"2"), (B, b"3"), (A, b"4"))
    frames = {each.key: each for each in sender.sent()}
    sender.accept(frames["q@1"])
    sender.accept(frames["q@0"], faults=[(1, to_fault(LATE)), (2, to_fault(LATE))])
    (rest,) = sender.sent()
    assert payloads(rest) == [b"2", b"4"]
    sender.accept(rest)
    assert results(chunk, 4) == ids(1001, 2001, 1, 2002)


def test_what_comes_after_a_refusal_does_not_overtake_what_is_still_under_way():
    """The first chunk learns of the partitions, and those behind it are refused for their order alone."""
    sender = Sender(partitions=0)
    chunks = [sender.send((A, b"%d" % each)) for each in range(3)]
    frames = sender.sent()
    sender.refuse(has(2), frames[0])
    chunks.append(sender.send((A, b"3")))
    assert sender.sent() == []
    sender.refuse(behind, *frames[1:])
    while not sender.sender.idle:
        for each in (frames := sender.sent()):
            if each.key == "q@0":
                sender.accept(each)
            else:
                sender.refuse(has(2) if each.command.after == 0 else behind, each)
        sender.peer.advance(0.01)
    assert sender.ended == chunks


def test_parts_that_are_refused_early_do_not_overtake_those_of_an_earlier_chunk():
    sender = Sender()
    sender.send((A, b"1"), (B, b"2"))
    sender.send((A, b"3"))
    frames = sender.sent()
    sender.refuse(has(1), *[each for each in frames if each.key == "q@0"])
    assert sender.sent() == []  # the first chunk waits for its other part
    sender.refuse(has(1), *[each for each in frames if each.key == "q@1"])
    assert payloads(*sender.sent()) == [b"1", b"2", b"3"]


def test_only_what_is_not_stored_is_sent_to_other_partitions():
    sender = Sender()
    chunk = sender.send((A, b"1"), (B, b"2"), (A, b"3"))
    frames = {each.key: each for each in sender.sent()}
    sender.accept(frames["q@1"])
    sender.refuse(has(1), frames["q@0"])
    (rest,) = sender.sent()
    assert (rest.key, payloads(rest)) == ("q@0", [b"1", b"3"])
    sender.accept(rest)
    assert results(chunk, 3) == ids(1001, 1, 1002)


def test_what_may_be_stored_is_not_sent_to_other_partitions():
    sender = Sender()
    chunk = sender.send((A, b"1"), (B, b"2"))
    frames = {each.key: each for each in sender.sent()}
    sender.refuse(LOST, frames["q@0"])
    sender.refuse(has(1), frames["q@1"])
    (rest,) = sender.sent()
    assert payloads(rest) == [b"2"]
    sender.accept(rest)
    assert results(chunk, 2) == [ShardUnavailableError, *ids(1)]
    assert chunk.doubtful


def test_what_may_be_stored_keeps_its_error_if_the_queue_cannot_be_created():
    sender = Sender(partitions=3)
    keys = {partition_of(key, 3): key for key in map(str, range(50))}
    chunk = sender.send((keys[0], b"1"), (keys[1], b"2"), (keys[2], b"3"))
    frames = {each.key: each for each in sender.sent()}
    sender.refuse(LOST, frames["q@0"])
    sender.accept(frames["q@1"])
    sender.refuse(TEMPLATE, frames["q@2"])
    (create,) = sender.peer.sent(CreateByTemplate)
    sender.peer.refuse(create, InvalidArgumentError("no"))
    assert results(chunk, 3) == [ShardUnavailableError, *ids(1), InvalidArgumentError]


def test_the_stored_part_of_a_late_chunk_is_not_sent_again():
    sender = Sender(partitions=0)
    chunk = sender.send((A, b"1"), (A, b"2"), (B, b"3"))
    (first,) = sender.sent()
    sender.accept(first, faults=[(1, to_fault(LATE)), (2, to_fault(LATE))])
    (rest,) = sender.sent()
    sender.refuse(has(2), rest)
    frames = {each.key: each for each in sender.sent()}
    assert {key: payloads(each) for key, each in frames.items()} == {"q@0": [b"2"], "q@1": [b"3"]}
    sender.accept(frames["q@0"], frames["q@1"])
    assert results(chunk, 3) == ids(1, 1001, 2001)


def test_a_queue_that_has_no_partitions_any_longer_gets_its_messages():
    sender = Sender()
    chunk = sender.send((A, b"1"), (B, b"2"))
    sender.refuse(GONE, *sender.sent())
    (whole,) = sender.sent()
    assert (whole.key, payloads(whole)) == ("q", [b"1", b"2"])
    sender.accept(whole)
    assert results(chunk, 2) == ids(1, 2)


def test_a_queue_that_is_gone_is_an_error():
    sender = Sender()
    chunk = sender.send((A, b"1"), (B, b"2"))
    sender.refuse(GONE, *sender.sent())
    sender.refuse(GONE, *sender.sent())
    assert isinstance(chunk.error, QueueNotFoundError)
    assert sender.sender.idle


def test_a_queue_that_is_another_each_time_is_an_error_in_the_end():
    sender = Sender()
    chunk = sender.send((A, b"1"))
    turn, began = 0, sender.peer.now
    while not chunk.done:
        turn += 1
        sender.refuse(has(1 + turn), *sender.sent())
        sender.peer.advance(REPLAN_S_MAX)
    assert isinstance(chunk.error, PartitionedError)
    assert 5.0 < sender.peer.now - began < 8.0


def test_one_partition_may_be_named():
    sender = Sender()
    sender.sender = sender.peer.session.sender("q@1")
    sender.send((A, b"1"))
    frame = sender.one("q@1")
    sender.refuse(has(1), frame)
    assert sender.one("q@0")


# --- templates --------------------------------------------------------------------------------------------------------


def test_the_queue_of_a_template_is_created_once_for_many_chunks_and_keeps_their_order():
    sender = Sender(partitions=0)
    chunks = [sender.send((A, b"%d" % each)) for each in range(3)]
    creations, stored, created = [], [], False
    for _ in range(50):
        for sent in sender.peer.sent():
            if isinstance(sent.command, CreateByTemplate):
                creations.append(sent)
                sender.peer.reply(sent, ConfigChange(1, {}, existed=False))
                created = True
            elif sent.key == "q":
                error = has(2) if created else TEMPLATE
                sender.refuse(error if sent.command.after == 0 else behind, sent)
            else:
                stored += payloads(sent)
                sender.accept(sent)
        sender.peer.advance(0.01)
        if len(chunks) == 3:
            chunks.append(sender.send((A, b"3")))
    assert [sent.command for sent in creations] == [CreateByTemplate("q")]
    assert stored == [b"0", b"1", b"2", b"3"]
    assert sender.ended == chunks


def test_what_others_have_created_meanwhile_is_as_good():
    sender = Sender(partitions=0)
    sender.send((A, b"1"))
    sender.refuse(TEMPLATE, *sender.sent())
    sender.refuse(QueueExistsError("there"), *sender.peer.sent(CreateByTemplate))
    assert payloads(*sender.sent()) == [b"1"]


def test_the_error_of_the_creation_is_that_of_all_chunks():
    sender = Sender(partitions=0)
    chunks = [sender.send((A, b"1")), sender.send((A, b"2"))]
    frames = sender.sent()
    sender.refuse(TEMPLATE, frames[0])
    sender.refuse(behind, frames[1])
    sender.send((A, b"3"))
    while not sender.sender.idle:
        for sent in sender.peer.sent():
            if isinstance(sent.command, CreateByTemplate):
                sender.refuse(InvalidArgumentError("a bad script"), sent)
            else:
                sender.refuse(TEMPLATE if sent.command.after == 0 else behind, sent)
        sender.peer.advance(0.01)
    assert [type(chunk.error) for chunk in sender.ended] == [InvalidArgumentError] * 3
    assert sender.ended[:2] == chunks


def test_a_creation_that_was_refused_for_now_says_that_nothing_is_stored():
    sender = Sender(partitions=0)
    chunk = sender.send((A, b"1"))
    sender.refuse(TEMPLATE, *sender.sent())
    while not chunk.done:
        for sent in sender.peer.sent(CreateByTemplate):
            sender.refuse(AWAY, sent)
        sender.peer.now = max(sender.peer.now + 0.001, sender.peer.session.next_deadline())
    assert chunk.error.details["refused"] is True


# --- the end ----------------------------------------------------------------------------------------------------------


def test_the_end_of_the_client_ends_all_chunks():
    sender = Sender()
    chunks = [sender.send((A, b"%d" % each)) for each in range(9)]
    sender.refuse(has(3), sender.sent()[0])
    chunks.append(sender.send((A, b"last")))
    sender.peer.session.goodbye(sender.peer.now, FilaError("closed"))
    sender.peer.session.fail_all(FilaError("closed"))
    assert all(chunk.done and chunk.error is not None for chunk in chunks)
    assert sender.sender.idle


class Store:
    """A broker that stores, refuses, dies, and gives the queue other partitions, as a random number says. A queue is made anew
    with the messages that it had, so that each may be looked for in the end."""

    def __init__(self, random, sender):
        self.random = random
        self.sender = sender
        self.partitions = random.choice([0, 1, 2, 3])
        self.stored = []
        self.last = defaultdict(int)
        """The last request that was stored, by queue."""

    def answer(self, sent, calm):
        if sent.command.after and self.last[sent.key] != sent.command.after:
            self.sender.refuse(behind, sent)
        elif not self._is_there(sent):
            self.sender.refuse(has(self.partitions) if self.partitions else GONE, sent)
        elif not calm and self.random.random() < 0.2:
            self.sender.refuse(AWAY, sent)
        else:
            self._store(sent, calm)

    def _is_there(self, sent):
        plan = Plan(self.partitions, "key")
        return sent.key in plan.names("q") if self.partitions else sent.key == "q"

    def _store(self, sent, calm):
        count = len(sent.command.envelopes)
        some = self.random.randint(1, count) if not calm and self.random.random() < 0.3 else count
        keys = sent.command.fairness_key
        keys = [keys] * count if isinstance(keys, str) else keys
        self.stored += list(zip(keys, payloads(sent), strict=True))[:some]
        if some == count:
            self.last[sent.key] = sent.header.request
        self.sender.peer.reply(
            sent, Enqueued(HIGH, low_half(1), some, faults=[(place, to_fault(LATE)) for place in range(some, count)])
        )


@pytest.mark.parametrize("seed", range(40))
def test_whatever_becomes_of_the_queue_each_message_is_stored_once_and_in_the_order_of_its_key(seed):
    random = Random(seed)
    sender = Sender(random.choice([0, 2]))
    store = Store(random, sender)
    chunks, frames, number, expected = [], [], 0, []
    for turn in range(2000):
        calm = turn > 1000
        frames += sender.sent()
        if not calm and random.random() < 0.02:
            store.partitions = random.choice([0, 1, 2, 3])
            store.last.clear()
        if not calm and len(chunks) < 30 and random.random() < 0.2:
            some = [(random.choice([A, B, "c", "d"]), b"%d" % each) for each in range(number, number + random.randint(1, 5))]
            number += len(some)
            expected += some
            chunks.append(sender.send(*some))
        while frames and random.random() < 0.6:
            first = frames.pop(random.randrange(len(frames)))
            earlier = [each for each in frames if each.key == first.key and each.header.request < first.header.request]
            if earlier:  # a link keeps its order
                frames.append(first)
                first = min(earlier, key=lambda each: each.header.request)
                frames.remove(first)
            store.answer(first, calm)
        sender.peer.advance(random.choice([0, 0.001, 0.01]))
    assert all(chunk.done for chunk in chunks)
    if all(chunk.error is None and not chunk.value.faults for chunk in chunks):
        assert sorted(store.stored) == sorted(expected)
    else:  # the queue was another one too often
        assert len(set(store.stored)) == len(store.stored)
    for key in (A, B, "c", "d"):
        numbers = [int(payload) for each, payload in store.stored if each == key]
        assert numbers == sorted(numbers)
