"""Fences: which delivery a settlement names, and what becomes of late, repeated and wrong ones."""

import pytest

from fila_proto_zmq.commands import Extend, Fences, Settle, Settled, Verb
from fila_proto_zmq.errors import InvalidArgumentError, QueueNotFoundError
from fila_proto_zmq.limits import DELAY_MS_MAX, METADATA_BYTES_MAX
from fila_worker.core.settings import Limits, ShardSettings
from tests.support.shard.shard import Got, ShardHarness, fences

VERBS = list(Verb)


@pytest.fixture
def shard() -> ShardHarness:
    """A shard that does not miss silent consumers, with a queue."""
    harness = ShardHarness(settings=ShardSettings(consumer_timeout_ms=10**9))
    harness.create()
    return harness


def refused(settled: Settled) -> list[tuple[int, int, str]]:
    return [(lease, index, fault.code) for lease, index, fault in settled.faults]


def settle(shard: ShardHarness, named: Fences, verb: Verb = Verb.ACK, queue: str = "q", client: bytes = b"c1") -> Settled:
    reply = shard.ask(Settle(verb, named), queue, client)
    assert isinstance(reply, Settled)
    return reply


def leased(shard: ShardHarness, count: int = 3) -> tuple[int, list[Got]]:
    """A lease over ``count`` messages."""
    shard.enqueue(*[b"%d" % number for number in range(count)])
    got = shard.receive(count)
    assert len({each.lease for each in got}) == 1
    return got[0].lease, got


# --- acks -------------------------------------------------------------------------------------------------------------


def test_an_acked_message_is_gone(shard: ShardHarness) -> None:
    _, got = leased(shard)
    shard.ack(got)
    assert shard.counts() == (0, 0, 0)
    shard.pass_time(1_000_000)
    assert shard.receive(9) == []


def test_no_indexes_mean_the_whole_lease(shard: ShardHarness) -> None:
    lease, _ = leased(shard)
    assert settle(shard, [(lease, [])]) == Settled([])
    assert shard.counts() == (0, 0, 0)


def test_some_of_a_lease_can_be_settled_first_and_the_rest_later(shard: ShardHarness) -> None:
    lease, _ = leased(shard)
    settle(shard, [(lease, [1])])
    assert shard.counts() == (0, 2, 0)
    assert settle(shard, [(lease, [])]) == Settled([])
    assert shard.counts() == (0, 0, 0)


def test_one_frame_settles_deliveries_of_many_leases(shard: ShardHarness) -> None:
    shard.enqueue(b"a", b"b", b"c")
    got = [each for _ in range(3) for each in shard.receive(1)]
    assert len({each.lease for each in got}) == 3
    assert settle(shard, fences(got)) == Settled([])


def test_a_fence_may_name_a_delivery_twice(shard: ShardHarness) -> None:
    lease, _ = leased(shard)
    assert settle(shard, [(lease, [1, 1]), (lease, [1, 2])], Verb.NACK) == Settled([])
    assert shard.counts() == (2, 1, 0)
    assert [each.attempts for each in shard.receive(2)] == [1, 1]


# --- whose fences they are --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("indexes", [[], [0], [0, 1, 2]])
def test_a_fence_counts_for_its_holder_only(shard: ShardHarness, verb: Verb, restarted: bool, indexes: list[int]) -> None:
    lease, got = leased(shard)
    shard.subscribe(1, client=b"thief")
    if restarted:
        shard.restart()
    before = list(shard.store.families.leases.items()), shard.counts()
    assert refused(settle(shard, [(lease, indexes)], verb, client=b"thief")) == [(lease, -1, "LEASE_EXPIRED")]
    (fault,) = shard.ask(Extend([(lease, indexes)], 60_000), client=b"thief").faults  # type: ignore[attr-defined]
    assert (fault[1], fault[2].code) == (-1, "LEASE_EXPIRED")
    assert (list(shard.store.families.leases.items()), shard.counts()) == before
    shard.ack(got)


