"""What a delivery says, and what its verbs check before they ask anybody."""

import gc
import warnings
from datetime import UTC, datetime

import pytest

from fila_cluster.client.protocol.delivery import AsyncDelivery, Delivery
from fila_cluster.client.protocol.lease import ClientLease
from fila_cluster.errors import AlreadySettledError, InvalidArgumentError, InvalidFrameError, LeaseExpiredError
from fila_proto_zmq.commands import LeaseBatch
from fila_proto_zmq.ids import format_id, high_half, low_half
from tests.unit.client.peer import BORN_MS, Owner, give_up, record


def delivery(packed=None, *, lease=7, keys="k", weights=2, owner=None, index=0, throttle_keys=()):
    records = [packed or record(b'{"a": 1}', 5, attempts=2, priority=-3)] * (index + 1)
    batch = LeaseBatch(lease, BORN_MS + 1000, BORN_MS + 31_000, keys, weights, records, list(throttle_keys))
    return Delivery(ClientLease("orders", batch, owner or Owner(), renewed=False), index, records[index])


def test_what_it_says():
    got = delivery()
    assert got.id == format_id(high_half(BORN_MS, 3), low_half(5))
    assert got.queue == "orders"
    assert got.payload == b'{"a": 1}'
    assert got.text() == '{"a": 1}'
    assert got.json() == {"a": 1}
    assert got.headers == {"h": '{"a": 1}'}
    assert (got.fairness_key, got.weight, got.priority, got.attempts) == ("k", 2, -3, 2)
    assert (got.error, got.metadata, got.throttle_keys, got.cost) == ("", b"", [], 1)
    assert got.enqueued_at == datetime.fromtimestamp(BORN_MS / 1000, UTC)
    assert got.leased_at == datetime.fromtimestamp(BORN_MS / 1000 + 1, UTC)
    assert got.lease_expires_at == datetime.fromtimestamp(BORN_MS / 1000 + 31, UTC)
    assert (got.reason, got.source_queue, got.dead_lettered_at) == (None, None, None)
    give_up(got)


def test_a_dead_letter_says_more():
    got = delivery(record(error="boom", metadata=b"m", reason="failed", source_queue="orders", dead_lettered_ms=BORN_MS))
    assert (got.error, got.metadata, got.reason, got.source_queue) == ("boom", b"m", "failed", "orders")
    assert got.dead_lettered_at == datetime.fromtimestamp(BORN_MS / 1000, UTC)
    assert got.payload == b"x"
    give_up(got)


def test_columns_are_per_delivery():
    got = delivery(keys=["a", "b"], weights=[1, 9], index=1)
    assert (got.fairness_key, got.weight) == ("b", 9)
    give_up(got)


@pytest.mark.parametrize(
    ("column", "of_the_second"), [([], []), ([["a", "b"]], ["a", "b"]), ([["a"], ["b", "c"]], ["b", "c"]), ([["a"], []], [])]
)
def test_throttle_keys_are_a_column_too(column, of_the_second):
    got = delivery(throttle_keys=column, index=1)
    assert got.throttle_keys == of_the_second
    give_up(got)


def test_its_cost():
    got = delivery(record(cost_milli=2500))
    assert got.cost == 2.5
    give_up(got)


def test_headers_and_payload_are_taken_apart_once():
    got = delivery()
    assert got.payload is got.payload
    assert got.headers is got.headers
    give_up(got)


def test_a_record_of_a_later_layout_says_so():
    got = delivery(b"\x09" + record()[1:])
    with pytest.raises(InvalidFrameError, match="layout 9"):
        _ = got.payload
    give_up(got)


def test_its_repr_says_what_a_log_needs_and_no_payload():
    got = delivery(record(b"secret"))
    assert got.id in repr(got)
    assert "orders" in repr(got)
    assert "secret" not in repr(got)
    give_up(got)


def test_deliveries_are_themselves():
    first, second = delivery(), delivery()
    assert first != second
    assert len({first, second}) == 2
    give_up(first, second)


@pytest.mark.parametrize(
    "verb",
    [
        lambda got: got.nack(ValueError("x")),
        lambda got: got.nack("x", metadata="text"),
        lambda got: got.retry(-1),
        lambda got: got.retry("soon"),
        lambda got: got.fail(None),
        lambda got: got.defer(0),
        lambda got: got.defer(-1),
        lambda got: got.defer(None),
        lambda got: got.extend(0),
        lambda got: got.extend(-5),
        lambda got: got.extend(13 * 3600),
    ],
)
def test_bad_arguments_leave_it_unsettled(verb):
    got = delivery()
    with pytest.raises(InvalidArgumentError):
        verb(got)
    assert not got._settled
    give_up(got)


def test_what_was_settled_cannot_be_extended():
    got = delivery()
    give_up(got)
    with pytest.raises(LeaseExpiredError, match="settled here"):
        got.extend(5)


def test_what_was_delivered_at_most_once_has_nothing_to_extend():
    with pytest.raises(AlreadySettledError, match="at most once"):
        delivery(lease=0).extend(5)


@pytest.mark.parametrize("kind", [Delivery, AsyncDelivery])
def test_forgetting_one_is_warned_of_at_once(kind):
    owner = Owner()
    first = delivery(owner=owner, index=1)
    lease = first._lease
    give_up(first)
    with pytest.warns(ResourceWarning, match="was never settled"):
        kind(lease, 0, record())
    assert owner.forgotten_leases[-1] is lease


@pytest.mark.parametrize("case", ["settled", "at most once", "client closed"])
def test_where_there_is_nothing_to_settle_there_is_no_warning(case):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        owner = Owner()
        got = delivery(lease=0 if case == "at most once" else 7, owner=owner)
        if case == "settled":
            give_up(got)
        owner.closed = case == "client closed"
        del got
        gc.collect()
    assert owner.forgotten_leases == []


# --- what the work cost -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "verb",
    [
        lambda got, cost: got.ack(cost=cost),
        lambda got, cost: got.nack("why", cost=cost),
        lambda got, cost: got.retry(1.0, cost=cost),
        lambda got, cost: got.fail("why", cost=cost),
        lambda got, cost: got.defer(1.0, cost=cost),
    ],
)
def test_each_verb_takes_what_the_work_cost(verb):
    class Settling(Owner):
        def settle_one(self, delivery, settlement):
            return None

    got = delivery(owner=Settling())
    assert got.actual_cost is None
    verb(got, 2.5)
    assert got.actual_cost == 2.5
    verb(got, None)
    assert got.actual_cost == 2.5, "what was set before holds"
    give_up(got)


@pytest.mark.parametrize("cost", [-1, float("nan"), float("inf"), "1", True, 1e9])
def test_a_cost_that_will_not_do(cost):
    got = delivery()
    with pytest.raises(InvalidArgumentError, match="cost"):
        got.ack(cost=cost)
    with pytest.raises(InvalidArgumentError, match="cost"):
        got.actual_cost = cost
    assert got.actual_cost is None
    give_up(got)
