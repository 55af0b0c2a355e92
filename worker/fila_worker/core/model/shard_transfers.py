"""The outbox of a shard: messages on their way to queues of other shards, numbered and durable until confirmed.

A message is identified by its sender, its *stream* and its number. A stream lasts from one opening of the sender's store to
the next. Numbers may be used again after a power cut or from a restored copy, but not in the same stream, because the name of
a stream has the epoch and some entropy. For each destination the streams are sent one after the other, a batch at a time. The
next batch is sent when the last one was confirmed, and a batch that is not confirmed is sent again. The receiver remembers
the last number that it took from each stream, so each message arrives once, however often its frame does.

A receiver may forget a stream when no message of it can come back from the sender's disk. That holds for all streams before
the oldest one that was unconfirmed at an opening, because an opening is synced. ``since`` names that stream.

While all shards are cut for a backup the outbox *rests*: it sends nothing and forgets nothing. So the cut of the sender has
each message that is on its way. A message that leaves its queue after that cut is not in the cut of its receiver.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from fila_proto_zmq.commands import EnqueueOutcome, Fault, Transfer, TransferMessages
from fila_worker.core.due_time import AT_ONCE, DueTime
from fila_worker.core.keys import FIRST, LAST, pack_u32, pack_u64, range_of, u64
from fila_worker.core.settings import Limits

if TYPE_CHECKING:
    from fila_worker.core.store import Families, Store, StoreBatch


class Owner(msgspec.Struct, array_like=True, frozen=True):
    """The receiver of the outcome of an enqueue by the broker: a feature, and a name that is on the shard it hashes to."""

    feature: str
    name: str
    number: int = 0
    """Which of the owner's enqueues it is, if it may have several."""


class OutboxEntry(msgspec.Struct, array_like=True):
    """A message on its way. For a refusal it has its origin: a queue's id, and its place in line there.

    An enqueue by the broker has an owner instead, and the origin :data:`BROKER`.
    """

    origin: int
    place: bytes
    transfer: Transfer
    owner: Owner | None = None
    outcome: EnqueueOutcome | None = None
    """The outcome of the enqueue, if it was carried out and the owner has not got it yet: after a reshard."""
    tries: int = 0
    """How often the enqueue was carried out without success."""


class InboxCursor(msgspec.Struct, array_like=True):
    """The receiver's state of a stream: the last number that it took, and the latest numbers of which it stored nothing.

    The sender's disk may lack what this shard confirmed: after a power cut the sender asks for early numbers again.
    """

    last: int
    refused: list[int]
    outcomes: list[EnqueueOutcome] = []
    """Of the enqueues in the last batch."""
    forgotten: int = 0
    """Up to this number it is not known what was refused."""

    def stored(self, number: int) -> bool:
        """Return whether a message is stored for certain. What is not known counts as refused: it may come twice."""
        return self.forgotten < number <= self.last and number not in self.refused

    def confirms(self, numbers: range) -> tuple[list[int], list[EnqueueOutcome]]:
        """Return what was refused of a batch, and the outcomes of its enqueues that are still known."""
        refused = {*self.refused, *range(numbers.start, self.forgotten + 1)}
        return [each for each in numbers if each in refused], [each for each in self.outcomes if each.number in numbers]

    def forget(self, before: int, refusals_max: int) -> None:
        """Keep all refusals of the batch that begins with a number, and the latest ones before it."""
        early = [each for each in self.refused if each < before][:-refusals_max]
        if early:
            self.forgotten = early[-1]
            del self.refused[: len(early)]


BROKER: Final = 0
"""The origin of messages that were in no queue. Queues have ids from 1 on."""

INBOX: Final = b"inbox:"
OUTBOX: Final = b"outbox:"
"""A shard and a stream follow. The value is what was taken of the stream, or the last number given out in it."""

STREAM_BYTES: Final = 12
_NUMBER_AT: Final = 4 + STREAM_BYTES
OUTBOX_KEY_BYTES: Final = _NUMBER_AT + 8


def stream_of(epoch: int, entropy: int) -> bytes:
    """Return the name of the stream that begins with an opening. Streams of one store sort by age."""
    return pack_u32(epoch) + pack_u64(entropy)


encode_entry = msgspec.msgpack.Encoder().encode
decode_outbox = msgspec.msgpack.Decoder(OutboxEntry).decode
decode_cursor = msgspec.msgpack.Decoder(InboxCursor).decode


class Stretch:
    """The unconfirmed messages of one stream, from number ``first`` to ``last``."""

    __slots__ = ("first", "last", "stream")

    def __init__(self, stream: bytes, first: int, last: int) -> None:
        self.stream = stream
        self.first = first
        self.last = last