@pytest.mark.parametrize("purged", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("apart", [False, True])
def test_the_first_answer_is_for_the_client_that_settled(purged: bool, restarted: bool, apart: bool) -> None:
    shard = ShardHarness(settings=ShardSettings(limits=Limits(acked_leases_max=1 if purged else 100)))
    shard.create()
    lease, _ = leased(shard)
    for indexes in [[0], [1, 2]] if apart else [[]]:
        assert settle(shard, [(lease, indexes)]) == Settled([])
    if restarted:
        shard.restart()
    assert refused(settle(shard, [(lease, [])], client=b"thief")) == [(lease, -1, "LEASE_EXPIRED")]
    assert settle(shard, [(lease, [0, 2])]) == Settled([])


@pytest.mark.parametrize("indexes", [[-3], [-1], [3], [2**63], [0, -3, -3]])
def test_an_index_out_of_range_of_a_lease_that_is_over_is_refused(shard: ShardHarness, indexes: list[int]) -> None:
    """Some of it was taken from its holder, so each member counts by itself."""
    lease, _ = leased(shard)
    settle(shard, [(lease, [0])])
    shard.pass_time(30_000)
    wrong = [(lease, index, "INVALID_ARGUMENT") for index in dict.fromkeys(indexes) if index]
    assert refused(settle(shard, [(lease, indexes)])) == wrong


@pytest.mark.parametrize("open_", [True, False])
def test_an_index_that_is_named_twice_counts_once(shard: ShardHarness, open_: bool) -> None:
    lease, _ = leased(shard)
    if not open_:
        settle(shard, [(lease, [0])])
        shard.pass_time(30_000)
    expected = [(lease, 9, "INVALID_ARGUMENT")] if open_ else [(lease, 1, "LEASE_EXPIRED"), (lease, 9, "INVALID_ARGUMENT")]
    assert refused(settle(shard, [(lease, [1, 9, 1, 9])])) == expected


@pytest.mark.parametrize("fences", [[(1, [0] * 10_001)], [(1, [])] * 10_001, [(1, [0] * 5_000), (2, [0] * 5_001)]])
def test_a_frame_names_a_bounded_number(shard: ShardHarness, fences: Fences) -> None:
    lease, got = leased(shard)
    for command in (Settle(Verb.ACK, [(lease, []), *fences]), Extend([(lease, []), *fences], 60_000)):
        with pytest.raises(InvalidArgumentError, match="name at most 10,000 of each"):
            shard.ask(command)
    shard.ack(got)


# --- repeating --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_a_repeated_settlement_gets_the_first_answer_and_changes_nothing(shard: ShardHarness, verb: Verb) -> None:
    lease, _ = leased(shard)
    first = settle(shard, [(lease, [0, 1, 2])], verb)
    before = shard.counts(), shard.counts("q.dlq"), shard.stats().nacked
    assert settle(shard, [(lease, [0, 1, 2])], verb) == first == Settled([])
    assert settle(shard, [(lease, [])], verb) == Settled([])
    assert (shard.counts(), shard.counts("q.dlq"), shard.stats().nacked) == before


@pytest.mark.parametrize("verb", VERBS)
def test_a_repeated_settlement_of_a_part_gets_the_first_answer(shard: ShardHarness, verb: Verb) -> None:
    lease, _ = leased(shard)
    settle(shard, [(lease, [1])], verb)
    before = shard.counts(), shard.counts("q.dlq")
    assert settle(shard, [(lease, [1])], verb) == Settled([])
    assert (shard.counts(), shard.counts("q.dlq")) == before


def test_a_repeated_settlement_does_not_touch_the_next_holder(shard: ShardHarness) -> None:
    lease, _ = leased(shard, 1)
    settle(shard, [(lease, [])], Verb.NACK)
    held = shard.receive(client=b"c2")
    assert settle(shard, [(lease, [0])], Verb.NACK) == Settled([])
    assert shard.counts() == (0, 1, 0)
    shard.ack(held)


def test_a_lease_is_remembered_part_by_part(shard: ShardHarness) -> None:
    lease, _ = leased(shard)
    settle(shard, [(lease, [1])])
    shard.pass_time(30_000)
    assert refused(settle(shard, [(lease, [0, 1, 2])])) == [(lease, 0, "LEASE_EXPIRED"), (lease, 2, "LEASE_EXPIRED")]
    assert refused(settle(shard, [(lease, [])])) == [(lease, 0, "LEASE_EXPIRED"), (lease, 2, "LEASE_EXPIRED")]
    assert refused(settle(shard, [(lease, [1])])) == []


def test_a_repeated_ack_is_answered_as_the_first_after_a_restart_too(shard: ShardHarness) -> None:
    """The first answer may have been lost with the worker, and then the client asks again."""
    lease, _ = leased(shard)
    settle(shard, [(lease, [])])
    shard.restart()
    assert settle(shard, [(lease, [])]) == Settled([])


def test_a_repeated_ack_of_a_part_is_answered_as_the_first_after_a_restart(shard: ShardHarness) -> None:
    lease, _ = leased(shard)
    settle(shard, [(lease, [0, 2])])
    shard.restart()
    assert settle(shard, [(lease, [0, 2])]) == Settled([])
    assert shard.counts() == (0, 1, 0)


def test_the_memory_of_finished_leases_is_bounded() -> None:
    shard = ShardHarness(settings=ShardSettings(limits=Limits(finished_leases_max=3, acked_leases_max=1)))
    shard.create()
    numbers = []
    for _ in range(5):
        lease, _ = leased(shard, 1)
        settle(shard, [(lease, [])])
        numbers.append(lease)
    assert len(shard.shard.leases.finished) == 3
    assert [refused(settle(shard, [(lease, [0])])) for lease in numbers[2:]] == [[], [], []]
    assert refused(settle(shard, [(numbers[0], [0])])) == [(numbers[0], -1, "LEASE_EXPIRED")]


# --- wrong fences -----------------------------------------------------------------------------------------------------


def test_a_lease_that_never_was_is_refused_once_however_much_of_it_is_named(shard: ShardHarness) -> None:
    assert refused(settle(shard, [(77, [0, 5] * 5_000)])) == [(77, -1, "LEASE_EXPIRED")]


def test_an_unknown_lease_that_is_named_as_a_whole_is_refused_as_a_whole(shard: ShardHarness) -> None:
    """Index -1: the broker does not know how many deliveries it had, and none of them is settled."""
    assert refused(settle(shard, [(77, [])])) == [(77, -1, "LEASE_EXPIRED")]


@pytest.mark.parametrize("bad", [3, -1, -3, 2**63])
def test_an_index_out_of_range_is_refused_and_the_others_are_settled(shard: ShardHarness, bad: int) -> None:
    lease, _ = leased(shard)
    assert refused(settle(shard, [(lease, [0, bad, 2])])) == [(lease, bad, "INVALID_ARGUMENT")]
    assert shard.counts() == (0, 1, 0)


def test_no_delivery_is_reported_settled_that_is_not(shard: ShardHarness) -> None:
    """Whatever the fence: what the answer does not refuse is settled."""
    lease, _ = leased(shard, 4)
    settled = settle(shard, [(lease, [0, 9, 1])])
    not_refused = {0, 1, 9} - {index for _, index, _ in settled.faults}
    assert shard.counts()[1] == 4 - len(not_refused)


def test_a_wrong_fence_does_not_spoil_the_others(shard: ShardHarness) -> None:
    lease, _ = leased(shard)
    assert refused(settle(shard, [(1, [0]), (lease, [0, 1, 2]), (2, [0])])) == [
        (1, -1, "LEASE_EXPIRED"),
        (2, -1, "LEASE_EXPIRED"),
    ]
    assert shard.counts() == (0, 0, 0)


@pytest.mark.parametrize("verb", VERBS)
def test_settling_by_the_name_of_another_queue_is_refused_and_touches_nothing(shard: ShardHarness, verb: Verb) -> None:
    shard.create("other")
    lease, got = leased(shard)
    assert refused(settle(shard, [(lease, [0])], verb, queue="other")) == [(lease, -1, "LEASE_EXPIRED")]
    assert shard.counts() == (0, 3, 0)
    shard.ack(got)


def test_settling_for_a_queue_that_does_not_exist_is_refused(shard: ShardHarness) -> None:
    with pytest.raises(QueueNotFoundError, match="'nowhere'"):
        settle(shard, [(1, [])], queue="nowhere")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"verb": 0}, "unknown verb 0.*1 \\(ack\\)"),
        ({"verb": 7}, "unknown verb 7"),
        ({"verb": Verb.RETRY, "after_ms": -1}, "after -1 ms"),
        ({"verb": Verb.RETRY, "after_ms": DELAY_MS_MAX + 1}, "316224000001 ms"),
        ({"verb": Verb.NACK, "metadata": bytes(METADATA_BYTES_MAX + 1)}, "metadata of 65537 bytes"),
    ],
)
def test_a_settlement_with_a_bad_value_is_refused_as_a_whole(
    shard: ShardHarness, options: dict[str, object], text: str
) -> None:
    lease, got = leased(shard)
    with pytest.raises(InvalidArgumentError, match=text):
        shard.ask(Settle(**{"fences": [(lease, [])], **options}))  # type: ignore[arg-type]
    shard.ack(got)


