"""Sequences of enqueues: a chunk is stored only right behind the one before it."""

import pytest

from fila_proto_zmq.commands import CreateQueue, Enqueue, Enqueued, PutConfig, QueueOptions
from fila_proto_zmq.errors import OverloadedError, ShardUnavailableError
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.effects import ClientCall
from fila_worker.core.enqueue.sequences import Sequences
from tests.support.shard.shard import ShardHarness, limited

EMPTY = seal_envelope(b"")
LIMIT = "namespace:ns:max_enqueues_per_minute"
HOOK = "function on_enqueue(msg) return {} end"


def chunk(payload: bytes = b"", count: int = 1, after: int | None = None) -> Enqueue:
    return Enqueue([seal_envelope(payload)] * count, after=after)


def slow() -> ShardHarness:
    """A shard that stores a few messages of a batch at each turn, and batches that may take 100 ms."""
    shard = ShardHarness(settings=limited(turn_effort=1, step_effort=1, enqueue_step_messages=1, enqueue_ms_max=100))
    shard.create("q")
    return shard


def payloads(shard: ShardHarness) -> list[bytes]:
    return [each.payload for each in shard.receive(100)]


def test_a_sequence_goes_on_with_the_request_before_it(shard: ShardHarness) -> None:
    first = shard.send(chunk(b"1", after=0))
    second = shard.send(chunk(b"2", after=first))
    shard.ask(chunk(b"3", after=second))
    assert payloads(shard) == [b"1", b"2", b"3"]


def test_behind_a_refused_chunk_nothing_is_stored_until_it_is_sent_again(shard: ShardHarness) -> None:
    first = shard.send(chunk(b"1", after=0))
    refused = first + 1  # the router had no room for it
    shard.requests += 1
    for late in (refused, refused + 1):
        with pytest.raises(ShardUnavailableError, match=f"request {late}, which is not stored") as caught:
            shard.ask(chunk(b"3", after=late))
        assert caught.value.details["refused"] is True
    again = shard.send(chunk(b"2", after=0))
    shard.ask(chunk(b"3", after=again))
    assert payloads(shard) == [b"1", b"2", b"3"]


def test_only_the_last_request_may_be_followed(shard: ShardHarness) -> None:
    first = shard.send(chunk(after=0))
    shard.ask(chunk(after=first))
    with pytest.raises(ShardUnavailableError):
        shard.ask(chunk(after=first))


def test_sequences_of_clients_and_queues_are_their_own(shard: ShardHarness) -> None:
    shard.create("other")
    first = shard.send(chunk(after=0))
    with pytest.raises(ShardUnavailableError):
        shard.ask(chunk(after=first), client=b"c2")
    with pytest.raises(ShardUnavailableError):
        shard.ask(chunk(after=first), queue="other")
    shard.ask(chunk(after=first))


def test_enqueues_in_no_sequence_do_not_disturb_one(shard: ShardHarness) -> None:
    first = shard.send(chunk(after=0))
    alone = shard.send(chunk())
    with pytest.raises(ShardUnavailableError):
        shard.ask(chunk(after=alone))
    shard.ask(chunk(after=first))


def test_a_restarted_shard_knows_no_sequence(shard: ShardHarness) -> None:
    first = shard.send(chunk(after=0))
    shard.restart()
    with pytest.raises(ShardUnavailableError):
        shard.ask(chunk(after=first))
    shard.ask(chunk(after=0))


def test_a_chunk_that_is_refused_as_a_whole_is_no_predecessor(shard: ShardHarness) -> None:
    missing = shard.send(chunk(after=0), queue="missing")
    shard.create("missing")
    with pytest.raises(ShardUnavailableError):
        shard.ask(chunk(after=missing), queue="missing")


def test_bad_messages_do_not_end_a_sequence(shard: ShardHarness) -> None:
    first = shard.send(Enqueue([b"\xff\xff\xff\xff", EMPTY], after=0))
    reply = shard.late[first]
    assert isinstance(reply, Enqueued)
    assert len(reply.faults) == 1
    shard.ask(chunk(after=first))


def test_a_chunk_in_steps_is_checked_when_its_turn_comes(shard: ShardHarness) -> None:
    """Both are jobs of the queue's line: the second one may follow the first, though that is not stored when it arrives."""
    shard.limit(enqueue_step_messages=2, turn_effort=8)
    first = shard.begin(chunk(b"1", 10, after=0))
    second = shard.begin(chunk(b"2", 10, after=first))
    wrong = shard.begin(chunk(b"3", 10, after=first))
    shard.finish()
    assert isinstance(shard.late[second], Enqueued)
    assert isinstance(shard.late[wrong], ShardUnavailableError)
    assert payloads(shard) == [b"1"] * 10 + [b"2"] * 10