class PeerChannel:
    """The channel to one shard: its unconfirmed messages, the oldest stream first."""

    __slots__ = ("last", "origins", "sent_ms", "since", "stretches")

    def __init__(self, since: bytes) -> None:
        self.since = since
        """The oldest stream with unconfirmed messages when the store was opened."""
        self.stretches: deque[Stretch] = deque()
        self.last = 0
        """The number of messages put on it in the stream of this opening."""
        self.sent_ms: int | None = None
        """When the batch in flight was sent."""
        self.origins: set[int] | None = set()
        """Queues whose messages were put on it since it was last empty. None after a restart: not known."""


class ShardTransfers:
    """All channels to other shards, and the transfers from them. ``stream``: the stream of this opening."""

    def __init__(self, shard: int, stream: bytes, families: "Families", limits: Limits) -> None:
        self._shard = shard
        self._stream = stream
        self._limits = limits
        self._families = families
        self.timer = DueTime()
        self.ways: dict[int, PeerChannel] = {}
        self.taken: dict[int, dict[bytes, InboxCursor]] = {}
        """The transfers from other shards, by sender and stream."""
        self.watchers: set[Callable[[int, int, Fault | None], None]] = set()
        """Functions that are called for each message of this opening that came back: the shard that refused it, its number,
        and why."""
        self._rests_until_ms = 0

    def rest(self, until_ms: int) -> None:
        """Send and forget nothing until a time, Unix ms; 0: continue now."""
        self._rests_until_ms = until_ms
        if not until_ms:
            for way in self.ways.values():
                way.sent_ms = None  # its confirmation may have come during the rest
            self.timer.by(AT_ONCE)

    def rests(self, now_ms: int) -> bool:
        """Return whether the outbox rests."""
        return now_ms < self._rests_until_ms

    def recover(self, store: "Store", batch: "StoreBatch") -> None:
        """Read what is unconfirmed, and what was taken."""
        state = self._families.state
        for key, value in store.scan(*range_of(INBOX), state):
            from_shard, stream = _parse(key.removeprefix(INBOX))
            self.taken.setdefault(from_shard, {})[stream] = decode_cursor(value)
        for key, value in store.scan(*range_of(OUTBOX), state):
            to_shard, stream = _parse(key.removeprefix(OUTBOX))
            last = u64(value)
            begin, end = outbox_key(to_shard, stream, 0), outbox_key(to_shard, stream, last + 1)
            first = next(store.scan(begin, end, self._families.outbox), None)
            if first is None:
                batch.delete(key, state)
                continue
            way = self.ways.setdefault(to_shard, PeerChannel(stream))  # in the order of epochs: the first is the oldest
            way.stretches.append(Stretch(stream, u64(first[0], _NUMBER_AT), last))
            way.origins = None
            self.timer.by(AT_ONCE)

    def add(self, to_shard: int, parcel: OutboxEntry, batch: "StoreBatch") -> None:
        """Put a message on the channel to its shard."""
        way = self.ways.setdefault(to_shard, PeerChannel(self._stream))
        way.last += 1
        self.timer.by(self._due_ms(way))
        if not way.stretches or way.stretches[-1].stream != self._stream:
            way.stretches.append(Stretch(self._stream, way.last, way.last))
        way.stretches[-1].last = way.last
        if way.origins is not None:
            way.origins.add(parcel.origin)
        batch.put(outbox_key(to_shard, self._stream, way.last), encode_entry(parcel), self._families.outbox)
        batch.put(stream_key(to_shard, self._stream), pack_u64(way.last), self._families.state)

    def due(self, now_ms: int) -> list[int]:
        """Return the shards to which a batch is to be sent."""
        if self.rests(now_ms):
            return []
        return [to_shard for to_shard, way in self.ways.items() if way.stretches and self._due_ms(way) <= now_ms]

    def next_due(self) -> int | None:
        """Return when something is due next, Unix ms: 0 for at once, None for not before a message is added."""
        due_ms = min((self._due_ms(way) for way in self.ways.values() if way.stretches), default=None)
        return None if due_ms is None else max(due_ms, self._rests_until_ms)

    def _due_ms(self, way: PeerChannel) -> int:
        return 0 if way.sent_ms is None else way.sent_ms + self._limits.transfer_repeat_ms

    def frame(self, to_shard: int, store: "Store", now_ms: int) -> TransferMessages:
        """Return the next batch for a shard. Only committed messages are seen."""
        limits, way = self._limits, self.ways[to_shard]
        way.sent_ms = now_ms
        stretch = way.stretches[0]
        transfers, size_bytes = [], 0
        for _, parcel in islice(self.unconfirmed(to_shard, store, stretch.last), limits.transfer_messages_max):
            transfers.append(parcel.transfer)
            size_bytes += size_of(parcel.transfer)
            if size_bytes >= limits.transfer_bytes_max:
                break
        return TransferMessages(to_shard, self._shard, stretch.first, transfers, stretch.stream, way.since)

    def unconfirmed(self, to_shard: int, store: "Store", last: int) -> Iterator[tuple[int, OutboxEntry]]:
        """Yield the messages of a channel's oldest stream up to number ``last``, with their numbers."""
        stretch = self.ways[to_shard].stretches[0]
        begin, end = outbox_key(to_shard, stretch.stream, stretch.first), outbox_key(to_shard, stretch.stream, last + 1)
        for key, value in store.scan(begin, end, self._families.outbox):
            yield u64(key, _NUMBER_AT), decode_outbox(value)

    def awaits(self, to_shard: int, stream: bytes, last: int) -> bool:
        """Return whether a confirmation of a stream up to number ``last`` is new."""
        way = self.ways.get(to_shard)
        stretch = way.stretches[0] if way is not None and way.stretches else None
        return stretch is not None and stretch.stream == stream and stretch.first <= last <= stretch.last

    def confirmed(self, to_shard: int, last: int, batch: "StoreBatch") -> None:
        """Remove the messages of a channel's oldest stream up to number ``last``: they have arrived."""
        way = self.ways[to_shard]
        stretch = way.stretches[0]
        begin, end = outbox_key(to_shard, stretch.stream, stretch.first), outbox_key(to_shard, stretch.stream, last + 1)
        batch.delete_range(begin, end, self._families.outbox)
        stretch.first = last + 1
        way.sent_ms = None
        if stretch.first > stretch.last:
            way.stretches.popleft()
        if not way.stretches:
            way.origins = set()
        else:
            self.timer.by(AT_ONCE)

    def last_number(self, to_shard: int) -> int:
        """Return the number of the last message that was put on a channel since the store was opened."""
        return self.ways[to_shard].last

    def has_arrived(self, to_shard: int, number: int) -> bool:
        """Return whether the messages of this opening up to a number are confirmed."""
        stretches = self.ways[to_shard].stretches
        return not stretches or (stretches[0].stream == self._stream and stretches[0].first > number)

    def carries_from(self, origin: int) -> bool:
        """Return whether messages of a queue may be on their way, and may come back."""
        return bool(self.carriers_of(origin))

    def carriers_of(self, origin: int) -> list[int]:
        """Return the shards to which messages of a queue may be on their way."""
        return [shard for shard, way in self.ways.items() if way.origins is None or origin in way.origins]

    @property
    def carries_older(self) -> bool:
        """Whether messages of an earlier opening may be on their way."""
        return any(way.origins is None for way in self.ways.values())

    def carries_enqueues(self, to_shard: int) -> bool:
        """Return whether enqueues by the broker may be on a channel."""
        origins = self.ways[to_shard].origins
        return origins is None or BROKER in origins

    def last_taken(self, from_shard: int, stream: bytes) -> InboxCursor:
        """Return what came in of a shard's stream so far."""
        return self.taken.get(from_shard, {}).get(stream) or InboxCursor(0, [])

    def take(self, command: TransferMessages, taken: InboxCursor, batch: "StoreBatch") -> None:
        """Remember what of a batch came in."""
        self.taken.setdefault(command.from_shard, {})[command.stream] = taken
        batch.put(INBOX + pack_u32(command.from_shard) + command.stream, encode_entry(taken), self._families.state)

    def forget_streams(self, from_shard: int, since: bytes, batch: "StoreBatch") -> None:
        """Forget the streams of a shard from which nothing more can come, except the last few."""
        streams = self.taken.get(from_shard, {})
        past = sorted(each for each in streams if each < since)
        for stream in past[: max(0, len(past) - self._limits.past_streams_max)]:
            del streams[stream]
            batch.delete(INBOX + pack_u32(from_shard) + stream, self._families.state)


def size_of(transfer: Transfer) -> int:
    """Return the bytes of a transfer, approximately."""
    return len(transfer.record) + (sum(map(len, transfer.enqueue.envelopes)) if transfer.enqueue is not None else 0)


def stored_entries(store: "Store", after: bytes) -> Iterator[tuple[bytes, int, bytes, int, OutboxEntry]]:
    """Yield the stored messages of all channels behind a key: ``(key, to_shard, stream, number, entry)``."""
    for key, value in store.scan(after + b"\0" if after else FIRST, LAST, store.families.outbox):
        to_shard, rest = _parse(key)
        yield key, to_shard, rest[:STREAM_BYTES], u64(key, _NUMBER_AT), decode_outbox(value)


def outbox_key(to_shard: int, stream: bytes, number: int) -> bytes:
    """Return the key of a stored message."""
    return pack_u32(to_shard) + stream + pack_u64(number)


def stream_key(to_shard: int, stream: bytes) -> bytes:
    """Return under which name the state has the last number given out in a stream."""
    return OUTBOX + pack_u32(to_shard) + stream


def _parse(key: bytes) -> tuple[int, bytes]:
    return int.from_bytes(key[:4], "big"), key[4:]