# --- late -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_a_late_settlement_is_refused_and_the_new_holder_unaffected(shard: ShardHarness, verb: Verb) -> None:
    lease, _ = leased(shard, 1)
    shard.pass_time(30_000)
    (held,) = shard.receive(client=b"c2")
    assert refused(settle(shard, [(lease, [0])], verb)) == [(lease, 0, "LEASE_EXPIRED")]
    assert (shard.counts(), held.attempts, held.error) == ((0, 1, 0), 1, "lease expired")
    shard.ack([held])


def test_a_settlement_is_late_from_the_first_moment_even_if_no_turn_noticed(shard: ShardHarness) -> None:
    lease, _ = leased(shard, 1)
    shard.now_ms += 30_000
    assert refused(settle(shard, [(lease, [])])) == [(lease, 0, "LEASE_EXPIRED")]
    assert shard.counts() == (1, 0, 0)


def test_a_settlement_is_in_time_until_the_last_moment(shard: ShardHarness) -> None:
    _, got = leased(shard, 1)
    shard.pass_time(29_999)
    shard.ack(got)
    assert shard.counts() == (0, 0, 0)


def test_an_ack_is_never_undone_by_an_expiry(shard: ShardHarness) -> None:
    lease, _ = leased(shard)
    settle(shard, [(lease, [0, 2])])
    shard.pass_time(30_000)
    assert [each.payload for each in shard.receive(9)] == [b"1"]
