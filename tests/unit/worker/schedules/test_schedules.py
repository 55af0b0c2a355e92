"""Schedules of a shard: one message for each due time, whatever is restarted."""

from contextlib import suppress
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from fila_proto_zmq.commands import (
    DeleteQueue,
    DeleteSchedule,
    Enqueue,
    GetSchedule,
    ListSchedules,
    PutSchedule,
    ScheduleDeleted,
    ScheduleFound,
    ScheduleList,
    ScheduleView,
)
from fila_proto_zmq.errors import FilaError, InvalidArgumentError, OverloadedError, PayloadTooLargeError
from fila_proto_zmq.ids import format_id
from fila_proto_zmq.limits import HEADERS_BYTES_MAX
from fila_proto_zmq.record import headers_length, open_envelope, seal_envelope
from fila_worker.core.metrics.meter import report
from fila_worker.core.schedules.firing import ADDED_BYTES_MAX
from fila_worker.core.settings import Limits, ShardSettings
from tests.support.shard.linked_shards import LinkedShards, name_on
from tests.support.shard.shard import ShardHarness, limited

QUEUE = name_on(3, "jobs")
NAME = name_on(3, "nightly")
START_MS = 1_700_000_000_000 // 60_000 * 60_000
MINUTE_MS = 60_000


@pytest.fixture
def harness() -> ShardHarness:
    return opened()


def opened(settings: ShardSettings | None = None) -> ShardHarness:
    harness = ShardHarness(settings=settings or ShardSettings(), now_ms=START_MS)
    harness.create(QUEUE)
    return harness


def put(harness: ShardHarness, name: str = NAME, payload: bytes = b"x", queue: str = QUEUE, **fields: Any) -> ScheduleView:
    command = PutSchedule(queue, fields.pop("enqueue", None) or Enqueue([seal_envelope(payload, {"h": "1"})]), **fields)
    return shown(harness.ask(command, name))


def shown(reply: Any) -> ScheduleView:
    assert isinstance(reply, ScheduleFound)
    assert reply.schedule is not None
    return reply.schedule


def get(harness: ShardHarness, name: str = NAME) -> ScheduleView:
    return shown(harness.ask(GetSchedule(), name))


def due_headers(harness: ShardHarness, count: int = 999, queue: str = QUEUE) -> list[str]:
    """The due times of the pending messages, which are acked."""
    got = harness.receive(count, queue)
    harness.ack(got, queue)
    return [each.headers["fila-due-at"] for each in got]


# --- due times --------------------------------------------------------------------------------------------------------


def test_an_interval_begins_now_and_each_due_time_has_one_message(harness: ShardHarness) -> None:
    view = put(harness, every_ms=MINUTE_MS)
    assert (view.next_due_ms, view.fired) == (START_MS + MINUTE_MS, 0)
    harness.pass_time(MINUTE_MS - 1)
    assert harness.counts(QUEUE) == (0, 0, 0)
    harness.pass_time(1)
    (got,) = harness.receive(9, QUEUE)
    assert (got.payload, got.headers) == (
        b"x", {"h": "1", "fila-schedule": NAME, "fila-due-at": "2023-11-14T22:14:00Z"}
    )  # fmt: skip
    view = get(harness)
    assert (view.fired, view.last_due_ms, view.next_due_ms) == (1, START_MS + MINUTE_MS, START_MS + 2 * MINUTE_MS)
    assert format_id(view.id_high, view.id_low) == got.id
    harness.ack([got], QUEUE)
    for _ in range(3):
        harness.pass_time(MINUTE_MS)
    assert due_headers(harness) == ["2023-11-14T22:15:00Z", "2023-11-14T22:16:00Z", "2023-11-14T22:17:00Z"]


