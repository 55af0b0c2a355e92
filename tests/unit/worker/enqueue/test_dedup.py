"""Dedup ids: the same message is stored once within the window, however often and in whatever company it is sent."""

import pytest

from fila_proto_zmq.commands import CreateQueue, DeleteQueue, Enqueue, Enqueued, QueueOptions, Verb
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.ids import format_id, format_run
from fila_proto_zmq.limits import DEDUP_WINDOW_MS_MAX
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.effects import ClientCall
from fila_worker.core.keys import FIRST, LAST
from fila_worker.core.settings import ShardSettings
from tests.support.shard.shard import ShardHarness

WINDOW_MS = 300_000


def send(shard: ShardHarness, *dedup_ids: str, queue: str = "q", **columns: object) -> Enqueued:
    envelopes = [seal_envelope(each.encode()) for each in dedup_ids]
    reply = shard.ask(Enqueue(envelopes, dedup_id=list(dedup_ids), **columns), queue)  # type: ignore[arg-type]
    assert isinstance(reply, Enqueued)
    return reply


def ids(reply: Enqueued) -> list[str]:
    """The id of each message of a batch in order, as a client makes them out."""
    new = iter(format_run(reply.id_high, reply.id_low, reply.count))
    known = {index: format_id(high, low) for index, high, low in reply.known}
    faults = {index for index, _ in reply.faults}
    total = reply.count + len(known) + len(faults)
    return [known.get(index) or next(new) for index in range(total) if index not in faults]


def records(shard: ShardHarness) -> int:
    return sum(1 for _ in shard.store.scan(FIRST, LAST, shard.store.families.dedup))


def entries(shard: ShardHarness) -> int:
    return sum(1 for _ in shard.store.scan(FIRST, LAST, shard.store.families.schedule))


def test_the_second_gets_the_first_ones_id_and_nothing_is_stored(shard: ShardHarness) -> None:
    first = ids(send(shard, "a", "b"))
    again = send(shard, "a", "c", "b")
    assert (again.count, [index for index, _, _ in again.known]) == (1, [0, 2])
    assert [ids(again)[0], ids(again)[2]] == first
    assert shard.counts() == (3, 0, 0)
    assert shard.stats().enqueued == 3
    assert [each.payload for each in shard.receive(9)] == [b"a", b"b", b"c"]


def test_within_one_batch_too(shard: ShardHarness) -> None:
    reply = send(shard, "a", "b", "a", "a", "c")
    a, b, a_2, a_3, c = ids(reply)
    assert a == a_2 == a_3
    assert len({a, b, c}) == reply.count == 3
    assert shard.counts() == (3, 0, 0)


def test_and_within_one_turn(shard: ShardHarness) -> None:
    for _ in range(2):
        shard.shard.apply(ClientCall(b"c", 1, "q", shard.now_ms), Enqueue([seal_envelope(b"x")], dedup_id="a"))
    shard.turn()
    assert shard.counts() == (1, 0, 0)


def test_messages_without_one_are_all_stored(shard: ShardHarness) -> None:
    assert send(shard, "", "a", "", "a").count == 3


def test_one_column_for_all_stores_one(shard: ShardHarness) -> None:
    reply = shard.ask(Enqueue([seal_envelope(b"0"), seal_envelope(b"1")], dedup_id="same"))
    assert len(set(ids(reply))) == 1
    assert [each.payload for each in shard.receive(9)] == [b"0"]


@pytest.mark.parametrize("fate", ["acked", "dead", "delayed", "leased", "expired"])
@pytest.mark.parametrize("restarted", [False, True])
def test_what_became_of_the_first_one_does_not_matter(shard: ShardHarness, fate: str, restarted: bool) -> None:
    first = ids(send(shard, "a", delay_ms=60_000 if fate == "delayed" else 0, ttl_ms=1_000 if fate == "expired" else 0))
    match fate:
        case "acked":
            shard.ack(shard.receive())
        case "dead":
            shard.settle(Verb.FAIL, shard.receive())
        case "leased":
            shard.receive()
        case "expired":
            shard.pass_time(10_000)
    counts = shard.counts()
    if restarted:
        shard.restart()
    assert ids(send(shard, "a")) == first
    assert shard.counts() == counts


