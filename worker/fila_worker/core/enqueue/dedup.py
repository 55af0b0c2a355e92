"""Dedup ids: producers give them to messages, so that the same message is stored once however often it is sent.

Each dedup id has a durable record with the id that the message got. The ids that came together have one entry of the due
index, which lists them and removes them when their window ends. The fate of the messages meanwhile does not matter.

A message that may be replaced (:mod:`core.enqueue.replace`) has its key in the record, too. A replacement begins the window
of its id again, so an id that is sent again and again has one message.

All ids of a batch are looked up at once. For a new id, as most are, a Bloom filter over each memtable and file answers in a
third of a microsecond. Rejected: a cache of recent ids in memory, which would need every id of the window.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from struct import Struct
from typing import TYPE_CHECKING, Final

import msgspec

from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.ids import low_half, sequence
from fila_proto_zmq.limits import DEDUP_ID_BYTES_MAX, DEDUP_WINDOW_MS_MAX
from fila_worker.core.enqueue.policy import spread
from fila_worker.core.keys import MESSAGE_KEY_BYTES, pack_u32, pack_u64, u64
from fila_worker.core.keys import after as following
from fila_worker.core.model.due_index import DueKind, on_the_grid

if TYPE_CHECKING:
    from fila_proto_zmq.commands import Enqueue
    from fila_worker.core.model.due_index import DueEntry
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

_RECORD: Final = Struct(">QQQ")
RECORD_BYTES: Final = _RECORD.size
PLACED_BYTES: Final = RECORD_BYTES + MESSAGE_KEY_BYTES
"""The length of a record, without and with the message's key."""
_RENEWED: Final = 1 << 63
"""Marks the number of an entry for a window that began again. No sequence number has this bit."""
_QUEUE_BYTES: Final = 4
_KEY_BYTES_MAX: Final = _QUEUE_BYTES + DEDUP_ID_BYTES_MAX
encode_ids = msgspec.msgpack.Encoder().encode
decode_ids = msgspec.msgpack.Decoder(list[str]).decode
_decode_known = msgspec.msgpack.Decoder(list[tuple[str, int, int, int]]).decode


def check_window(window_ms: int) -> None:
    """Raise :class:`InvalidArgumentError` for a window that is out of bounds. 0 stands for the broker's window."""
    if not 0 <= window_ms <= DEDUP_WINDOW_MS_MAX:
        raise InvalidArgumentError(
            f"dedup window of {window_ms} ms: use 1 to {DEDUP_WINDOW_MS_MAX}, or 0 for the broker's ([limits] "
            "dedup_window_ms)"
        )