def test_a_cron_expression_follows_its_time_zone(harness: ShardHarness) -> None:
    view = put(harness, cron="30 3 * * *", timezone="Europe/Lisbon")
    assert view.next_due_ms == START_MS + (5 * 60 + 17) * MINUTE_MS  # 22:13 UTC to 03:30 UTC, in winter
    harness.pass_time(view.next_due_ms - START_MS)
    assert due_headers(harness) == ["2023-11-15T03:30:00Z"]


def test_the_options_of_the_message_hold(harness: ShardHarness) -> None:
    message = Enqueue(
        [seal_envelope(b"y")], "acme", 3, -4, delay_ms=500, throttle_keys=[["api"]], cost_milli=2000, ttl_ms=9000
    )
    put(harness, every_ms=1000, enqueue=message)
    assert get(harness).enqueue == message
    harness.pass_time(1000)
    assert harness.counts(QUEUE) == (0, 0, 1)
    harness.pass_time(500)
    (got,) = harness.receive(1, QUEUE)
    assert (got.key, got.weight, got.record.priority, got.throttle_keys) == ("acme", 3, -4, ("api",))
    assert open_envelope(got.record.envelope)[1] == b"y"


def test_jitter_is_the_same_after_a_restart(harness: ShardHarness) -> None:
    put(harness, every_ms=MINUTE_MS, jitter_ms=30_000)
    before = [get(harness)]
    for _ in range(4):
        harness.pass_time(before[-1].next_at_ms - harness.now_ms)
        before.append(get(harness))
    offsets = [view.next_at_ms - view.next_due_ms for view in before]
    assert len(set(offsets)) > 2
    assert all(0 <= offset <= 30_000 for offset in offsets)
    assert [view.next_due_ms for view in before] == [START_MS + number * MINUTE_MS for number in range(1, 6)]
    harness.restart()
    assert get(harness).next_at_ms == before[-1].next_at_ms


@pytest.mark.parametrize("catch_up", ["skip", "once", "all"])
def test_a_jitter_that_is_longer_than_the_interval_misses_no_due_time(harness: ShardHarness, catch_up: str) -> None:
    put(harness, cron="* * * * *", jitter_ms=10 * MINUTE_MS, catch_up=catch_up)
    for _ in range(120):
        view = get(harness)
        assert view.next_at_ms >= harness.now_ms, "a message that waits for the one before comes after it"
        harness.pass_time(10_000)
    assert get(harness).skipped == 0
    due = [datetime.fromisoformat(each) for each in due_headers(harness)]
    assert all(later - earlier == timedelta(minutes=1) for earlier, later in pairwise(due))
    assert len(due) >= 10
    harness.now_ms += 30 * MINUTE_MS
    harness.restart()
    harness.pass_time(0)
    assert (get(harness).skipped > 0) is (catch_up != "all")


def test_headers_leave_room_for_the_schedules_own(harness: ShardHarness) -> None:
    name, most = name_on(3, "n" * 190), HEADERS_BYTES_MAX - ADDED_BYTES_MAX

    def message(length: int) -> Enqueue:
        return Enqueue([seal_envelope(b"", {"h": "x" * length})])

    least = headers_length(message(most).envelopes[0]) - most  # of its length and name
    with pytest.raises(InvalidArgumentError, match=f"those of a schedule's message may have {most}"):
        put(harness, name, enqueue=message(most - least + 1), cron="* * * * *")
    put(harness, name, enqueue=message(most - least), cron="* * * * *")
    harness.pass_time(MINUTE_MS)
    assert (get(harness, name).fired, get(harness, name).failed) == (1, 0)


# --- restarts, outages, clocks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("catch_up", ["skip", "once", "all"])
def test_a_restart_of_some_seconds_misses_nothing(harness: ShardHarness, catch_up: str) -> None:
    put(harness, every_ms=1000, catch_up=catch_up)
    harness.pass_time(1000)
    harness.now_ms += 5000
    harness.restart()
    harness.pass_time(0)
    assert len(due_headers(harness)) == 6
    assert (get(harness).fired, get(harness).skipped) == (6, 0)


