"""The changes of the runtime config that shard 0 remembers, and how one is taken back."""

import pytest

from fila_proto_zmq.commands import ConfigEdit, ConfigHistory, ListConfigHistory, SetConfig, UndoConfig
from fila_proto_zmq.errors import InvalidArgumentError, InvalidConfigError
from fila_worker.check.shard import check_shard
from fila_worker.reshard.new_shard import _found
from fila_worker.reshard.survey import survey
from fila_worker.storage.memory import MemoryStore
from tests.support.shard.shard import SHARDS, ShardHarness


@pytest.fixture
def shard() -> ShardHarness:
    return ShardHarness(index=0)


def put(shard: ShardHarness, key: str, value: str | None, by: str = "shop") -> int:
    """Set a key in a turn of its own, and return the version."""
    version = shard.shard.set_config(SetConfig(key, value, by), shard.now_ms).version
    shard.turn()
    return version


def undo(shard: ShardHarness, version: int, *, force: bool = False) -> int:
    made = shard.shard.set_config(UndoConfig(version, force, "boss"), shard.now_ms).version
    shard.turn()
    return made


def page(shard: ShardHarness, key: str | None = None, before: int = 0, limit: int = 100) -> ConfigHistory:
    reply = shard.ask(ListConfigHistory(key, before, limit))
    assert isinstance(reply, ConfigHistory)
    return reply


def values(shard: ShardHarness) -> dict[str, str]:
    return dict(shard.shard.config)


def test_changes_are_remembered_with_the_values_before_and_after(shard: ShardHarness) -> None:
    now_ms = shard.now_ms
    put(shard, "color", "red")
    shard.pass_time(5)
    put(shard, "color", "blue", "boss")
    put(shard, "color", None)
    put(shard, "color", None)  # it has no value: that is no change
    with pytest.raises(InvalidConfigError):
        put(shard, "throttle:a:rate", "much")
    expected = [
        ConfigEdit(3, now_ms + 5, "shop", "color", "blue", None),
        ConfigEdit(2, now_ms + 5, "boss", "color", "red", "blue"),
        ConfigEdit(1, now_ms, "shop", "color", None, "red"),
    ]
    assert page(shard) == ConfigHistory(expected)
    shard.restart()
    assert page(shard) == ConfigHistory(expected)
    assert list(check_shard(shard.store, 0, SHARDS)) == []


def test_a_change_in_the_turn_of_the_question_is_there(shard: ShardHarness) -> None:
    shard.shard.set_config(SetConfig("a", "1"), shard.now_ms)
    assert [edit.version for edit in page(shard).edits] == [1]
    shard.shard.set_config(SetConfig("a", "2"), shard.now_ms)
    assert undo(shard, 2) == 3
    assert values(shard) == {"a": "1"}


def test_both_spellings_of_a_throttle_are_one_key(shard: ShardHarness) -> None:
    put(shard, "throttle.api", "5,10")
    put(shard, "throttle:api:rate", "7")
    put(shard, "other", "x")
    for key, versions in {"throttle.api": [2, 1], "throttle:api:rate": [2, 1], "throttle:api:burst": [1], "x": []}.items():
        assert [edit.version for edit in page(shard, key).edits] == versions, key
    assert undo(shard, 2) == 4
    assert undo(shard, 1) == 5
    assert values(shard) == {"other": "x"}


def test_undoing_makes_a_new_version_that_can_be_undone(shard: ShardHarness) -> None:
    put(shard, "color", "red")
    put(shard, "color", "blue")
    assert undo(shard, 2) == 3
    assert values(shard) == {"color": "red"}
    assert page(shard).edits[0] == ConfigEdit(3, shard.now_ms, "boss", "color", "blue", "red")
    assert undo(shard, 3) == 4
    assert values(shard) == {"color": "blue"}


def test_what_was_changed_since_is_undone_only_by_force(shard: ShardHarness) -> None:
    put(shard, "color", "red")
    put(shard, "color", "blue")
    with pytest.raises(InvalidConfigError, match="changed again after version 1"):
        undo(shard, 1)
    assert values(shard) == {"color": "blue"}
    assert undo(shard, 1, force=True) == 3
    assert values(shard) == {}


@pytest.mark.parametrize("version", [0, 7, -1, 2**64 - 1, 2**64])
def test_what_is_not_remembered(shard: ShardHarness, version: int) -> None:
    put(shard, "color", "red")
    with pytest.raises(InvalidConfigError, match="not remembered"):
        undo(shard, version, force=True)


def test_pages(shard: ShardHarness) -> None:
    shard.limit(config_edits_at_once=2, config_edits_page_bytes_max=10_000)
    for number in range(5):
        put(shard, "color", f"{number}")
    seen: list[int] = []
    while (some := page(shard, before=seen[-1] if seen else 0, limit=2)).more:
        seen += [edit.version for edit in some.edits]
    assert [*seen, *(edit.version for edit in some.edits)] == [5, 4, 3, 2, 1]
    for _ in range(2):
        put(shard, "large", "x" * 20_000)
    assert [edit.version for edit in page(shard).edits] == [7]
    for limit in (0, 101):
        with pytest.raises(InvalidArgumentError):
            shard.ask(ListConfigHistory(None, 0, limit))


def test_only_the_latest_are_kept_by_number_and_by_bytes(shard: ShardHarness) -> None:
    shard.limit(config_edits_max=4, config_edits_bytes_max=1000)
    for number in range(9):
        put(shard, "color", f"{number}")
    assert [edit.version for edit in page(shard).edits] == [9, 8, 7, 6]
    put(shard, "large", "x" * 940)  # with one of the others not yet 1,000 bytes
    assert [edit.version for edit in page(shard).edits] == [10, 9]
    put(shard, "larger", "x" * 2000)
    assert [edit.version for edit in page(shard).edits] == [11]
    with pytest.raises(InvalidConfigError, match="not remembered"):
        undo(shard, 10)
    shard.restart()
    assert [edit.version for edit in page(shard).edits] == [11]
    put(shard, "color", "y")
    assert [edit.version for edit in page(shard).edits] == [12]


def test_a_crash_loses_a_change_and_its_memory_together(shard: ShardHarness) -> None:
    put(shard, "color", "red")
    shard.shard.set_config(SetConfig("color", "blue"), shard.now_ms)
    shard.restart()  # before the commit
    assert values(shard) == {"color": "red"}
    assert [edit.new for edit in page(shard).edits] == ["red"]


def test_another_number_of_shards_keeps_them_on_shard_0() -> None:
    old = ShardHarness(index=0, shards=1)
    put(old, "color", "red")
    found = survey(lambda _: old.store, 1)
    stores = [MemoryStore(), MemoryStore()]
    for index, store in enumerate(stores):
        _found(store, index, 2, found)
    first, second = (ShardHarness(store, index=index, shards=2) for index, store in enumerate(stores))
    assert page(first) == page(old)
    assert page(second) == ConfigHistory([])
    assert values(second) == values(first) == {"color": "red"}
