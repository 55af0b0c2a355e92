"""Redrive: dead letters go back to where they came from."""

from collections.abc import Callable, Sequence

import msgspec
import pytest

from fila_proto_zmq.commands import Browse, QueueOptions, Redrive, Redriven, UpdateQueue, Verb
from fila_proto_zmq.errors import InvalidArgumentError, NotADeadLetterQueueError, QueueNotFoundError
from fila_proto_zmq.ids import format_id, high_half, low_half, parse_id
from fila_proto_zmq.record import pack_record, unpack_record
from fila_worker.core.hooks import EnqueueDecision, FailedAttempt, FailureDecision
from fila_worker.core.manage import redrive
from fila_worker.core.settings import ShardSettings
from tests.support.shard.linked_shards import name_on
from tests.support.shard.shard import ShardHarness

NAMED = name_on(3, "letters")


def bury(shard: ShardHarness, *payloads: bytes, key: str = "default", **columns: int) -> list[str]:
    ids = shard.enqueue(*payloads, key=key, **columns)
    shard.settle(Verb.FAIL, shard.receive(len(payloads)), error="boom")
    return ids


def test_all_pending_dead_letters_go_back(shard: ShardHarness) -> None:
    ids = bury(shard, b"0", b"1", b"2")
    assert shard.redrive() == Redriven(3, 0)
    assert shard.counts("q.dlq") == (0, 0, 0)
    assert [each.id for each in shard.receive(9)] == ids


def test_a_redriven_message_begins_anew(shard: ShardHarness) -> None:
    bury(shard, b"x", key="acme", priority=-3, lease_ms=2_000)
    shard.redrive()
    (got,) = shard.receive()
    extension = got.record.extension
    assert (got.payload, got.key, got.record.priority, got.attempts, got.error) == (b"x", "acme", -3, 0, "")
    assert (extension.reason, extension.source_queue, extension.dead_lettered_ms) == (None, None, None)
    assert got.expires_ms == shard.now_ms + 2_000


def test_a_redriven_message_keeps_its_place_in_line(shard: ShardHarness) -> None:
    bury(shard, b"old")
    shard.enqueue(b"new")
    shard.redrive()
    assert [each.payload for each in shard.receive(9)] == [b"old", b"new"]


def test_a_redriven_message_may_die_and_return_again(shard: ShardHarness) -> None:
    bury(shard, b"x")
    for _ in range(3):
        assert shard.redrive() == Redriven(1, 0)
        shard.settle(Verb.FAIL, shard.receive(), error="again")
    assert shard.counts("q.dlq") == (1, 0, 0)


def test_a_count_bounds_what_goes_back(shard: ShardHarness) -> None:
    bury(shard, b"0", b"1", b"2")
    assert shard.redrive(2) == Redriven(2, 1)
    assert [each.payload for each in shard.receive(9)] == [b"0", b"1"]
    assert shard.redrive(2) == Redriven(1, 0)
    assert shard.redrive(2) == Redriven(0, 0)


def test_one_command_moves_a_bounded_number(shard: ShardHarness) -> None:
    shard.limit(redrive_messages_max=4)
    bury(shard, *[b""] * 10)
    assert [shard.redrive() for _ in range(3)] == [Redriven(4, 6), Redriven(4, 2), Redriven(2, 0)]
    assert shard.counts() == (10, 0, 0)


def test_one_fairness_key_can_be_chosen(shard: ShardHarness) -> None:
    for key in "abc":
        bury(shard, key.encode(), key.encode(), key=key)
    assert shard.ask(Redrive(0, "b"), "q.dlq") == Redriven(2, 4)
    assert [each.payload for each in shard.receive(9)] == [b"b", b"b"]
    assert shard.ask(Redrive(0, "nobody"), "q.dlq") == Redriven(0, 4)


def test_a_count_goes_over_all_keys(shard: ShardHarness) -> None:
    for key in "abc":
        bury(shard, key.encode(), key.encode(), key=key)
    assert shard.redrive(5) == Redriven(5, 1)


