"""What a shard has for others: messages on their way to queues of other shards, numbered and durable until confirmed.

For each destination there is one stretch of numbers without gaps, sent a batch at a time: the next goes when the last one was
confirmed, and a batch that is not confirmed goes again. The receiver remembers the last number it took, so each message
arrives once, however often its frame does.
"""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from fila_proto_zmq.commands import Transfer, TransferMessages
from fila_worker.core.keys import pack_u32, pack_u64, u64
from fila_worker.core.limits import Limits

if TYPE_CHECKING:
    from fila_worker.core.store import Batch, Families, Store


class Parcel(msgspec.Struct, array_like=True):
    """A message on its way. Where it came from, in case it is refused: a queue's id, and its place in line there."""

    origin: int
    place: bytes
    transfer: Transfer


class Taken(msgspec.Struct, array_like=True):
    """What the receiver remembers of a sender: the last number it took, and what it refused of the last batch."""

    last: int
    refused: list[int]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Parcel).decode
_decode_taken = msgspec.msgpack.Decoder(Taken).decode


class Way:
    """The way to one shard. Messages ``first`` to ``last`` are unconfirmed; none if ``last < first``."""

    __slots__ = ("first", "last", "origins", "sent_ms")

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last
        self.sent_ms: int | None = None
        """When the batch that is under way was sent."""
        self.origins: set[int] | None = set()
        """Queues whose messages were put on it since it was last empty; None: not known, since a restart."""


class Outbox:
    """All ways to other shards, and what came in from them."""

    def __init__(self, shard: int, families: "Families", limits: Limits) -> None:
        self._shard = shard
        self._limits = limits
        self._families = families
        self.ways: dict[int, Way] = {}
        self.taken: dict[int, Taken] = {}

    def recover(self, store: "Store") -> None:
        """Find what is unconfirmed, and what was taken."""
        for key, value in store.scan(b"inbox:", b"inbox;", self._families.state):
            self.taken[int(key.removeprefix(b"inbox:"))] = _decode_taken(value)
        for key, value in store.scan(b"outbox:", b"outbox;", self._families.state):
            last = u64(value)
            self.ways[int(key.removeprefix(b"outbox:"))] = Way(last + 1, last)
        for to_shard, way in self.ways.items():
            first = next(store.scan(_key(to_shard, 0), _key(to_shard, way.last + 1), self._families.outbox), None)
            if first is not None:
                way.first = u64(first[0], 4)
                way.origins = None

    def add(self, to_shard: int, parcel: Parcel, batch: "Batch") -> None:
        """Put a message on its way."""
        way = self.ways.setdefault(to_shard, Way(1, 0))
        way.last += 1
        if way.origins is not None:
            way.origins.add(parcel.origin)
        batch.put(_key(to_shard, way.last), _encode(parcel), self._families.outbox)
        batch.put(b"outbox:%d" % to_shard, pack_u64(way.last), self._families.state)

    def due(self, now_ms: int) -> list[int]:
        """The shards to which something should be sent now."""
        return [to_shard for to_shard, way in self.ways.items() if way.first <= way.last and self._due_ms(way) <= now_ms]

    def next_due(self) -> int | None:
        """When to look again, Unix ms: 0 for at once, None for not before something is added."""
        times = [self._due_ms(way) for way in self.ways.values() if way.first <= way.last]
        return min(times, default=None)

    def _due_ms(self, way: Way) -> int:
        return 0 if way.sent_ms is None else way.sent_ms + self._limits.transfer_repeat_ms

    def frame(self, to_shard: int, store: "Store", now_ms: int) -> TransferMessages:
        """The next batch on a way. Sees only what is committed."""
        limits, way = self._limits, self.ways[to_shard]
        way.sent_ms = now_ms
        transfers, size_bytes = [], 0
        for _, parcel in islice(self.unconfirmed(to_shard, store, way.last), limits.transfer_messages_max):
            transfers.append(parcel.transfer)
            size_bytes += len(parcel.transfer.record)
            if size_bytes >= limits.transfer_bytes_max:
                break
        return TransferMessages(to_shard, self._shard, way.first, transfers)

    def unconfirmed(self, to_shard: int, store: "Store", last: int) -> Iterator[tuple[int, Parcel]]:
        """The messages on a way up to number ``last``, with their numbers."""
        way = self.ways[to_shard]
        items = store.scan(_key(to_shard, way.first), _key(to_shard, last + 1), self._families.outbox)
        for key, value in items:
            yield u64(key, 4), _decode(value)

    def confirmed(self, to_shard: int, last: int, batch: "Batch") -> None:
        """All up to ``last`` have arrived."""
        way = self.ways[to_shard]
        batch.delete_range(_key(to_shard, way.first), _key(to_shard, last + 1), self._families.outbox)
        way.first = last + 1
        way.sent_ms = None
        if way.first > way.last:
            way.origins = set()

    def carries_from(self, origin: int) -> bool:
        """Whether messages of a queue may be under way, and may come back."""
        return any(way.origins is None or origin in way.origins for way in self.ways.values())

    def last_taken(self, from_shard: int) -> Taken:
        """What came in from a shard so far."""
        return self.taken.get(from_shard) or Taken(0, [])

    def take(self, from_shard: int, last: int, refused: list[int], batch: "Batch") -> Taken:
        """Remember that a batch came in."""
        taken = self.taken[from_shard] = Taken(last, refused)
        batch.put(b"inbox:%d" % from_shard, _encode(taken), self._families.state)
        return taken


def _key(to_shard: int, number: int) -> bytes:
    return pack_u32(to_shard) + pack_u64(number)