def test_after_an_outage_once_carries_out_the_last_due_time(harness: ShardHarness) -> None:
    put(harness, every_ms=MINUTE_MS, catch_up="once")
    harness.now_ms += 10 * MINUTE_MS + 5
    harness.restart()
    harness.pass_time(0)
    assert due_headers(harness) == ["2023-11-14T22:23:00Z"]
    view = get(harness)
    assert (view.fired, view.skipped, view.next_due_ms) == (1, 9, START_MS + 11 * MINUTE_MS)


def test_after_an_outage_skip_carries_out_none(harness: ShardHarness) -> None:
    put(harness, every_ms=MINUTE_MS, catch_up="skip")
    harness.now_ms += 10 * MINUTE_MS + 40_000
    harness.restart()
    harness.pass_time(0)
    assert due_headers(harness) == []
    view = get(harness)
    assert (view.fired, view.skipped, view.next_due_ms) == (0, 10, START_MS + 11 * MINUTE_MS)


def test_after_an_outage_all_carries_out_each_up_to_a_bound() -> None:
    harness = opened(limited(schedule_catch_up_max=7))
    put(harness, every_ms=MINUTE_MS, catch_up="all")
    harness.now_ms += 20 * MINUTE_MS
    harness.restart()
    harness.pass_time(0)
    hours = [f"2023-11-14T22:{minute}:00Z" for minute in (14, 15, 16, 17, 18, 19, 20, 33)]
    assert due_headers(harness) == hours
    assert (get(harness).fired, get(harness).skipped) == (8, 12)


def test_a_year_of_seconds_is_caught_up_without_a_count_of_each(harness: ShardHarness) -> None:
    put(harness, every_ms=1000, catch_up="once")
    put(harness, name_on(3, "cron"), cron="* * * * * *", catch_up="skip")
    harness.now_ms += 365 * 24 * 3600 * 1000
    harness.restart()
    harness.pass_time(0)
    assert len(due_headers(harness)) == 1
    assert get(harness).skipped == 365 * 24 * 3600 - 1
    assert get(harness, name_on(3, "cron")).skipped == Limits().schedule_skips_counted_max + 1


def test_a_clock_that_is_set_back_repeats_no_due_time(harness: ShardHarness) -> None:
    put(harness, every_ms=MINUTE_MS)
    harness.pass_time(MINUTE_MS)
    harness.now_ms -= 3 * MINUTE_MS
    harness.restart()
    for _ in range(3):
        harness.pass_time(MINUTE_MS)
    assert due_headers(harness) == ["2023-11-14T22:14:00Z"]
    harness.pass_time(MINUTE_MS)
    assert due_headers(harness) == ["2023-11-14T22:15:00Z"]


def test_other_due_times_repeat_none_after_the_clock_was_set_back(harness: ShardHarness) -> None:
    put(harness, cron="* * * * *")
    harness.pass_time(MINUTE_MS)
    harness.now_ms -= MINUTE_MS
    assert put(harness, cron="* * * * *", jitter_ms=1).next_due_ms == START_MS + 2 * MINUTE_MS
    harness.pass_time(MINUTE_MS + 1)
    assert due_headers(harness) == ["2023-11-14T22:14:00Z"]


def test_a_schedule_that_is_deleted_and_put_again_is_a_new_one_whatever_the_clock(harness: ShardHarness) -> None:
    put(harness, cron="* * * * *")
    harness.pass_time(MINUTE_MS)
    harness.now_ms -= MINUTE_MS
    harness.ask(DeleteSchedule(), NAME)
    assert put(harness, cron="* * * * *").next_due_ms == START_MS + MINUTE_MS


