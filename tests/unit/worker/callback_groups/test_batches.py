"""Batches: the callback comes once, when the last member is done, with the counts of what was stored."""

from dataclasses import replace

import pytest

from fila_proto_zmq.commands import (
    BatchJoined,
    Cancel,
    Command,
    CreateQueue,
    DeleteQueue,
    Enqueue,
    ForgetParts,
    JoinBatch,
    OpenBatch,
    PurgeQueue,
    QueueOptions,
    ReportParts,
    SealParts,
    Verb,
)
from fila_proto_zmq.errors import (
    InvalidArgumentError,
    OverloadedError,
    QueueNotFoundError,
    ShardUnavailableError,
)
from fila_proto_zmq.names import batch_id
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.callback_group_parts import PartPlace
from fila_worker.core.callback_groups.owned import OwnedBatches
from fila_worker.core.settings import Limits, ShardSettings
from tests.support.external.power_cut import UnsyncedStore, cut_power
from tests.support.shard.batched import DONE, ELSEWHERE, HERE, ID, SHARD_OF, THERE, TOKEN, Batched
from tests.support.shard.shard import limited


@pytest.fixture
def batched() -> Batched:
    return Batched()


def test_the_callback_comes_when_the_last_member_is_done(batched: Batched) -> None:
    batched.open(name="import", headers={"job": "7"})
    batched.add(HERE, b"a")
    batched.add(THERE, b"b", b"c")
    batched.add(ELSEWHERE, b"d")
    batched.seal()
    assert batched.settle_all(HERE) + batched.settle_all(ELSEWHERE) == 2
    assert batched.settle_all(THERE, count=1) == 1
    assert batched.callbacks() == []
    batched.settle_all(THERE)
    headers = {
        "job": "7",
        "fila-batch": ID,
        "fila-batch-name": "import",
        "fila-batch-total": "4",
        "fila-batch-acked": "4",
        "fila-batch-dead": "0",
        "fila-batch-removed": "0",
    }
    assert batched.callbacks() == [(b"all done", headers)]
    assert batched.nothing_is_left()


def test_members_that_are_done_before_the_seal_count(batched: Batched) -> None:
    batched.open()
    for queue in (HERE, THERE):
        batched.add(queue, b"a", b"b")
        batched.settle_all(queue)
    assert batched.callbacks() == []
    batched.seal()
    assert batched.counts() == [(4, 4, 0, 0)]


def test_an_empty_batch_has_its_callback_at_once(batched: Batched) -> None:
    batched.open()
    batched.seal()
    assert batched.counts() == [(0, 0, 0, 0)]
    assert batched.nothing_is_left()


def test_a_part_that_a_power_cut_undoes_after_its_seal_is_sealed_again() -> None:
    batched = Batched(stores={SHARD_OF[THERE]: UnsyncedStore()})
    batched.open()
    batched.add(HERE, b"a")
    batched.add(THERE, b"lost")
    batched.seal()
    cut_power(batched.of(THERE))
    batched.settle_all(HERE)
    assert batched.callbacks() == []
    batched.pass_time(Limits().batch_check_ms)
    assert batched.counts() == [(1, 1, 0, 0)]
    assert batched.nothing_is_left()


def test_an_unfinished_part_is_sealed_again_once_in_a_while(batched: Batched) -> None:
    batched.open()
    batched.add(THERE, b"a")
    batched.seal()
    for _ in range(3):
        batched.seen.clear()
        batched.pass_time(Limits().batch_check_ms - 1)
        assert not [each for each in batched.seen if isinstance(each, SealParts)]
        batched.pass_time(1)
        assert len([each for each in batched.seen if isinstance(each, SealParts)]) == 1
    assert batched.callbacks() == []
    batched.settle_all(THERE)
    assert batched.counts() == [(1, 1, 0, 0)]


