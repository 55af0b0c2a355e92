"""50 tests of a shop, on the broker of fila-cluster's testing kit.

pytest examples/testing                                        # in memory, a second or two
pytest examples/testing --fila-endpoint tcp://127.0.0.1:5555   # the same on a real broker that has no queues
"""

from typing import Any

import pytest
from shop import (
    ATTEMPTS_MAX,
    LEASE_S,
    BusyError,
    DeclinedError,
    SlowDownError,
    backoff,
    handle,
    limit_provider,
    open_shop,
    place,
    work,
)

from fila_cluster import Client
from fila_cluster.errors import AlreadySettledError, LeaseExpiredError, MessageNotFoundError
from fila_cluster.testing import Fila


@pytest.fixture
def shop(fila: Fila) -> Fila:
    open_shop(fila)
    return fila


def paid(order: Any) -> str:
    return f"{order['customer']} paid {order['euros']:.2f} €"


def declined(order: Any) -> str:
    raise DeclinedError(f"no money for {order['number']}")


def busy(order: Any) -> str:
    raise BusyError("busy")


@pytest.mark.parametrize("euros", [0.01, 1, 9.99, 20, 100, 12_345.67])
def test_a_paid_order_gives_a_receipt(shop: Fila, euros: float) -> None:
    place(shop, 1, "ana", euros)
    assert work(shop, paid) == 1
    (receipt,) = shop.receive("receipts")
    assert receipt.text() == f"ana paid {euros:.2f} €"
    receipt.ack()
    shop.assert_empty("orders")
    shop.assert_empty("receipts")


@pytest.mark.parametrize("euros", [0, -1, -0.01])
def test_an_order_of_nothing_is_no_order(shop: Fila, euros: float) -> None:
    with pytest.raises(ValueError, match="an order of"):
        place(shop, 1, "ana", euros)
    shop.assert_empty("orders")


@pytest.mark.parametrize("orders", [1, 2, 7, 20, 50])
def test_all_orders_are_handled(shop: Fila, orders: int) -> None:
    for number in range(orders):
        place(shop, number, f"customer-{number % 5}", 10)
    assert work(shop, paid) == orders
    shop.assert_acked("orders", orders)
    shop.assert_pending("receipts", orders)


@pytest.mark.parametrize("many", [10, 20, 30])
def test_a_customer_with_many_orders_holds_up_nobody(shop: Fila, many: int) -> None:
    for number in range(many):
        place(shop, number, "wholesale", 10)
    place(shop, many, "ana", 10)
    first = shop.receive("orders", 2)
    assert {delivery.fairness_key for delivery in first} == {"wholesale", "ana"}
    shop.ack(first)


def test_an_express_order_is_first_of_its_customer(shop: Fila) -> None:
    place(shop, 1, "ana", 10)
    place(shop, 2, "ana", 20, express=True)
    deliveries = shop.receive("orders", 2)
    shop.ack(deliveries)
    assert [delivery.json()["number"] for delivery in deliveries] == [2, 1]


@pytest.mark.parametrize("times", [2, 3, 5, 10])
def test_an_order_that_is_sent_again_is_one_order(shop: Fila, times: int) -> None:
    ids = {place(shop, 7, "ana", 10) for _ in range(times)}
    assert len(ids) == 1
    shop.assert_pending("orders", 1)


def test_a_declined_order_is_a_dead_letter(shop: Fila) -> None:
    place(shop, 1, "ana", 10)
    work(shop, declined)
    (letter,) = shop.queue("orders").dead
    assert (letter.reason, letter.error) == ("failed", "no money for 1")
    shop.assert_empty("orders")


@pytest.mark.parametrize("orders", [1, 4])
def test_dead_letters_can_be_sent_back(shop: Fila, orders: int) -> None:
    for number in range(orders):
        place(shop, number, "ana", 10)
    work(shop, declined)
    shop.assert_dead("orders", orders)
    assert shop.redrive("orders.dlq") == orders
    assert work(shop, paid) == orders
    shop.assert_dead("orders", 0)


def test_a_busy_provider_is_asked_again_later(shop: Fila) -> None:
    place(shop, 1, "ana", 10)
    work(shop, busy)
    shop.assert_delayed("orders", 1)
    assert work(shop, paid) == 0
    shop.clock.advance(backoff(0))
    assert work(shop, paid) == 1


@pytest.mark.parametrize("failures", [1, 2])
def test_each_attempt_waits_longer(shop: Fila, failures: int) -> None:
    place(shop, 1, "ana", 10)
    for attempt in range(failures):
        assert work(shop, busy) == 1
        shop.clock.advance(backoff(attempt))
    (delivery,) = shop.receive("orders")
    assert delivery.attempts == failures
    assert delivery.error == "busy"
    delivery.ack()


