"""What a shard has for others: messages on their way to queues of other shards, numbered and durable until confirmed.

A message is known by its sender, its *stream* and its number. A stream lasts from one opening of the sender's store to the next:
numbers may be given out again after a power cut or from a restored copy, but never in the same stream, because its name has
the epoch and some entropy. For each destination the streams go one after the other, a batch at a time: the next goes when the last
one was confirmed, and a batch that is not confirmed goes again. The receiver remembers the last number it took of each stream,
so each message arrives once, however often its frame does.

What a receiver remembers of a stream it may forget when the sender's disk has nothing of it that could come back. That is so for
all streams before the oldest that is unconfirmed at an opening, which is synced: ``since`` says which one that is.
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from fila_proto_zmq.commands import Transfer, TransferMessages
from fila_worker.core.keys import pack_u32, pack_u64, u64
from fila_worker.core.settings import Limits
from fila_worker.core.timer import AT_ONCE, Timer

if TYPE_CHECKING:
    from fila_worker.core.store import Batch, Families, Store


class OutboxEntry(msgspec.Struct, array_like=True):
    """A message on its way. Where it came from, in case it is refused: a queue's id, and its place in line there."""

    origin: int
    place: bytes
    transfer: Transfer


class InboxCursor(msgspec.Struct, array_like=True):
    """What the receiver remembers of a sender: the last number it took, and what it refused of the last batch."""

    last: int
    refused: list[int]


_INBOX: Final = b"inbox:"
_OUTBOX: Final = b"outbox:"
"""Followed by a shard and a stream: what was taken of it, or the last number given out in it."""

STREAM_BYTES: Final = 12
_NUMBER_AT: Final = 4 + STREAM_BYTES


def stream_of(epoch: int, entropy: int) -> bytes:
    """The name of the stream that begins with an opening. Streams of one store sort by age."""
    return pack_u32(epoch) + pack_u64(entropy)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(OutboxEntry).decode
_decode_taken = msgspec.msgpack.Decoder(InboxCursor).decode


class Stretch:
    """Messages ``first`` to ``last`` of one stream, which are unconfirmed."""

    __slots__ = ("first", "last", "stream")

    def __init__(self, stream: bytes, first: int, last: int) -> None:
        self.stream = stream
        self.first = first
        self.last = last


class PeerChannel:
    """The way to one shard: what is unconfirmed, the oldest stream first."""

    __slots__ = ("last", "origins", "sent_ms", "since", "stretches")

    def __init__(self, since: bytes) -> None:
        self.since = since
        """The oldest stream of which anything was unconfirmed when the store was opened."""
        self.stretches: deque[Stretch] = deque()
        self.last = 0
        """Messages put on it in the stream of this opening."""
        self.sent_ms: int | None = None
        """When the batch that is under way was sent."""
        self.origins: set[int] | None = set()
        """Queues whose messages were put on it since it was last empty; None: not known, since a restart."""