def test_leased_dead_letters_stay(shard: ShardHarness) -> None:
    bury(shard, b"0", b"1")
    held = shard.receive(1, "q.dlq")
    assert shard.redrive() == Redriven(1, 0)
    assert shard.counts("q.dlq") == (0, 1, 0)
    shard.ack(held, "q.dlq")


def test_a_waiting_consumer_gets_what_returns(shard: ShardHarness) -> None:
    bury(shard, b"x")
    shard.subscribe(1)
    shard.redrive()
    assert [each.payload for each in shard.take_pushed()] == [b"x"]


def test_a_redrive_survives_a_restart(shard: ShardHarness) -> None:
    bury(shard, b"0", b"1")
    shard.redrive(1)
    shard.restart()
    assert (shard.counts(), shard.counts("q.dlq")) == ((1, 0, 0), (1, 0, 0))


@pytest.mark.parametrize("buffer_bytes", [1, 200])
def test_dead_letters_that_are_not_in_memory_go_back_too(buffer_bytes: int) -> None:
    shard = ShardHarness(settings=ShardSettings(buffer_bytes=buffer_bytes))
    shard.create()
    ids = bury(shard, *[b"%d" % number for number in range(40)])
    assert shard.redrive(15) == Redriven(15, 25)
    assert shard.redrive() == Redriven(25, 0)
    assert [each.id for each in shard.receive(40)] == ids


def test_a_dead_letter_whose_queue_is_gone_stays(shard: ShardHarness) -> None:
    bury(shard, b"0", b"orphan", b"2")
    orphan(shard, b"orphan")
    assert shard.redrive() == Redriven(2, 1)
    assert shard.redrive() == Redriven(0, 1)
    assert [each.payload for each in shard.receive(9, "q.dlq")] == [b"orphan"]


def orphan(shard: ShardHarness, payload: bytes) -> None:
    """Rewrite a dead letter's source queue on disk, as a later version with named dead letter queues may leave it."""
    messages = shard.store.families.messages
    for key, data in list(shard.store.scan(b"", b"\xff" * 32, messages)):
        if data.endswith(payload):
            record = unpack_record(data)
            record.extension = msgspec.structs.replace(record.extension, source_queue="f")
            batch = shard.store.new_batch()
            batch.put(key, pack_record(record), messages)
            shard.store.commit(batch)
    shard.restart()


# --- picked ones ------------------------------------------------------------------------------------------------------


def pick(shard: ShardHarness, *ids: str, queue: str = "q.dlq") -> Redriven:
    reply = shard.ask(Redrive(0, None, [parse_id(each) for each in ids]), queue)
    assert isinstance(reply, Redriven)
    return reply


def test_picked_ones_go_back_and_the_others_stay(shard: ShardHarness) -> None:
    a = bury(shard, b"a0", b"a1", b"a2", key="a")
    b = bury(shard, b"b0", b"b1", key="b", priority=3)
    assert pick(shard, b[1], a[1], a[0]) == Redriven(3, 2, 3)
    assert sorted(each.payload for each in shard.receive(9)) == [b"a0", b"a1", b"b1"]
    assert sorted(each.payload for each in shard.receive(9, "q.dlq")) == [b"a2", b"b0"]


def test_a_picked_one_begins_anew_in_its_old_place(shard: ShardHarness) -> None:
    ids = bury(shard, b"0", b"1", b"2")
    shard.enqueue(b"new")
    pick(shard, ids[1])
    assert [(each.payload, each.attempts, each.error) for each in shard.receive(9)] == [(b"1", 0, ""), (b"new", 0, "")]


