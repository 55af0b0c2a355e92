"""Work in steps: with so little effort a turn that everything goes on over many turns, and the invariants hold after each."""

from collections.abc import Callable

import pytest

from fila_proto_zmq.commands import (
    Browse,
    Browsed,
    Cancel,
    Cancelled,
    Command,
    CreateQueue,
    DeleteQueue,
    Done,
    Enqueue,
    Enqueued,
    Explain,
    Explained,
    GetQueueStats,
    Goodbye,
    Purged,
    PurgeQueue,
    QueueOptions,
    QueueStats,
    Receive,
    Redrive,
    Redriven,
    Settle,
    Settled,
    Subscribe,
    UpdateQueue,
    Verb,
)
from fila_proto_zmq.errors import (
    FilaError,
    MessageNotFoundError,
    OverloadedError,
    QueueNotFoundError,
)
from fila_proto_zmq.ids import format_run, parse_id
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.effects import ClientCall
from fila_worker.core.settings import ShardSettings
from tests.support.shard.shard import ADMIN, ShardHarness, fences, limited

KEYS = 12
SLOW = "function on_enqueue(msg) local x = 0 for i = 1, 20000 do x = x + i end return {} end"


@pytest.fixture(params=[1, 3])
def shard(request: pytest.FixtureRequest) -> ShardHarness:
    shard = ShardHarness(settings=limited(turn_effort=request.param, step_effort=1))
    shard.create()
    return shard


def fill(shard: ShardHarness, queue: str = "q") -> list[str]:
    return [shard.enqueue(b"%d" % number, queue=queue, key=f"key-{number:02d}")[0] for number in range(KEYS)]


def turns_until_answered(
    shard: ShardHarness, command: Command, queue: str = "q", client: bytes = ADMIN
) -> tuple[int, object]:
    """How many turns a command took, and its answer."""
    number, turns = shard.begin(command, queue, client), 1
    while number not in shard.late:
        assert shard.shard.next_due(shard.now_ms) == 0
        shard.turn()
        turns += 1
    return turns, shard.late.pop(number)


# --- what goes on over many turns --------------------------------------------------------------------------------------


def test_a_message_is_found_by_its_id_in_steps(shard: ShardHarness) -> None:
    ids = fill(shard)
    turns, answer = turns_until_answered(shard, Cancel(*parse_id(ids[-1])))
    assert answer == Cancelled(True)
    assert turns > 2
    assert isinstance(turns_until_answered(shard, Cancel(*parse_id(ids[-1])))[1], MessageNotFoundError)
    turns, answer = turns_until_answered(shard, Explain(parse_id(ids[-2])))
    assert isinstance(answer, Explained)
    assert turns > 2


def test_a_page_is_browsed_in_steps(shard: ShardHarness) -> None:
    fill(shard)
    turns, answer = turns_until_answered(shard, Browse(1000))
    assert isinstance(answer, Browsed)
    assert [each.fairness_key for each in answer.messages] == [f"key-{number:02d}" for number in range(KEYS)]
    assert turns > 2


def test_a_goodbye_gives_back_leases_and_ends_receives_and_subscriptions_in_steps(shard: ShardHarness) -> None:
    fill(shard)
    shard.create("empty")
    for _ in range(4):
        assert shard.receive(2, client=b"leaver")
        shard.begin(Receive(1, 60_000), "empty", b"leaver")
    shard.subscribe(3, "empty", client=b"leaver")
    turns, answer = turns_until_answered(shard, Goodbye(), client=b"leaver")
    assert answer == Done()
    assert turns > 2
    assert shard.counts() == (KEYS, 0, 0)
    assert not shard.shard.consumers.leaving
    assert shard.stats("empty").info.consumers == 0


def test_nothing_is_leased_to_a_client_that_is_leaving(shard: ShardHarness) -> None:
    shard.create("other")
    fill(shard)
    for number in range(5):
        shard.subscribe(2, client=b"leaver", number=number + 1)
    shard.begin(Goodbye(), client=b"leaver")
    shard.pushed.clear()
    shard.finish()
    assert shard.counts() == (KEYS, 0, 0)
    assert not shard.pushed


def test_a_client_that_comes_back_while_it_leaves_is_another_consumer(shard: ShardHarness) -> None:
    fill(shard)
    for _ in range(4):
        shard.receive(2, client=b"c")
    shard.begin(Goodbye(), client=b"c")
    shard.begin(Subscribe(1, 5), client=b"c")
    shard.finish()
    assert shard.counts() == (KEYS - 5, 5, 0)