@pytest.mark.parametrize("queue", [HERE, THERE])
@pytest.mark.parametrize("restarted", [False, True])
def test_each_way_to_end_is_counted(batched: Batched, queue: str, restarted: bool) -> None:
    batched.open()
    shard = batched.of(queue)
    batched.add(queue, b"acked")
    batched.settle_all(queue)
    batched.add(queue, b"failed", b"failed too")
    batched.settle_all(queue, Verb.FAIL)
    batched.add(queue, b"old", ttl_ms=1000)
    batched.add(queue, b"cancelled")
    batched.add(queue, b"purged", delay_ms=60_000)
    batched.add(queue, b"purged")
    if restarted:
        shard.restart()
    batched.pass_time(2000)
    (got,) = shard.receive(1, queue)
    assert got.payload == b"cancelled"
    shard.settle(Verb.RELEASE, [got], queue)
    shard.ask(Cancel(got.record.id_high, got.record.id_low), queue)
    batched.seal()
    assert batched.callbacks() == []
    shard.ask(PurgeQueue(), queue)
    batched.carry()
    assert batched.counts() == [(7, 1, 3, 3)]


def test_a_failed_attempt_is_not_the_end(batched: Batched) -> None:
    batched.open()
    batched.add(THERE, b"a")
    batched.seal()
    batched.settle_all(THERE, Verb.NACK)
    batched.settle_all(THERE, Verb.RELEASE)
    shard = batched[3]
    shard.settle(Verb.RETRY, shard.receive(1, THERE), THERE, after_ms=500)
    batched.pass_time(1000)
    shard.receive(1, THERE)
    batched.pass_time(60_000)
    assert batched.callbacks() == []
    assert batched.settle_all(THERE) == 1
    assert batched.counts() == [(1, 1, 0, 0)]


def test_a_redriven_dead_letter_is_no_member_again(batched: Batched) -> None:
    batched.open()
    batched.add(THERE, b"a", b"b")
    batched.settle_all(THERE, Verb.FAIL, 1)
    batched[3].redrive(0, f"{THERE}.dlq")
    batched.seal()
    assert batched.callbacks() == []
    assert batched.settle_all(THERE) == 2
    assert batched.counts() == [(2, 1, 1, 0)]


@pytest.mark.parametrize("policy", ["discard", ELSEWHERE])
def test_dead_letters_are_done_wherever_they_go(batched: Batched, policy: str) -> None:
    shard = batched[3]
    shard.ask(DeleteQueue(), THERE)
    number = shard.begin(CreateQueue(QueueOptions(dead_letter=policy)), THERE)
    batched.answer(THERE, number)
    batched.open()
    batched.add(THERE, b"a")
    batched.seal()
    batched.settle_all(THERE, Verb.FAIL)
    assert batched.counts() == [(1, 0, 1, 0)]
    batched.settle_all(ELSEWHERE)
    batched.pass_time(10_000)
    assert batched.counts() == [(1, 0, 1, 0)]


@pytest.mark.parametrize("subscribed", [False, True])
def test_at_most_once_delivered_is_acked(batched: Batched, subscribed: bool) -> None:
    shard = batched[3]
    shard.ask(DeleteQueue(), THERE)
    shard.ask(CreateQueue(QueueOptions(delivery="at_most_once")), THERE)
    batched.open()
    batched.add(THERE, b"a", b"b")
    batched.seal()
    if subscribed:
        shard.subscribe(10, THERE)
        shard.settle(Verb.ACK, shard.take_pushed(), THERE)
    else:
        shard.receive(2, THERE)
    batched.pass_time(1)
    assert batched.counts() == [(2, 2, 0, 0)]


def test_messages_with_a_known_dedup_id_are_no_members_again(batched: Batched) -> None:
    batched.of(THERE).enqueue(b"before", queue=THERE, dedup_id="x")  # type: ignore[arg-type]
    batched.open()
    batched.add(THERE, b"again", b"new", b"new again", dedup_id=["x", "y", "y"])
    batched.add(THERE, b"new once more", dedup_id="y")
    batched.seal()
    assert batched.settle_all(THERE) == 2
    assert batched.counts() == [(1, 1, 0, 0)]


def test_refused_messages_are_no_members(batched: Batched) -> None:
    batched.open()
    reply = batched.add(THERE, b"good", b"bad", priority=[0, 2**40])
    assert (reply.count, len(reply.faults)) == (1, 1)
    batched.seal()
    batched.settle_all(THERE)
    assert batched.counts() == [(1, 1, 0, 0)]


