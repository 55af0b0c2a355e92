"""A shop whose orders go through queues: what `test_shop.py` tests, in memory or on a real broker.

Orders wait per customer, so that no customer with many orders holds up the others. A payment provider allows some calls a
second for each country. Orders that it refuses are dead letters; when it is busy they are tried again, later each time.
"""

import json
from collections.abc import Callable
from typing import Any

from fila_cluster import Client, Delivery

ATTEMPTS_MAX = 3
LEASE_S = 1.0
ON_ENQUEUE = """
function on_enqueue(msg)
  if msg.headers.express then return { priority = -1 } end
  return {}
end
"""


class DeclinedError(Exception):
    """The customer can't pay."""


class BusyError(Exception):
    """The provider has too much to do."""


class SlowDownError(Exception):
    """The provider wants no calls for some seconds (HTTP 429)."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"too many requests, again in {seconds} s")
        self.seconds = seconds


def open_shop(client: Client) -> None:
    """Create the queues."""
    client.create_queue("orders", max_attempts=ATTEMPTS_MAX, visibility_timeout=LEASE_S, on_enqueue=ON_ENQUEUE)
    client.create_queue("receipts", dead_letter="discard", default_ttl=3600)


def limit_provider(client: Client, country: str, per_second: float) -> None:
    """Allow the provider of a country so many calls a second."""
    client.set_config(f"throttle.pay-{country}", f"{per_second:g},{per_second:g}")


def place(client: Client, number: int, customer: str, euros: float, *, country: str = "pt", express: bool = False) -> str:
    """Take an order in. The same number twice is the same order."""
    if euros <= 0:
        raise ValueError(f"an order of {euros} €")
    order = {"number": number, "customer": customer, "euros": euros}
    return client.enqueue(
        "orders",
        json.dumps(order).encode(),
        {"express": "yes"} if express else {},
        fairness_key=customer,
        throttle_keys=[f"pay-{country}"],
        dedup_id=str(number),
    )


def backoff(attempts: int) -> float:
    """Return the seconds until the next attempt."""
    return float(0.1 * 2**attempts)


def handle(client: Client, delivery: Delivery, pay: Callable[[Any], str]) -> None:
    """Charge one order, and send the receipt."""
    order = delivery.json()
    try:
        receipt = pay(order)
    except DeclinedError as error:
        delivery.fail(str(error))
    except BusyError as error:
        delivery.retry(backoff(delivery.attempts), str(error))
    except SlowDownError as error:
        delivery.defer(error.seconds)
    else:
        client.enqueue("receipts", receipt.encode(), fairness_key=order["customer"])
        delivery.ack()


def work(client: Client, pay: Callable[[Any], str], most: int = 100) -> int:
    """Handle the orders that can be handled now; return how many."""
    deliveries = client.receive("orders", most)
    for delivery in deliveries:
        handle(client, delivery, pay)
    return len(deliveries)