def test_attempts_end(shop: Fila) -> None:
    place(shop, 1, "ana", 10)
    for attempt in range(ATTEMPTS_MAX):
        assert work(shop, busy) == 1
        shop.clock.advance(backoff(attempt))
    shop.assert_delivered("orders", ATTEMPTS_MAX)
    (letter,) = shop.queue("orders").dead
    assert letter.reason == "max_attempts"


@pytest.mark.parametrize("seconds", [0.2, 0.3, 0.5])
def test_a_provider_that_wants_a_pause_gets_it(shop: Fila, seconds: float) -> None:
    def slow_down(order: Any) -> str:
        raise SlowDownError(seconds)

    place(shop, 1, "ana", 10)
    work(shop, slow_down, most=1)
    place(shop, 2, "rui", 10)  # the same provider
    assert work(shop, paid) == 0
    shop.clock.advance(seconds + 0.1)
    assert work(shop, paid) == 2


def test_another_country_goes_on_meanwhile(shop: Fila) -> None:
    def slow_down(order: Any) -> str:
        raise SlowDownError(1)

    place(shop, 1, "ana", 10, country="pt")
    work(shop, slow_down)
    place(shop, 2, "uli", 10, country="de")
    assert work(shop, paid) == 1


@pytest.mark.parametrize("rate", [2, 5, 10])
def test_a_provider_gets_no_more_calls_than_allowed(shop: Fila, rate: int) -> None:
    limit_provider(shop, "pt", rate)
    for number in range(3 * rate):
        place(shop, number, "ana", 10)
    began = shop.clock.now()
    done = work(shop, paid)
    for _ in range(4):
        shop.clock.advance(0.25)
        done += work(shop, paid)
    seconds = (shop.clock.now() - began).total_seconds()  # on a real broker more than the one that was waited for
    assert rate <= done <= min(3 * rate, rate + rate * seconds + 1)  # a full bucket, and what has come since


def test_an_order_of_a_worker_that_hangs_is_given_to_another(shop: Fila) -> None:
    place(shop, 1, "ana", 10)
    (hangs,) = shop.receive("orders")
    shop.clock.advance(LEASE_S + 1)
    (again,) = shop.receive("orders")
    assert (again.attempts, again.error) == (1, "lease expired")
    again.ack()
    with pytest.raises(LeaseExpiredError):
        hangs.ack()


def test_an_order_of_a_client_that_leaves_goes_back_uncounted(shop: Fila) -> None:
    place(shop, 1, "ana", 10)
    with Client(shop.endpoint) as other, pytest.warns(ResourceWarning):
        assert len(other.receive("orders")) == 1
    (delivery,) = shop.receive("orders")
    assert delivery.attempts == 0
    delivery.ack()


def test_a_receive_waits_for_the_next_attempt(shop: Fila) -> None:
    place(shop, 1, "ana", 10)
    work(shop, busy)
    (delivery,) = shop.receive("orders", wait=5)
    assert delivery.attempts == 1
    delivery.ack()


@pytest.mark.parametrize("wait", [0.1, 0.3])
def test_a_receive_ends_without_orders(shop: Fila, wait: float) -> None:
    before = shop.clock.now()
    assert shop.receive("orders", wait=wait) == []
    assert (shop.clock.now() - before).total_seconds() >= wait


def test_an_order_is_settled_once(shop: Fila) -> None:
    place(shop, 1, "ana", 10)
    (delivery,) = shop.receive("orders")
    handle(shop, delivery, paid)
    with pytest.raises(AlreadySettledError):
        delivery.ack()


def test_an_order_can_be_cancelled_until_it_is_handled(shop: Fila) -> None:
    first, second = place(shop, 1, "ana", 10), place(shop, 2, "rui", 10)
    assert shop.cancel("orders", first)
    assert work(shop, paid) == 1
    with pytest.raises(MessageNotFoundError):
        shop.cancel("orders", second)


@pytest.mark.parametrize("orders", [1, 10, 20, 100])
def test_a_consumer_takes_all_orders(shop: Fila, orders: int) -> None:
    for number in range(orders):
        place(shop, number, "ana", 10)
    with shop.consume("orders", prefetch=10) as consumer:
        for _, delivery in zip(range(orders), consumer, strict=False):
            handle(shop, delivery, paid)
    shop.assert_empty("orders")
    shop.assert_pending("receipts", orders)


def test_a_closed_shop_takes_orders_and_handles_none(shop: Fila) -> None:
    shop.pause("orders")
    place(shop, 1, "ana", 10)
    assert work(shop, paid) == 0
    assert "paused" in str(shop.why("orders"))
    shop.resume("orders")
    assert work(shop, paid) == 1


@pytest.mark.parametrize("customer", ["ana", "rui"])
def test_one_customer_can_be_stopped(shop: Fila, customer: str) -> None:
    place(shop, 1, "ana", 10)
    place(shop, 2, "rui", 10)
    shop.pause("orders", fairness_key=customer)
    (other,) = shop.receive("orders", 2)
    assert other.fairness_key != customer
    other.ack()
