"""Enqueues: batches, their columns, their ids, and the messages in them that will not do."""

import pytest

from fila_proto_zmq.commands import Enqueue, Enqueued
from fila_proto_zmq.errors import InvalidArgumentError, InvalidFrameError, QueueNotFoundError
from fila_proto_zmq.ids import enqueued_ms, parse_id, sequence, shard_of_id
from fila_proto_zmq.limits import (
    DELAY_MS_MAX,
    FAIRNESS_KEY_BYTES_MAX,
    FRAME_MESSAGES_MAX,
    HEADERS_BYTES_MAX,
    LEASE_MS_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    WEIGHT_MAX,
)
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.settings import ShardSettings
from tests.support.shard.shard import ShardHarness

EMPTY = seal_envelope(b"")


def enqueue(shard: ShardHarness, *envelopes: bytes, **columns: object) -> Enqueued:
    reply = shard.ask(Enqueue(list(envelopes), **columns))  # type: ignore[arg-type]
    assert isinstance(reply, Enqueued)
    return reply


def codes(reply: Enqueued) -> list[tuple[int, str]]:
    return [(index, fault.code) for index, fault in reply.faults]


# --- ids --------------------------------------------------------------------------------------------------------------


def test_ids_contain_time_and_shard_and_grow_by_one(shard: ShardHarness) -> None:
    first = [parse_id(text) for text in shard.enqueue(b"0", b"1")]
    shard.now_ms += 7
    second = [parse_id(text) for text in shard.enqueue(b"2")]
    assert [shard_of_id(high) for high, _ in first + second] == [3, 3, 3]
    assert [enqueued_ms(high) for high, _ in first + second] == [1_000_000, 1_000_000, 1_000_007]
    assert [sequence(low) for _, low in first + second] == [1, 2, 3]


def test_queues_of_a_shard_share_its_sequence(shard: ShardHarness) -> None:
    shard.create("other")
    ids = shard.enqueue(b"0") + shard.enqueue(b"1", queue="other") + shard.enqueue(b"2")
    assert ids == sorted(ids)
    assert len(set(ids)) == 3


def test_ids_never_go_back_whatever_the_clock_does(shard: ShardHarness) -> None:
    ids = shard.enqueue(b"0")
    shard.now_ms -= 5_000
    ids += shard.enqueue(b"1")
    shard.restart()
    ids += shard.enqueue(b"2")
    assert ids == sorted(ids)


def test_ids_go_on_after_a_restart_even_if_everything_was_acked(shard: ShardHarness) -> None:
    ids = shard.enqueue(b"0", b"1")
    shard.ack(shard.receive(2))
    shard.restart()
    shard.restart()
    ids += shard.enqueue(b"2")
    assert [sequence(parse_id(text)[1]) for text in ids] == [1, 2, 3]


def test_the_delivered_id_is_the_one_that_was_returned(shard: ShardHarness) -> None:
    ids = shard.enqueue(b"0", b"1") + shard.enqueue(b"2", delay_ms=10)
    shard.pass_time(10)
    assert [each.id for each in shard.receive(9)] == ids


# --- columns ----------------------------------------------------------------------------------------------------------


def test_a_column_may_hold_one_value_for_all_or_one_each(shard: ShardHarness) -> None:
    envelopes = [seal_envelope(b"%d" % number) for number in range(3)]
    enqueue(shard, *envelopes, fairness_key=["a", "b", "a"], priority=[5, 0, -5], weight=2)
    got = sorted(shard.receive(9), key=lambda each: each.payload)
    assert [(each.payload, each.key, each.weight, each.record.priority) for each in got] == [
        (b"0", "a", 2, 5),
        (b"1", "b", 2, 0),
        (b"2", "a", 2, -5),
    ]


@pytest.mark.parametrize("column", ["fairness_key", "weight", "priority", "delay_ms", "due_ms", "lease_ms"])
@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_column_of_another_length_is_refused_as_a_whole(shard: ShardHarness, column: str, length: int) -> None:
    value: object = "a" if column == "fairness_key" else 1
    with pytest.raises(InvalidFrameError, match=f"column of {length} values for 2 messages"):
        enqueue(shard, EMPTY, EMPTY, **{column: [value] * length})
    assert shard.counts() == (0, 0, 0)


