"""What the HTTP door keeps for whom, and how much of it."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fila_cluster.errors import AlreadySettledError, LeaseExpiredError, OverloadedError
from fila_cluster.ops.analysis.history import History
from fila_cluster.ops.observer.http_api.receivers import GRACE_S, Receiver, ReceiverLimits, Receivers
from fila_cluster.ops.observer.http_api.routes import HttpApi


@dataclass(eq=False)
class Key:
    """An API key in use."""

    name: str = "key"
    client: Any = None
    permissions: Any = None
    ended: bool = False
    holds: int = 0


@dataclass(eq=False)
class Lease:
    """A lease as the client keeps it: who is told that nobody will settle it."""

    at_most_once: bool = False
    lapsed: int = 0

    @property
    def owner(self) -> "Lease":
        return self

    def forgotten(self, _: object) -> None:
        self.lapsed += 1


@dataclass(eq=False)
class Delivery:
    """A delivery that lasts ten seconds."""

    queue: str = "orders"
    _lease: Lease = field(default_factory=Lease)
    _packed: bytes = b"x" * 1000
    _settled: bool = False
    _payload: bytes | None = b"payload"
    _headers: Any = None
    _extension: Any = None
    leased_at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    lease_expires_at: datetime = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=10)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def kept(receiver: Receiver, number: int = 1, **changes: Any) -> list[str]:
    """Tokens of deliveries that a receiver keeps."""
    return [token or "" for token in receiver.keep([Delivery(**changes) for _ in range(number)])]  # type: ignore[misc]


@pytest.fixture
def clock() -> Clock:
    return Clock()


def receivers(clock: Clock, **limits: int) -> Receivers:
    return Receivers(ReceiverLimits(**limits), clock)


def test_a_token_is_known_until_its_lease_has_surely_ended(clock: Clock) -> None:
    desk = receivers(clock)
    receiver = desk.of_key(Key())
    delivery = Delivery()
    (token,) = receiver.keep([delivery])  # type: ignore[list-item]
    assert token is not None
    assert (len(delivery._packed), delivery._payload) == (26, None), "no content is kept"
    clock.now += 10 + GRACE_S - 1
    desk.sweep()
    assert receiver.find(token, "orders", "ack") is delivery
    receiver.extended(token, 60)
    clock.now += 60
    desk.sweep()
    assert receiver.find(token, "orders", "ack") is delivery
    clock.now += GRACE_S + 1
    desk.sweep()
    with pytest.raises(LeaseExpiredError):
        receiver.find(token, "orders", "ack")
    assert (delivery._lease.lapsed, delivery._settled, receiver.leased) == (1, True, 0)


def test_another_key_and_another_queue_do_not_find_it(clock: Clock) -> None:
    desk = receivers(clock)
    mine, other = desk.of_key(Key()), desk.of_key(Key())
    (token,) = kept(mine)
    for receiver, queue in ((other, "orders"), (mine, "invoices")):
        with pytest.raises(LeaseExpiredError):
            receiver.find(token, queue, "ack")


def test_a_settled_token_is_remembered_for_a_while(clock: Clock) -> None:
    receiver = receivers(clock, settled_of_key=2).of_key(Key())
    tokens = kept(receiver, 3)
    for token in tokens:
        receiver.ended(token, "ack")
    assert [receiver.find(token, "orders", "ack") for token in tokens[1:]] == [None, None]
    with pytest.raises(AlreadySettledError, match="by ack"):
        receiver.find(tokens[1], "orders", "fail")
    with pytest.raises(LeaseExpiredError):
        receiver.find(tokens[0], "orders", "ack")


def test_a_key_says_what_its_client_must_not_be_closed_for(clock: Clock) -> None:
    desk, key = receivers(clock), Key()
    receiver = desk.of_key(key)
    with desk.request(receiver), receiver.wait():
        assert key.holds == 1
        tokens = kept(receiver, 2)
    assert key.holds == 2
    receiver.ended(tokens[0], "ack")
    receiver.forget(tokens[1:])
    assert key.holds == 0


def test_a_key_that_has_ended_is_forgotten(clock: Clock) -> None:
    desk, key = receivers(clock), Key()
    receiver = desk.of_key(key)
    kept(receiver)
    key.ended = True
    desk.sweep()
    assert desk.of_key(key) is not receiver


@contextmanager
def refused() -> Iterator[None]:
    with pytest.raises(OverloadedError) as caught:
        yield
    assert caught.value.retry_after is not None


def test_leases_are_bounded_for_a_key_and_for_all(clock: Clock) -> None:
    desk = receivers(clock, leased_of_key=3, leased=5, holding_keys=2)
    first, second, third = (desk.of_key(Key()) for _ in range(3))
    kept(first, 3)
    with refused():
        first.check_room(1)
    kept(second, 1)
    second.check_room(1)
    with refused():
        second.check_room(2)
    with refused():
        third.check_room(1)
    clock.now += 100
    desk.sweep()
    third.check_room(3)


def test_waiting_requests_are_bounded_for_a_key_and_for_all(clock: Clock) -> None:
    desk = receivers(clock, waiting_of_key=2, waiting=3)
    first, second = desk.of_key(Key()), desk.of_key(Key())
    with ExitStack() as stack:
        for receiver in (first, first, second):
            stack.enter_context(receiver.wait())
        for receiver in (first, second):
            with refused(), receiver.wait():
                pass
    with first.wait():
        assert first.waiting == 1


def test_requests_and_their_bytes_are_bounded(clock: Clock) -> None:
    desk = receivers(clock, requests=3, bytes_of_key=100, bytes=150)
    first, second = desk.of_key(Key()), desk.of_key(Key())
    with desk.request(first) as load, desk.request(second) as other, desk.request(second):
        with refused(), desk.request(first):
            pass
        load.add(100)
        with refused():
            load.add(1)
        other.add(50)
        with refused():
            other.add(1)
    assert (first.bytes, second.bytes, desk.bytes) == (0, 0, 0)


def test_without_authentication_it_is_for_this_machine_only() -> None:
    """An observer that other machines reach, and that knows no keys, has a door without a client."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b'{"payload": "x"}', "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    (enqueue, *_) = HttpApi(None, History()).routes()
    headers = [(b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/queues/q/messages",
        "query_string": b"",
        "headers": headers,
        "path_params": {"queue": "q"},
    }
    asyncio.run(enqueue.app(scope, receive, send))
    assert sent[0]["status"] == 403
    assert b"only with authentication" in sent[1]["body"]