@pytest.mark.parametrize("commits", range(1, 9))
def test_a_crash_at_any_commit_of_the_due_moment(commits: int) -> None:
    harness = opened()
    put(harness, every_ms=MINUTE_MS, enqueue=Enqueue([seal_envelope(b"")], dedup_id=""))
    real, left = harness.store.commit, [commits]

    def commit(batch: Any, *, sync: bool = False) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise CrashedError
        real(batch, sync=sync)

    harness.store.commit = commit  # type: ignore[method-assign]
    with suppress(CrashedError):
        harness.pass_time(MINUTE_MS)
    harness.store.commit = real  # type: ignore[method-assign]
    harness.restart()
    harness.pass_time(0)
    assert due_headers(harness) == ["2023-11-14T22:14:00Z"]


class CrashedError(Exception):
    """The process ends in the middle of a turn."""


# --- queues elsewhere, and queues that refuse -------------------------------------------------------------------------


def test_a_queue_on_another_shard() -> None:
    linked = LinkedShards(3, 5, now_ms=START_MS)
    linked[5].create(name_on(5))
    put(linked[3], queue=name_on(5), every_ms=1000)
    linked.pass_time(1000)
    linked.stopped.add(5)
    linked.pass_time(1000)
    assert get(linked[3]).under_way_ms == START_MS + 2000
    linked.pass_time(3000)
    linked.stopped.clear()
    linked.pass_time(2000)
    assert len(due_headers(linked[5], queue=name_on(5))) == 7
    assert get(linked[3]).fired == 7


def test_a_missing_queue_is_noted_and_tried_at_the_next_due_time(harness: ShardHarness) -> None:
    put(harness, every_ms=1000)
    harness.ask(DeleteQueue(force=True), QUEUE)
    harness.shard.notes.clear()
    harness.pass_time(1000)
    harness.pass_time(1000)
    view = get(harness)
    assert view.fault is not None
    assert (view.fault.code, view.failed, view.fired, view.under_way_ms) == ("QUEUE_NOT_FOUND", 2, 0, 0)
    assert [type(note).__name__ for note in harness.shard.notes].count("ScheduleFailed") == 1
    harness.create(QUEUE)
    harness.pass_time(1000)
    assert len(due_headers(harness)) == 1
    assert get(harness).fault is None


def test_a_full_queue_makes_the_schedule_wait(harness: ShardHarness) -> None:
    harness = opened(ShardSettings(max_queue_messages=1))
    put(harness, every_ms=1000)
    harness.pass_time(1000)
    harness.pass_time(1000)
    view = get(harness)
    assert view.fault is not None
    assert (view.fault.code, view.under_way_ms, view.fired) == ("OVERLOADED", START_MS + 2000, 1)
    assert len(due_headers(harness)) == 1
    for _ in range(3):
        harness.pass_time(1000)
    assert due_headers(harness) == ["2023-11-14T22:13:02Z"]


def test_a_schedule_that_gets_another_queue_waits_no_longer_for_the_full_one() -> None:
    harness = opened(ShardSettings(max_queue_messages=1))
    harness.create(name_on(3, "other"))
    put(harness, every_ms=1000)
    for _ in range(3):
        harness.pass_time(1000)
    assert get(harness).under_way_ms
    view = put(harness, every_ms=1000, queue=name_on(3, "other"))
    assert (view.under_way_ms, view.fault, view.next_due_ms) == (0, None, START_MS + 3000)
    harness.pass_time(0)
    assert due_headers(harness, queue=name_on(3, "other")) == ["2023-11-14T22:13:03Z"]
    harness.pass_time(5000)
    assert due_headers(harness) == ["2023-11-14T22:13:01Z"]
    harness.pass_time(30_000)
    assert due_headers(harness) == []


@pytest.mark.parametrize(
    "command", [DeleteSchedule(), PutSchedule(QUEUE, Enqueue([seal_envelope(b"new")]), every_ms=MINUTE_MS)]
)
def test_a_message_that_waits_for_room_is_given_up_with_its_schedule(command: Any) -> None:
    harness = opened(ShardSettings(max_queue_messages=1))
    put(harness, every_ms=1000)
    for _ in range(3):
        harness.pass_time(1000)
    harness.ask(command, NAME)
    harness.pass_time(5000)
    assert due_headers(harness) == ["2023-11-14T22:13:01Z"]
    harness.pass_time(30_000)
    assert due_headers(harness) == []
    assert not list(harness.store.scan(b"", b"\xff" * 32, harness.store.families.schedule))


