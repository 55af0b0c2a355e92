"""Replacement by dedup id: payload, headers and delay are new; id, place and all other options stay."""

from dataclasses import replace
from random import Random

import pytest

from fila_proto_zmq.codec import from_fault
from fila_proto_zmq.commands import Browse, Browsed, Cancel, Enqueue, Enqueued, QueueOptions, UpdateQueue, Verb
from fila_proto_zmq.errors import InvalidArgumentError, OverloadedError
from fila_proto_zmq.ids import format_id, parse_id
from fila_proto_zmq.limits import PRIORITY_MIN
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.keys import FIRST, LAST
from fila_worker.core.settings import Limits, ShardSettings
from fila_worker.core.store import DamageError
from tests.support.shard.shard import Got, ShardHarness
from tests.support.shard.tight_shard import TIGHT

WINDOW_MS = 300_000


def put(shard: ShardHarness, payload: bytes, dedup_id: str = "a", *, last: bool = True, **columns: object) -> str:
    """Enqueue one message, and return the id that it got."""
    command = Enqueue([seal_envelope(payload)], dedup_id=dedup_id, dedup_last=last, **columns)  # type: ignore[arg-type]
    return id_of(shard.ask(command))


def id_of(reply: object) -> str:
    assert isinstance(reply, Enqueued)
    if reply.faults:
        raise from_fault(reply.faults[0][1])
    high, low = reply.known[0][1:] if reply.known else (reply.id_high, reply.id_low)
    return format_id(high, low)


def payloads(got: list[Got]) -> list[bytes]:
    return [each.payload for each in got]


def size_bytes(shard: ShardHarness) -> int:
    return shard.shard.queues["q"].size_bytes


def entries(shard: ShardHarness) -> int:
    return sum(1 for _ in shard.store.scan(FIRST, LAST, shard.store.families.schedule))


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("first_mode", [False, True])
def test_a_pending_message_keeps_its_id_its_place_and_its_other_options(
    shard: ShardHarness, restarted: bool, first_mode: bool
) -> None:
    shard.enqueue(b"0")
    first = put(shard, b"old", last=first_mode, max_attempts=7, cost_milli=2000, lease_ms=5000)
    shard.enqueue(b"2")
    if restarted:
        shard.restart()
    assert put(shard, b"new and longer", max_attempts=1, cost_milli=9000) == first
    if restarted:
        shard.restart()
    assert shard.counts() == (3, 0, 0)
    got = shard.receive(9)
    assert payloads(got) == [b"0", b"new and longer", b"2"]
    assert (got[1].id, got[1].attempts) == (first, 0)
    extension = got[1].record.extension
    assert (extension.max_attempts, extension.cost_milli, extension.lease_ms) == (7, 2000, 5000)
    shard.ack(got)
    shard.pass_time(10_000)
    assert size_bytes(shard) == 0, "the queue's size counts what is stored now"


def test_headers_are_replaced_too(shard: ShardHarness) -> None:
    shard.ask(Enqueue([seal_envelope(b"1", {"a": "1"})], dedup_id="a", dedup_last=True))
    shard.ask(Enqueue([seal_envelope(b"2", {"b": "2"})], dedup_id="a", dedup_last=True))
    [got] = shard.receive(9)
    assert (got.payload, got.headers) == (b"2", {"b": "2"})


def test_a_pending_message_with_a_delay_waits_again(shard: ShardHarness) -> None:
    first = put(shard, b"1")
    assert put(shard, b"2", delay_ms=5000) == first
    assert shard.counts() == (0, 0, 1)
    shard.pass_time(3000)
    put(shard, b"3", delay_ms=5000)
    shard.pass_time(3000)
    assert shard.receive(9) == []
    shard.pass_time(2000)
    [got] = shard.receive(9)
    assert (got.payload, got.id) == (b"3", first)


def test_a_delayed_message_without_a_new_delay_comes_at_once(shard: ShardHarness) -> None:
    put(shard, b"1", delay_ms=5000)
    put(shard, b"2")
    assert payloads(shard.receive(9)) == [b"2"]
    shard.pass_time(10_000)
    assert shard.counts() == (0, 1, 0), "the entry for the former date does nothing"


