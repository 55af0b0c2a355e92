"""A runtime config of many keys comes in pages, in many turns, and holds as a whole or not at all."""

import pytest

from fila_proto_zmq.commands import ConfigValues, ListConfig, PutConfig, SetConfig, put_whole
from fila_proto_zmq.runtime_config import Limit, pages, select
from fila_worker.core.manage import config
from fila_worker.core.recovery import recover_in_steps
from fila_worker.core.settings import Limits, ShardSettings
from tests.support.shard.shard import SHARDS, ShardHarness

OLD = {f"old-{number:02d}": "x" for number in range(20)} | {f"throttle:{number}:rate": "5" for number in range(30)}
NEW = {f"new-{number:02d}": "y" for number in range(40)} | {f"throttle:{number}:rate": "7" for number in range(10, 40)}
NEW |= {"throttle:10:burst": "9"}
LIMITS = {str(number): Limit(7000, 7_000_000) for number in range(10, 40)} | {"10": Limit(7000, 9_000_000)}


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fila_proto_zmq.runtime_config.PAGE_KEYS_MAX", 7)


@pytest.fixture
def shard() -> ShardHarness:
    """A shard that has the old config, with its version 3."""
    harness = ShardHarness(settings=ShardSettings(limits=Limits(recovery_records_max=3)))
    put(harness, 3, OLD)
    return harness


def put(shard: ShardHarness, version: int, whole: dict[str, str], first: int = 0, last: int | None = None) -> None:
    """Take over pages of a config, each in a turn of its own."""
    for page in put_whole(version, whole)[first:last]:
        shard.shard.put_config(page, shard.now_ms)
        shard.turn()


def known(shard: ShardHarness) -> tuple[dict[str, str], int, dict[str, Limit]]:
    runtime = shard.shard.runtime
    return dict(runtime.values), runtime.version, dict(runtime.limits.own)


def on_disk(shard: ShardHarness) -> int:
    return len(list(shard.store.scan(b"", b"\xff" * 32, shard.store.families.config)))


def test_it_holds_with_the_last_page(shard: ShardHarness) -> None:
    before = known(shard)
    put(shard, 4, NEW, last=-1)
    assert known(shard) == before
    put(shard, 4, NEW, first=-1)
    assert known(shard) == (NEW, 4, LIMITS)
    assert shard.shard.token_client.limits.own == LIMITS
    shard.restart()
    assert known(shard) == (NEW, 4, LIMITS)
    assert on_disk(shard) == len(NEW)


def test_a_crash_after_any_page_finds_the_old_config_or_the_new_one() -> None:
    for crash in range(len(pages(NEW)) + 1):
        shard = ShardHarness()
        put(shard, 3, OLD)
        put(shard, 4, NEW, last=crash)
        before = known(shard)
        shard.restart()
        assert known(shard) == before
        assert before[:2] == ((NEW, 4) if crash == len(pages(NEW)) else (OLD, 3))
        put(shard, 5, {"third": "z"})
        shard.restart()
        assert known(shard) == ({"third": "z"}, 5, {})


def test_a_shard_that_opens_reads_so_many_of_its_records_a_step(shard: ShardHarness) -> None:
    put(shard, 4, NEW)
    steps = recover_in_steps(
        shard.store, shard.settings, shard.compile_hooks, index=shard.index, shards=SHARDS, now_ms=shard.now_ms
    )
    assert len(list(steps)) >= len(NEW) / 3 + len(LIMITS) / 3


def test_nothing_stays_of_what_was_given_up(shard: ShardHarness) -> None:
    put(shard, 4, NEW, last=-2)
    put(shard, 5, OLD | {"more": "1"})
    assert known(shard)[:2] == (OLD | {"more": "1"}, 5)
    assert on_disk(shard) == len(OLD) + 1


@pytest.mark.parametrize("generations", [0, 1, 2])
def test_single_changes_go_to_the_config_that_holds(shard: ShardHarness, generations: int) -> None:
    for number in range(generations):
        put(shard, 4 + number, NEW)
    version = shard.shard.set_config(SetConfig("throttle:10:rate", None), shard.now_ms).version
    shard.turn()
    before = known(shard)
    assert before[1] == version
    assert "throttle:10:rate" not in before[0]
    shard.restart()
    assert known(shard) == before


def test_where_a_page_is_missing_none_counts(shard: ShardHarness) -> None:
    put(shard, 4, NEW, last=2)
    put(shard, 4, NEW, first=3)
    assert known(shard)[:2] == (OLD, 3)
    put(shard, 4, NEW)
    assert known(shard) == (NEW, 4, LIMITS)


def test_the_same_pages_may_come_from_several_routers_at_the_same_time(shard: ShardHarness) -> None:
    whole = put_whole(4, NEW)
    second = len(whole) // 2
    for one, two in zip(whole, [*([None] * second), *whole], strict=False):
        for page in (one, two):
            if page is not None:
                shard.shard.put_config(page, shard.now_ms)
                shard.turn()
    assert known(shard) == (NEW, 4, LIMITS)
    put(shard, 4, NEW)
    assert known(shard) == (NEW, 4, LIMITS)