# --- changes ----------------------------------------------------------------------------------------------------------


def test_the_same_due_times_go_on_with_another_message(harness: ShardHarness) -> None:
    created = put(harness, every_ms=MINUTE_MS).created_ms
    harness.pass_time(40_000)
    view = put(harness, payload=b"new", every_ms=MINUTE_MS)
    assert (view.next_due_ms, view.created_ms) == (START_MS + MINUTE_MS, created)
    harness.pass_time(20_000)
    assert [each.payload for each in harness.receive(9, QUEUE)] == [b"new"]


def test_other_due_times_begin_now(harness: ShardHarness) -> None:
    put(harness, every_ms=MINUTE_MS)
    harness.pass_time(40_000)
    assert put(harness, every_ms=2 * MINUTE_MS).next_due_ms == harness.now_ms + 2 * MINUTE_MS


def test_a_change_just_before_a_due_time_loses_it_not(harness: ShardHarness) -> None:
    put(harness, every_ms=MINUTE_MS)
    harness.now_ms += MINUTE_MS + 3
    put(harness, payload=b"new", every_ms=MINUTE_MS)
    assert len(due_headers(harness)) == 1


def test_a_schedule_that_is_put_again_and_again_takes_no_more_memory(harness: ShardHarness) -> None:
    for _ in range(9):
        put(harness, every_ms=MINUTE_MS)
        put(harness, name_on(3, "other"), every_ms=MINUTE_MS)
    harness.shard.check()
    for _ in range(9):
        harness.ask(DeleteSchedule(), name_on(3, "other"))
        put(harness, name_on(3, "other"), every_ms=MINUTE_MS)
    harness.shard.check()
    harness.pass_time(MINUTE_MS)
    assert len(due_headers(harness)) == 2


def test_deleting(harness: ShardHarness) -> None:
    put(harness, every_ms=1000)
    assert harness.ask(DeleteSchedule(), NAME) == ScheduleDeleted(True)
    assert harness.ask(DeleteSchedule(), NAME) == ScheduleDeleted(False)
    assert harness.ask(GetSchedule(), NAME) == ScheduleFound(None)
    harness.pass_time(5000)
    harness.restart()
    harness.pass_time(5000)
    assert harness.counts(QUEUE) == (0, 0, 0)
    assert not list(harness.store.scan(b"schedule", b"schedulf", harness.store.families.state))


