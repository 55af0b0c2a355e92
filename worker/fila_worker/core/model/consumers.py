"""Consumers: the clients that receive, their demands and their leases.

A *consumer* is a client with leases or demands on this shard. A *demand* is a request for messages of one queue: a
:class:`Subscription` (until it ends, up to ``prefetch`` unsettled), a :class:`Waiter` (one ``receive``) or a
:class:`Reserving` (messages for a name). Credit is never sent: it is computed from the demand's leases.
"""

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from fila_proto_zmq.commands import Delivered, Receive, Reserve, Reserved
from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.ids import client_name
from fila_worker.core.due_time import AT_ONCE, DueTime
from fila_worker.core.effects import Answer, ClientCall

if TYPE_CHECKING:
    from fila_worker.core.model.leases import Lease, LeaseBook
    from fila_worker.core.model.queues import Queue


BANK_MS_MAX: Final = 100
"""How long a receive whose time is up waits for the bank's answer: many times what the answer takes."""


ENDED_MAX: Final = 16
"""The most ended subscriptions that are remembered for each client: frames overtake each other within moments."""


class Consumer:
    """A client with leases or demands."""

    __slots__ = ("client", "ended", "granted", "leases", "leaving", "seen_ms", "subscriptions", "waiters")

    def __init__(self, client: bytes, now_ms: int) -> None:
        self.client = client
        self.leaving = False
        """Whether it has left or is lost. It gets nothing more, and its leases and demands are taken from it in steps."""
        self.seen_ms = now_ms
        self.leases: dict[int, Lease] = {}
        self.subscriptions: dict[int, Subscription] = {}
        self.ended: dict[int, int] = {}
        """The requests that ended its last subscriptions, by subscription: an older frame does not open one again."""
        self.waiters: dict[int, Waiter] = {}
        """Pending receives by request id."""
        self.granted: dict[int, list[Lease]] = {}
        """The leases that receives were answered with, by request id, as long as they are open."""

    @property
    def shown(self) -> str:
        """Its text for other clients."""
        return client_name(self.client)

    @property
    def idle(self) -> bool:
        """Whether it has no leases and no demands."""
        return not (self.leases or self.subscriptions or self.waiters)

    def takes_by(self, link: int) -> bool:
        """Return whether it is to get messages by a link."""
        waits = any(waiter.call.link == link for waiter in self.waiters.values())
        return waits or any(each.link == link and each.prefetch for each in self.subscriptions.values())

    def note_end(self, subscription: int, request: int) -> None:
        """Remember that a request ended a subscription."""
        self.ended[subscription] = request
        if len(self.ended) > ENDED_MAX:
            del self.ended[next(iter(self.ended))]


class Subscription:
    """A demand for up to ``prefetch`` unsettled messages of a queue, until it ends.

    It begins a new *incarnation* whenever pushes may have been lost. The client ignores pushes of an older incarnation. A
    lease of an older incarnation is given back unless the client holds it. Incarnations and leases are numbered from the same
    counter, so a lease is of an older incarnation if its id is lower.
    """

    __slots__ = (
        "consumer",
        "held",
        "id",
        "incarnation",
        "link",
        "prefetch",
        "pushes",
        "queue",
        "queued",
        "reconciled",
        "request",
    )

    def __init__(self, subscription_id: int, consumer: Consumer, queue: "Queue", prefetch: int, incarnation: int) -> None:
        self.id = subscription_id
        self.consumer = consumer
        self.queue = queue
        self.prefetch = prefetch
        self.held = 0
        """The number of messages leased to it whose leases have not ended."""
        self.queued = False
        """Whether it is in its queue's line of demands."""
        self.request = 0
        """The latest request that was carried out. An older one comes from a closed connection."""
        self.link = 0
        """The link by which it came: pushes go the same way."""
        self.begin(incarnation)

    def begin(self, incarnation: int) -> None:
        """Begin a new incarnation."""
        self.incarnation = incarnation
        self.pushes = 0
        """The number of frames pushed in this incarnation."""
        self.reconciled = False
        """Whether the client has sent which older leases it holds."""

    @property
    def credit(self) -> int:
        """The number of messages that may still be sent to it."""
        return 0 if self.consumer.leaving else self.prefetch - self.held


class Waiter:
    """A receive that waits for its first messages."""

    __slots__ = ("call", "consumer", "count", "deadline_ms", "done", "leases", "queue", "queued")
    opcode = Receive.opcode

    def __init__(
        self,
        call: ClientCall,
        consumer: Consumer,
        queue: "Queue",
        count: int,
        wait_ms: int,
        *,
        leases: bool = False,
    ) -> None:
        self.call = call
        self.consumer = consumer
        self.queue = queue
        self.count = count
        self.leases = leases
        """Whether it takes also leases of messages that are delivered at most once."""
        self.deadline_ms = call.now_ms + wait_ms
        self.queued = False
        self.done = False

    @property
    def looks(self) -> bool:
        """Whether it takes no message, and only waits until one could be taken."""
        return self.count == 0

    @property
    def credit(self) -> int:
        """The number of messages it can take; 1 for one that only looks: it is in line, and its queue asks for tokens."""
        return 0 if self.done or self.consumer.leaving else self.count or 1

    def finish(self) -> None:
        """Remove it from its consumer: it is answered, or its client is gone."""
        self.done = True
        del self.consumer.waiters[self.call.request]
        self.queue.unwant(self)
        self.queue.exit(self.consumer)

    def answer_nothing(self, strays: int = 0) -> Answer:
        """Return the answer when its time is up."""
        return Answer(self.call, self.opcode, Delivered(0, [], weight=self.queue.weight, strays=strays))

    def refuse(self, error: FilaError) -> Answer:
        """Return the answer with an error."""
        return Answer(self.call, self.opcode, error)


