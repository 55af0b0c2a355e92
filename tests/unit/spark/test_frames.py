"""Values of rows to frames."""

from decimal import Decimal
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fila_cluster.errors import InvalidArgumentError
from fila_cluster.spark.frames import Framing, RowIds, scope_of
from fila_proto_zmq.limits import FRAME_BYTES_MAX
from fila_proto_zmq.record import open_envelope

SCOPE = scope_of("job", "test", "0")


def framing(queue="q", window_ms=0):
    return Framing(queue, RowIds(SCOPE), window_ms)


def frames(**values):
    return list(framing().frames(values))


def one(**values):
    (frame,) = frames(**values)
    return frame.command


def by_id(values):
    """What is stored under which dedup id: (queue, envelope, fairness key, throttle keys)."""
    stored = {}
    for frame in frames(**values):
        command, count = frame.command, len(frame.rows)
        keys = [command.fairness_key] * count if isinstance(command.fairness_key, str) else command.fairness_key
        throttles = (
            command.throttle_keys * count if len(command.throttle_keys) == 1 else command.throttle_keys or [[]] * count
        )
        assert len(command.envelopes) == len(command.dedup_id) == len(keys) == len(throttles) == count
        for dedup_id, *row in zip(command.dedup_id, command.envelopes, keys, map(tuple, throttles), strict=True):
            assert dedup_id not in stored
            stored[dedup_id] = (frame.queue, *row)
    return stored


def test_a_payload_is_enough():
    command = one(payload=[b"a", "ä", bytearray(b"c")])
    assert [open_envelope(envelope) for envelope in command.envelopes] == [({}, b"a"), ({}, "ä".encode()), ({}, b"c")]
    assert (command.fairness_key, command.weight, command.priority, command.delay_ms) == ("default", 0, 0, 0)
    assert (command.cost_milli, command.ttl_ms, command.throttle_keys, command.dedup_window_ms) == (1000, 0, [], 0)
    assert (command.max_attempts, command.dedup_last) == (0, False)
    assert len(set(command.dedup_id)) == 3


@pytest.mark.parametrize("empty", [None, [], {}])
def test_no_headers(empty):
    command = one(payload=[b"a", b"b", b"c"], headers=[[("k", "v")], empty, {"k": "v"}])
    assert [open_envelope(envelope) for envelope in command.envelopes] == [({"k": "v"}, b"a"), ({}, b"b"), ({"k": "v"}, b"c")]


def test_every_field_arrives():
    command = one(
        payload=[b"a", b"b"], headers=[[("k", "v")], None], fairness_key=["t", None], weight=[2, None],
        throttle_keys=[["x", "y", "x"], None], priority=[-1, None], cost=[Decimal("2.5"), None], delay_ms=[1500, None],
        ttl_ms=[60_000, None], dedup_id=["mine", None], dedup_mode=["last", None], max_attempts=[3, None],
    )  # fmt: skip
    assert open_envelope(command.envelopes[0]) == ({"k": "v"}, b"a")
    assert open_envelope(command.envelopes[1]) == ({}, b"b")
    assert (command.fairness_key, command.weight, command.priority) == (["t", "default"], [2, 0], [-1, 0])
    assert (command.throttle_keys, command.cost_milli) == ([["x", "y"], []], [2500, 1000])
    assert (command.delay_ms, command.ttl_ms) == ([1500, 0], [60_000, 0])
    assert (command.max_attempts, command.dedup_last) == ([3, 0], [True, False])
    assert command.dedup_id[0] == "mine"
    assert len(command.dedup_id[1]) == 32


def test_what_all_rows_share_travels_once():
    command = one(payload=[b"a", b"b"], fairness_key=["t", "t"], throttle_keys=[["x"], ["x"]], weight=[3, 3])
    assert (command.fairness_key, command.throttle_keys, command.weight) == ("t", [["x"]], 3)


def test_rows_that_differ_in_their_attempts_only_are_different_rows():
    command = one(payload=[b"a", b"a"], max_attempts=[1, 2])
    assert len(set(command.dedup_id)) == 2
    assert one(payload=[b"a"], max_attempts=[1]).dedup_id == command.dedup_id[:1]


def test_no_row_that_replaces_travels_as_one_value():
    assert one(payload=[b"a", b"b"], dedup_mode=["first", None]).dedup_last is False


def test_what_replaces_a_message_is_kept_in_a_part_of_a_frame():
    (frame,) = frames(payload=[b"a", b"b", b"c"], dedup_id=["x", "y", "z"], dedup_mode=["last", "first", "last"])
    assert frame.only([1, 2]).command.dedup_last == [False, True]


@pytest.mark.parametrize("ids", [{}, {"dedup_id": ["x", None]}])
def test_a_row_that_replaces_needs_a_dedup_id_of_its_own(ids):
    with pytest.raises(InvalidArgumentError, match=r"row 1 of its partition: dedup_mode='last' needs a dedup_id"):
        frames(payload=[b"a", b"b"], dedup_mode=[None, "last"], **ids)