def test_a_large_enqueue_is_counted_as_it_is_stored() -> None:
    batched = Batched(settings=limited(enqueue_step_messages=10))
    batched.open()
    batched.add(THERE, *[b"%d" % number for number in range(55)])
    batched.seal()
    assert batched.settle_all(THERE) == 55
    assert batched.counts() == [(55, 55, 0, 0)]


def test_a_batch_that_is_sealed_between_the_steps_of_an_enqueue_takes_no_more() -> None:
    batched = Batched(settings=limited(enqueue_step_messages=10, turn_effort=100, step_effort=50))
    batched.open()
    batched.add(THERE, b"first")
    envelopes = [seal_envelope(b"%d" % number) for number in range(50)]
    number = batched.begin(Enqueue(envelopes, batch=ID), THERE)
    assert batched[3].shard.jobs.open
    batched.seal()
    reply = batched.answer(THERE, number)
    assert 0 < reply.count < 50  # type: ignore[attr-defined]
    assert reply.count + len(reply.faults) == 50  # type: ignore[attr-defined]
    stored = batched.settle_all(THERE)
    assert batched.counts() == [(stored, stored, 0, 0)]


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queue", [HERE, THERE])
def test_a_sealed_batch_takes_no_members(batched: Batched, queue: str) -> None:
    batched.open()
    batched.add(queue, b"a")
    batched.seal()
    reply = None
    with pytest.raises(InvalidArgumentError, match="is sealed"):
        reply = batched.add(queue, b"late")
    with pytest.raises(InvalidArgumentError, match="is sealed"):
        batched.add(ELSEWHERE, b"late in a queue without members")
    assert reply is None
    batched.settle_all(queue)
    assert batched.counts() == [(1, 1, 0, 0)]
    with pytest.raises(InvalidArgumentError, match="is not known"):
        batched.add(queue, b"later still")
    assert batched.nothing_is_left()


@pytest.mark.parametrize("batch", ["x", f"{DONE}#12", f"{DONE}#{'zz' * 16}", f"bad name#{TOKEN.hex()}"])
def test_what_is_no_id_of_a_batch_is_refused(batched: Batched, batch: str) -> None:
    with pytest.raises(InvalidArgumentError, match="bad"):
        batched.add(THERE, b"a", batch=batch)


def test_a_token_with_another_callback_queue_is_not_known(batched: Batched) -> None:
    batched.open()
    batched.add(THERE, b"a")
    with pytest.raises(InvalidArgumentError, match="is not known"):
        batched.add(THERE, b"b", batch=batch_id(HERE, TOKEN))
    with pytest.raises(InvalidArgumentError, match="is not known"):
        batched.add(ELSEWHERE, b"b", batch=batch_id(HERE, TOKEN))


def test_a_callback_that_could_not_be_enqueued_is_refused_at_once(batched: Batched) -> None:
    with pytest.raises(QueueNotFoundError):
        batched[5].ask(OpenBatch(TOKEN, Enqueue([seal_envelope(b"")])), "missing")
    with pytest.raises(InvalidArgumentError, match="dead letter queue"):
        batched[5].ask(OpenBatch(TOKEN, Enqueue([seal_envelope(b"")])), f"{DONE}.dlq")
    with pytest.raises(InvalidArgumentError, match="16 random"):
        batched.ask(OpenBatch(b"short", Enqueue([seal_envelope(b"")])), DONE)
    for columns, text in (
        ({"dedup_id": "x"}, "dedup_id"),
        ({"batch": ID}, "callbacks are in no batch"),
        ({"priority": 2**40}, "priority"),
        ({"headers": {"h": "x" * 65_000}}, "the broker adds some"),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            batched.open(**columns)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="0 callbacks"):
        batched.ask(OpenBatch(TOKEN, Enqueue([])), DONE)
    with pytest.raises(InvalidArgumentError, match="name of 201 bytes"):
        batched.open(name="x" * 201)
    assert batched.nothing_is_left()