def test_what_is_unknown_leased_delayed_or_gone_is_passed_over(shard: ShardHarness) -> None:
    (leased,) = bury(shard, b"leased")
    shard.receive(1, "q.dlq")
    (delayed,) = bury(shard, b"delayed")
    shard.settle(Verb.RETRY, shard.receive(1, "q.dlq"), "q.dlq", after_ms=60_000)
    (acked,) = bury(shard, b"acked")
    shard.ack(shard.receive(1, "q.dlq"), "q.dlq")
    (pending,) = bury(shard, b"pending", key="z")
    (elsewhere,) = shard.enqueue(b"in another queue")
    unknown = format_id(high_half(shard.now_ms, shard.index), low_half(2**40))
    ids = [unknown, leased, delayed, acked, elsewhere, pending]
    assert pick(shard, *ids) == Redriven(1, 0, 6)
    assert pick(shard, *ids) == Redriven(0, 0, 6)
    assert sorted(each.payload for each in shard.receive(9)) == [b"in another queue", b"pending"]


def test_a_message_that_is_picked_twice_goes_once(shard: ShardHarness) -> None:
    ids = bury(shard, b"0", b"1")
    assert pick(shard, ids[0], ids[0]) == Redriven(1, 1, 2)


def test_no_number_is_too_strange_to_be_picked(shard: ShardHarness) -> None:
    bury(shard, b"0")
    strange = [(-1, 0), (2**64 - 1, 2**64 - 1), (0, -(2**63))]
    assert shard.ask(Redrive(0, None, strange), "q.dlq") == Redriven(0, 1, 3)
    assert shard.ask(Redrive(0, None, []), "q.dlq") == Redriven(0, 1, 0)


@pytest.mark.parametrize("browsed", [False, True])
@pytest.mark.parametrize("buffer_bytes", [1, 200, 2**20])
def test_picked_ones_are_found_wherever_they_lie(buffer_bytes: int, browsed: bool) -> None:
    shard = ShardHarness(settings=ShardSettings(buffer_bytes=buffer_bytes))
    shard.create()
    ids = bury(shard, *[b"%d" % number for number in range(60)])
    if browsed:
        shard.ask(Browse(100), "q.dlq")
    picked = ids[5:50:3]
    assert pick(shard, *reversed(picked)) == Redriven(len(picked), 60 - len(picked), len(picked))
    assert [each.id for each in shard.receive(60)] == picked
    shard.restart()
    assert [each.id for each in shard.receive(60, "q.dlq")] == [each for each in ids if each not in picked]