def test_pages_of_a_router_that_is_ahead_do_not_end_those_of_another(shard: ShardHarness) -> None:
    """So it would go on for ever: each router sends all again when a page was missing."""
    whole = put_whole(4, NEW)
    assert len(whole) >= 4
    for page in (whole[0], whole[3], whole[1], whole[-1], whole[2], *whole[3:]):
        shard.shard.put_config(page, shard.now_ms)
        shard.turn()
    assert known(shard) == (NEW, 4, LIMITS)


def test_an_older_config_of_another_router_does_not_end_a_newer_one(shard: ShardHarness) -> None:
    newer, older = put_whole(5, NEW), put_whole(4, {**NEW, "new-00": "z"})
    for new, old in zip(newer, older, strict=True):
        for page in (new, old):
            shard.shard.put_config(page, shard.now_ms)
            shard.turn()
    assert known(shard) == (NEW, 5, LIMITS)


def test_pages_of_another_config_with_the_same_version_are_no_repeated_ones(shard: ShardHarness) -> None:
    put(shard, 4, {**NEW, "new-00": "z"}, last=2)
    put(shard, 4, NEW)
    assert known(shard) == (NEW, 4, LIMITS)


def test_one_that_is_older_or_the_same_changes_nothing(shard: ShardHarness) -> None:
    before = known(shard)
    for version, whole in ((2, NEW), (3, OLD)):
        put(shard, version, whole)
        assert known(shard) == before
        shard.restart()
        assert known(shard) == before


def test_a_whole_writes_no_more_than_what_changes(shard: ShardHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    commit = shard.store.commit
    monkeypatch.setattr(
        shard.store, "commit", lambda batch, *, sync=False: (written.append(len(batch)), commit(batch, sync=sync))[1]
    )
    shard.shard.put_config(PutConfig(4, {**OLD, "old-01": "changed"}, whole=True), shard.now_ms)
    shard.turn()
    assert sum(written) == 2


def test_until_the_last_page_came_nothing_with_throttle_keys_is_delivered(shard: ShardHarness) -> None:
    shard.create()
    shard.enqueue(b"throttled", throttle_keys=[["nobody knows its limit"]])  # type: ignore[arg-type]
    shard.enqueue(b"plain")
    put(shard, 4, NEW, last=-1)
    assert [got.payload for got in shard.receive(10)] == [b"plain"]
    put(shard, 4, NEW, first=-1)
    assert [got.payload for got in shard.receive(10)] == [b"throttled"]


def test_pages_that_do_not_come_are_not_waited_for(shard: ShardHarness) -> None:
    shard.create()
    shard.enqueue(b"throttled", throttle_keys=[["t"]])  # type: ignore[arg-type]
    put(shard, 4, NEW, last=2)
    shard.now_ms += config.PAGES_WAIT_MS - 1
    shard.turn()
    assert shard.receive(10) == []
    assert not shard.shard.to_be_registered
    shard.pass_time(1)
    assert shard.shard.to_be_registered
    assert [got.payload for got in shard.receive(10)] == [b"throttled"]
    assert known(shard)[:2] == (OLD, 3)


def test_levels_and_traffic_of_keys_without_a_limit_are_forgotten(shard: ShardHarness) -> None:
    shard.restart()
    put(shard, 4, NEW)
    throttling = shard.shard.token_client
    assert throttling.levels.keys() <= LIMITS.keys()
    assert throttling.levels.tokens_in("12", LIMITS["12"], shard.now_ms + 1000) <= LIMITS["12"].burst_micro


@pytest.mark.parametrize(
    "prefix", ["", "new", "throttle", "throttle:1", "throttle.", "throttle.1", "throttle.12", "x", "throttle.1:"]
)
def test_it_is_listed_in_steps_as_it_was_when_that_began(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "LISTED_AT_ONCE", 5)
    shard = ShardHarness(settings=ShardSettings(limits=Limits(turn_effort=10, step_effort=5)))
    put(shard, 1, NEW)
    expected = select(prefix, NEW)
    request, turns = shard.begin(ListConfig(prefix), ""), 1
    shard.shard.set_config(SetConfig("new-39", None), shard.now_ms)
    shard.shard.set_config(SetConfig("throttle:39:rate", "1"), shard.now_ms)
    while request not in shard.late:
        shard.turn()
        turns += 1
    assert shard.late[request] == ConfigValues(expected)
    assert list(expected) == list(shard.late[request].values)  # type: ignore[union-attr]
    assert turns >= len(NEW) / 10


def test_lists_of_it_are_made_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "LISTED_AT_ONCE", 5)
    shard = ShardHarness(settings=ShardSettings(limits=Limits(turn_effort=10, step_effort=5)))
    put(shard, 1, NEW)
    requests = [shard.begin(ListConfig(""), "", client) for client in (b"a", b"b", b"c")]
    answered: list[int] = []
    while len(answered) < 3:
        shard.turn()
        answered += [request for request in requests if request in shard.late and request not in answered]
        assert len(shard.shard.jobs._lines) <= 1
    assert answered == requests