def test_the_options_of_a_callback_hold(batched: Batched) -> None:
    batched.open(
        priority=7, weight=3, fairness_key="acme", throttle_keys=[["t"]], delay_ms=5000, lease_ms=90_000, cost_milli=1500
    )
    batched.seal()
    assert batched.callbacks() == []
    batched.pass_time(5000)
    (got,) = batched[5].receive(1, DONE)
    extension = got.record.extension
    assert (got.record.priority, got.weight, got.key, got.throttle_keys) == (7, 3, "acme", ("t",))
    assert (extension.lease_ms, extension.cost_milli, extension.batch) == (90_000, 1500, None)


def test_the_hook_of_the_callbacks_queue_decides() -> None:
    batched = Batched()
    batched[5].ask(DeleteQueue(), DONE)
    script = 'function on_enqueue(msg) return {fairness_key = "n" .. msg.headers["fila-batch-total"]} end'
    batched[5].ask(CreateQueue(QueueOptions(on_enqueue=script)), DONE)
    batched.open()
    batched.add(THERE, b"a")
    batched.settle_all(THERE)
    batched.seal()
    (got,) = batched[5].receive(1, DONE)
    assert got.key == "n1"


# --- repeated, lost and late ------------------------------------------------------------------------------------------


def test_commands_may_be_repeated(batched: Batched) -> None:
    for _ in range(2):
        batched.open()
    batched.add(THERE, b"a")
    for _ in range(2):
        batched.seal()
    batched.settle_all(THERE)
    batched.seal()
    batched[5].restart()
    batched.seal()
    assert batched.counts() == [(1, 1, 0, 0)]
    with pytest.raises(InvalidArgumentError, match="has ended"):
        batched.open()


def test_only_so_many_ended_batches_are_remembered() -> None:
    batched = Batched(settings=limited(ended_batches_max=2))
    tokens = [bytes([number]) * 16 for number in range(3)]
    for token in tokens:
        batched[5].now_ms += 1
        batched.open(token)
        batched.seal(token)
    batched[5].restart()
    batched.seal(tokens[2])
    batched.seal(tokens[1])
    with pytest.raises(InvalidArgumentError, match="is not known"):
        batched.seal(tokens[0])


class Losing:
    """Loses the first frames of a kind."""

    def __init__(self, kind: type[Command], times: int) -> None:
        self.kind, self.times = kind, times

    def __call__(self, command: Command) -> int:
        if isinstance(command, self.kind) and self.times:
            self.times -= 1
            return 0
        return 1


KINDS = [JoinBatch, BatchJoined, SealParts, ReportParts, ForgetParts]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("restarted", [(), (3,), (5,), (3, 5)])
def test_a_lost_frame_is_repeated(batched: Batched, kind: type[Command], restarted: tuple[int, ...]) -> None:
    batched.copies = Losing(kind, 2)
    batched.open()
    number = batched.begin(Enqueue([seal_envelope(b"a")], batch=ID), THERE)
    batched.carry()
    for _ in range(3):
        batched.pass_time(1000)
    batched.answer(THERE, number)
    batched.seal()
    for index in restarted:
        batched[index].restart()
    batched.pass_time(3000)
    batched.settle_all(THERE)
    for index in restarted:
        batched[index].restart()
    batched.pass_time(10_000)
    assert batched.counts() == [(1, 1, 0, 0)]
    assert batched.nothing_is_left()


@pytest.mark.parametrize("kind", KINDS)
def test_frames_that_come_several_times_do_no_harm(batched: Batched, kind: type[Command]) -> None:
    batched.copies = lambda command: 3 if isinstance(command, kind) else 1
    batched.open()
    batched.add(THERE, b"a", b"b")
    batched.settle_all(THERE, Verb.FAIL, 1)
    batched.seal()
    batched.settle_all(THERE)
    batched.pass_time(5000)
    assert batched.counts() == [(2, 1, 1, 0)]
    assert batched.nothing_is_left()