def test_a_row_s_queue_wins():
    by_queue = {frame.queue: (frame.rows, len(frame.command.envelopes)) for frame in frames(
        payload=[b"a", b"b", b"c", b"d"], queue=["x", None, "y", "x"], fairness_key=["1", "2", "3", "4"])}  # fmt: skip
    assert by_queue == {"x": ([0, 3], 2), "q": ([1], 1), "y": ([2], 1)}


def test_frames_are_bounded_and_rows_counted_on():
    making = framing()
    assert [len(frame.rows) for frame in making.frames({"payload": [b"x"] * 1200})] == [500, 500, 200]
    big = b"x" * (FRAME_BYTES_MAX // 2 - 100)
    assert [list(frame.rows) for frame in making.frames({"payload": [big] * 3})] == [[1200, 1201], [1202]]
    assert list(making.frames({"payload": []})) == []


def test_the_dedup_window_is_sent():
    (frame,) = framing(window_ms=90_000).frames({"payload": [b"a"]})
    assert frame.command.dedup_window_ms == 90_000


def test_a_part_of_a_frame():
    (frame,) = frames(payload=[b"a", b"b", b"c"], fairness_key=["1", "2", "3"], throttle_keys=[["t"]] * 3, weight=[7, 8, 9])
    part = frame.only([2, 0])
    assert (part.queue, part.rows) == ("q", [2, 0])
    assert (part.command.fairness_key, part.command.weight) == (["3", "1"], [9, 7])
    assert part.command.throttle_keys == [["t"]]
    assert part.command.dedup_id == [frame.command.dedup_id[2], frame.command.dedup_id[0]]


ROWS = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b"]), st.sampled_from(["1", "2", None]), st.sampled_from([None, ("x",), ("x", "y")]),
        st.sampled_from([None, "r"]),
    ), min_size=1, max_size=20,
)  # fmt: skip


@given(ROWS, st.randoms(use_true_random=False))
def test_a_retry_in_another_order_stores_the_same_rows_under_the_same_ids(rows, random: Random):
    def values(rows):
        columns = zip(*rows, strict=True)
        return dict(zip(("payload", "fairness_key", "throttle_keys", "queue"), map(list, columns), strict=True))

    first, again = by_id(values(rows)), by_id(values(random.sample(rows, len(rows))))
    assert first == again
    assert len(first) == len(rows)


def test_rows_are_the_same_whether_their_batch_is_uniform_or_not():
    alone = by_id({"payload": [b"a"], "fairness_key": ["t"], "throttle_keys": [["x"]]})
    mixed = by_id({"payload": [b"a", b"a"], "fairness_key": ["t", "u"], "throttle_keys": [["x"], None]})
    assert alone.items() <= mixed.items()


@pytest.mark.parametrize(
    ("field", "good", "bad", "told"),
    [
        ("payload", b"x", None, "payload is null"),
        ("payload", b"x", 3, "payload is bytes-like, not a int"),
        ("headers", {"a": "b"}, {"a": 1}, "header 'a'"),
        ("headers", [("a", "b")], [("a", None)], "header 'a'"),
        ("fairness_key", "t", "", "fairness_key=''"),
        ("fairness_key", "t", 3, "fairness_key=3"),
        ("weight", 1, 10_000_000, "weight=10000000"),
        ("throttle_keys", ["x"], [None], "throttle key=None"),
        ("throttle_keys", ["x"], "x", "throttle_keys='x'"),
        ("throttle_keys", ["x"], [["x"]], r"throttle key=\['x'\]"),
        ("priority", 1, 2**31, "priority=2147483648"),
        ("priority", 1, "high", "priority='high'"),
        ("cost", 1.5, Decimal(0), "cost=0"),
        ("cost", 1.5, float("nan"), "cost=nan"),
        ("cost", 1.5, "dear", "cost='dear'"),
        ("delay_ms", 5, -1, "delay_ms=-1"),
        ("ttl_ms", 5, 0, "ttl_ms=0"),
        ("dedup_id", "x", "", "dedup_id=''"),
        ("dedup_id", "x", "y" * 300, "dedup_id of 300 bytes"),
        ("dedup_mode", "first", "newest", "dedup_mode='newest'"),
        ("dedup_mode", None, "", "dedup_mode=''"),
        ("max_attempts", 1, 0, "max_attempts=0"),
        ("queue", "x", "no good", "bad queue name 'no good'"),
        ("weight", 1, [1], r"weight=\[1\]"),
    ],
)
def test_a_bad_value_is_an_error_that_names_the_row(field, good, bad, told):
    with pytest.raises(InvalidArgumentError, match=f"row 2 of its partition: .*{told}"):
        frames(**{"payload": [b"x"] * 4} | {field: [good, good, bad, good]})


def test_a_row_without_a_queue_where_none_is_named():
    with pytest.raises(InvalidArgumentError, match="row 1 of its partition: queue is null"):
        list(framing(None).frames({"payload": [b"a", b"b"], "queue": ["x", None]}))