@pytest.mark.parametrize("restarted", [False, True])
def test_the_window_ends_exactly(shard: ShardHarness, restarted: bool) -> None:
    shard.now_ms += 123  # off the grid on which windows are swept
    first = ids(send(shard, "a"))
    shard.pass_time(WINDOW_MS - 1)
    if restarted:
        shard.restart()
    assert ids(send(shard, "a")) == first
    shard.now_ms += 1
    second = ids(send(shard, "a"))
    assert second != first
    shard.pass_time(WINDOW_MS - 1)
    assert ids(send(shard, "a")) == second, "the first window's end must not close the second"


def test_a_duplicate_does_not_prolong_the_window(shard: ShardHarness) -> None:
    first = ids(send(shard, "a"))
    shard.pass_time(WINDOW_MS - 1_000)
    assert ids(send(shard, "a")) == first
    shard.pass_time(1_000)
    assert ids(send(shard, "a")) != first


def test_ids_are_forgotten_on_disk_too(shard: ShardHarness) -> None:
    send(shard, *map(str, range(50)))
    shard.pass_time(WINDOW_MS // 2)
    send(shard, *map(str, range(40, 60)))
    assert records(shard) == 60
    shard.restart()
    shard.pass_time(WINDOW_MS // 2 + 1_000)
    assert records(shard) == 10
    shard.pass_time(WINDOW_MS)
    assert records(shard) == 0
    assert shard.shard.due_index.next_due_ms is None


def test_a_window_may_be_set() -> None:
    shard = ShardHarness(settings=ShardSettings(dedup_window_ms=2_000))
    shard.create()
    first = ids(send(shard, "a"))
    shard.pass_time(2_000)
    assert ids(send(shard, "a")) != first


@pytest.mark.parametrize("window_ms", [2_000, WINDOW_MS + 60_000, DEDUP_WINDOW_MS_MAX])
def test_a_batch_may_bring_its_own_window(shard: ShardHarness, window_ms: int) -> None:
    first = ids(send(shard, "a", "b", dedup_window_ms=window_ms))
    shard.pass_time(window_ms - 1)
    shard.restart()
    assert ids(send(shard, "a", dedup_window_ms=1)) == first[:1], "who asks again has no say"
    shard.pass_time(1)
    assert ids(send(shard, "a")) != first[:1]
    shard.pass_time(1_000)
    assert records(shard) == 1


@pytest.mark.parametrize("window_ms", [-1, DEDUP_WINDOW_MS_MAX + 1])
def test_a_window_out_of_bounds_refuses_the_batch(shard: ShardHarness, window_ms: int) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"dedup window of {window_ms} ms: use 1 to 604800000"):
        send(shard, "a", dedup_window_ms=window_ms)
    assert (shard.counts(), records(shard)) == ((0, 0, 0), 0)


def test_ids_that_came_together_are_forgotten_together(shard: ShardHarness) -> None:
    send(shard, *map(str, range(1_200)))
    assert (records(shard), entries(shard)) == (1_200, 3)
    send(shard, *map(str, range(1_200)))
    assert entries(shard) == 3, "ids that are known need no entry"


def test_a_turn_forgets_a_bounded_number(shard: ShardHarness) -> None:
    shard.limit(due_note_bytes_max=1_000)
    for start in range(0, 10_000, 500):
        send(shard, *map(str, range(start, start + 500)))
    shard.now_ms += WINDOW_MS + 1_000
    shard.turn()
    assert records(shard) == 9_500
    shard.restart()
    shard.pass_time(0)
    assert (records(shard), entries(shard)) == (0, 0)


def test_queues_know_their_own_ids_only(shard: ShardHarness) -> None:
    shard.create("r")
    first = ids(send(shard, "a"))
    assert ids(send(shard, "a", queue="r")) != first
    assert shard.counts("r") == (1, 0, 0)


def test_a_queue_that_is_made_anew_knows_none(shard: ShardHarness) -> None:
    first = ids(send(shard, "a"))
    shard.ask(DeleteQueue())
    assert records(shard) == 0
    shard.restart()
    shard.create()
    shard.now_ms += 5_000
    second = ids(send(shard, "a"))
    assert second != first
    shard.pass_time(WINDOW_MS - 1)
    assert ids(send(shard, "a")) == second, "what the first queue left in the due index is not about the second"
    shard.pass_time(1_001)
    assert (records(shard), entries(shard)) == (0, 0)


# --- some of a batch --------------------------------------------------------------------------------------------------


def test_each_message_keeps_its_own_options(shard: ShardHarness) -> None:
    send(shard, "a", "c")
    reply = send(
        shard, "a", "b", "c", "d", fairness_key=list("wxyz"), weight=[1, 2, 3, 4], priority=[0, 0, 0, -1],
        throttle_keys=[["0"], ["1"], ["2"], ["3"]],
    )  # fmt: skip
    assert reply.count == 2
    got = {each.payload: each for each in shard.receive(9)}
    assert [(got[name].key, got[name].weight, got[name].throttle_keys) for name in (b"b", b"d")] == [
        ("x", 2, ("1",)), ("z", 4, ("3",)),
    ]  # fmt: skip
    assert (got[b"d"].record.priority, got[b"a"].key) == (-1, "default")


def test_a_hook_decides_for_each(shard: ShardHarness) -> None:
    script = "function on_enqueue(msg) return {fairness_key = msg.headers.tenant} end"
    shard.ask(CreateQueue(QueueOptions(on_enqueue=script)), "hooked")
    send(shard, "a", queue="hooked")
    envelopes = [seal_envelope(name.encode(), {"tenant": name}) for name in "abc"]
    reply = shard.ask(Enqueue(envelopes, dedup_id=["a", "b", "c"]), "hooked")
    assert isinstance(reply, Enqueued)
    assert [index for index, _, _ in reply.known] == [0]
    assert {each.payload: each.key for each in shard.receive(9, "hooked")} == {b"a": "default", b"b": "b", b"c": "c"}


@pytest.mark.parametrize("weight", [0, [0, 0, 0, 0, 2_000_000]], ids=["usual", "one by one"])
def test_results_are_those_of_the_request_in_its_order(weight: object) -> None:
    shard = ShardHarness(settings=ShardSettings(max_payload_bytes=10))
    shard.create()
    first = ids(send(shard, "k", "l"))
    large = seal_envelope(bytes(11))
    small = seal_envelope(b"")
    command = Enqueue([large, small, large, small, small], dedup_id=["a", "k", "l", "b", ""], weight=weight)  # type: ignore[arg-type]
    reply = shard.ask(command)
    assert isinstance(reply, Enqueued)
    refused = [0, 2] if weight == 0 else [0, 2, 4]
    assert [index for index, _ in reply.faults] == refused
    assert [(index, format_id(high, low)) for index, high, low in reply.known] == [(1, first[0])]
    assert reply.count == 5 - len(refused) - 1
    again = shard.ask(Enqueue([small], dedup_id="b"))
    assert isinstance(again, Enqueued)
    assert again.known == [(0, reply.id_high, reply.id_low)]
    assert shard.ask(Enqueue([small], dedup_id="a")).count == 1


# --- refused ones -----------------------------------------------------------------------------------------------------


def test_a_message_with_a_bad_option_leaves_nothing(shard: ShardHarness) -> None:
    reply = send(shard, "a", "b", delay_ms=[-1, 0])
    assert [index for index, _ in reply.faults] == [0]
    assert records(shard) == 1
    assert send(shard, "a").known == []


def test_nor_one_that_is_too_large() -> None:
    shard = ShardHarness(settings=ShardSettings(max_payload_bytes=10))
    shard.create()
    envelopes = [seal_envelope(bytes(11)), seal_envelope(b"")]
    reply = shard.ask(Enqueue(envelopes, dedup_id="a"))
    assert ([index for index, _ in reply.faults], reply.count, reply.known) == ([0], 1, [])


def test_nor_one_that_is_over_quota() -> None:
    shard = ShardHarness(settings=ShardSettings(max_queue_messages=1))
    shard.create()
    reply = send(shard, "a", "b", "a")
    assert [index for index, _ in reply.faults] == [1]
    assert [index for index, _, _ in reply.known] == [2], "a duplicate needs no room"
    shard.ack(shard.receive())
    assert send(shard, "b").count == 1


def test_a_long_id_is_refused(shard: ShardHarness) -> None:
    reply = send(shard, "é" * 128, "é" * 128 + "x")
    assert ([index for index, _ in reply.faults], reply.count) == ([1], 1)


def test_nothing_of_an_uncommitted_turn_is_remembered(shard: ShardHarness) -> None:
    shard.shard.apply(ClientCall(b"c", 1, "q", shard.now_ms), Enqueue([seal_envelope(b"x")], dedup_id="a"))
    shard.restart()
    reply = send(shard, "a")
    assert (reply.count, reply.known) == (1, [])