def test_a_late_answer_begins_no_part(batched: Batched) -> None:
    """A join that is answered after the seal must not let members in that the owner does not count."""
    batched.open()
    held: list[Command] = []

    def hold(command: Command) -> int:
        if isinstance(command, BatchJoined):
            held.append(command)
            return 0
        return 1

    batched.copies = hold
    first = batched.begin(Enqueue([seal_envelope(b"a")], batch=ID), THERE)
    batched.carry()
    batched.seal()
    with pytest.raises(InvalidArgumentError, match="is sealed"):
        batched.answer(THERE, first)
    batched.copies = lambda command: 0
    batched.begin(Enqueue([seal_envelope(b"b")], batch=ID), THERE)
    batched.collect()
    batched.deliver(held[0])
    assert batched[3].shard.batch_parts.parts == {}
    assert batched[3].counts(THERE) == (0, 0, 0)
    assert batched.counts() == [(0, 0, 0, 0)]


def test_members_wait_for_an_owner_that_is_away_and_are_then_refused(batched: Batched) -> None:
    batched.open()
    batched.stopped.add(5)
    number = batched.begin(Enqueue([seal_envelope(b"a")], batch=ID), THERE)
    batched.pass_time(Limits().batch_wait_ms_max)
    with pytest.raises(ShardUnavailableError, match="does not answer") as raised:
        batched.answer(THERE, number)
    assert raised.value.details["refused"] is True
    batched.stopped.clear()
    batched.add(THERE, b"a")
    batched.seal()
    batched.settle_all(THERE)
    assert batched.counts() == [(1, 1, 0, 0)]


def test_enqueues_that_wait_keep_their_order(batched: Batched) -> None:
    batched.open()
    for number in range(3):
        batched.begin(Enqueue([seal_envelope(b"%d" % number)], batch=ID, after=number and batched[3].requests), THERE)
    batched.carry()
    got = batched[3].receive(9, THERE)
    assert [each.payload for each in got] == [b"0", b"1", b"2"]


def test_a_token_that_is_used_twice_makes_no_count_negative(batched: Batched) -> None:
    """A client may do that; what it gets is its own affair, but nothing breaks."""
    batched.open()
    batched.add(THERE, b"a", b"b")
    batched.abandon()
    batched.open()
    batched[3].checked = False  # two messages say that they are members, and one of them is
    batched.add(THERE, b"c")
    batched.settle_all(THERE)
    assert batched[3].shard.batch_parts.parts[PartPlace(THERE, TOKEN)].open == 0
    batched.seal()
    assert batched.counts() == [(1, 1, 0, 0)]


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_what_waits_is_bounded() -> None:
    batched = Batched(settings=limited(batch_waits_max=2, batch_waits_bytes_max=5000))
    tokens = [bytes([number]) * 16 for number in range(3)]
    batched.stopped.add(5)
    for token in tokens[:2]:
        batched.begin(Enqueue([seal_envelope(b"a")], batch=batch_id(DONE, token)), THERE)
    with pytest.raises(OverloadedError, match="2 batches wait"):
        batched[3].ask(Enqueue([seal_envelope(b"a")], batch=batch_id(DONE, tokens[2])), THERE)
    with pytest.raises(OverloadedError, match="too many messages wait"):
        batched[3].ask(Enqueue([seal_envelope(bytes(5000))], batch=batch_id(DONE, tokens[0])), THERE)
    batched.pass_time(Limits().batch_wait_ms_max)
    assert batched[3].shard.batch_parts._waiting_bytes == 0


def test_batches_and_their_parts_are_bounded() -> None:
    batched = Batched(settings=limited(batches_max=2, batch_parts_max=1, batch_queues_max=1))
    tokens = [bytes([number]) * 16 for number in range(3)]
    ids = [batched.open(token) for token in tokens[:2]]
    with pytest.raises(OverloadedError, match="2 batches"):
        batched.open(tokens[2])
    batched.add(THERE, b"a", batch=ids[0])
    with pytest.raises(OverloadedError, match="members of 1 batches"):
        batched.add(THERE, b"a", batch=ids[1])
    with pytest.raises(InvalidArgumentError, match="in 1 queues"):
        batched.add(ELSEWHERE, b"a", batch=ids[0])
    batched.seal(tokens[0])
    batched.settle_all(THERE)
    batched.open(tokens[2])