def test_an_absolute_time_is_a_delay_too(shard: ShardHarness) -> None:
    put(shard, b"1")
    put(shard, b"2", due_ms=shard.now_ms + 9000)
    assert shard.counts() == (0, 0, 1)
    shard.pass_time(9000)
    assert payloads(shard.receive(9)) == [b"2"]


def test_putting_off_again_and_again_leaves_no_entries_behind(shard: ShardHarness) -> None:
    put(shard, b"0", delay_ms=60_000)
    for number in range(50):
        shard.pass_time(1500)
        put(shard, str(number).encode(), delay_ms=60_000 + number)
    assert entries(shard) == 3, "the message's date, the first window's end, and the last one's"
    assert shard.counts() == (0, 0, 1)
    shard.pass_time(WINDOW_MS * 2)
    assert entries(shard) == 0
    assert payloads(shard.receive(9)) == [b"49"]


@pytest.mark.parametrize("fate", ["leased", "acked", "acked in a batch", "dead", "cancelled", "expired"])
@pytest.mark.parametrize("restarted", [False, True])
def test_beside_a_message_that_is_leased_or_gone_comes_another(shard: ShardHarness, fate: str, restarted: bool) -> None:
    """A confirmed update is never dropped; from then on it is the one that is replaced."""
    first = put(shard, b"1", ttl_ms=1000 if fate == "expired" else 0)
    put(shard, b"other", "b")
    got = [] if fate in {"cancelled", "expired"} else shard.receive(2 if "batch" in fate else 1)
    match fate:
        case "acked" | "acked in a batch":
            shard.ack(got)
        case "dead":
            shard.settle(Verb.FAIL, got)
        case "cancelled":
            shard.ask(Cancel(*parse_id(first)))
        case "expired":
            shard.pass_time(10_000)
    second = put(shard, b"2")
    assert second != first
    if restarted:
        shard.restart()
    assert put(shard, b"3", delay_ms=1000) == second
    if fate == "leased":
        shard.settle(Verb.NACK, got)
        assert payloads(shard.receive(9)) == [b"1", b"other"]
    shard.pass_time(1000)
    assert b"3" in payloads(shard.receive(9))


def test_repeated_frames_of_a_batch_beside_a_leased_message_store_one(shard: ShardHarness) -> None:
    """A client that lost the answer sends them again: they replace what they have stored."""
    put(shard, b"1")
    shard.receive()
    batch = Enqueue([seal_envelope(b"2"), seal_envelope(b"3")], dedup_id="a", dedup_last=True)
    for _ in range(2):
        shard.ask(batch)
    assert shard.counts() == (1, 1, 0)
    assert payloads(shard.receive(9)) == [b"3"]


def test_a_replacement_begins_the_window_anew(shard: ShardHarness) -> None:
    first = put(shard, b"0", delay_ms=10 * WINDOW_MS)
    for number in range(1, 6):
        shard.pass_time(WINDOW_MS - 1)
        shard.restart()
        assert put(shard, str(number).encode(), delay_ms=10 * WINDOW_MS) == first
    shard.pass_time(WINDOW_MS)
    assert put(shard, b"6") != first


def test_one_of_mode_first_neither_replaces_nor_prolongs_the_window(shard: ShardHarness) -> None:
    first = put(shard, b"0")
    shard.ack(shard.receive())
    shard.pass_time(WINDOW_MS - 1000)
    for payload in (b"1", b"2"):
        assert (put(shard, payload, last=False) == first) == (payload == b"1")
        shard.pass_time(1000)


def test_the_same_id_several_times_in_one_batch(shard: ShardHarness) -> None:
    envelopes = [seal_envelope(text) for text in (b"1", b"other", b"2", b"3")]
    reply = shard.ask(Enqueue(envelopes, dedup_id=["a", "", "a", "a"], dedup_last=[True, False, True, False]))
    assert isinstance(reply, Enqueued)
    assert (reply.count, [index for index, *_ in reply.known]) == (2, [2, 3])
    assert payloads(shard.receive(9)) == [b"2", b"other"]


def test_a_batch_may_put_off_what_it_has_stored(shard: ShardHarness) -> None:
    envelopes = [seal_envelope(text) for text in (b"1", b"2", b"3", b"4")]
    shard.ask(Enqueue(envelopes, dedup_id="a", dedup_last=True, delay_ms=[0, 5000, 0, 7000]))
    assert shard.counts() == (0, 0, 1)
    shard.pass_time(6000)
    assert shard.receive() == []
    shard.pass_time(1000)
    assert payloads(shard.receive(9)) == [b"4"]