class Dedup:
    """The dedup ids of one batch, and which of them are known. A message with an empty id has no dedup id."""

    __slots__ = ("_ends", "_expires_ms", "_keys", "_prefix", "_state", "ids", "places", "seen")

    def __init__(self, state: "State", queue: "Queue", command: "Enqueue", now_ms: int) -> None:
        self._state = state
        self._prefix = prefix = pack_u32(queue.id)
        self._expires_ms = now_ms + (command.dedup_window_ms or state.settings.dedup_window_ms)
        self.ids = list(spread(command.dedup_id, len(command.envelopes)))
        """One id for each message."""
        self._keys = {name: prefix + name.encode() for name in self.ids if name}
        self.places: dict[str, bytes] = {}
        """The keys of the messages of known dedup ids, as far as they are remembered."""
        self._ends: dict[str, int] = {}
        self.seen = self._look_up(now_ms) if self._keys else {}
        """The known dedup ids, each with the two halves of the id of its first message."""

    def _look_up(self, now_ms: int) -> dict[str, tuple[int, int]]:
        state = self._state
        state.settle_writes()
        records = state.store.get_many(list(self._keys.values()), state.store.families.dedup)
        seen = {}
        for name, record in zip(self._keys, records, strict=True):
            if record is not None:
                expires_ms, high, low = _RECORD.unpack_from(record)
                if expires_ms > now_ms:
                    seen[name] = (high, low)
                    self._ends[name] = expires_ms
                    if len(record) > RECORD_BYTES:
                        self.places[name] = record[RECORD_BYTES:]
        return seen

    @property
    def usual(self) -> bool:
        """Whether no id comes twice, and none is too long."""
        longest = max(map(len, self._keys.values()), default=0)
        return longest <= _KEY_BYTES_MAX and len(self._keys) + self.ids.count("") == len(self.ids)

    def remember(self, ids: Sequence[str], high: int, first: int) -> None:
        """Make dedup ids durable whose messages were stored with sequence numbers from ``first`` on."""
        state, keys, expires_ms = self._state, self._keys, self._expires_ms
        put, dedup, pack = state.batch.put, state.store.families.dedup, _RECORD.pack
        for name, low in zip(ids, count(low_half(first)), strict=False):
            if name:
                put(keys[name], pack(expires_ms, high, low), dedup)
        names = [name for name in ids if name]
        most = state.settings.limits.dedup_entry_ids_max
        for start in range(0, len(names), most):
            subject = self._prefix + pack_u64(first + start)
            listed = encode_ids(names[start : start + most])
            state.due_index.add(on_the_grid(expires_ms), DueKind.FORGET, subject, state.batch, listed)

    def place(self, name: str, high: int, low: int, message_key: bytes) -> None:
        """Remember the key of a message, too. Its id is among those that are remembered with this batch."""
        self.places[name] = message_key
        self._ends[name] = self._expires_ms
        self._state.batch.put(
            self._keys[name], _RECORD.pack(self._expires_ms, high, low) + message_key, self._state.store.families.dedup
        )

    def renew(self, name: str, message_key: bytes) -> None:
        """Begin the window of a known id again."""
        state, ended_ms = self._state, self._ends[name]
        high, low = self.seen[name]
        subject = self._prefix + pack_u64(sequence(low) | _RENEWED)
        before, due_ms = on_the_grid(ended_ms), on_the_grid(self._expires_ms)
        if before != due_ms:
            state.due_index.remove(before, DueKind.FORGET, subject, state.batch)
        state.due_index.add(due_ms, DueKind.FORGET, subject, state.batch, encode_ids([name]))
        self.place(name, high, low, message_key)


def known_ids(state: "State", queue: "Queue", after: bytes, count: int, now_ms: int) -> tuple[bytes, bytes | None]:
    """Return up to ``count`` dedup ids of a queue behind a key, for :func:`take_known`, and where to continue; None: at the end."""
    prefix, dedup = pack_u32(queue.id), state.store.families.dedup
    found = list(islice(state.store.scan(after or prefix, pack_u32(queue.id + 1), dedup), count))
    known = [(key[_QUEUE_BYTES:].decode(), *_RECORD.unpack_from(record)) for key, record in found]
    return encode_ids([each for each in known if each[1] > now_ms]), (
        following(found[-1][0]) if len(found) == count else None
    )


def take_known(state: "State", queue: "Queue", packed: bytes, now_ms: int) -> None:
    """Know dedup ids that another partition of the queue knows. The places of their messages are found by their ids."""
    prefix, dedup = pack_u32(queue.id), state.store.families.dedup
    by_due: defaultdict[int, list[str]] = defaultdict(list)
    for name, expires_ms, high, low in _decode_known(packed):
        if expires_ms > now_ms:
            state.batch.put(prefix + name.encode(), _RECORD.pack(expires_ms, high, low), dedup)
            by_due[on_the_grid(expires_ms)].append(name)
    for due_ms, names in by_due.items():
        state.counters.sequence += 1
        state.due_index.add(
            due_ms, DueKind.FORGET, prefix + pack_u64(state.counters.sequence), state.batch, encode_ids(names)
        )


def forget(state: "State", due: "Iterable[DueEntry]", now_ms: int) -> None:
    """Remove the ids in some entries, except ids that were stored again meanwhile: these have a later entry."""
    dedup = state.store.families.dedup
    keys = [key for entry in due for key in _keys(entry)]
    for key, record in zip(keys, state.store.get_many(keys, dedup), strict=True):
        if record is not None and u64(record) <= now_ms:
            state.batch.delete(key, dedup)


def _keys(entry: "DueEntry") -> "Iterator[bytes]":
    prefix = entry.subject[:_QUEUE_BYTES]
    for name in decode_ids(entry.note):
        yield prefix + name.encode()