def test_callbacks_are_bounded_in_bytes() -> None:
    batched = Batched(settings=limited(batch_callback_bytes_max=10_000))
    batched.open(bytes(16), payload=bytes(9000))
    with pytest.raises(OverloadedError, match="callbacks of 9"):
        batched.open(payload=bytes(2000))
    batched.seal(bytes(16))
    batched.open(payload=bytes(2000))


def test_callbacks_come_a_bounded_number_a_turn() -> None:
    batched = Batched(settings=limited(batch_ends_at_once=2))
    tokens = [bytes([number]) * 16 for number in range(5)]
    for token in tokens:
        batched.add(THERE, b"a", batch=batched.open(token))
        batched.seal(token)
    batched.settle_all(THERE)
    batched.pass_time(1)
    assert batched.counts() == [(1, 1, 0, 0)] * 5


# --- batches that do not end ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("restarted", [(), (3, 5)])
def test_an_open_batch_is_forgotten_in_the_end(batched: Batched, lost: bool, restarted: tuple[int, ...]) -> None:
    batched.open()
    batched.add(HERE, b"a")
    batched.add(THERE, b"b")
    for index in restarted:
        batched[index].restart()
    if lost:
        batched.copies = Losing(ForgetParts, 1)
    for station in batched.stations.values():
        station.now_ms += Limits().batch_open_ms_max
    batched.pass_time(2 * Limits().batch_check_ms)
    assert batched.nothing_is_left()
    with pytest.raises(InvalidArgumentError, match="is not known"):
        batched.seal()
    assert batched.settle_all(HERE) + batched.settle_all(THERE) == 2
    assert batched.callbacks() == []


def test_a_sealed_batch_has_all_the_time_of_its_members(batched: Batched) -> None:
    batched.open()
    batched.add(THERE, b"a")
    batched.seal()
    for station in batched.stations.values():
        station.now_ms += 10 * Limits().batch_open_ms_max
    batched.pass_time(2 * Limits().batch_check_ms)
    batched.settle_all(THERE)
    assert batched.counts() == [(1, 1, 0, 0)]


@pytest.mark.parametrize("lost", [False, True])
def test_an_abandoned_batch_has_no_callback(batched: Batched, lost: bool) -> None:
    batched.open()
    batched.add(HERE, b"a")
    batched.add(THERE, b"b")
    if lost:
        batched.copies = Losing(ForgetParts, 1)
    batched.abandon()
    batched.abandon()
    assert batched.nothing_is_left() is not lost
    for station in batched.stations.values():
        station.now_ms += Limits().batch_open_ms_max
    batched.pass_time(2 * Limits().batch_check_ms)
    assert batched.nothing_is_left()
    assert batched.settle_all(HERE) + batched.settle_all(THERE) == 2
    assert batched.callbacks() == []


def test_a_sealed_batch_can_not_be_abandoned(batched: Batched) -> None:
    batched.open()
    batched.add(THERE, b"a")
    batched.seal()
    with pytest.raises(InvalidArgumentError, match="is sealed"):
        batched.abandon()


# --- queues that go ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True])
def test_a_deleted_queues_members_are_done(batched: Batched, again: bool) -> None:
    batched.open()
    batched.add(THERE, b"a", b"b", b"c")
    shard = batched[3]
    shard.settle(Verb.ACK, shard.receive(1, THERE), THERE)
    held = shard.receive(1, THERE)
    shard.ask(DeleteQueue(force=True), THERE)
    if again:
        shard.create(THERE)
        batched.add(THERE, b"d")
        shard.settle(Verb.ACK, held, THERE)  # a lease of the queue that is gone
        batched.settle_all(THERE)
    batched.seal()
    assert batched.counts() == [(3 + again, 1 + again, 0, 2)]


def test_the_batches_of_a_deleted_callback_queue_go_with_it(batched: Batched) -> None:
    batched.open()
    batched.add(THERE, b"a")
    batched.ask(OpenBatch(bytes(16), Enqueue([seal_envelope(b"")])), HERE)
    batched[5].ask(DeleteQueue(force=True), DONE)
    batched[5].create(DONE)
    with pytest.raises(InvalidArgumentError, match="is not known"):
        batched.seal()
    batched[5].restart()
    assert [str(name) for name in batched[5].shard.part(OwnedBatches).batches] == [batch_id(HERE, bytes(16))]
    batched.settle_all(THERE)
    for station in batched.stations.values():
        station.now_ms += Limits().batch_open_ms_max
    batched.pass_time(2 * Limits().batch_check_ms)
    assert batched.nothing_is_left()
    assert batched.callbacks() == []