def test_a_dedup_id_is_needed(shard: ShardHarness) -> None:
    with pytest.raises(InvalidArgumentError, match="dedup_id"):
        put(shard, b"1", "")
    assert shard.counts() == (0, 0, 0)


def test_other_fairness_and_throttle_keys_do_not_matter_to_what_may_be_replaced(shard: ShardHarness) -> None:
    put(shard, b"1", fairness_key="x", throttle_keys=[["t"]], priority=5)
    put(shard, b"2", fairness_key="y", priority=-5)
    [got] = shard.receive(9)
    assert (got.payload, got.key, got.throttle_keys, got.record.priority) == (b"2", "x", ("t",), 5)


def test_one_that_was_stored_for_good_is_found_by_its_fairness_key(shard: ShardHarness) -> None:
    put(shard, b"1", last=False, fairness_key="x", throttle_keys=[["t"]], priority=5)
    put(shard, b"2", fairness_key="x")
    put(shard, b"3", "b", last=False, fairness_key="x")
    put(shard, b"4", "b", fairness_key="y")
    assert payloads(shard.receive(9)) == [b"3", b"4", b"2"], "what is not found stays, and nothing is dropped"


@pytest.mark.parametrize("cap", [None, 1])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_redriven_message_is_found_by_its_fairness_key(shard: ShardHarness, cap: int | None, restarted: bool) -> None:
    shard.ask(UpdateQueue(QueueOptions(max_in_flight_per_key=cap), ["max_in_flight_per_key"]))
    first = put(shard, b"1")
    shard.settle(Verb.RETRY, shard.receive(1))
    assert put(shard, b"2") == first  # with a cap of 1 it is in front of its lane
    shard.settle(Verb.FAIL, shard.receive(1))
    shard.redrive()
    if restarted:
        shard.restart()
    assert put(shard, b"3") == first
    assert put(shard, b"4") == first
    assert payloads(shard.receive(9)) == [b"4"]


def test_a_message_that_waits_for_a_retry_keeps_its_attempts(shard: ShardHarness) -> None:
    put(shard, b"1")
    shard.settle(Verb.RETRY, shard.receive(), after_ms=10_000, error="busy")
    put(shard, b"2", delay_ms=3000)
    shard.pass_time(3000)
    [got] = shard.receive(9)
    assert (got.payload, got.attempts, got.error) == (b"2", 1, "busy")


@pytest.mark.parametrize("priority", [0, PRIORITY_MIN])
def test_strict_order_holds_when_a_delivered_message_is_put_off(shard: ShardHarness, priority: int) -> None:
    shard.ask(UpdateQueue(QueueOptions(max_in_flight_per_key=1), ["max_in_flight_per_key"]))
    put(shard, b"1", priority=priority)
    shard.enqueue(b"2", priority=priority)
    shard.nack(shard.receive(9))
    put(shard, b"1b", delay_ms=5000)
    assert shard.receive(9) == [], "the next message of the key waits for the one before"
    shard.restart()
    assert shard.receive(9) == []
    shard.pass_time(5000)
    got = shard.receive(9)
    assert payloads(got) == [b"1b"]
    shard.ack(got)
    assert payloads(shard.receive(9)) == [b"2"]


def test_a_slot_is_free_when_a_retry_comes_at_once(shard: ShardHarness) -> None:
    shard.ask(UpdateQueue(QueueOptions(max_in_flight_per_key=1), ["max_in_flight_per_key"]))
    put(shard, b"1")
    shard.settle(Verb.RETRY, shard.receive(), after_ms=60_000)
    put(shard, b"2")
    assert payloads(shard.receive(9)) == [b"2"]


def test_a_new_message_that_is_put_off_holds_nobody_up(shard: ShardHarness) -> None:
    shard.ask(UpdateQueue(QueueOptions(max_in_flight_per_key=1), ["max_in_flight_per_key"]))
    put(shard, b"1")
    shard.enqueue(b"2")
    put(shard, b"1b", delay_ms=5000)
    assert payloads(shard.receive(9)) == [b"2"]


def test_the_time_to_live_stays(shard: ShardHarness) -> None:
    put(shard, b"1", ttl_ms=10_000)
    put(shard, b"2", delay_ms=20_000, ttl_ms=60_000)
    shard.pass_time(15_000)
    assert shard.counts() == (0, 0, 0)
    assert shard.counts("q.dlq") == (1, 0, 0)


