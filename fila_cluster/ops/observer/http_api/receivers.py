"""Leases by API key, and the limits of the door.

The broker leases to a client, and a fence counts for that client only. So all requests with one API key share one client,
which lives as long as it holds leases: a lease outlives the connection that received it, and ends at its time. A random
*token* names a delivery, for the key that received it only. Nothing of this is kept on disk: when the observer ends, its
clients say goodbye, and their messages are delivered again."""

import asyncio
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from fila_cluster.client import AsyncClient
from fila_cluster.client.forwarding import drop_content, let_lapse, settled_by_itself
from fila_cluster.client.protocol.delivery import AsyncDelivery
from fila_cluster.errors import (
    AlreadySettledError,
    FilaError,
    LeaseExpiredError,
    OverloadedError,
    RequestTimeoutError,
    UnauthenticatedError,
)
from fila_cluster.ops.analysis.visitor import KeyInUse
from fila_cluster.ops.observer.catalogue import COUNTER, GAUGE, Family, Metric, Scope, families_of
from fila_cluster.ops.observer.sources import Source

GRACE_S: Final = 5.0
"""How long a delivery is kept after the end of its lease: the broker decides about the end, not the door's clock."""
SWEEP_S: Final = 1.0
"""How often ended leases are looked for."""


@dataclass(frozen=True, slots=True)
class ReceiverLimits:
    """Limits of the door, for one key and for all."""

    leased_of_key: int = 10_000
    leased: int = 100_000
    """A delivery that is kept takes some 500 bytes."""
    holding_keys: int = 50
    """Keys with leases: half of those that the observer has room for, so that others can still log in."""
    waiting_of_key: int = 50
    waiting: int = 500
    """Requests that wait for messages, streams among them."""
    requests: int = 1000
    bytes_of_key: int = 64 * 2**20
    bytes: int = 256 * 2**20
    """Of bodies that are read or sent."""
    settled_of_key: int = 1000
    """Settled tokens that are remembered, so that a settlement may be sent again when its answer was lost."""


LIMITS: Final = ReceiverLimits()


class StreamCredit:
    """How many more deliveries of a stream may be unsettled."""

    def __init__(self, prefetch: int) -> None:
        self.free = prefetch
        self._freed = asyncio.Event()

    def give(self) -> None:
        """Note that a delivery is settled, or that its lease has ended."""
        self.free += 1
        self._freed.set()

    async def wait(self) -> None:
        """Wait until there is some."""
        while not self.free:
            self._freed.clear()
            await self._freed.wait()


@dataclass(slots=True)
class _Held:
    """A delivery that an HTTP client has. ``until`` (monotonic): when its lease has surely ended, unless it is extended.

    ``credit``: of the stream that it came in.
    """

    delivery: AsyncDelivery
    until: float
    credit: StreamCredit | None


class _Settling(NamedTuple):
    """A settlement that is under way, and its outcome: None, or its error."""

    action: str
    outcome: "asyncio.Future[FilaError | None]"