def test_what_a_client_settled_before_its_goodbye_is_settled(shard: ShardHarness) -> None:
    fill(shard)
    got = [each for _ in range(4) for each in shard.receive(2, client=b"c")]
    settled = shard.begin(Settle(Verb.FAIL, fences(got)), client=b"c")
    goodbye = shard.begin(Goodbye(), client=b"c")
    shard.finish()
    assert shard.late[settled] == Settled([])
    assert shard.late[goodbye] == Done()
    assert shard.counts("q.dlq") == (8, 0, 0)


def test_many_consumers_that_are_lost_lose_their_leases_in_steps(shard: ShardHarness) -> None:
    fill(shard)
    for number in range(6):
        shard.receive(2, client=b"c%d" % number)
    shard.now_ms += shard.settings.consumer_timeout_ms
    shard.turn()
    assert shard.shard.queues["q"].in_flight > 0
    shard.finish()
    assert shard.counts() == (KEYS, 0, 0)


def test_receives_whose_time_is_up_at_once_are_answered_over_several_turns() -> None:
    shard = ShardHarness(settings=limited(turn_waits_max=2))
    shard.create()
    numbers = [shard.begin(Receive(1, 1000)) for _ in range(7)]
    shard.now_ms += 1000
    shard.turn()
    assert sum(number in shard.late for number in numbers) == 2
    shard.pass_time(0)
    assert all(number in shard.late for number in numbers)


@pytest.mark.parametrize("verb", list(Verb))
def test_many_leases_are_settled_in_steps(shard: ShardHarness, verb: Verb) -> None:
    fill(shard)
    got = [each for _ in range(KEYS) for each in shard.receive(1)]
    turns, answer = turns_until_answered(shard, Settle(verb, fences(got)), client=b"c1")
    assert answer == Settled([])
    assert turns > 2 or verb is Verb.ACK
    assert shard.counts()[1] == 0


def test_a_queue_is_gone_at_once_and_what_was_in_it_in_steps(shard: ShardHarness) -> None:
    fill(shard)
    shard.receive(3)
    waiting = shard.begin(Receive(1, 60_000), "q.dlq", b"waiter")
    assert turns_until_answered(shard, DeleteQueue(force=True))[1] == Done()
    assert shard.shard.queues.by_id, "there is more to remove"
    with pytest.raises(QueueNotFoundError):
        shard.stats()
    shard.begin(CreateQueue(QueueOptions()))
    shard.enqueue(b"new")
    shard.finish()
    assert isinstance(shard.late[waiting], QueueNotFoundError)
    assert shard.counts() == (1, 0, 0)
    assert [got.payload for got in shard.receive(9)] == [b"new"]
    assert len(shard.shard.queues.by_id) == len(shard.shard.queues) == 2


def test_a_queue_that_was_being_removed_is_removed_after_a_restart(shard: ShardHarness) -> None:
    fill(shard)
    shard.begin(DeleteQueue(force=True))
    shard.begin(CreateQueue(QueueOptions()))
    for _ in range(3):
        shard.turn()
        shard.restart()
    shard.enqueue(b"new")
    shard.finish()
    assert shard.counts() == (1, 0, 0)
    assert len(shard.shard.queues.by_id) == 2
    shard.restart()
    assert shard.counts() == (1, 0, 0)


def test_a_cap_for_all_keys_holds_for_each_once_the_queue_delivers_again(shard: ShardHarness) -> None:
    for number in range(KEYS):
        shard.enqueue(b"x", b"y", b"z", key=f"key-{number:02d}")
    shard.receive(KEYS)
    number = shard.begin(UpdateQueue(QueueOptions(max_in_flight_per_key=2), ["max_in_flight_per_key"]), client=ADMIN)
    request = shard.begin(Receive(100, 1000), client=b"c2")
    assert request not in shard.late, "it delivers nothing until all keys are counted"
    shard.finish()
    assert shard.late[number] == Done()
    shard.pass_time(0)
    assert shard.counts() == (KEYS, 2 * KEYS, 0)


def test_two_purges_at_once_remove_each_message_once(shard: ShardHarness) -> None:
    shard.limit(purge_lanes_max=1)
    fill(shard)
    first, second = shard.begin(PurgeQueue(), client=b"a"), shard.begin(PurgeQueue(), client=b"b")
    shard.finish()
    purged = [shard.late[number] for number in (first, second)]
    assert sum(each.count for each in purged if isinstance(each, Purged)) == KEYS
    assert shard.counts() == (0, 0, 0)


