"""Queues: a definition, fairness keys in a ring, demands in a line, counters."""

from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from fila_proto_zmq.commands import QueueInfo, QueueOptions
from fila_worker.core.fairness import FairnessKey, Ring

if TYPE_CHECKING:
    from fila_worker.core.consumers import Demand
    from fila_worker.core.settings import ShardSettings

IDLE_KEYS_MAX: Final = 10_000
"""Fairness keys without messages that a queue remembers, for their weights and counters."""


class QueueRecord(msgspec.Struct, array_like=True):
    """A queue at rest. ``dead_letters``: the id of its dead letter queue, 0 for one that has none."""

    name: str
    options: QueueOptions
    dead_letters: int


_encode = msgspec.msgpack.Encoder().encode
decode_queue = msgspec.msgpack.Decoder(QueueRecord).decode


class Queue:
    """A queue, or a dead letter queue (``source`` is then the queue it belongs to).

    Invariants: ``pending``, ``in_flight`` and ``delayed`` are the sums over its lanes; every key in ``keys`` has a lane; a
    demand with credit is in ``demands``.
    """

    __slots__ = (
        "acked",
        "dead_lettered",
        "dead_letters",
        "delayed",
        "delivered",
        "demands",
        "enqueued",
        "expired",
        "id",
        "in_flight",
        "keys",
        "nacked",
        "name",
        "options",
        "pending",
        "ring",
        "source",
        "subscribers",
    )

    def __init__(self, queue_id: int, name: str, options: QueueOptions) -> None:
        self.id = queue_id
        self.name = name
        self.options = options
        self.dead_letters: Queue | None = None
        self.source: Queue | None = None
        self.keys: dict[str, FairnessKey] = {}
        self.ring = Ring()
        self.demands: deque[Demand] = deque()
        self.subscribers: dict[bytes, int] = {}
        """How many subscriptions and waiters each client has here."""
        self.pending = self.in_flight = self.delayed = 0
        self.enqueued = self.delivered = self.acked = self.nacked = self.expired = self.dead_lettered = 0

    @property
    def is_dead_letter(self) -> bool:
        """Whether this is the dead letter queue of another."""
        return self.source is not None

    def visibility_timeout_ms(self, settings: "ShardSettings") -> int:
        """How long a delivery is leased."""
        chosen = self.options.visibility_timeout_ms
        return settings.visibility_timeout_ms if chosen is None else chosen

    def info(self, shard: int) -> QueueInfo:
        """The queue's row in a list."""
        return QueueInfo(
            self.name,
            self.pending,
            self.in_flight,
            self.delayed,
            len(self.subscribers),
            False,
            self.is_dead_letter,
            shard,
        )

    def to_bytes(self) -> bytes:
        """The queue's record."""
        return _encode(QueueRecord(self.name, self.options, self.dead_letters.id if self.dead_letters else 0))

    def want(self, demand: "Demand") -> None:
        """Put a demand with credit in line."""
        if not demand.queued and demand.credit > 0:
            demand.queued = True
            self.demands.append(demand)

    def forget_done(self) -> None:
        """Drop the waiters that are answered, or whose client is gone, from the line."""
        kept: deque[Demand] = deque()
        for demand in self.demands:
            demand.queued = demand.credit > 0
            if demand.queued:
                kept.append(demand)
        self.demands = kept

    def enter(self, client: bytes) -> None:
        """A client has one more subscription or waiter here."""
        self.subscribers[client] = self.subscribers.get(client, 0) + 1

    def exit(self, client: bytes) -> None:
        """A client has one less."""
        left = self.subscribers[client] - 1
        if left:
            self.subscribers[client] = left
        else:
            del self.subscribers[client]
