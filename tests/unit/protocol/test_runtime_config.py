"""Keys and values of the runtime config: two spellings of a throttle, limits, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fila_proto_zmq import runtime_config
from fila_proto_zmq.bucket_limits import BucketLimits
from fila_proto_zmq.errors import InvalidConfigError
from fila_proto_zmq.limits import CONFIG_KEY_BYTES_MAX, CONFIG_VALUE_BYTES_MAX, THROTTLE_KEY_BYTES_MAX
from fila_proto_zmq.runtime_config import (
    Limit,
    all_limits,
    bucket_limit,
    buckets_of,
    changes_for,
    limit_of,
    namespace_limit,
    quota_bucket,
    read,
    select,
)


def changed(config: dict[str, str], key: str, value: str | None) -> dict[str, str]:
    """The config after a set or a delete."""
    after: dict[str, str | None] = {**config, **changes_for(key, value, config)}
    return {key: value for key, value in after.items() if value is not None}


def configured(**values: str) -> dict[str, str]:
    config: dict[str, str] = {}
    for key, value in values.items():
        config = changed(config, key.replace("__", ":"), value)
    return config


# --- spellings --------------------------------------------------------------------------------------------------------


def test_free_text_is_kept_as_it_is() -> None:
    config = changed({}, "greeting", " hello,\n world ")
    assert config == {"greeting": " hello,\n world "}
    assert read("greeting", config) == " hello,\n world "
    assert read("other", config) is None


def test_empty_free_text_is_a_value() -> None:
    assert read("flag", changed({}, "flag", "")) == ""


@pytest.mark.parametrize("name", ["api", "a:b", "a.b", "a/b", "a:rate", ":rate:burst:", "ä ö", "throttle.x", "a,b"])
def test_both_spellings_of_a_throttle_are_one_thing(name: str) -> None:
    rate, burst, dotted = f"throttle:{name}:rate", f"throttle:{name}:burst", f"throttle.{name}"
    by_dot = changed({}, dotted, "10, 20")
    by_colon = changed(changed({}, rate, " 10 "), burst, "20")
    assert by_dot == by_colon == {rate: "10", burst: "20"}
    assert [read(key, by_dot) for key in (rate, burst, dotted)] == ["10", "20", "10,20"]
    assert limit_of(name, by_dot) == Limit(10_000, 20_000_000)
    assert changed(by_dot, dotted, None) == {}
    assert changed(by_dot, burst, None) == {rate: "10"}


@pytest.mark.parametrize(("rate", "whole"), [("10", "10,10"), ("0.5", "0.5,1"), ("1e1", "1e1,1e1"), ("0", "0,1")])
def test_the_dotted_spelling_shows_the_default_burst(rate: str, whole: str) -> None:
    config = changed({}, "throttle:api:rate", rate)
    assert read("throttle.api", config) == whole
    assert limit_of("api", changed({}, "throttle.api", whole)) == limit_of("api", config)


def test_a_burst_without_a_rate_is_no_limit() -> None:
    config = changed({}, "throttle:api:burst", "5")
    assert limit_of("api", config) is None
    assert read("throttle.api", config) is None
    assert list(all_limits(config)) == []
    assert changed(config, "throttle.api", None) == {}


def test_lists_show_stored_keys_unless_dotted_ones_are_asked_for() -> None:
    config = configured(
        **{"throttle.b": "2,3", "throttle__a__rate": "1", "throttle__c__burst": "9", "z": "1", "throttlex": "2"}
    )
    assert select("", config) == dict(sorted(config.items()))
    assert list(select("throttle", config)) == [
        "throttle:a:rate", "throttle:b:burst", "throttle:b:rate", "throttle:c:burst", "throttlex",
    ]  # fmt: skip
    assert select("throttle:b", config) == {"throttle:b:burst": "3", "throttle:b:rate": "2"}
    assert select("throttle.", config) == {"throttle.a": "1,1", "throttle.b": "2,3"}
    assert select("throttle.b", config) == {"throttle.b": "2,3"}
    assert select("none", config) == {}


def test_deleting_what_is_not_there_changes_nothing() -> None:
    for key in ("x", "throttle.x", "throttle:x:rate", "namespace:x:max_enqueues_per_minute"):
        assert changes_for(key, None, {"y": "1"}) == {}


# --- limits -----------------------------------------------------------------------------------------------------------


def test_the_default_burst_is_the_rate_and_at_least_one() -> None:
    assert limit_of("k", configured(throttle__k__rate="250")) == Limit(250_000, 250_000_000)
    assert limit_of("k", configured(throttle__k__rate="0.5")) == Limit(500, 1_000_000)
    assert limit_of("k", configured(throttle__k__rate="0")) == Limit(0, 1_000_000)


@pytest.mark.parametrize(
    ("text", "milli"), [("0.001", 1), ("0.0014", 1), ("1e-3", 1), (".5", 500), ("5.", 5000), ("1e9", 10**12)]
)
def test_numbers_are_kept_to_a_thousandth(text: str, milli: int) -> None:
    config = configured(throttle__k__rate=text, throttle__k__burst=text)
    assert limit_of("k", config) == Limit(milli, 1000 * milli)


def test_a_namespace_s_quota_is_a_bucket_of_a_minute() -> None:
    config = changed({}, "namespace:acme:max_enqueues_per_minute", "600")
    assert namespace_limit("acme", config) == Limit(10_000, 600_000_000)
    assert namespace_limit("other", config) is None
    assert bucket_limit(quota_bucket("acme"), config) == namespace_limit("acme", config)


def test_a_throttle_key_and_a_namespace_of_one_name_have_two_buckets() -> None:
    config = configured(**{"throttle.acme": "1,2", "namespace__acme__max_enqueues_per_minute": "60"})
    assert list(all_limits(config)) == [("\0acme", Limit(1000, 60_000_000)), ("acme", Limit(1000, 2_000_000))]
    assert buckets_of(config) == {"acme", quota_bucket("acme")}


def test_keys_that_set_no_limit_touch_no_bucket() -> None:
    assert buckets_of(["x", "namespace:a:other", "throttle.a", "namespace:max_enqueues_per_minute", "throttle:rate"]) == set()


@pytest.mark.parametrize("value", ["", "x", "-1", "nan", "1e10", "1,2"])
def test_a_stored_value_that_cannot_be_read_limits_nothing(value: str) -> None:
    config = {"throttle:a:rate": value, "namespace:a:max_enqueues_per_minute": value}
    assert list(all_limits(config)) == []
    assert limit_of("a", {"throttle:a:rate": "1", "throttle:a:burst": value}) == Limit(1000, 1_000_000)


# --- refusals ---------------------------------------------------------------------------------------------------------

NO_NUMBERS = ["", " ", "x", "-1", "-0.5", "nan", "NaN", "inf", "-inf", "Infinity", "1e10", "1e999", "0x10", "1_000", "1 2",
              "٣", "1\n2", "0.0001", "1e-9", "9" * 65, "--1", ".", "1e", "ten"]  # fmt: skip


@pytest.mark.parametrize("value", NO_NUMBERS)
@pytest.mark.parametrize("key", ["throttle:api:rate", "throttle:api:burst", "namespace:acme:max_enqueues_per_minute"])
def test_what_is_no_proper_number_is_refused_by_name(key: str, value: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        changes_for(key, value, {})
    assert key in caught.value.message
    assert repr(value)[1:20].rstrip("'") in caught.value.message


@pytest.mark.parametrize("value", ["", "10", "10,", ",10", "10,20,30", "a,b", "10,-1", "nan,1", "10;20", "inf,inf"])
def test_a_malformed_pair_is_refused(value: str) -> None:
    with pytest.raises(InvalidConfigError, match="throttle"):
        changes_for("throttle.api", value, {})


def test_a_quota_is_more_than_nothing() -> None:
    for value in ("0", "0.05"):
        with pytest.raises(InvalidConfigError, match=r"from 0\.06"):
            changes_for("namespace:a:max_enqueues_per_minute", value, {})
    config = configured(namespace__a__max_enqueues_per_minute="0.06")
    assert namespace_limit("a", config) == Limit(1, 60_000)


@pytest.mark.parametrize(
    "key",
    ["", "a\0b", "a\nb", "\x7f", "\x85", "throttle.", "throttle::rate", "throttle::burst", "throttle:", "throttle:api",
     "throttle:api:brust", "throttle:rate", "throttle:api:rate ", "namespace::max_enqueues_per_minute",
     "namespace:a b:max_enqueues_per_minute", "namespace:a/b:max_enqueues_per_minute", "\ud800"],
)  # fmt: skip
@pytest.mark.parametrize("value", ["1", None])
def test_what_can_be_no_key_is_refused(key: str, value: str | None) -> None:
    with pytest.raises(InvalidConfigError):
        changes_for(key, value, {})


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("k" * (CONFIG_KEY_BYTES_MAX + 1), "v", "a config key of 513 bytes"),
        ("ä" * 257, "v", "a config key of 514 bytes"),
        ("k", "v" * (CONFIG_VALUE_BYTES_MAX + 1), "the value of 'k' of 65537 bytes"),
        (f"throttle:{'k' * (THROTTLE_KEY_BYTES_MAX + 1)}:rate", "1", "a throttle key of 257 bytes"),
        (f"throttle.{'k' * (THROTTLE_KEY_BYTES_MAX + 1)}", "1,1", "a throttle key of 257 bytes"),
        ("k", "\ud800", "no valid Unicode"),
    ],
)
def test_what_is_too_long_is_refused_with_its_length(key: str, value: str, what: str) -> None:
    with pytest.raises(InvalidConfigError, match=what) as caught:
        changes_for(key, value, {})
    assert len(caught.value.message) < 250


def test_the_longest_throttle_key_has_both_spellings() -> None:
    name = "k" * THROTTLE_KEY_BYTES_MAX
    assert read(f"throttle.{name}", changed({}, f"throttle:{name}:rate", "1")) == "1,1"


def test_there_is_room_for_so_many_keys_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_config, "CONFIG_KEYS_MAX", 3)
    config = {"a": "1", "b": "2"}
    with pytest.raises(InvalidConfigError, match="delete some"):
        changes_for("throttle.c", "1,1", config)
    config = changed(config, "c", "3")
    assert changed(config, "c", "4")["c"] == "4"
    with pytest.raises(InvalidConfigError, match="has 3 keys already, at most 3"):
        changes_for("d", "1", config)
    assert changed(config, "a", None) == {"b": "2", "c": "3"}


def test_there_is_room_for_so_many_bytes_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_config, "CONFIG_BYTES_MAX", 100)
    config = changed({}, "a", "ä" * 40)
    with pytest.raises(InvalidConfigError, match="101 bytes, at most 100"):
        changes_for("b", "x" * 19, config)
    assert len(changed(config, "b", "x" * 18)) == 2


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.decimals(0, 10**9, places=3).map(str)


@given(name=texts, rate=numbers, burst=numbers)
def test_what_one_spelling_writes_both_read(name: str, rate: str, burst: str) -> None:
    dotted = f"throttle.{name}"
    try:
        config = changed({}, dotted, f"{rate},{burst}")
    except InvalidConfigError:
        assert not name or any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in name)
        return
    assert read(dotted, config) == f"{rate},{burst}"
    assert (read(f"throttle:{name}:rate", config), read(f"throttle:{name}:burst", config)) == (rate, burst)
    assert dict(all_limits(config)) == {name: limit_of(name, config)}
    assert select(dotted, config) == {dotted: f"{rate},{burst}"}
    assert changed(config, dotted, None) == {}


@given(key=texts, value=texts | numbers)
def test_any_key_and_value_is_stored_or_refused(key: str, value: str) -> None:
    for name in (key, f"throttle:{key}:rate", f"namespace:{key}:max_enqueues_per_minute"):
        try:
            config = changed({}, name, value)
        except InvalidConfigError:
            continue
        assert read(name, config) in {value, value.strip()}


# --- pages ------------------------------------------------------------------------------------------------------------


def test_pages_have_all_of_a_config_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_config, "PAGE_KEYS_MAX", 3)
    config = {f"key-{number}": "1" for number in range(8)}
    several = runtime_config.pages(config)
    assert [list(page) for page in several] == [["key-0", "key-1", "key-2"], ["key-3", "key-4", "key-5"], ["key-6", "key-7"]]
    assert runtime_config.pages({}) == [{}]


def test_pages_have_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_config, "PAGE_BYTES_MAX", 100)
    config = {"a": "x" * 40, "b": "x" * 300, "c": "x" * 40, "d": "x" * 40, "e": ""}
    several = runtime_config.pages(config)
    assert {key: value for page in several for key, value in page.items()} == config
    assert all(len(page) == 1 or sum(map(len, page.values())) <= 100 for page in several)
    assert ["c", "d", "e"] in [list(page) for page in several]


# --- the limits of a throttle key -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"), [("concurrency", "3"), ("concurrency", "0"), ("rate_min", "0.5"), ("rate_min", "0")]
)
def test_further_limits_are_stored(key: str, value: str) -> None:
    assert changes_for(f"throttle:a:b:{key}", f" {value} ", {}) == {f"throttle:a:b:{key}": value}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("concurrency", "2.5"),
        ("concurrency", "-1"),
        ("concurrency", ""),
        ("concurrency", "inf"),
        ("rate_min", "nan"),
        ("rates", "1"),
    ],
)
def test_further_limits_that_will_not_do(key: str, value: str) -> None:
    with pytest.raises(InvalidConfigError, match="throttle:a"):
        changes_for(f"throttle:a:{key}", value, {})


def test_the_throttle_key_of_an_entry() -> None:
    for limit in runtime_config.THROTTLE_LIMITS:
        assert runtime_config.throttle_key_of(runtime_config.throttle_entry("a:rate", limit)) == "a:rate"
    assert runtime_config.throttle_key_of("app:rate") is runtime_config.throttle_key_of("throttle.a") is None


# --- concurrency ------------------------------------------------------------------------------------------------------

CONCURRENCY = "throttle:tenant:acme:concurrency"


@pytest.mark.parametrize(("value", "most"), [("0", 0), (" 20 ", 20), ("2147483647", 2**31 - 1)])
def test_a_concurrency_is_a_whole_number(value: str, most: int) -> None:
    config = runtime_config.changes_for(CONCURRENCY, value, {})
    assert config == {CONCURRENCY: str(most)}
    assert BucketLimits({CONCURRENCY: str(most)}).concurrency("tenant:acme") == most
    assert runtime_config.buckets_of(config) == set()


@pytest.mark.parametrize("value", ["", "-1", "1.5", "1e3", "many", "2147483648", "9" * 80, "٣"])
def test_any_other_concurrency_is_refused(value: str) -> None:
    with pytest.raises(InvalidConfigError, match="use a whole number from 0 to 2147483647"):
        runtime_config.changes_for(CONCURRENCY, value, {})


@pytest.mark.parametrize("stored", ["x", "-1", "1.5"])
def test_a_concurrency_that_cannot_be_read_limits_nothing(stored: str) -> None:
    assert BucketLimits({CONCURRENCY: stored}).concurrency("tenant:acme") is None


def test_a_concurrency_needs_a_throttle_key() -> None:
    with pytest.raises(InvalidConfigError, match="use throttle:KEY:rate"):
        runtime_config.changes_for("throttle::concurrency", "1", {})
