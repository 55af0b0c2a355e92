"""A turn is bounded, whatever there is to look at, and what it did not reach is not forgotten."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from sys import getrefcount

import pytest

from fila_proto_zmq.commands import (
    Browse,
    BrowseView,
    Cancel,
    CancelReceive,
    Command,
    DescribeQueue,
    Enqueue,
    Explain,
    ListQueues,
    OpenView,
    Pause,
    Receive,
    SetConfig,
    Settle,
    Verb,
)
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.effects import ClientCall
from fila_worker.core.inspect import browse
from fila_worker.core.inspect.backlog import LOOK_UP_COST
from fila_worker.core.manage import queue_commands
from fila_worker.core.manage.config import KEYS_AT_ONCE
from fila_worker.core.model import token_client
from fila_worker.core.settings import Limits, ShardSettings
from fila_worker.core.settle import settle
from fila_worker.core.store import Family
from fila_worker.core.walking import LOOKS_AT_ONCE, pieces
from fila_worker.storage.memory import MemoryStore
from tests.support.shard.shard import ShardHarness

PATIENT = ShardSettings(consumer_timeout_ms=1 << 40)
EMPTY = seal_envelope(b"")


def patient() -> ShardHarness:
    harness = ShardHarness(settings=PATIENT, checked=False)
    harness.create()
    return harness


def enqueue(shard: ShardHarness, count: int, queue: str = "q", **columns: object) -> None:
    shard.ask(Enqueue([EMPTY] * count, **columns), queue, b"producer")  # type: ignore[arg-type]


def test_a_receive_that_does_not_wait_is_not_turned_away_because_another_queue_is_busy() -> None:
    shard = patient()
    shard.create("quiet")
    for _ in range(10):
        enqueue(shard, 1000)
    enqueue(shard, 1, "quiet")
    shard.subscribe(50_000, client=b"greedy")
    request = shard.send(Receive(1, 0), "quiet")
    while request not in shard.late:
        assert shard.shard.next_due(shard.now_ms) == 0
        shard.turn()
    assert shard.late[request].batches != []  # type: ignore[union-attr]
    assert shard.counts()[0] > 0, "the busy queue has more to deliver"


def test_queues_share_a_turn() -> None:
    shard = ShardHarness(settings=replace(PATIENT, limits=Limits(turn_effort=1_000_000)), checked=False)
    for number in range(8):
        shard.create(f"q{number}")
        shard.subscribe(5000, f"q{number}", b"greedy", number + 1)
    for number in range(8):
        for _ in range(3):
            shard.shard.apply(ClientCall(b"producer", 0, f"q{number}", shard.now_ms), Enqueue([EMPTY] * 1000))
    shard.turn()
    counts = {number: len(shard.take_pushed(b"greedy", number + 1)) for number in range(8)}
    assert sum(counts.values()) == 2000
    assert set(counts.values()) == {250}


class CountingStore(MemoryStore):
    """Counts the messages that are read."""

    read = 0

    def scan(self, begin: bytes, end: bytes, family: Family) -> Iterator[tuple[bytes, bytes]]:
        for item in super().scan(begin, end, family):
            self.read += family is self.families.messages
            yield item


def test_lanes_that_run_out_together_do_not_make_a_turn_long() -> None:
    """Deficit round robin empties the head buffers of all lanes in one turn."""
    limits, lanes = Limits(turn_effort=300, refill_messages_max=100, refill_messages_min=3), 50
    store = CountingStore()
    shard = ShardHarness(store, settings=replace(PATIENT, buffer_bytes=1, limits=limits), checked=False)
    shard.create()
    for key in range(lanes):
        enqueue(shard, 200, fairness_key=str(key))
    shard.shard.buffers.bytes_max = 1 << 30
    read = []
    for round_ in range(1, 20):
        before = store.read
        delivered = shard.receive(lanes * 10)
        assert Counter(each.key for each in delivered) == {str(key): 10 for key in range(lanes)}, round_
        read.append(store.read - before)
        shard.ack(delivered)
    assert max(read) <= limits.turn_effort + limits.refill_messages_max + lanes * (10 + limits.refill_messages_min)
    assert sum(read) < 1.2 * lanes * 200, "hardly a message is read twice"


def test_many_messages_past_their_time_do_not_make_a_turn_long_and_hide_none_that_lives() -> None:
    """Here a receive finds them before the due index comes to them."""
    limits = Limits(turn_messages_max=200, turn_due_max=100)
    shard = ShardHarness(settings=replace(PATIENT, limits=limits), checked=False)
    shard.create()
    for key in range(4):
        enqueue(shard, 1000, fairness_key=str(key % 2), ttl_ms=1000)
    enqueue(shard, 1, fairness_key="0")
    shard.now_ms += 1000
    dead_lettered = [0]
    request = shard.send(Receive(1, 0))
    while request not in shard.late:
        dead_lettered.append(shard.shard.queues["q"].dead_lettered)
        shard.turn()
    assert (
        max(after - before for before, after in pairwise(dead_lettered)) <= 2 * limits.turn_messages_max + limits.turn_due_max
    )
    assert len(dead_lettered) > 2
    assert len(shard.late[request].batches[0].records) == 1  # type: ignore[union-attr]
    assert shard.counts()[1:] == (1, 0)


def test_many_parked_messages_do_not_make_a_turn_long_and_hide_none_that_may_go() -> None:
    shard = ShardHarness(settings=replace(PATIENT, limits=Limits(turn_messages_max=200)), checked=False)
    shard.create()
    shard.shard.park({"t": shard.now_ms + 60_000}, shard.now_ms)
    for start in range(0, 4000, 1000):
        enqueue(shard, 1000, fairness_key=[str(key) for key in range(start, start + 1000)], throttle_keys=[["t"]])
    enqueue(shard, 1, fairness_key="last")
    request = shard.send(Receive(10, 0))
    turns = 1
    while request not in shard.late:
        shard.turn()
        turns += 1
    assert Counter(shard.late[request].batches[0].fairness_key for _ in range(1)) == {"last": 1}  # type: ignore[union-attr]
    assert turns > 1
    assert shard.shard.next_due(shard.now_ms) != 0


def test_keys_that_come_and_go_leave_nothing_in_the_ring() -> None:
    limits = Limits(void_entries_max=50)
    shard = ShardHarness(settings=replace(PATIENT, limits=limits), checked=False)
    shard.create()
    for key, cost_milli in (("busy", 1000), ("also busy", 1000), ("in debt", 1_000_000)):
        enqueue(shard, 10, fairness_key=key, cost_milli=cost_milli)
    shard.receive(6)
    ring = shard.shard.queues["q"].ring
    before = {key.name: getrefcount(key) for key in ring.active_keys()}
    for _ in range(200):
        for paused in (True, False):
            for name in ("busy", "in debt"):
                shard.ask(Pause(paused, name))
    assert len(ring) == 3
    grown = {key.name: getrefcount(key) - before[key.name] for key in ring.active_keys()}
    assert max(grown.values()) <= limits.void_entries_max + 10, "entries that refer to a key are bounded"
    assert Counter(each.key for each in shard.receive(10)) == {"busy": 5, "also busy": 5}


def test_a_search_looks_up_a_bounded_number_of_places_in_a_turn() -> None:
    limits = Limits(turn_effort=90, step_effort=10)
    shard = ShardHarness(settings=ShardSettings(buffer_bytes=0, limits=limits), checked=False)
    shard.create()
    stored = shard.ask(Enqueue([EMPTY] * 300, [f"key-{number}" for number in range(300)]))
    looked_up = [0]
    get_many = shard.store.get_many

    def counted(keys: Sequence[bytes], family: object) -> list[bytes | None]:
        looked_up[-1] += len(keys)
        return get_many(keys, family)

    shard.store.get_many = counted  # type: ignore[method-assign]
    request = shard.begin(Cancel(stored.id_high, stored.id_low + 1000))  # type: ignore[union-attr]
    while request not in shard.late:
        looked_up.append(0)
        shard.turn()
    assert sum(looked_up) >= 300
    begun_and_gone_on_with = 1.5 * limits.turn_effort
    assert max(looked_up) <= begun_and_gone_on_with / LOOK_UP_COST + 2 * limits.step_effort


def test_the_names_of_a_page_are_found_in_one_walk_over_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browse, "NAMES_MAX", 20)
    walks = []
    monkeypatch.setattr(browse, "pieces", lambda *walk: walks.append(walk) or pieces(*walk))
    shard = patient()
    enqueue(shard, 50, fairness_key=[f"key-{number * 7 % 50:02d}" for number in range(50)])
    page = shard.ask(Browse(20))
    assert [each.fairness_key for each in page.messages] == [f"key-{number:02d}" for number in range(20)]  # type: ignore[union-attr]
    assert page.more  # type: ignore[union-attr]
    assert len(walks) == 1


@pytest.mark.parametrize(
    "command",
    [
        BrowseView("v", 100),
        BrowseView("v", 100, states=["delayed"]),
        BrowseView("v", 100, states=["leased"]),
        Explain(None, "key-0"),
        CancelReceive(999),
    ],
    ids=repr,
)
def test_a_turn_is_full_after_some_commands_of_a_kind_or_lets_the_others_wait(command: Command) -> None:
    shard = ShardHarness(settings=replace(PATIENT, limits=Limits(turn_effort=600)), checked=False)
    shard.create()
    enqueue(shard, 200, fairness_key=[f"key-{number}" for number in range(200)])
    for _ in range(100):
        shard.receive(1)
    shard.ask(OpenView("v", ["q"], 10, 600_000))
    asked = 0
    while not (shard.shard.jobs.full or shard.shard.jobs.open):
        shard.shard.apply(ClientCall(b"asker", asked, "q", shard.now_ms), command)
        asked += 1
        assert asked <= 200
    assert asked >= 2


def test_a_queue_is_described_in_steps() -> None:
    shard = ShardHarness(settings=replace(PATIENT, limits=Limits(turn_effort=4, step_effort=1)), checked=False)
    shard.create()
    enqueue(shard, 100)
    for number in range(100):
        shard.receive(1, client=b"c%d" % (number % 3))
    request, turns = shard.begin(DescribeQueue()), 1
    while request not in shard.late:
        shard.turn()
        turns += 1
    assert turns >= 100 / LOOKS_AT_ONCE / 4
    described = shard.late[request]
    assert sorted(each.in_flight for each in described.consumers) == [33, 33, 34]  # type: ignore[union-attr]
    assert {each.expires_ms for each in described.consumers} == {shard.now_ms + 30_000}  # type: ignore[union-attr]


def test_a_page_of_messages_names_keys_that_were_cooled_down_meanwhile() -> None:
    limits = Limits(turn_effort=1, step_effort=1, warm_lanes_max=0, warm_small_lanes_max=0, ledger_entries_max=1)
    shard = ShardHarness(settings=replace(PATIENT, limits=limits))
    shard.create()
    enqueue(shard, 20, fairness_key=[f"key-{number:02d}" for number in range(20)])
    shard.receive(1)
    request = shard.begin(Browse(100))
    while request not in shard.late:
        shard.turn()
    page = shard.late[request]
    assert [each.fairness_key for each in page.messages] == [f"key-{number:02d}" for number in range(20)]  # type: ignore[union-attr]


def test_a_turn_examines_no_more_messages_that_wait_for_tokens_than_it_delivers() -> None:
    shard = ShardHarness(settings=replace(PATIENT, limits=Limits(turn_messages_max=50)), checked=False)
    shard.create()
    shard.shard.park({"t": shard.now_ms + 60_000}, shard.now_ms)
    for number in range(1000):
        enqueue(shard, 1, throttle_keys=[[f"set-{number}", "t"]])
    shard.begin(Receive(1, 60_000))
    assert 1 <= shard.shard.token_client.hits <= 150


def test_a_change_of_the_config_is_charged_for_the_whole_of_it() -> None:
    shard = patient()
    for number in range(3 * KEYS_AT_ONCE):
        shard.shard.set_config(SetConfig(f"key-{number}", "1"), shard.now_ms)
    left = shard.shard.jobs.left
    shard.shard.set_config(SetConfig("one more", "1"), shard.now_ms)
    assert left - shard.shard.jobs.left >= 3


def test_wants_of_many_sets_of_throttle_keys_are_repeated_over_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_client, "REPEATS_MAX", 10)
    shard = patient()
    shard.shard.set_config(SetConfig("throttle:t:rate", "0"), shard.now_ms)
    shard.shard.set_config(SetConfig("throttle:t:burst", "1"), shard.now_ms)
    for number in range(35):
        enqueue(shard, 1, throttle_keys=[[f"set-{number}", "t"]])
    shard.begin(Receive(100, 60_000))
    while shard.shard.next_due(shard.now_ms) == 0:
        shard.turn()
    shard.posted.clear()
    shard.now_ms += token_client.REPEAT_MS
    while shard.shard.next_due(shard.now_ms) == 0:
        shard.turn()
    repeated = [len(post.command.wants) for post in shard.posted]  # type: ignore[attr-defined]
    assert max(repeated) <= 10
    assert sum(repeated) == 35


def test_a_page_of_queues_looks_at_the_names_of_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_commands, "LIST_QUEUES_MAX", 3)
    monkeypatch.setattr(queue_commands, "NAMES_AT_ONCE", 1)
    shard = ShardHarness(settings=PATIENT)
    for number in (7, 3, 9, 1, 5, 4, 8, 2, 6):
        shard.create(f"some-{number}", dead_letter="discard")
        shard.create(f"other-{number}", dead_letter="discard")
    left = shard.shard.jobs.left
    page = queue_commands.list_queues(shard.shard, ClientCall(b"", 1, "", 0), ListQueues("some-", after="some-2"))
    assert [queue.name for queue in page.queues] == ["some-3", "some-4", "some-5"]
    assert page.more
    assert left - shard.shard.jobs.left <= 8
    page = queue_commands.list_queues(shard.shard, ClientCall(b"", 1, "", 0), ListQueues("some-", after="some-6"))
    assert [queue.name for queue in page.queues] == ["some-7", "some-8", "some-9"]
    assert not page.more


def test_the_holders_of_all_messages_of_a_queue_are_listed_in_steps() -> None:
    shard = ShardHarness(settings=replace(PATIENT, limits=Limits(turn_effort=4, step_effort=1)), checked=False)
    shard.create()
    shard.create("other")
    for queue in ("q", "other"):
        enqueue(shard, 100, queue)
        for number in range(100):
            shard.receive(1, queue, client=b"c%d" % (number % 3))
            shard.now_ms += 1
    request, turns = shard.begin(Explain()), 1
    while request not in shard.late:
        shard.turn()
        turns += 1
    assert turns >= 200 / LOOKS_AT_ONCE / 4
    reason = shard.late[request].reasons[0]  # type: ignore[union-attr]
    assert reason.details == {
        "messages": 100, "consumers": 3, "leased_ms": shard.now_ms - 200, "expires_ms": shard.now_ms - 200 + 30_000
    }  # fmt: skip


def test_an_ack_of_several_leases_with_many_messages_is_carried_out_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "ACKS_AT_ONCE", 10)
    shard = ShardHarness(settings=replace(PATIENT, limits=Limits(turn_effort=50, step_effort=10)))
    shard.create()
    enqueue(shard, 60)
    got = [shard.receive(6) for _ in range(10)]
    acked = [0]
    request = shard.begin(Settle(Verb.ACK, [(each[0].lease, []) for each in got]))
    while request not in shard.late:
        acked.append(shard.shard.queues["q"].acked)
        shard.turn()
    acked.append(shard.shard.queues["q"].acked)
    assert acked[-1] == 60
    assert max(after - before for before, after in pairwise(acked)) <= 36
    assert shard.late[request].faults == []  # type: ignore[union-attr]
    shard.restart()
    assert shard.counts() == (0, 0, 0)
