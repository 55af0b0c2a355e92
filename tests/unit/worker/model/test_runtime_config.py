"""The runtime config of a shard: judged once, numbered, kept, and level with the others'."""

import pytest

from fila_proto_zmq.commands import ConfigChange, PutConfig, SetConfig
from fila_proto_zmq.errors import InvalidConfigError
from fila_proto_zmq.runtime_config import Limit, select
from tests.support.shard.shard import ShardHarness


def put(shard: ShardHarness, key: str, value: str | None) -> ConfigChange:
    """Set it where the config is owned."""
    change = shard.shard.set_config(SetConfig(key, value), shard.now_ms)
    shard.turn()
    return change


def follow(shard: ShardHarness, version: int, changes: dict[str, str | None], *, whole: bool = False) -> None:
    """Take over what the owner judged."""
    shard.shard.put_config(PutConfig(version, changes, whole), shard.now_ms)
    shard.turn()


def limits(shard: ShardHarness) -> dict[str, Limit]:
    return shard.shard.runtime.limits.own


def test_a_value_is_numbered_and_kept(shard: ShardHarness) -> None:
    assert put(shard, "region", "eu") == ConfigChange(1, {"region": "eu"}, False)
    assert put(shard, "region", "us") == ConfigChange(2, {"region": "us"}, True)
    shard.restart()
    assert (shard.shard.config, shard.shard.config_version) == ({"region": "us"}, 2)
    assert put(shard, "region", None) == ConfigChange(3, {"region": None}, True)
    shard.restart()
    assert (shard.shard.config, shard.shard.config_version) == ({}, 3)


def test_deleting_what_is_not_there_is_no_new_version(shard: ShardHarness) -> None:
    assert put(shard, "region", None) == ConfigChange(0, {}, False)
    put(shard, "region", "eu")
    assert put(shard, "other", None) == ConfigChange(1, {}, False)


def test_nothing_of_an_uncommitted_turn_is_kept(shard: ShardHarness) -> None:
    put(shard, "region", "eu")
    shard.shard.set_config(SetConfig("region", "us"), shard.now_ms)
    shard.restart()
    assert (shard.shard.config, shard.shard.config_version) == ({"region": "eu"}, 1)


WRONG = [
    ("throttle:k:rate", "fast"),
    ("throttle:k:rate", "nan"),
    ("throttle:k:rate", "inf"),
    ("throttle:k:rate", "-1"),
    ("throttle:k:rate", ""),
    ("throttle:k:burst", "-0.5"),
    ("throttle.k", "10"),
    ("throttle.k", "10,20,30"),
    ("throttle.k", "10,many"),
    ("throttle.k", ",20"),
    ("throttle:k:speed", "1"),
    ("namespace:n:max_enqueues_per_minute", "0"),
    ("namespace:n:max_enqueues_per_minute", "1/2"),
    ("", "x"),
    ("a\nb", "x"),
]


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_bad_value_leaves_everything_as_it_was(shard: ShardHarness, key: str, value: str) -> None:
    put(shard, "throttle.k", "10,20")
    put(shard, "namespace:n:max_enqueues_per_minute", "60")
    before = (dict(shard.shard.config), shard.shard.config_version, dict(limits(shard)))
    with pytest.raises(InvalidConfigError):
        put(shard, key, value)
    assert (shard.shard.config, shard.shard.config_version, limits(shard)) == before
    shard.restart()
    assert (shard.shard.config, shard.shard.config_version, limits(shard)) == before


def test_both_spellings_are_one_thing(shard: ShardHarness) -> None:
    put(shard, "throttle.k", "10,20")
    assert shard.shard.config == {"throttle:k:rate": "10", "throttle:k:burst": "20"}
    put(shard, "throttle:k:rate", "15")
    assert shard.shard.runtime.get("throttle.k") == "15,20"
    assert select("throttle.", shard.shard.config) == {"throttle.k": "15,20"}
    assert put(shard, "throttle.k", None).existed
    assert (shard.shard.config, limits(shard)) == ({}, {})