def test_an_empty_batch_is_answered_with_no_ids(shard: ShardHarness) -> None:
    reply = enqueue(shard)
    assert (reply.count, reply.faults) == (0, [])


def test_a_batch_of_too_many_messages_is_refused(shard: ShardHarness) -> None:
    with pytest.raises(InvalidFrameError, match=f"{FRAME_MESSAGES_MAX + 1} messages"):
        enqueue(shard, *[EMPTY] * (FRAME_MESSAGES_MAX + 1))


def test_the_largest_batch_is_accepted(shard: ShardHarness) -> None:
    shard.checked = False
    assert enqueue(shard, *[EMPTY] * FRAME_MESSAGES_MAX).count == FRAME_MESSAGES_MAX


# --- order ------------------------------------------------------------------------------------------------------------


def test_lower_priorities_come_first_and_equal_ones_in_order(shard: ShardHarness) -> None:
    for priority, payload in ((0, b"a"), (5, b"b"), (-5, b"c"), (0, b"d"), (-5, b"e"), (5, b"f")):
        shard.enqueue(payload, priority=priority)
    assert [each.payload for each in shard.receive(9)] == [b"c", b"e", b"a", b"d", b"b", b"f"]


def test_priorities_go_over_all_of_int32(shard: ShardHarness) -> None:
    priorities = [PRIORITY_MAX, 0, PRIORITY_MIN, -1, 1, PRIORITY_MIN + 1, PRIORITY_MAX - 1]
    for priority in priorities:
        shard.enqueue(b"", priority=priority)
    assert [each.record.priority for each in shard.receive(9)] == sorted(priorities)


def test_priorities_survive_a_restart(shard: ShardHarness) -> None:
    for priority in (3, -1, 2):
        shard.enqueue(b"", priority=priority)
    shard.restart()
    shard.enqueue(b"", priority=-7)
    shard.restart()
    assert [each.record.priority for each in shard.receive(9)] == [-7, -1, 2, 3]


def test_priorities_hold_within_a_key_only(shard: ShardHarness) -> None:
    shard.enqueue(b"", b"", key="a", priority=100)
    shard.enqueue(b"", b"", key="b", priority=-100)
    assert [each.key for each in shard.receive(4)] == ["a", "b", "a", "b"]


# --- faults -----------------------------------------------------------------------------------------------------------