class Outbox:
    """All ways to other shards, and what came in from them. ``stream``: the name of this opening's."""

    def __init__(self, shard: int, stream: bytes, families: "Families", limits: Limits) -> None:
        self._shard = shard
        self._stream = stream
        self._limits = limits
        self._families = families
        self.timer = Timer()
        self.ways: dict[int, PeerChannel] = {}
        self.taken: dict[int, dict[bytes, InboxCursor]] = {}
        """What came in, by the shard that sent it and its stream."""

    def recover(self, store: "Store", batch: "Batch") -> None:
        """Find what is unconfirmed, and what was taken."""
        state = self._families.state
        for key, value in store.scan(_INBOX, _after(_INBOX), state):
            from_shard, stream = _parse(key.removeprefix(_INBOX))
            self.taken.setdefault(from_shard, {})[stream] = _decode_taken(value)
        for key, value in store.scan(_OUTBOX, _after(_OUTBOX), state):
            to_shard, stream = _parse(key.removeprefix(_OUTBOX))
            last = u64(value)
            begin, end = _key(to_shard, stream, 0), _key(to_shard, stream, last + 1)
            first = next(store.scan(begin, end, self._families.outbox), None)
            if first is None:
                batch.delete(key, state)
                continue
            way = self.ways.setdefault(to_shard, PeerChannel(stream))  # in the order of their epochs: the first is the oldest
            way.stretches.append(Stretch(stream, u64(first[0], _NUMBER_AT), last))
            way.origins = None
            self.timer.by(AT_ONCE)

    def add(self, to_shard: int, parcel: OutboxEntry, batch: "Batch") -> None:
        """Put a message on its way."""
        way = self.ways.setdefault(to_shard, PeerChannel(self._stream))
        way.last += 1
        self.timer.by(self._due_ms(way))
        if not way.stretches or way.stretches[-1].stream != self._stream:
            way.stretches.append(Stretch(self._stream, way.last, way.last))
        way.stretches[-1].last = way.last
        if way.origins is not None:
            way.origins.add(parcel.origin)
        batch.put(_key(to_shard, self._stream, way.last), _encode(parcel), self._families.outbox)
        batch.put(_OUTBOX + pack_u32(to_shard) + self._stream, pack_u64(way.last), self._families.state)

    def due(self, now_ms: int) -> list[int]:
        """The shards to which something should be sent now."""
        return [to_shard for to_shard, way in self.ways.items() if way.stretches and self._due_ms(way) <= now_ms]

    def next_due(self) -> int | None:
        """When to look again, Unix ms: 0 for at once, None for not before something is added."""
        return min((self._due_ms(way) for way in self.ways.values() if way.stretches), default=None)

    def _due_ms(self, way: PeerChannel) -> int:
        return 0 if way.sent_ms is None else way.sent_ms + self._limits.transfer_repeat_ms

    def frame(self, to_shard: int, store: "Store", now_ms: int) -> TransferMessages:
        """The next batch on a way. Sees only what is committed."""
        limits, way = self._limits, self.ways[to_shard]
        way.sent_ms = now_ms
        stretch = way.stretches[0]
        transfers, size_bytes = [], 0
        for _, parcel in islice(self.unconfirmed(to_shard, store, stretch.last), limits.transfer_messages_max):
            transfers.append(parcel.transfer)
            size_bytes += len(parcel.transfer.record)
            if size_bytes >= limits.transfer_bytes_max:
                break
        return TransferMessages(to_shard, self._shard, stretch.first, transfers, stretch.stream, way.since)

    def unconfirmed(self, to_shard: int, store: "Store", last: int) -> Iterator[tuple[int, OutboxEntry]]:
        """The messages of a way's oldest stream up to number ``last``, with their numbers."""
        stretch = self.ways[to_shard].stretches[0]
        begin, end = _key(to_shard, stretch.stream, stretch.first), _key(to_shard, stretch.stream, last + 1)
        for key, value in store.scan(begin, end, self._families.outbox):
            yield u64(key, _NUMBER_AT), _decode(value)

    def awaits(self, to_shard: int, stream: bytes, last: int) -> bool:
        """Whether a confirmation up to number ``last`` of a stream is news."""
        way = self.ways.get(to_shard)
        stretch = way.stretches[0] if way is not None and way.stretches else None
        return stretch is not None and stretch.stream == stream and stretch.first <= last <= stretch.last

    def confirmed(self, to_shard: int, last: int, batch: "Batch") -> None:
        """All of a way's oldest stream up to ``last`` have arrived."""
        way = self.ways[to_shard]
        stretch = way.stretches[0]
        begin, end = _key(to_shard, stretch.stream, stretch.first), _key(to_shard, stretch.stream, last + 1)
        batch.delete_range(begin, end, self._families.outbox)
        stretch.first = last + 1
        way.sent_ms = None
        if stretch.first > stretch.last:
            way.stretches.popleft()
        if not way.stretches:
            way.origins = set()
        else:
            self.timer.by(AT_ONCE)

    def carries_from(self, origin: int) -> bool:
        """Whether messages of a queue may be under way, and may come back."""
        return any(way.origins is None or origin in way.origins for way in self.ways.values())

    def last_taken(self, from_shard: int, stream: bytes) -> InboxCursor:
        """What came in of a shard's stream so far."""
        return self.taken.get(from_shard, {}).get(stream) or InboxCursor(0, [])

    def take(self, command: TransferMessages, last: int, refused: list[int], batch: "Batch") -> InboxCursor:
        """Remember that a batch came in, up to number ``last``."""
        taken = InboxCursor(last, refused)
        self.taken.setdefault(command.from_shard, {})[command.stream] = taken
        batch.put(_INBOX + pack_u32(command.from_shard) + command.stream, _encode(taken), self._families.state)
        return taken

    def forget_streams(self, from_shard: int, since: bytes, batch: "Batch") -> None:
        """Forget the streams of a shard of which nothing can come any more, but for the last few."""
        streams = self.taken.get(from_shard, {})
        past = sorted(each for each in streams if each < since)
        for stream in past[: max(0, len(past) - self._limits.past_streams_max)]:
            del streams[stream]
            batch.delete(_INBOX + pack_u32(from_shard) + stream, self._families.state)


def _key(to_shard: int, stream: bytes, number: int) -> bytes:
    return pack_u32(to_shard) + stream + pack_u64(number)


def _parse(key: bytes) -> tuple[int, bytes]:
    return int.from_bytes(key[:4], "big"), key[4:]


def _after(prefix: bytes) -> bytes:
    return prefix[:-1] + bytes((prefix[-1] + 1,))