class Receiver:
    """The requests of one key: their client, and its leases."""

    def __init__(self, client: AsyncClient, key: KeyInUse | None, desk: "Receivers") -> None:
        self.client = client
        self.key = key
        self.bytes = 0
        self.requests = 0
        self.waiting = 0
        self._held: dict[str, _Held] = {}
        self._settled: OrderedDict[str, str] = OrderedDict()
        self._settling: dict[str, _Settling] = {}
        self._desk = desk

    @property
    def leased(self) -> int:
        """How many deliveries its HTTP clients hold."""
        return len(self._held)

    @property
    def stopping(self) -> asyncio.Event:
        """Set when the observer stops."""
        return self._desk.stopping

    def keep(self, deliveries: Sequence[AsyncDelivery], credit: StreamCredit | None = None) -> list[str | None]:
        """Return a token for each delivery, None where there is nothing to settle. Drops the payloads: use them before."""
        tokens: list[str | None] = []
        for delivery in deliveries:
            if settled_by_itself(delivery):
                tokens.append(None)
                continue
            token = secrets.token_urlsafe(16)
            lease_s = (delivery.lease_expires_at - delivery.leased_at).total_seconds()
            self._held[token] = _Held(delivery, self._desk.now() + lease_s + GRACE_S, credit)
            if credit is not None:
                credit.free -= 1
            drop_content(delivery)
            tokens.append(token)
        self._desk.changed(self)
        return tokens

    def find(self, token: str, queue: str, action: str) -> AsyncDelivery | None:
        """Return the delivery of a token; None if this action has settled it before. Raise the errors of any client."""
        held = self._held.get(token)
        if held is not None and held.delivery.queue == queue:
            return held.delivery
        done = self._settled.get(token)
        if done == action:
            return None
        if done is not None:
            raise AlreadySettledError(f"token {token[:40]!r} was settled before, by {done}: settle each delivery once")
        raise LeaseExpiredError(
            f"token {token[:40]!r} has no lease on queue {queue!r} for this API key: its lease has ended, or the observer "
            "was started anew"
        )

    def under_way(self, token: str, queue: str, action: str) -> "asyncio.Future[FilaError | None] | None":
        """Return the future outcome of this settlement if an earlier request has begun it. Raise for another action.

        A request before the first one's answer must get the same answer: the first one may still fail.
        """
        held, settling = self._held.get(token), self._settling.get(token)
        if held is None or settling is None or held.delivery.queue != queue:
            return None
        if settling.action != action:
            raise AlreadySettledError(
                f"token {token[:40]!r} is being settled by {settling.action} at this moment: settle each delivery once"
            )
        return settling.outcome

    @contextmanager
    def settles(self, token: str, action: str) -> Iterator["asyncio.Future[FilaError | None]"]:
        """Note that a settlement is under way until the end of the context, which gives its outcome."""
        outcome: asyncio.Future[FilaError | None] = asyncio.get_running_loop().create_future()
        self._settling[token] = _Settling(action, outcome)
        try:
            yield outcome
        finally:
            del self._settling[token]
            if not outcome.done():
                outcome.set_result(RequestTimeoutError("the request that settles this token was given up: try again"))

    def ended(self, token: str, action: str | None) -> None:
        """Forget a delivery. ``action`` has settled it; None: its lease has ended."""
        if self._dropped(token) is not None and action is not None:
            self._settled[token] = action
            if len(self._settled) > self._desk.limits.settled_of_key:
                self._settled.popitem(last=False)
        self._desk.changed(self)

    def forget(self, tokens: Sequence[str | None]) -> None:
        """Forget deliveries that were given back."""
        for token in tokens:
            self._dropped(token or "")
        self._desk.changed(self)

    def extended(self, token: str, seconds: float) -> None:
        """Keep a delivery for as long as its lease lasts now."""
        if (held := self._held.get(token)) is not None:
            held.until = max(held.until, self._desk.now() + seconds + GRACE_S)

    def sweep(self) -> None:
        """Forget deliveries whose leases have ended."""
        now = self._desk.now()
        for token in [token for token, held in self._held.items() if held.until < now]:
            if (held := self._dropped(token)) is not None:
                let_lapse(held.delivery)
        self._desk.changed(self)

    def _dropped(self, token: str) -> _Held | None:
        held = self._held.pop(token, None)
        if held is not None and held.credit is not None:
            held.credit.give()
        return held

    def reason(self, error: FilaError) -> FilaError:
        """Return what to tell of an error: that the key has ended, if it has."""
        if self.key is None or not self.key.ended:
            return error
        return UnauthenticatedError("this API key has been revoked, has expired, or was not used for long")

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Count a request that waits for messages, unless there are too many."""
        self._desk.check_wait(self)
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    def check_room(self, count: int) -> None:
        """Raise :class:`OverloadedError` unless so many more deliveries may be kept."""
        self._desk.check_leases(self, count)


class ReceiverLoad:
    """The bytes of one request's bodies, counted until it is over."""

    def __init__(self, receiver: Receiver, desk: "Receivers") -> None:
        self._receiver = receiver
        self._desk = desk
        self._bytes = 0

    def add(self, count: int) -> None:
        """Count more bytes. Raise :class:`OverloadedError` if that is too much."""
        self._desk.check_bytes(self._receiver, count)
        self._bytes += count
        self._receiver.bytes += count
        self._desk.bytes += count

    def end(self) -> None:
        """Subtract them all."""
        self._receiver.bytes -= self._bytes
        self._desk.bytes -= self._bytes
        self._bytes = 0