def test_a_queue_that_waits_for_a_callback_is_not_idle(batched: Batched) -> None:
    batched[5].ask(DeleteQueue(), DONE)
    batched[5].ask(CreateQueue(QueueOptions(idle_expiry_ms=60_000)), DONE)
    batched.open()
    batched.add(THERE, b"a")
    batched.seal()
    batched.pass_time(300_000)
    batched.settle_all(THERE)
    assert batched.counts() == [(1, 1, 0, 0)]


def test_a_purge_of_one_key_counts_its_members(batched: Batched) -> None:
    batched.open()
    batched.add(THERE, b"a", b"b", b"c", fairness_key=["x", "y", "x"])
    batched.seal()
    batched[3].ask(PurgeQueue("x"), THERE)
    batched.settle_all(THERE)
    assert batched.counts() == [(3, 1, 0, 2)]


@pytest.mark.parametrize("buffer_bytes", [0, 10_000])
def test_a_purge_counts_members_that_are_only_on_disk(buffer_bytes: int) -> None:
    batched = Batched(settings=replace(ShardSettings(), buffer_bytes=buffer_bytes))
    batched.open()
    batched.add(THERE, *[bytes(100)] * 60)
    batched[3].enqueue(*[bytes(100)] * 40, queue=THERE)
    held = batched[3].receive(10, THERE)
    batched.seal()
    batched[3].ask(PurgeQueue(), THERE)
    assert batched.callbacks() == []
    batched[3].ack(held, THERE)
    batched.carry()
    assert batched.counts() == [(60, 10, 0, 50)]


# --- a backup ---------------------------------------------------------------------------------------------------------


def test_while_shards_are_cut_only_joins_go_on(batched: Batched) -> None:
    batched.open()
    batched.add(THERE, b"a")
    until_ms = batched[5].now_ms + 5000
    for station in batched.stations.values():
        station.shard.rest_transfers(until_ms)
    batched.add(ELSEWHERE, b"b")
    batched.seal()
    batched.settle_all(THERE)
    batched.settle_all(ELSEWHERE)
    batched.pass_time(4000)
    kinds = {type(command) for command in batched.seen}
    assert kinds == {JoinBatch, BatchJoined}
    assert batched.callbacks() == []
    batched.pass_time(3000)
    assert batched.counts() == [(2, 2, 0, 0)]
    assert batched.nothing_is_left()


# --- turns ------------------------------------------------------------------------------------------------------------


def test_what_shards_say_in_a_turn_is_bounded() -> None:
    batched = Batched(settings=limited(batch_parts_at_once=2, batch_ends_at_once=2))
    tokens = [bytes([number]) * 16 for number in range(7)]
    for token in tokens:
        batched.add(THERE, b"a", batch=batched.open(token))
        batched.seal(token)
    batched.stopped.add(5)
    batched.settle_all(THERE)
    batched.seen.clear()
    batched.pass_time(1000)
    reports = [command for command in batched.seen if isinstance(command, ReportParts)]
    assert [len(command.parts) for command in reports] == [2, 2, 2, 1]
    batched.stopped.clear()
    batched.pass_time(1000)
    assert batched.counts() == [(1, 1, 0, 0)] * 7


def test_batches_that_are_too_old_are_forgotten_a_bounded_number_a_turn() -> None:
    batched = Batched(settings=limited(batch_ends_at_once=2, batch_parts_at_once=1))
    for number in range(5):
        batched.add(THERE, b"a", batch=batched.open(bytes([number]) * 16))
    for station in batched.stations.values():
        station.now_ms += Limits().batch_open_ms_max
    batched[5].turn()
    assert len(batched[5].shard.part(OwnedBatches).batches) == 3
    batched.pass_time(6 * Limits().batch_check_ms)
    assert batched.nothing_is_left()
