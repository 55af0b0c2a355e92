"""Limits of buckets by patterns: the key's own entry, else the longest prefix, for each limit by itself."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from fila_proto_zmq.bucket_limits import BucketLimits, split_names
from fila_proto_zmq.runtime_config import Limit, limit_of


def limits(**entries: str) -> BucketLimits:
    return BucketLimits({f"throttle:{key.replace('__', ':').replace('_any', '*')}": value for key, value in entries.items()})


def test_a_pattern_holds_for_each_key_that_begins_so() -> None:
    found = limits(tenant___any__rate="5", tenant___any__burst="9")
    assert found.get("tenant:a") == found.get("tenant:") == Limit(5000, 9_000_000)
    assert found.get("tenant") is None
    assert "tenant:a" in found
    assert "other" not in found


def test_the_longest_prefix_holds_and_the_key_s_own_entry_before_it() -> None:
    found = limits(_any__rate="1", t_any__rate="2", te_any__rate="3", ten__rate="4")
    assert [found[key].rate_milli for key in ("x", "t", "te", "ten", "tent")] == [1000, 2000, 3000, 4000, 3000]


def test_each_limit_is_found_by_itself() -> None:
    found = limits(
        t_any__burst="9", te_any__rate="3", tea__rate="4", ten__burst="7", t_any__concurrency="2", te__concurrency="0"
    )
    assert found.get("tea") == Limit(4000, 9_000_000)
    assert found.get("ten") == Limit(3000, 7_000_000)
    assert found.get("t") is None, "a burst without a rate is no limit"
    assert (found.find("tea", "concurrency"), found.find("te", "concurrency"), found.find("x", "concurrency")) == (
        "2",
        "0",
        None,
    )


def test_patterns_come_and_go() -> None:
    found = limits(te_any__rate="3", t_any__rate="2")
    found.change({"throttle:te*:rate": None})
    assert found.get("ten") == Limit(2000, 2_000_000)
    found.change({"throttle:t*:rate": "1"})
    assert found.get("ten") == Limit(1000, 1_000_000)
    found.change({"throttle:t*:rate": None})
    assert (found.get("ten"), found.has_patterns, found.values) == (None, False, {})


def test_quotas_of_namespaces_have_no_patterns() -> None:
    found = BucketLimits({"namespace:n:max_enqueues_per_minute": "60", "throttle:*:rate": "5"})
    assert found.get("\0n") == Limit(1000, 60_000_000)
    assert found.get("\0m") is None


def test_changes_name_buckets_and_patterns() -> None:
    keys = ["throttle:a:rate", "throttle:b*:burst", "namespace:n:max_enqueues_per_minute", "app:*", "throttle:c*:concurrency"]
    assert split_names(keys) == ({"a", "\0n"}, {"b*"})


NAMES = st.text("ab:", max_size=4)


@given(
    st.dictionaries(st.tuples(NAMES, st.booleans(), st.sampled_from(["rate", "burst"])), st.integers(0, 9)),
    NAMES,
    st.randoms(),
)
def test_a_look_up_finds_what_a_search_of_all_entries_finds(
    entries: dict[tuple[str, bool, str], int], name: str, chance: Random
) -> None:
    values = {f"throttle:{prefix}{'*' * some}:{limit}": str(value) for (prefix, some, limit), value in entries.items()}
    found = BucketLimits()
    shuffled = list(values.items())
    chance.shuffle(shuffled)
    for key, value in shuffled:  # in any order, with changes that are taken back
        found.change({key: "7"})
        found.change({key: None})
        found.change({key: value})

    def searched(limit: str) -> str | None:
        matches = [
            (not some, len(prefix), str(value))
            for (prefix, some, kind), value in entries.items()
            if kind == limit and (name.startswith(prefix) if some else prefix == name)
        ]
        return max(matches)[2] if matches else None

    own = {f"throttle:{name}:{limit}": text for limit in ("rate", "burst") if (text := searched(limit)) is not None}
    assert found.get(name) == limit_of(name, own)