class Receivers:
    """All receivers. Without authentication there is one."""

    def __init__(self, limits: ReceiverLimits = LIMITS, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.now = clock
        self.stopping = asyncio.Event()
        """Set when the observer stops: streams end then."""
        self.bytes = 0
        self._requests = 0
        self._of_nobody: Receiver | None = None
        self._of_keys: dict[KeyInUse, Receiver] = {}

    @property
    def leased(self) -> int:
        """How many deliveries HTTP clients hold."""
        return sum(receiver.leased for receiver in self._all())

    @property
    def waiting(self) -> int:
        """How many requests wait for messages."""
        return sum(receiver.waiting for receiver in self._all())

    def of_key(self, key: KeyInUse) -> Receiver:
        """Return the receiver of an API key. There are as many as keys in use."""
        receiver = self._of_keys.get(key)
        if receiver is None:
            receiver = self._of_keys[key] = Receiver(key.client, key, self)
        return receiver

    def of_nobody(self, client: AsyncClient) -> Receiver:
        """Return the receiver of all requests, without authentication."""
        self._of_nobody = self._of_nobody or Receiver(client, None, self)
        return self._of_nobody

    @contextmanager
    def request(self, receiver: Receiver) -> Iterator[ReceiverLoad]:
        """Count a request until it is answered."""
        if self._requests >= self.limits.requests:
            raise OverloadedError(f"{self._requests} requests are under way at this address: try again", retry_after=1.0)
        self._requests += 1
        receiver.requests += 1
        self.changed(receiver)
        load = ReceiverLoad(receiver, self)
        try:
            yield load
        finally:
            load.end()
            self._requests -= 1
            receiver.requests -= 1
            self.changed(receiver)

    def sweep(self) -> None:
        """Forget deliveries whose leases have ended, and keys that have ended: their clients are closed."""
        for key in [key for key in self._of_keys if key.ended]:
            del self._of_keys[key]
        for receiver in self._all():
            receiver.sweep()

    def changed(self, receiver: Receiver) -> None:
        """Note a receiver's leases. The client of a key stays open while there are leases or requests."""
        if receiver.key is not None:
            receiver.key.holds = receiver.leased + receiver.requests

    def check_wait(self, receiver: Receiver) -> None:
        """Raise :class:`OverloadedError` if too many requests wait."""
        if receiver.waiting >= self.limits.waiting_of_key:
            raise OverloadedError(
                f"{receiver.waiting} requests of this API key wait for messages, no more may: receive more messages with "
                "each, or open fewer streams",
                retry_after=1.0,
            )
        if (waiting := self.waiting) >= self.limits.waiting:
            raise OverloadedError(f"{waiting} requests wait for messages at this address, no more may", retry_after=1.0)

    def check_leases(self, receiver: Receiver, count: int) -> None:
        """Raise :class:`OverloadedError` if a receiver may not hold so many more deliveries."""
        limits = self.limits
        if receiver.leased + count > limits.leased_of_key:
            raise OverloadedError(
                f"clients with this API key hold {receiver.leased:,} messages, at most {limits.leased_of_key:,}: settle some",
                retry_after=1.0,
            )
        if (leased := self.leased) + count > limits.leased:
            raise OverloadedError(f"HTTP clients hold {leased:,} messages, at most {limits.leased:,}", retry_after=1.0)
        holding = sum(bool(each.leased or each.waiting) for each in self._all() if each is not receiver)
        if holding >= limits.holding_keys:
            raise OverloadedError(f"{holding} API keys hold messages at this address, no more may", retry_after=1.0)

    def check_bytes(self, receiver: Receiver, count: int) -> None:
        """Raise :class:`OverloadedError` if so many more bytes of bodies are too many."""
        if receiver.bytes + count > self.limits.bytes_of_key or self.bytes + count > self.limits.bytes:
            raise OverloadedError(
                "too many bytes of requests and answers are under way at this address: try again", retry_after=1.0
            )

    def _all(self) -> list[Receiver]:
        return [*self._of_keys.values(), *filter(None, [self._of_nobody])]


class RequestCounts:
    """Numbers since the observer started. There are as many entries as operations and statuses."""

    def __init__(self, receivers: Receivers) -> None:
        self.since_ms = time.time_ns() // 1_000_000
        self.requests: Counter[tuple[str, int]] = Counter()
        self.receivers = receivers

    def families(self) -> list[Family]:
        """Return all of them under their names."""
        return families_of(DOOR_SCOPES, self)


def _requests(counts: RequestCounts) -> Iterator[Source]:
    for (operation, status), number in list(counts.requests.items()):  # at once: this is a thread beside the loop that counts
        yield Source((operation, str(status)), number, counts.since_ms)


def _receivers(counts: RequestCounts) -> Iterator[Source]:
    yield Source((), counts.receivers, counts.since_ms)


DOOR_SCOPES: Final = (
    Scope(
        ("operation", "status"),
        _requests,
        (Metric("fila.http.requests", COUNTER, "Requests at the HTTP door that were answered, by status.", float),),
    ),
    Scope(
        (),
        _receivers,
        (
            Metric("fila.http.waiting", GAUGE, "Requests at the HTTP door that wait for messages.", lambda it: it.waiting),
            Metric("fila.http.leased", GAUGE, "Messages that are leased to clients of the HTTP door.", lambda it: it.leased),
        ),
    ),
)