def test_what_was_browsed_is_found_at_once(shard: ShardHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = bury(shard, b"0", b"1")
    shard.ask(Browse(100), "q.dlq")
    monkeypatch.setattr(redrive, "locate", None)
    assert pick(shard, *ids) == Redriven(2, 0, 2)


def test_one_command_takes_a_bounded_effort_to_find_what_it_names(shard: ShardHarness) -> None:
    ids = [bury(shard, b"x", key=key)[0] for key in "abcde"]
    shard.limit(step_effort=1, turn_effort=2, redrive_places_max=3)  # one for each lane before that of the message
    assert pick(shard, *ids) == Redriven(3, 2, 3)
    assert pick(shard, *ids[3:]) == Redriven(1, 1, 1)
    assert pick(shard, *ids[4:]) == Redriven(1, 0, 1)


def test_a_picked_one_whose_queue_is_gone_stays() -> None:
    shard = ShardHarness(settings=ShardSettings(buffer_bytes=1))
    shard.create()
    ids = bury(shard, b"0", b"orphan", b"2")
    orphan(shard, b"orphan")
    assert pick(shard, *ids) == Redriven(2, 1, 3)
    assert pick(shard, *ids) == Redriven(0, 1, 3)
    assert [each.payload for each in shard.receive(9, "q.dlq")] == [b"orphan"]


def test_of_a_queue_that_was_named_for_dead_letters_only_those_go() -> None:
    shard = ShardHarness()
    shard.create(NAMED)
    shard.create("q", dead_letter=NAMED)
    (own,) = shard.enqueue(b"own", queue=NAMED)
    (letter,) = bury(shard, b"letter")
    assert pick(shard, own, letter, queue=NAMED) == Redriven(1, 1, 2)
    assert [each.payload for each in shard.receive(9, NAMED)] == [b"own"]


def test_ids_a_count_and_a_key_do_not_go_together(shard: ShardHarness) -> None:
    (letter,) = bury(shard, b"x")
    for command in (Redrive(1, None, [parse_id(letter)]), Redrive(0, "default", [parse_id(letter)])):
        with pytest.raises(InvalidArgumentError, match="give one or the other"):
            shard.ask(command, "q.dlq")
    with pytest.raises(InvalidArgumentError, match="name at most 1000"):
        shard.ask(Redrive(0, None, [parse_id(letter)] * 1001), "q.dlq")
    with pytest.raises(NotADeadLetterQueueError):
        pick(shard, letter, queue="q")
    assert shard.counts("q.dlq") == (1, 0, 0)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_only_a_dead_letter_queue_can_be_redriven(shard: ShardHarness) -> None:
    with pytest.raises(NotADeadLetterQueueError, match=r"'q.dlq'"):
        shard.redrive(queue="q")
    with pytest.raises(QueueNotFoundError):
        shard.redrive(queue="nowhere.dlq")


def test_a_negative_count_is_refused(shard: ShardHarness) -> None:
    with pytest.raises(InvalidArgumentError, match="redrive of -1"):
        shard.redrive(-1)


def test_the_options_of_the_queue_hold_again() -> None:
    shard = ShardHarness()
    shard.create(max_attempts=2)
    shard.enqueue(b"x")
    for _ in range(2):
        shard.nack(shard.receive())
    assert QueueOptions() == shard.shard.queues["q.dlq"].options
    shard.redrive()
    shard.nack(shard.receive())
    assert [each.attempts for each in shard.receive()] == [1]


# --- hooks ------------------------------------------------------------------------------------------------------------


class Rewriting:
    """Hooks that move a message to another key, as a script could have been changed to."""

    has_on_enqueue, has_on_failure, failed, took_ns = True, False, 0, 0

    def __init__(self, decision: EnqueueDecision) -> None:
        self.decision = decision
        self.seen: list[int] = []

    def on_enqueue(
        self, headers: Sequence[bytes], sizes: Sequence[int], failures_max: int, time_max_ns: int
    ) -> list[EnqueueDecision]:
        self.seen += sizes
        return [self.decision] * len(headers)

    def on_failure(self, failures: Sequence[FailedAttempt], failures_max: int, time_max_ns: int) -> list[FailureDecision]:
        raise AssertionError

    def close(self) -> None: ...


def hooked(decision: EnqueueDecision) -> Callable[..., Rewriting]:
    return lambda *args, **options: Rewriting(decision)


@pytest.mark.parametrize("own", [False, True])
def test_the_hook_decides_anew(own: bool) -> None:
    shard = ShardHarness(compile_hooks=hooked(EnqueueDecision("other", 7, ["t"], -9, 3_000, None)))
    shard.create(NAMED)
    shard.create("q", dead_letter=None if own else NAMED)
    (message_id,) = bury(shard, b"four", key="acme", priority=1)
    shard.ask(UpdateQueue(QueueOptions(on_enqueue="script"), ["on_enqueue"]))
    shard.redrive(queue="q.dlq" if own else NAMED)
    (got,) = shard.receive()
    assert (got.id, got.key, got.weight, got.attempts, got.record.priority) == (message_id, "other", 7, 0, -9)
    assert got.record.extension.cost_milli == 3_000
    assert shard.shard.queues["q"].hooks.hooks.seen == [4]  # type: ignore[union-attr]


def test_it_may_delay_what_comes_back() -> None:
    shard = ShardHarness(compile_hooks=hooked(EnqueueDecision(delay_ms=5_000)))
    shard.create("q")
    bury(shard, b"x", priority=4)
    shard.ask(UpdateQueue(QueueOptions(on_enqueue="script"), ["on_enqueue"]))
    assert shard.ask(Redrive(0), "q.dlq") == Redriven(1, 0)
    assert shard.counts() == (0, 0, 1)
    shard.pass_time(5_000)
    assert [each.payload for each in shard.receive()] == [b"x"]