def test_a_chunk_that_comes_too_late_is_no_predecessor(shard: ShardHarness) -> None:
    shard.limit(enqueue_step_messages=2, turn_effort=8, enqueue_ms_max=100)
    shard.begin(chunk(b"0", 400))
    late = shard.begin(chunk(b"1", 4, after=0))
    shard.now_ms += 100
    follower = shard.begin(chunk(b"2", 4, after=late))
    shard.finish()
    assert isinstance(shard.late[late], OverloadedError)
    assert isinstance(shard.late[follower], ShardUnavailableError)


def test_behind_a_chunk_that_is_cut_nothing_is_stored_until_its_rest_is() -> None:
    shard = slow()
    cut = shard.begin(chunk(b"1", 8, after=0))
    follower = shard.begin(chunk(b"2", 2, after=cut))
    shard.now_ms += 100
    shard.finish()
    reply = shard.late[cut]
    assert isinstance(reply, Enqueued)
    assert reply.count
    assert [(index, fault.details["late"]) for index, fault in reply.faults] == [
        (index, True) for index in range(reply.count, 8)
    ]
    assert isinstance(shard.late[follower], ShardUnavailableError)
    rest = shard.begin(chunk(b"1", 8 - reply.count, after=0))
    again = shard.begin(chunk(b"2", 2, after=rest))
    shard.finish()
    assert isinstance(shard.late[again], Enqueued)
    assert payloads(shard) == [b"1"] * 8 + [b"2"] * 2


def test_a_chunk_waits_from_when_the_one_before_it_was_stored() -> None:
    shard = slow()
    requests = [shard.begin(chunk(b"1", 40, after=0))]
    for _ in range(2):
        requests.append(shard.begin(chunk(b"2", 40, after=requests[-1])))
    for count in (40, 80):  # 198 ms until the last one begins
        shard.now_ms += 99
        while shard.shard.queues["q"].pending <= count and shard.shard.jobs.open:
            shard.turn()
    shard.finish()
    for request in requests:
        reply = shard.late[request]
        assert isinstance(reply, Enqueued)
        assert (reply.count, reply.faults) == (40, [])


def test_an_enqueue_that_waits_for_its_quota_is_checked_when_it_goes_on(shard: ShardHarness) -> None:
    shard.create("ns/q")
    first = shard.send(chunk(b"1", after=0), "ns/q")
    shard.shard.put_config(PutConfig(1, {LIMIT: "600"}), shard.now_ms)
    held = shard.begin(chunk(b"2", after=first), "ns/q")
    follower = shard.begin(chunk(b"3", after=held), "ns/q")
    assert held not in shard.late
    shard.shard.put_config(PutConfig(2, {LIMIT: None}), shard.now_ms)
    shard.turn()
    assert isinstance(shard.late[held], Enqueued)
    assert isinstance(shard.late[follower], Enqueued)


def test_hooks_do_not_change_it(shard: ShardHarness) -> None:
    shard.ask(CreateQueue(QueueOptions(on_enqueue=HOOK)), "hooked")
    first = shard.send(chunk(b"1", 3, after=0), "hooked")
    assert isinstance(shard.ask(chunk(b"2", 3, after=first), "hooked"), Enqueued)
    with pytest.raises(ShardUnavailableError):
        shard.ask(chunk(b"2", 3, after=first), "hooked")


def test_the_number_of_sequences_is_bounded() -> None:
    shard = ShardHarness(settings=limited(sequences_max=3))
    shard.create("q")
    requests = [shard.send(chunk(after=0)) for _ in range(5)]
    assert len(shard.shard.part(Sequences)) == 3
    with pytest.raises(ShardUnavailableError):
        shard.ask(chunk(after=requests[1]))
    shard.ask(chunk(after=requests[2]))


def test_a_sequence_in_use_is_not_the_first_to_be_forgotten() -> None:
    sequences = Sequences(2)

    def call(request: int) -> ClientCall:
        return ClientCall(b"c", request, "q", 0)

    sequences.go_on(call(1), 0)
    sequences.go_on(call(2), 0)
    sequences.go_on(call(3), 1)
    sequences.go_on(call(4), 0)
    sequences.go_on(call(5), 3)
    with pytest.raises(ShardUnavailableError):
        sequences.go_on(call(6), 2)
