"""A change of the runtime config with many keys takes many turns, and it holds as a whole or not at all."""

import pytest

from fila_proto_zmq.commands import ConfigValues, ListConfig, SetConfig
from fila_proto_zmq.runtime_config import Limit, select
from fila_worker.core import throttling
from fila_worker.core.limits import Limits
from fila_worker.core.settings import ShardSettings
from tests.support.shard import ShardHarness

OLD = {f"old-{number:02d}": "x" for number in range(20)} | {f"throttle:{number}:rate": "5" for number in range(30)}
NEW = {f"new-{number:02d}": "y" for number in range(40)} | {f"throttle:{number}:rate": "7" for number in range(10, 40)}
STEPS = ShardSettings(limits=Limits(turn_effort=20, step_effort=10, config_changes_max=10, config_changes_at_once=2))
AT_ONCE = ShardSettings(limits=Limits(config_changes_max=1000))


def with_old(settings: ShardSettings = STEPS) -> ShardHarness:
    shard = ShardHarness(settings=settings)
    put(shard, 3, OLD)
    return shard


def put(shard: ShardHarness, version: int, whole: dict[str, str]) -> int:
    """Take over a whole config; returns the turns that it took."""
    shard.shard.put_config(version, dict(whole), True, shard.now_ms)
    turns = 0
    while shard.shard.takes_config_over or not turns:
        assert not shard.shard.takes_config_over or shard.shard.next_due(shard.now_ms) == 0
        shard.turn()
        turns += 1
    return turns


def known(shard: ShardHarness) -> tuple[dict[str, str], int, list[str], dict[str, Limit]]:
    runtime = shard.shard.runtime
    return dict(runtime.values), runtime.version, list(runtime.names), dict(runtime.limits)


@pytest.mark.parametrize("settings", [STEPS, AT_ONCE], ids=["in steps", "at once"])
def test_it_is_the_same_in_steps_as_at_once(settings: ShardSettings) -> None:
    shard = with_old(settings)
    turns = put(shard, 4, NEW)
    assert (turns > 20) == (settings is STEPS)
    expected = (NEW, 4, sorted(NEW), {str(number): Limit(7000, 7_000_000) for number in range(10, 40)})
    assert known(shard) == expected
    assert shard.shard.throttling.limits == expected[3]
    shard.restart()
    assert known(shard) == expected
    assert shard.shard.set_config(SetConfig("new-00", None), shard.now_ms).version == 5


def test_a_turn_writes_some_keys_of_it() -> None:
    shard = ShardHarness(settings=STEPS)
    shard.shard.put_config(1, dict(NEW), True, shard.now_ms)
    written = []
    commit = shard.store.commit
    shard.store.commit = lambda batch, *, sync=False: written.append(len(batch)) or commit(batch, sync=sync)  # type: ignore[method-assign]
    while shard.shard.takes_config_over:
        shard.turn()
    assert len(written) >= len(NEW) * 7 // 30
    assert max(written) <= 20


def test_a_crash_after_any_turn_leaves_the_old_whole_or_the_new_one() -> None:
    turns = put(with_old(), 4, NEW)
    found = []
    for crash in range(turns + 1):
        shard = with_old()
        shard.shard.put_config(4, dict(NEW), True, shard.now_ms)
        for _ in range(crash):
            shard.turn()
        before = known(shard)
        shard.restart()
        assert known(shard) == before
        assert shard.shard.config in (OLD, NEW)
        found.append(shard.shard.config_version)
        assert shard.shard.config_version == (4 if shard.shard.config == NEW else 3)
        while shard.shard.takes_config_over:
            shard.turn()
        shard.restart()
        assert known(shard) == before, "what was in the log is in its place"
        assert list(shard.store.scan(b"config log", b"config loh", shard.store.families.state)) == []
    assert found == sorted(found)
    assert {3, 4} == set(found)


def test_a_crash_and_another_config_leave_nothing_of_the_one_before() -> None:
    shard = with_old()
    shard.shard.put_config(4, dict(NEW), True, shard.now_ms)
    for _ in range(10):
        shard.turn()
    shard.restart()
    assert shard.shard.config == OLD
    third = {f"third-{number}": "z" for number in range(15)}
    put(shard, 5, third)
    shard.restart()
    assert (shard.shard.config, shard.shard.config_version) == (third, 5)


def test_a_whole_of_the_same_version_that_does_not_differ_writes_nothing_but_the_version() -> None:
    shard = with_old()
    put(shard, 3, OLD)
    put(shard, 4, OLD)
    shard.restart()
    assert (shard.shard.config, shard.shard.config_version) == (OLD, 4)


def test_many_keys_follow_their_limits_over_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttling, "SETTLED_MAX", 10)
    shard = ShardHarness(settings=AT_ONCE)
    followed: list[str] = []
    follow = shard.shard.throttling._follow_level
    monkeypatch.setattr(
        shard.shard.throttling, "_follow_level", lambda key, limit, now_ms: (followed.append(key), follow(key, limit, now_ms))
    )
    shard.shard.put_config(1, dict(NEW), True, shard.now_ms)
    most = len(followed)
    while shard.shard.next_due(shard.now_ms) == 0:
        before = len(followed)
        shard.turn()
        most = max(most, len(followed) - before)
    assert sorted(followed) == sorted(str(number) for number in range(10, 40))
    assert most <= 10


@pytest.mark.parametrize(
    "prefix", ["", "new", "throttle", "throttle:1", "throttle.", "throttle.1", "throttle.12", "x", "throttle.1:"]
)
def test_it_is_listed_in_steps_as_it_was_when_that_began(prefix: str) -> None:
    shard = ShardHarness(settings=STEPS)
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
    assert turns >= len(expected) / 20


def test_lists_of_it_are_made_one_after_the_other() -> None:
    shard = ShardHarness(settings=STEPS)
    put(shard, 1, NEW)
    requests = [shard.begin(ListConfig(""), "", client) for client in (b"a", b"b", b"c")]
    answered: list[int] = []
    while len(answered) < 3:
        shard.turn()
        answered += [request for request in requests if request in shard.late and request not in answered]
        assert sum(job[0].begun for job in shard.shard.jobs._lines.values()) <= 1
    assert answered == requests