def test_listing_by_prefix_and_pattern(harness: ShardHarness) -> None:
    for name in ("a1", "a2", "b1"):
        put(harness, name, every_ms=1000)

    def listed(**fields: Any) -> list[str]:
        reply = harness.ask(ListSchedules(**fields), "")
        assert isinstance(reply, ScheduleList)
        return [each.name for each in reply.schedules]

    assert listed() == ["a1", "a2", "b1"]
    assert listed(prefix="a") == ["a1", "a2"]
    assert listed(after="a1") == ["a2", "b1"]
    assert listed(within=["b*"]) == ["b1"]


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "either a cron expression or an interval"),
        ({"cron": "* * * * *", "every_ms": 1000}, "either a cron expression or an interval"),
        ({"every_ms": 999}, "interval of 999 ms"),
        ({"cron": "61 * * * *"}, "bad cron expression '61"),
        ({"cron": "* *"}, "bad cron expression"),
        ({"cron": "0 0 30 2 *"}, "bad cron expression"),
        ({"cron": "x" * 201}, "201 characters"),
        ({"cron": "* * * * *", "timezone": "Mars/Olympus"}, "unknown time zone 'Mars/Olympus'"),
        ({"cron": "* * * * *", "timezone": "../etc/passwd"}, "unknown time zone"),
        ({"every_ms": 1000, "timezone": "Mars/Olympus"}, "unknown time zone 'Mars/Olympus'"),
        ({"every_ms": 1000, "timezone": "x" * 1_000_000}, "unknown time zone 'x{100}'"),
        ({"every_ms": 1000, "catch_up": "most"}, "catch_up='most'"),
        ({"every_ms": 1000, "jitter_ms": 1001}, "jitter of 1001 ms"),
        ({"every_ms": 1000, "queue": "no such name"}, "bad queue name"),
        ({"every_ms": 1000, "queue": "q.dlq"}, "ends in .dlq"),
        ({"every_ms": 1000, "name": "a b"}, "bad schedule name"),
        ({"every_ms": 1000, "enqueue": Enqueue([])}, "one message"),
        ({"every_ms": 1000, "enqueue": Enqueue([seal_envelope(b"")], due_ms=5)}, "use delay"),
        ({"every_ms": 1000, "enqueue": Enqueue([seal_envelope(b"")], weight=-1, priority=1 << 40)}, "priority"),
        ({"every_ms": 1000, "enqueue": Enqueue([seal_envelope(b"", {"fila-due-at": "x"})])}, "leave it out"),
    ],
)
def test_bad_schedules_are_refused(harness: ShardHarness, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        put(harness, **fields)
    assert harness.ask(ListSchedules(), "") == ScheduleList([])


def test_too_many_and_too_large_schedules_are_refused() -> None:
    harness = opened(limited(schedules_max=2, schedule_bytes_max=100, schedules_bytes_max=150))
    with pytest.raises(PayloadTooLargeError, match="stores up to 100"):
        put(harness, payload=bytes(100), every_ms=1000)
    put(harness, payload=bytes(60), every_ms=1000)
    with pytest.raises(OverloadedError, match="may have 2 with 150"):
        put(harness, "other", payload=bytes(80), every_ms=1000)
    put(harness, "other", every_ms=1000)
    put(harness, "other", payload=b"yy", every_ms=1000)
    with pytest.raises(OverloadedError):
        put(harness, "third", every_ms=1000)


def test_many_due_times_take_several_turns() -> None:
    harness = opened(limited(turn_schedules_max=3))
    for number in range(10):
        put(harness, f"s{number}", every_ms=1000)
    harness.now_ms += 1000
    harness.turn()
    assert sum(1 for _ in harness.store.scan(b"", b"\xff" * 32, harness.store.families.outbox)) <= 3
    harness.pass_time(0)
    assert len(due_headers(harness)) == 10


def test_a_schedule_whose_rule_cannot_be_read_any_more_is_kept_and_says_so(harness: ShardHarness) -> None:
    put(harness, cron="* * * * *", timezone="Europe/Lisbon")
    key = b"schedule:" + NAME.encode()
    family = harness.store.families.state
    batch = harness.store.new_batch()
    batch.put(key, (harness.store.get(key, family) or b"").replace(b"Europe/Lisbon", b"Europe/Lisbox"), family)
    harness.store.commit(batch)
    harness.restart()
    harness.pass_time(10 * MINUTE_MS)
    view = get(harness)
    assert view.next_due_ms == 0
    assert view.fault is not None
    assert "Lisbox" in view.fault.text


def test_metrics_count(harness: ShardHarness) -> None:
    assert report(harness.shard, harness.now_ms).schedules is None
    put(harness, every_ms=1000, catch_up="all")
    harness.pass_time(1000)
    harness.now_ms += 3000
    harness.pass_time(0)
    found = report(harness.shard, harness.now_ms).schedules
    assert found is not None
    assert (found.schedules, found.fired, found.late, found.failed, found.under_way) == (1, 4, 1, 0, 0)


def test_errors_are_typed(harness: ShardHarness) -> None:
    with pytest.raises(FilaError):
        put(harness, every_ms=0)