def test_a_redrive_goes_on_while_its_queue_is_deleted(shard: ShardHarness) -> None:
    fill(shard)
    shard.settle(Verb.FAIL, shard.receive(KEYS))
    redriving = shard.begin(Redrive(0), "q.dlq", ADMIN)
    shard.begin(DeleteQueue(force=True), client=b"other")
    shard.finish()
    assert isinstance(shard.late[redriving], Redriven | FilaError)
    assert not shard.shard.queues


def test_work_in_steps_leaves_half_of_a_turn_to_the_commands_behind_it() -> None:
    shard = ShardHarness(settings=limited(turn_effort=1000, step_effort=100))
    shard.create()
    fill(shard)
    for number in range(50):
        shard.shard.apply(ClientCall(b"browser-%d" % number, number, "q", shard.now_ms), Browse(1000))
        assert not shard.shard.jobs.full, "or the frames behind them would wait"
    enqueued = shard.begin(batch(b"quick"))
    assert enqueued in shard.late
    assert shard.shard.jobs.open > 30
    shard.finish()
    assert not shard.shard.jobs.open


# --- pages --------------------------------------------------------------------------------------------------------------


def test_statistics_come_in_pages() -> None:
    shard = ShardHarness(settings=limited(stats_keys_max=5))
    shard.create()
    fill(shard)
    names: list[str] = []
    page = shard.stats()
    pages = 1
    names += [key.fairness_key for key in page.keys]
    while page.next:
        reply = shard.ask(GetQueueStats(page.next), client=ADMIN)
        assert isinstance(reply, QueueStats)
        page, pages = reply, pages + 1
        names += [key.fairness_key for key in page.keys]
    assert names == [f"key-{number:02d}" for number in range(KEYS)]
    assert pages == 3


# --- enqueues -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def hooked() -> ShardHarness:
    """A queue whose hook takes more than a step's time for each message."""
    shard = ShardHarness(settings=ShardSettings(lua_timeout_ms=1000, limits=limited(turn_effort=1, step_effort=1).limits))
    shard.create(on_enqueue=SLOW)  # type: ignore[arg-type]
    return shard


def batch(*payloads: bytes) -> Enqueue:
    return Enqueue([seal_envelope(payload) for payload in payloads])


def test_an_enqueue_whose_hook_takes_long_goes_on_and_keeps_its_order_and_its_ids(hooked: ShardHarness) -> None:
    payloads = [b"%d" % number for number in range(10)]
    first = hooked.begin(batch(*payloads[:6]))
    assert hooked.shard.queues["q"].pending < 6
    second = hooked.begin(batch(*payloads[6:]), client=b"another producer")
    hooked.finish()
    ids: list[str] = []
    for number, count in ((first, 6), (second, 4)):
        reply = hooked.late[number]
        assert isinstance(reply, Enqueued)
        assert (reply.count, reply.faults) == (count, [])
        ids += format_run(reply.id_high, reply.id_low, reply.count)
    assert [got.payload for got in hooked.receive(10)] == payloads
    assert ids == sorted(ids)


def test_other_queues_are_not_kept_waiting_by_a_slow_hook(hooked: ShardHarness) -> None:
    hooked.create("other")
    hooked.begin(batch(*[b"x"] * 6))
    (identity,) = hooked.enqueue(b"quick", queue="other")
    assert identity


def test_an_enqueue_that_takes_too_long_is_answered_with_what_is_stored(hooked: ShardHarness) -> None:
    number = hooked.begin(batch(*[b"x"] * 8))
    behind = hooked.begin(batch(b"y"), client=b"another producer")
    stored = hooked.shard.queues["q"].pending
    assert 0 < stored < 8
    hooked.now_ms += hooked.settings.limits.enqueue_ms_max
    hooked.finish()
    reply = hooked.late[number]
    assert isinstance(reply, Enqueued)
    assert reply.count + len(reply.faults) == 8
    assert {fault.code for _, fault in reply.faults} == {"OVERLOADED"}
    assert [index for index, _ in reply.faults] == list(range(reply.count, 8))
    refused = hooked.late[behind]
    assert isinstance(refused, OverloadedError)
    assert refused.details["refused"]
    assert hooked.counts()[0] == reply.count


