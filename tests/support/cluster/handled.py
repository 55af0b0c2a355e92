"""A broker of deliveries for handlers, in memory: queues that answer settlements as a broker does, and clients of both kinds."""

import asyncio
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

from fila_cluster.client.protocol.delivery import AsyncDelivery, Delivery
from fila_cluster.client.protocol.lease import ClientLease
from fila_cluster.client.protocol.settling import Settlement
from fila_cluster.errors import FilaError, QueueNotFoundError
from fila_proto_zmq.commands import LeaseBatch, Verb
from fila_proto_zmq.ids import high_half, low_half
from fila_proto_zmq.record import Extension, Record, pack_record, seal_envelope

BORN_MS = 1_700_000_000_000


@dataclass
class Stored:
    """A message in its queue."""

    number: int
    payload: bytes
    headers: dict[str, str]
    attempts: int = 0
    error: str = ""


@dataclass
class Desk:
    """What stands in for a broker. ``settled``: each settlement that it took, in order; ``refusals``: errors for the next ones."""

    queues: dict[str, deque[Stored]] = field(default_factory=lambda: defaultdict(deque))
    templates: dict[str, str] = field(default_factory=dict)
    """Patterns by what the names that match them begin with."""
    settled: list[tuple[bytes, Settlement]] = field(default_factory=list)
    costs: list[float | None] = field(default_factory=list)
    """The actual costs that came with them."""
    refusals: deque[FilaError] = field(default_factory=deque)
    dead: list[Stored] = field(default_factory=list)
    later: list[Stored] = field(default_factory=list)
    given_back: list[bytes] = field(default_factory=list)
    closed = False
    at_most_once = False
    wakes: list[asyncio.Event] = field(default_factory=list)
    count: int = 0

    def put(self, queue: str, *payloads: bytes, headers: dict[str, str] | None = None) -> None:
        """Enqueue messages."""
        for payload in payloads:
            self.count += 1
            self.queues[queue].append(Stored(self.count, payload, headers or {}))
        self.wake()

    def wake(self) -> None:
        """Tell those who wait that there may be something."""
        for event in self.wakes:
            event.set()

    def verbs(self) -> list[tuple[bytes, Verb]]:
        """What was settled, and how."""
        return [(payload, how.verb) for payload, how in self.settled]

    def take(self, queue: str, owner: Any, kind: type[Delivery]) -> Delivery:
        """Lease the next message of a queue."""
        stored = self.queues[queue].popleft()
        envelope = seal_envelope(stored.payload, stored.headers)
        extension = Extension(error=stored.error)
        packed = pack_record(Record(stored.attempts, 0, high_half(BORN_MS, 3), low_half(stored.number), extension, envelope))
        batch = LeaseBatch(stored.number, BORN_MS, BORN_MS + 30_000, "acme", 1, [packed], [], self.at_most_once)
        delivery = kind(ClientLease(queue, batch, owner, renewed=False), 0, packed)
        owner.held[id(delivery)] = (delivery, stored)
        return delivery

    def missing(self, queue: str) -> QueueNotFoundError:
        """Return the error for a queue that does not exist."""
        for beginning, pattern in self.templates.items():
            if queue.startswith(beginning):
                text = f"no queue {queue!r}: its first message makes it"
                return QueueNotFoundError(text, details={"queue": queue, "template": pattern})
        return QueueNotFoundError(f"queue {queue!r} does not exist: create it first")

    def settle(self, delivery: Delivery, how: Settlement, stored: Stored) -> None:
        """Take a settlement, or raise the next refusal."""
        if self.refusals:
            error = self.refusals.popleft()
            delivery._settled = not error.retryable
            raise error
        delivery._settled = True
        self.settled.append((stored.payload, how))
        self.costs.append(delivery.actual_cost)
        if how.verb is Verb.ACK:
            return
        stored.attempts += how.verb is not Verb.DEFER
        stored.error = how.error
        if how.verb is Verb.NACK:
            self.queues[delivery.queue].append(stored)
            self.wake()
        else:
            (self.dead if how.verb is Verb.FAIL else self.later).append(stored)


class FakeClient:
    """A blocking client of a desk, as far as handlers need one."""

    kind: type[Delivery] = Delivery

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.held: dict[int, tuple[Delivery, Stored]] = {}
        self.closed = False

    def receive_any(self, queues: dict[str, int], *, wait: float = 0.0) -> Any:
        """Take what is there."""
        self._check(*queues)
        return [
            self.desk.take(queue, self, self.kind)
            for queue, count in queues.items()
            for _ in range(min(count, len(self.desk.queues[queue])))
        ]

    def settle_one(self, delivery: Delivery, how: Settlement) -> Any:
        """Settle, for a delivery's own verbs."""
        self.desk.settle(delivery, how, self.held[id(delivery)][1])
        del self.held[id(delivery)]

    def extend_one(self, delivery: Delivery, duration_ms: int) -> Any:
        """Extend, for a delivery's own verb."""
        delivery._expires_ms = BORN_MS + duration_ms

    def forgotten(self, lease: ClientLease) -> None:
        """Note a delivery that was dropped unsettled."""

    def _check(self, *queues: str) -> None:
        for queue in queues:
            if queue not in self.desk.queues:
                raise self.desk.missing(queue)


class FakeAsyncClient(FakeClient):
    """An asyncio client of a desk."""

    kind = AsyncDelivery

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.consumers: list[FakeConsumer] = []

    async def receive_any(self, queues: dict[str, int], *, wait: float = 0.0) -> Any:  # type: ignore[override]
        """Take what is there."""
        return super().receive_any(queues)

    async def settle_one(self, delivery: Delivery, how: Settlement) -> Any:
        """Settle, for a delivery's own verbs."""
        await asyncio.sleep(0)
        super().settle_one(delivery, how)

    async def extend_one(self, delivery: Delivery, duration_ms: int) -> Any:
        """Extend, for a delivery's own verb."""
        super().extend_one(delivery, duration_ms)

    async def request(self, request: Any) -> Any:
        """Say whether a queue is there."""
        if self.desk.refusals:
            raise self.desk.refusals.popleft()
        self._check(request.queue)

    def consume(self, queue: str, *, prefetch: int) -> "FakeConsumer":
        """Consume a queue."""
        self.consumers.append(FakeConsumer(self, queue))
        return self.consumers[-1]

    async def close(self) -> None:
        """Give back what is held."""
        self.closed = True
        self.desk.given_back += [stored.payload for _, stored in self.held.values()]


class FakeConsumer:
    """Deliveries as they come, until it is closed. ``fail``: the error that the next taker gets."""

    def __init__(self, client: FakeAsyncClient, queue: str) -> None:
        self._client, self._queue = client, queue
        self._closed = False
        self._event = asyncio.Event()
        client.desk.wakes.append(self._event)

    async def __anext__(self) -> AsyncDelivery:
        while not self._closed:
            if self._queue not in self._client.desk.queues:
                raise self._client.desk.missing(self._queue)
            if self._client.desk.queues[self._queue]:
                return self._client.desk.take(self._queue, self._client, AsyncDelivery)  # type: ignore[return-value]
            self._event.clear()
            await self._event.wait()
        raise StopAsyncIteration

    async def close(self) -> None:
        """End it."""
        self._closed = True
        self._event.set()