class Reserving(Waiter):
    """A part of a reservation that waits for its messages."""

    __slots__ = ("_book", "part", "reservation", "timeout_ms")
    opcode = Reserve.opcode

    def __init__(self, call: ClientCall, consumer: Consumer, queue: "Queue", command: Reserve, book: "LeaseBook") -> None:
        super().__init__(call, consumer, queue, command.count, command.wait_ms)
        self.reservation = command.reservation
        self.part = command.part
        self.timeout_ms = command.timeout_ms
        self._book = book

    @property
    def credit(self) -> int:
        """The number of messages it can take; 0 if another client took this part meanwhile, for the same reservation."""
        return 0 if self._taken() else super().credit

    def answer_nothing(self, strays: int = 0) -> Answer:
        """Return the answer when its time is up, or when another client took its part."""
        return self.answer_with(self._taken())

    def _taken(self) -> "Lease | None":
        return self._book.part(self.queue.id, self.reservation, self.part)

    def answer_with(self, lease: "Lease | None") -> Answer:
        """Return the answer with the lease of its part."""
        parts, expires_ms = ([(self.part, lease.open)], lease.next_expiry()) if lease else ([], 0)
        return Answer(self.call, self.opcode, Reserved(parts, expires_ms))


Demand = Subscription | Waiter


class Consumers:
    """The consumers of a shard. The one that was silent for longest is first."""

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self.by_client: OrderedDict[bytes, Consumer] = OrderedDict()
        self.subscriptions = 0
        """How many subscriptions all of them have."""
        self.leaving: dict[Consumer, None] = {}
        """Consumers whose leases and demands are being taken from them."""
        self.waiting: list[tuple[int, int, Waiter]] = []
        """A heap of waiters by deadline. Answered ones are dropped when they come up."""
        self.lingering: list[Waiter] = []
        """Waiters whose time is up and that have a reason to wait a little longer."""
        self.unseen: dict[int, Lease] = {}
        """Leases that never reached their client, to be given back. Some of them may have ended meanwhile."""
        self._waiters_made = 0
        self.silence, self.waits, self.give_back = DueTime(), DueTime(), DueTime()
        """The next times when a consumer may be lost, when a waiter's time is up, and when unseen leases are given back."""
        self._clean_up_at = 1000

    def __len__(self) -> int:
        return len(self.by_client)

    def open(self, client: bytes, now_ms: int) -> Consumer:
        """Return the consumer with this client id, a new one if it is not known."""
        consumer = self.by_client.get(client)
        if consumer is None or consumer.leaving:
            consumer = self.by_client[client] = Consumer(client, now_ms)
            self.silence.by(now_ms + self.timeout_ms)
        return consumer

    def touch(self, client: bytes, now_ms: int) -> None:
        """Note a frame of this client, which shows that it lives."""
        consumer = self.by_client.get(client)
        if consumer is not None:
            consumer.seen_ms = now_ms
            self.by_client.move_to_end(client)

    def excuse(self, silent_ms: int) -> None:
        """Do not count this time as silence: the shard did not read, or the clock was set forward."""
        for consumer in self.by_client.values():
            consumer.seen_ms += silent_ms

    def part_from(self, consumer: Consumer) -> None:
        """Remove a consumer. The caller takes its leases and demands. A client that comes back is a new consumer."""
        consumer.leaving = True
        self.leaving[consumer] = None
        if self.by_client.get(consumer.client) is consumer:
            del self.by_client[consumer.client]

    def lost(self, now_ms: int) -> Iterator[Consumer]:
        """Yield the consumers that were silent for too long. The caller parts from each."""
        while self.by_client:
            oldest = next(iter(self.by_client.values()))
            if oldest.seen_ms + self.timeout_ms > now_ms:
                return
            yield oldest

    def await_messages(self, waiter: Waiter) -> None:
        """Set the time-out of a waiter: it is answered by its deadline."""
        self._waiters_made += 1
        if len(self.waiting) > self._clean_up_at:
            self.waiting = [entry for entry in self.waiting if not entry[2].done]
            heapify(self.waiting)
            self._clean_up_at = 2 * len(self.waiting) + 1000
        heappush(self.waiting, (waiter.deadline_ms, self._waiters_made, waiter))
        self.waits.by(waiter.deadline_ms)

    def linger(self, waiter: Waiter) -> None:
        """Keep a waiter whose time is up until the next turn."""
        self.lingering.append(waiter)

    def timed_out(self, now_ms: int, count: int) -> Iterator[Waiter]:
        """Yield the waiters whose time is up, about ``count`` of them."""
        lingering, self.lingering = self.lingering, []
        yield from (waiter for waiter in lingering if not waiter.done)
        while count > 0 and self.waiting and self.waiting[0][0] <= now_ms:
            count -= 1
            _, _, waiter = heappop(self.waiting)
            if not waiter.done:
                yield waiter

    def unsee(self, lease: "Lease") -> None:
        """Give a lease back soon, because it never reached its client."""
        self.unseen[lease.id] = lease
        self.give_back.by(AT_ONCE)

    def next_loss(self) -> int | None:
        """Return when the consumer that was silent for longest is lost, Unix ms."""
        oldest = next(iter(self.by_client.values()), None)
        return None if oldest is None else oldest.seen_ms + self.timeout_ms

    def next_deadline(self) -> int | None:
        """Return when the time of the next waiter is up, Unix ms."""
        deadlines = [self.waiting[0][0]] if self.waiting else []
        if self.lingering:
            deadlines.append(self.lingering[0].deadline_ms + BANK_MS_MAX)
        return min(deadlines, default=None)