def test_limits_follow_the_values_over_a_restart(shard: ShardHarness) -> None:
    put(shard, "throttle:k:rate", "0.5")
    put(shard, "throttle:burst only:burst", "7")
    put(shard, "namespace:n:max_enqueues_per_minute", "60")
    expected = {"k": Limit(500, 1_000_000), "\0n": Limit(1_000, 60_000_000)}
    assert limits(shard) == expected
    shard.restart()
    assert limits(shard) == expected
    assert shard.shard.token_client.limits.own.keys() == set(expected)
    put(shard, "throttle:k:burst", "4")
    assert limits(shard)["k"] == Limit(500, 4_000_000)
    put(shard, "throttle:k:rate", None)
    assert "k" not in limits(shard)


# --- following the owner ----------------------------------------------------------------------------------------------


def test_a_change_of_the_owner_is_taken_over(shard: ShardHarness) -> None:
    follow(shard, 1, {"a": "1", "b": "2"})
    follow(shard, 2, {"a": None, "c": "3"})
    assert (shard.shard.config, shard.shard.config_version) == ({"b": "2", "c": "3"}, 2)
    shard.restart()
    assert (shard.shard.config, shard.shard.config_version) == ({"b": "2", "c": "3"}, 2)


def test_one_that_was_taken_over_before_changes_nothing(shard: ShardHarness) -> None:
    follow(shard, 5, {"a": "5"}, whole=True)
    follow(shard, 5, {"a": "again"})
    follow(shard, 4, {"a": "old", "b": "old"})
    follow(shard, 3, {}, whole=True)
    assert (shard.shard.config, shard.shard.config_version) == ({"a": "5"}, 5)


def test_a_whole_config_removes_what_is_not_in_it(shard: ShardHarness) -> None:
    follow(shard, 1, {"a": "1", "b": "2", "throttle:k:rate": "10"})
    follow(shard, 9, {"b": "2", "c": "3"}, whole=True)
    assert (shard.shard.config, shard.shard.config_version) == ({"b": "2", "c": "3"}, 9)
    assert limits(shard) == {}
    shard.restart()
    assert (shard.shard.config, limits(shard)) == ({"b": "2", "c": "3"}, {})


def test_what_a_later_version_wrote_limits_nothing_and_breaks_nothing(shard: ShardHarness) -> None:
    follow(shard, 1, {"throttle:k:rate": "1/s", "namespace:n:max_enqueues_per_minute": "lots"})
    assert limits(shard) == {}
    shard.restart()
    assert limits(shard) == {}
    shard.enqueue(b"x", throttle_keys=[["k"]])
    assert len(shard.receive()) == 1


def test_parked_keys_are_kept_apart_from_it(shard: ShardHarness) -> None:
    put(shard, "park:k", "a value")
    shard.shard.park({"k": shard.now_ms + 9_000, "over": shard.now_ms}, shard.now_ms)
    shard.turn()
    shard.restart()
    assert (shard.shard.parks(), shard.shard.config) == ({"k": shard.now_ms + 9_000}, {"park:k": "a value"})
    shard.pass_time(9_000)
    shard.restart()
    assert shard.shard.parks() == {}


def test_of_two_configs_with_one_version_the_whole_that_arrives_holds(shard: ShardHarness) -> None:
    """A restored copy may have numbered other changes alike."""
    follow(shard, 3, {"a": "1", "mine": "x"}, whole=True)
    follow(shard, 3, {"a": "2"})
    assert shard.shard.config == {"a": "1", "mine": "x"}, "a single change is of the same history, or of none"
    follow(shard, 3, {"a": "2"}, whole=True)
    assert shard.shard.config == {"a": "2"}
    shard.restart()
    assert (shard.shard.config, shard.shard.config_version) == ({"a": "2"}, 3)