def test_an_enqueue_has_its_whole_time_from_its_own_beginning(hooked: ShardHarness) -> None:
    """What it waited behind the batch before is none of it: a client has several batches under way."""
    most = hooked.settings.limits.enqueue_ms_max
    first, second = hooked.begin(batch(*[b"x"] * 6)), hooked.begin(batch(*[b"y"] * 6))
    hooked.now_ms += most - 1
    while hooked.shard.queues["q"].pending <= 6 and hooked.shard.jobs.open:  # the second one has begun
        hooked.turn()
    hooked.now_ms += most - 1
    hooked.finish()
    for number in (first, second):
        reply = hooked.late[number]
        assert isinstance(reply, Enqueued)
        assert (reply.count, reply.faults) == (6, [])


def test_an_enqueue_whose_queue_is_deleted_meanwhile_gets_the_error(hooked: ShardHarness) -> None:
    number = hooked.begin(batch(*[b"x"] * 6))
    hooked.begin(DeleteQueue(), client=ADMIN)
    hooked.finish()
    reply = hooked.late[number]
    assert isinstance(reply, Enqueued)
    assert reply.count < 6
    assert {fault.code for _, fault in reply.faults} == {"QUEUE_NOT_FOUND"}


def test_many_failures_are_decided_by_a_slow_hook_over_many_turns() -> None:
    shard = ShardHarness(settings=ShardSettings(lua_timeout_ms=1000, limits=limited(turn_effort=1, step_effort=1).limits))
    slow = SLOW.replace("on_enqueue", "on_failure").replace("{}", "{action = 'dlq'}")
    shard.create(on_failure=slow)  # type: ignore[arg-type]
    shard.enqueue(*[b"x"] * 8)
    turns, answer = turns_until_answered(shard, Settle(Verb.NACK, fences(shard.receive(8))), client=b"c1")
    assert answer == Settled([])
    assert turns > 2
    assert shard.counts("q.dlq") == (8, 0, 0)


def test_a_large_enqueue_is_stored_in_parts() -> None:
    shard = ShardHarness(settings=limited(enqueue_step_messages=3, turn_effort=1, step_effort=1))
    shard.create()
    payloads = [b"%d" % number for number in range(10)]
    ids = ["x", "", "y", "x", "z", "", "z", "w", "v", "u"]
    number = shard.begin(Enqueue([seal_envelope(payload) for payload in payloads], dedup_id=ids))
    assert 0 < shard.shard.queues["q"].pending < 8
    shard.finish()
    reply = shard.late[number]
    assert isinstance(reply, Enqueued)
    assert [index for index, *_ in reply.known] == [3, 6]
    assert reply.count == 8
    assert [got.payload for got in shard.receive(20)] == [payloads[index] for index in (0, 1, 2, 4, 5, 7, 8, 9)]


# --- bounds -------------------------------------------------------------------------------------------------------------


def test_a_client_has_a_bounded_number_of_jobs_and_others_still_have_theirs() -> None:
    shard = ShardHarness(settings=limited(turn_effort=1, step_effort=1, client_jobs_max=3))
    shard.create()
    ids = fill(shard)
    command = Cancel(parse_id(ids[0])[0], 1)
    for _ in range(9):
        shard.shard.apply(call(shard, b"greedy"), command)
    other = shard.begin(command, client=b"other")
    shard.finish()
    refused = [answer for answer in shard.late.values() if isinstance(answer, OverloadedError)]
    assert len(refused) == 6
    assert refused[0].details["refused"]
    assert isinstance(shard.late[other], MessageNotFoundError)


def call(shard: ShardHarness, client: bytes) -> ClientCall:
    shard.requests += 1
    return ClientCall(client, shard.requests, "q", shard.now_ms)


def test_a_turn_with_much_to_do_is_full() -> None:
    shard = ShardHarness(settings=limited(turn_effort=10))
    shard.create()
    assert not shard.shard.jobs.full
    shard.shard.apply(call(shard, b"c"), batch(*[b"x"] * 6))  # type: ignore[arg-type]
    assert shard.shard.jobs.full
    shard.turn()
    assert not shard.shard.jobs.full


@pytest.mark.parametrize("what", [Cancel(1, 1), Browse(10), Explain(), PurgeQueue("x"), Redrive(0), GetQueueStats()])
def test_what_asks_nothing_of_the_clock_leaves_nothing_to_do(what: Command) -> None:
    shard = ShardHarness()
    shard.create()
    answered: Callable[[], object] = lambda: turns_until_answered(shard, what, "q.dlq")  # noqa: E731
    assert answered()
    assert shard.shard.next_due(shard.now_ms) != 0