def test_a_queue_without_room_for_more_bytes_refuses_what_grows() -> None:
    shard = ShardHarness(settings=ShardSettings(max_queue_bytes=300))
    shard.create("q")
    put(shard, bytes(100))
    with pytest.raises(OverloadedError, match="max_queue_bytes"):
        put(shard, bytes(1000))
    put(shard, bytes(10))
    assert payloads(shard.receive(9)) == [bytes(10)]


@pytest.mark.parametrize("restarted", [False, True])
def test_browse_shows_what_is_there_now(shard: ShardHarness, restarted: bool) -> None:
    put(shard, b"1")
    put(shard, b"2", delay_ms=1000)
    if restarted:
        shard.restart()
    page = shard.ask(Browse(10))
    assert isinstance(page, Browsed)
    assert [(view.state, view.due_ms) for view in page.messages] == [("delayed", shard.now_ms + 1000)]


def test_a_message_that_can_not_be_read_is_damage_and_no_fault_of_the_next(shard: ShardHarness) -> None:
    put(shard, b"1", max_attempts=3)
    families, batch = shard.store.families, shard.store.new_batch()
    [(key, record)] = list(shard.store.scan(FIRST, LAST, families.messages))
    batch.put(key, record[:28] + b"\xff" * 8, families.messages)
    shard.store.commit(batch)
    with pytest.raises(DamageError):
        put(shard, b"2")


class Model:
    """What must come of it: for each dedup id its message, whose payload is that of the last replacement."""

    def __init__(self) -> None:
        self.waiting: dict[str, bytes] = {}

    def put(self, name: str, payload: bytes) -> None:
        self.waiting[name] = payload

    def take(self, name: str, payload: bytes) -> None:
        assert self.waiting.pop(name) == payload, name


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("limits", [Limits(), replace(TIGHT, due_read_messages_max=3)])
def test_any_mixture(seed: int, limits: Limits) -> None:
    random = Random(seed)
    settings = ShardSettings(limits=limits, buffer_bytes=2_000, dedup_window_ms=10**8)
    shard, model, ids = ShardHarness(settings=settings), Model(), dict[str, str]()
    shard.create("q", **({"max_in_flight_per_key": random.randint(1, 3)} if seed % 3 == 0 else {}))
    for step in range(60):
        names = [f"{random.randrange(step, step + 12)}" for _ in range(random.randint(1, 6))]
        texts = [f"{name} {step}.{index}".encode() + bytes(random.randrange(80)) for index, name in enumerate(names)]
        reply = shard.ask(
            Enqueue(
                [seal_envelope(text) for text in texts], [f"k{random.randrange(4)}" for _ in names],
                dedup_id=names, dedup_last=True, priority=[random.choice([0, 0, -3, 4]) for _ in names],
                delay_ms=[random.choice([0, 0, 700, 5000]) for _ in names],
                throttle_keys=[[random.choice(["t", "u"])] if random.random() < 0.2 else [] for _ in names],
            )
        )  # fmt: skip
        assert isinstance(reply, Enqueued)
        assert not reply.faults
        for name, text in zip(names, texts, strict=True):
            model.put(name, text)
        known = {index: format_id(high, low) for index, high, low in reply.known}
        for index, message_id in known.items():
            assert ids.setdefault(names[index], message_id) == message_id
        if random.random() < 0.1:
            shard.restart()
        if random.random() < 0.3:
            shard.pass_time(random.choice([500, 2000]))
        for got in shard.receive(random.randint(1, 3)) if step % 2 else []:
            name = got.payload.split()[0].decode()
            assert ids.setdefault(name, got.id) == got.id
            if random.random() < 0.5:
                assert got.payload == model.waiting[name]
                shard.settle(random.choice([Verb.NACK, Verb.RELEASE]), [got])
            else:
                model.take(name, got.payload)
                del ids[name]
                shard.ack([got])
    shard.pass_time(10_000)
    while rest := shard.receive(5):
        for got in rest:
            model.take(got.payload.split()[0].decode(), got.payload)
        shard.ack(rest)
    assert not model.waiting
    assert shard.counts() == (0, 0, 0)
    shard.pass_time(10_000)
    assert size_bytes(shard) == 0
