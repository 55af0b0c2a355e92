"""Arguments: what is refused, and in which words."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction

import pytest

from fila_cluster.client import checks
from fila_cluster.errors import InvalidArgumentError
from fila_proto_zmq.limits import ERROR_TEXT_BYTES_MAX, METADATA_BYTES_MAX

HUGE = pytest.param(10**400, id="huge")


@pytest.mark.parametrize(
    ("seconds", "milliseconds"),
    [(0, 0), (0.0, 0), (1, 1000), (0.0001, 1), (1.5, 1500), (0.1, 100), (2.675, 2675), (Fraction(1, 2), 500)],
)
def test_seconds_become_whole_milliseconds_and_never_fewer(seconds, milliseconds):
    assert checks.delay_ms(seconds) == milliseconds


@pytest.mark.parametrize("seconds", [-1, -0.001, float("nan"), float("inf"), HUGE, True, "1", None, timedelta(1)])
def test_bad_durations(seconds):
    with pytest.raises(InvalidArgumentError, match="delay="):
        checks.delay_ms(seconds)


@pytest.mark.parametrize("seconds", [0, 0.0, -5, 13 * 3600])
def test_bad_leases(seconds):
    with pytest.raises(InvalidArgumentError, match="lease="):
        checks.lease_ms(seconds)


def test_no_lease_is_the_queues():
    assert checks.lease_ms(None) == 0
    assert checks.lease_ms(1e-9) == 1


def test_deliver_at():
    assert checks.due_ms(None) == 0
    assert checks.due_ms(datetime(2026, 1, 1, tzinfo=UTC)) == 1_767_225_600_000
    assert checks.due_ms(datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))) == 1_767_225_600_000
    assert checks.due_ms(datetime(1960, 1, 1, tzinfo=UTC)) == 1


def test_naive_datetimes_are_refused_and_the_way_out_is_named():
    with pytest.raises(InvalidArgumentError, match=r"no timezone.*datetime\.now\(timezone\.utc\)"):
        checks.due_ms(datetime(2026, 1, 1))
    with pytest.raises(InvalidArgumentError, match="not a float"):
        checks.due_ms(1e9)


@pytest.mark.parametrize(
    ("weight", "units"),
    [
        (None, 0),
        (0, 1),
        (-7, 1),
        (1, 1),
        (3, 3),
        (2.9, 2),
        (0.2, 1),
        (float("-inf"), 1),
        pytest.param(-(10**400), 1, id="-huge"),
    ],
)
def test_weights(weight, units):
    assert checks.weight_units(weight) == units


@pytest.mark.parametrize("weight", ["3", float("nan"), float("inf"), True, 2_000_000, HUGE, Decimal(3), b"1"])
def test_bad_weights(weight):
    with pytest.raises(InvalidArgumentError, match="weight="):
        checks.weight_units(weight)


@pytest.mark.parametrize("priority", [2**31, -(2**31) - 1, 1.0, "0", None, True])
def test_bad_priorities(priority):
    with pytest.raises(InvalidArgumentError, match="priority="):
        checks.priority_units(priority)


@pytest.mark.parametrize("key", ["", 3, b"k", "x" * 1025, "ä" * 513, "\ud800"])
def test_bad_fairness_keys(key):
    with pytest.raises(InvalidArgumentError, match="fairness_key"):
        checks.fairness_key(key)


def test_fairness_keys():
    assert checks.fairness_key(None) == "default"
    assert checks.fairness_key("x" * 1024) == "x" * 1024
    assert checks.fairness_key("ä" * 512) == "ä" * 512


@pytest.mark.parametrize("name", ["", "a b", "a/b/c", "x" * 201, 3, None, ["a"], "é"])
def test_bad_queue_names(name):
    for _ in range(2):  # the second time past the cache
        with pytest.raises(InvalidArgumentError):
            checks.queue_name(name)


def test_errors_keep_their_end():
    text = "ä" * ERROR_TEXT_BYTES_MAX + "the end"
    kept = checks.error_text(text)
    assert kept.endswith("the end")
    assert len(kept.encode()) <= ERROR_TEXT_BYTES_MAX


def test_an_exception_is_no_error_text():
    with pytest.raises(InvalidArgumentError, match=r"str\(error\)"):
        checks.error_text(ValueError("x"))


def test_metadata():
    assert checks.metadata_bytes(None) is None
    assert checks.metadata_bytes(bytearray(b"abc")) == b"abc"
    with pytest.raises(InvalidArgumentError, match="not a str"):
        checks.metadata_bytes("abc")
    with pytest.raises(InvalidArgumentError, match="at most"):
        checks.metadata_bytes(bytes(METADATA_BYTES_MAX + 1))


@pytest.mark.parametrize(
    ("cost", "milli"),
    [
        (1, 1000),
        (1.0, 1000),
        (0.001, 1),
        (1e-9, 1),
        (0.0005, 1),
        (0.0014, 1),
        (0.0015, 2),
        (1.0005, 1001),
        (2.0004, 2000),
        (2.675, 2675),
        (Fraction(1, 3), 333),
        (Fraction(2, 3), 667),
        (1_000_000, 10**9),
    ],
)
def test_costs_are_rounded_half_up_to_thousandths(cost, milli):
    assert checks.cost_milli(cost) == milli


@pytest.mark.parametrize(
    "cost", [0, 0.0, -1, -1e-9, 1_000_001, 10**400, float("nan"), float("inf"), True, "1", None, Decimal(1)]
)
def test_bad_costs(cost):
    with pytest.raises(InvalidArgumentError, match="cost="):
        checks.cost_milli(cost)


def test_time_to_live():
    assert checks.ttl_ms(None) == 0
    assert checks.ttl_ms(1.5) == 1500
    assert checks.ttl_ms(1e-9) == 1


@pytest.mark.parametrize("ttl", [0, 0.0, -1, float("nan"), 10**12, True, "1"])
def test_bad_times_to_live(ttl):
    with pytest.raises(InvalidArgumentError, match="ttl="):
        checks.ttl_ms(ttl)


def test_dedup_ids():
    assert checks.dedup_id(None) == ""
    assert checks.dedup_id("x" * 256) == "x" * 256


@pytest.mark.parametrize("text", ["", 3, b"x", "x" * 257, "ä" * 129, "\ud800"])
def test_bad_dedup_ids(text):
    with pytest.raises(InvalidArgumentError, match="dedup_id"):
        checks.dedup_id(text)


class Shade(str, Enum):  # noqa: UP042 # the kind whose str() is not its value
    DARK = "dark"


@pytest.mark.parametrize(
    ("keys", "distinct"),
    [
        (None, []),
        ([], []),
        (["b", "a", "b"], ["b", "a"]),
        (("a",), ["a"]),
        ({"a"}, ["a"]),
        ({"b": 1, "a": 2}, ["b", "a"]),
        ((name for name in "xyx"), ["x", "y"]),
        ([Shade.DARK], ["dark"]),
        (["x" * 256], ["x" * 256]),
        ([str(number) for number in range(16)] * 2, [str(number) for number in range(16)]),
    ],
)
def test_throttle_keys_are_distinct_and_keep_their_order(keys, distinct):
    assert checks.throttle_keys(keys) == distinct


@pytest.mark.parametrize(
    "keys", ["provider", b"provider", 3, [3], [None], [""], ["x" * 257], ["\ud800"], [str(number) for number in range(17)]]
)
def test_bad_throttle_keys(keys):
    with pytest.raises(InvalidArgumentError, match="throttle"):
        checks.throttle_keys(keys)


def test_a_lone_throttle_key_is_refused_with_a_list_as_the_remedy():
    with pytest.raises(InvalidArgumentError, match=r"throttle_keys='provider': pass a list of str"):
        checks.throttle_keys("provider")


@pytest.mark.parametrize(
    ("variable", "argument", "direct"),
    [(None, None, True), ("", None, True), ("1", None, True), ("0", None, False), ("0", True, True), ("1", False, False)],
)
def test_the_argument_counts_then_the_variable_then_the_direct_way(monkeypatch, variable, argument, direct):
    monkeypatch.delenv("FILA_DIRECT", raising=False)
    if variable is not None:
        monkeypatch.setenv("FILA_DIRECT", variable)
    assert checks.direct_or_default(argument) is direct


@pytest.mark.parametrize(("variable", "argument"), [("true", None), ("2", None), (" 1", None), ("1", 1), ("1", "0")])
def test_what_is_no_choice_of_a_way_is_refused(monkeypatch, variable, argument):
    monkeypatch.setenv("FILA_DIRECT", variable)
    with pytest.raises(InvalidArgumentError, match="FILA_DIRECT" if argument is None else "direct="):
        checks.direct_or_default(argument)


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (checks.delay_ms, "x" * 1_000_000),
        (checks.fairness_key, b"x" * 1_000_000),
        (checks.throttle_keys, "x" * 1_000_000),
        (lambda mode: checks.dedup_last(mode, "id"), "x" * 1_000_000),
        (checks.max_attempts, 10**10_000),
        (checks.weight_units, 10**10_000),
    ],
    ids=range(6),
)
def test_a_long_value_is_cut_in_its_error(check, value):
    with pytest.raises(InvalidArgumentError) as caught:
        check(value)
    assert len(str(caught.value)) < 250


def test_limits_of_durations_are_written_out():
    with pytest.raises(InvalidArgumentError, match="use 0 to 316224000 seconds"):
        checks.delay_ms(-1)