BAD = [
    ({"priority": PRIORITY_MAX + 1}, "priority 2147483648"),
    ({"priority": PRIORITY_MIN - 1}, "priority -2147483649"),
    ({"weight": WEIGHT_MAX + 1}, "weight 1000001"),
    ({"delay_ms": -1}, "-1 ms"),
    ({"delay_ms": DELAY_MS_MAX + 1}, "316224000001"),
    ({"due_ms": -1}, "-1"),
    ({"due_ms": 2**63}, str(2**63)),
    ({"due_ms": 1_730_000_000_000_000}, "1730000000000000"),
    ({"lease_ms": -1}, "lease of -1 ms"),
    ({"lease_ms": LEASE_MS_MAX + 1}, "43200001 ms"),
    ({"fairness_key": ""}, "fairness key of 0 bytes"),
    ({"fairness_key": "k" * (FAIRNESS_KEY_BYTES_MAX + 1)}, "fairness key of 1025 bytes"),
    ({"fairness_key": "é" * (FAIRNESS_KEY_BYTES_MAX // 2 + 1)}, "fairness key of 1026 bytes"),
]


@pytest.mark.parametrize(("column", "text"), BAD, ids=[f"{next(iter(column))}: {text[:30]}" for column, text in BAD])
def test_a_bad_value_is_refused_with_what_was_wrong(shard: ShardHarness, column: dict[str, object], text: str) -> None:
    reply = enqueue(shard, EMPTY, **column)
    assert codes(reply) == [(0, "INVALID_ARGUMENT")]
    assert text in reply.faults[0][1].text
    assert (reply.count, shard.counts()) == (0, (0, 0, 0))


@pytest.mark.parametrize(
    "column",
    [
        {"weight": WEIGHT_MAX},
        {"delay_ms": DELAY_MS_MAX},
        {"lease_ms": LEASE_MS_MAX},
        {"lease_ms": 1},
        {"fairness_key": "k" * FAIRNESS_KEY_BYTES_MAX},
        {"fairness_key": "é" * (FAIRNESS_KEY_BYTES_MAX // 2)},
        {"fairness_key": "\0"},
    ],
    ids=lambda column: f"{next(iter(column))}",
)
def test_values_at_their_limits_are_accepted(shard: ShardHarness, column: dict[str, object]) -> None:
    assert enqueue(shard, EMPTY, **column).faults == []


def test_bad_messages_do_not_spoil_the_others_and_take_no_id(shard: ShardHarness) -> None:
    envelopes = [seal_envelope(b"%d" % number) for number in range(6)]
    envelopes[1] = b"\xff"
    reply = enqueue(shard, *envelopes, priority=[0, 0, 2**31, 0, 0, 0], delay_ms=[0, 0, 0, 0, -1, 0])
    assert codes(reply) == [(1, "INVALID_FRAME"), (2, "INVALID_ARGUMENT"), (4, "INVALID_ARGUMENT")]
    assert reply.count == 3
    got = shard.receive(9)
    assert [each.payload for each in got] == [b"0", b"3", b"5"]
    assert [each.record.id_low for each in got] == [reply.id_low, reply.id_low + 1, reply.id_low + 2]


@pytest.mark.parametrize("envelope", [b"", b"\0\0\0", b"\0\0\0\1", b"\xff\xff\xff\xff" + bytes(50)])
def test_a_malformed_envelope_is_refused_alone(shard: ShardHarness, envelope: bytes) -> None:
    reply = enqueue(shard, EMPTY, envelope, EMPTY)
    assert codes(reply) == [(1, "INVALID_FRAME")]
    assert shard.counts() == (2, 0, 0)


def test_a_payload_beyond_the_limit_is_refused_alone_and_one_at_it_accepted() -> None:
    shard = ShardHarness(settings=ShardSettings(max_payload_bytes=100))
    shard.create()
    reply = enqueue(shard, seal_envelope(bytes(100), {"k": "v"}), seal_envelope(bytes(101)))
    assert codes(reply) == [(1, "PAYLOAD_TOO_LARGE")]
    assert reply.faults[0][1].details == {"payload_bytes": 101, "max_payload_bytes": 100}


def test_headers_beyond_the_limit_are_refused_alone_and_those_at_it_accepted(shard: ShardHarness) -> None:
    fitting = HEADERS_BYTES_MAX.to_bytes(4, "big") + bytes(HEADERS_BYTES_MAX)
    larger = (HEADERS_BYTES_MAX + 1).to_bytes(4, "big") + bytes(HEADERS_BYTES_MAX + 1)
    reply = enqueue(shard, fitting, larger)
    assert codes(reply) == [(1, "INVALID_ARGUMENT")]
    assert "65537 bytes" in reply.faults[0][1].text


def test_a_bad_message_leaves_the_weight_of_its_key(shard: ShardHarness) -> None:
    shard.enqueue(b"", key="a")
    enqueue(shard, EMPTY, fairness_key="a", weight=9, priority=2**31)
    assert [key.weight for key in shard.stats().keys] == [1]


def test_a_fairness_key_that_is_only_refused_is_not_remembered(shard: ShardHarness) -> None:
    enqueue(shard, EMPTY, fairness_key="a", priority=2**31)
    assert shard.stats().keys == []


# --- where to ---------------------------------------------------------------------------------------------------------


def test_enqueueing_to_a_queue_that_does_not_exist_is_refused(shard: ShardHarness) -> None:
    with pytest.raises(QueueNotFoundError, match="'nowhere'"):
        shard.enqueue(b"", queue="nowhere")


def test_enqueueing_to_a_dead_letter_queue_is_refused(shard: ShardHarness) -> None:
    with pytest.raises(InvalidArgumentError, match=r"'q.dlq' is a dead letter queue"):
        shard.enqueue(b"", queue="q.dlq")


def test_enqueues_are_counted(shard: ShardHarness) -> None:
    shard.enqueue(b"", b"")
    shard.enqueue(b"", delay_ms=10)
    enqueue(shard, b"bad")
    assert shard.stats().enqueued == 3


def test_an_enqueue_is_answered_after_its_commit(shard: ShardHarness) -> None:
    before = shard.store.committed  # type: ignore[attr-defined]
    shard.enqueue(b"")
    assert shard.store.committed == before + 1  # type: ignore[attr-defined]
