"""A tour of some seconds on a queue of its own: a quiet tenant beside a busy one, a limit that holds, a failed message."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from fila_cluster.client import Client, Delivery, Message
from fila_proto_zmq.errors import FilaError, RequestTimeoutError

TENANTS: Final = {"busy": 1000, "ana": 10, "rui": 10}
"""The messages of each tenant, in the order in which they are enqueued."""
AT_ONCE: Final = 100
WAIT_S: Final = 10.0
"""How long a message may take that is ready."""

RATE: Final = 20
BURST: Final = 5
LIMITED: Final = 100
LIMITED_S: Final = 1.5
CLOCK_S: Final = 0.001
"""The times of deliveries are whole milliseconds."""

ERROR: Final = "the provider refused it"
ATTEMPTS: Final = 2


@dataclass(frozen=True, slots=True)
class Tenant:
    """How many deliveries it took until a tenant's last message was delivered: by order of arrival, and here."""

    tenant: str
    messages: int
    by_arrival: int
    here: int


@dataclass(frozen=True, slots=True)
class DemoLimit:
    """The deliveries of a token bucket. ``allowed``: burst + rate × t; ``why``: the reason why the next message waited."""

    rate: float
    burst: float
    seconds: float
    allowed: int
    delivered: int
    why: str


@dataclass(frozen=True, slots=True)
class DemoFailure:
    """A dead letter, and the attempts that its message had once it was redriven."""

    attempts: int
    reason: str
    error: str
    attempts_after_redrive: int


@dataclass(frozen=True, slots=True)
class Tour:
    """The results of a tour."""

    tenants: list[Tenant]
    limit: DemoLimit
    failure: DemoFailure


def tour(client: Client) -> Tour:
    """Take the tour. It takes some two seconds."""
    with _queue(client) as queue:
        return Tour(_fairness(client, queue), _limit(client, queue), _failure(client, queue))


@contextmanager
def _queue(client: Client) -> Iterator[str]:
    queue = f"demo-{uuid4().hex[:8]}"
    client.create_queue(queue, max_attempts=ATTEMPTS)
    try:
        yield queue
    finally:
        client.delete_queue(queue, force=True)


def _fairness(client: Client, queue: str) -> list[Tenant]:
    by_arrival: dict[str, int] = {}
    enqueued = 0
    for tenant, messages in TENANTS.items():
        client.enqueue_many(queue, [Message(b"", fairness_key=tenant) for _ in range(messages)])
        by_arrival[tenant] = enqueued = enqueued + messages
    here: dict[str, int] = {}
    delivered = 0
    while delivered < enqueued:
        deliveries = _take(client, queue, min(AT_ONCE, enqueued - delivered))
        for delivery in deliveries:
            here[delivery.fairness_key] = delivered = delivered + 1
        client.ack(deliveries)
    return [Tenant(tenant, messages, by_arrival[tenant], here[tenant]) for tenant, messages in TENANTS.items()]


def _take(client: Client, queue: str, count: int) -> list[Delivery]:
    """Return the next ``count`` messages, which are all there."""
    taken: list[Delivery] = []
    while len(taken) < count:
        more = client.receive(queue, count - len(taken), wait=WAIT_S)
        if not more:
            raise RequestTimeoutError(f"{queue!r} delivered {len(taken)} of {count} messages: is another consumer at work?")
        taken += more
    return taken


def _limit(client: Client, queue: str) -> DemoLimit:
    bucket = f"{queue}-provider"
    client.set_config(f"throttle.{bucket}", f"{RATE},{BURST}")
    try:
        client.enqueue_many(queue, [Message(b"", throttle_keys=[bucket]) for _ in range(LIMITED)])
        delivered, took, why = 0, 0.0, ""
        [first] = deliveries = _take(client, queue, 1)
        while took < LIMITED_S:
            client.ack(deliveries)
            delivered += len(deliveries)
            took = (deliveries[-1].leased_at - first.leased_at).total_seconds()
            if not why:  # between two tokens, mostly
                reasons = client.why(queue, fairness_key="default").reasons
                why = next((reason.text for reason in reasons if reason.code == "throttled"), "")
            deliveries = _take(client, queue, 1)
        client.ack(deliveries)
        client.purge_queue(queue)
    finally:
        client.delete_config(f"throttle.{bucket}")
    return DemoLimit(RATE, BURST, took, int(BURST + RATE * (took + CLOCK_S)), delivered, why)


def _failure(client: Client, queue: str) -> DemoFailure:
    client.enqueue(queue, b"")
    for _ in range(ATTEMPTS):
        [delivery] = _take(client, queue, 1)
        delivery.nack(ERROR)
    [letter] = client.browse(f"{queue}.dlq")
    client.redrive(f"{queue}.dlq")
    [again] = _take(client, queue, 1)
    again.ack()
    if letter.reason is None:
        raise FilaError(f"message {letter.id} is in {queue}.dlq without a reason")
    return DemoFailure(letter.attempts, letter.reason, letter.error, again.attempts)
