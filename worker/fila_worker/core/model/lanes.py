"""Lanes: lines of messages whose heads are in memory and whose tails are on disk.

A lane holds the messages of one fairness key that carry the same throttle keys: so a message that has to wait for tokens is in
nobody's way but its own kind's. All its messages lie in the ``messages`` family under the lane's prefix, leased ones too, in
delivery order. In memory is only a *head buffer*::

    returned, line ┃ tail
    in memory      ┃ on disk only: from key ``tail`` on, less what is leased (None: everything is in memory)

``line`` is in order because messages mostly arrive in order; what arrives out of order (a retried message that takes its
old place, a more urgent one) goes to the small heap ``returned``, and the smaller of the two heads is next. When both are
empty and there is a tail, a scan from ``tail`` refills the line. So memory does not grow with the backlog, and no scan ever
starts before its cursor, where the tombstones are.

Rejected: one sorted structure for everything (an insort per retry is cheap, but a lane of a million is not), and a
per-message object (a tuple of key and record is 64 bytes and costs 20 ns to build).
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Set
from heapq import heapify, heappop, heappush
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.record import PLAIN_BYTES, Extension, Record, unpack_record
from fila_worker.core.keys import LAST, after, pack_u64
from fila_worker.core.store import DamageError

if TYPE_CHECKING:
    from fila_worker.core.model.fairness_keys import FairnessKey
    from fila_worker.core.model.lane_tokens import LaneTokens
    from fila_worker.core.model.state import State

Entry: TypeAlias = tuple[bytes, bytes | None]
"""A message key and its record; None where the memory budget did not allow to keep the record."""

_key_of = itemgetter(0)

FEW: Final = 64
"""Messages that are looked for one by one in a line, rather than with a walk along it."""


ENTRY_BYTES: Final = 170
"""What an entry in memory costs beside the bytes of its record: a key, a tuple, three object headers."""


NO_LEASES: Final = cast("set[bytes]", frozenset())
"""What a lane has leased before it had its first: most keys of many wait for theirs, and a set takes 216 bytes."""

NONE_ACKED: Final = cast("list[bytes]", ())
"""What a lane has acked before it had its first, shared in the same way."""

NONE_RETURNED: Final = cast("list[Entry]", ())
"""What was returned to a lane to which nothing was: its memory is shared, too."""

SHORT: Final = 4
"""Messages that a line may have as a list when a turn begins: a list of one takes 100 bytes, a deque 700, but lists are slow to pop from."""


def held_bytes(entries: Iterable[Entry]) -> int:
    """Memory that the records of these entries take."""
    return sum(len(record) + ENTRY_BYTES for _, record in entries if record)


class Lane:
    """One line of messages.

    Invariants: ``stored`` counts the lane's keys in the ``messages`` family; ``leased`` and ``acked`` are parts of them; each of the
    others is in exactly one of ``line``, ``returned`` and the range from ``tail``. What is in ``returned`` comes before the last
    message of ``line``: so a message behind that one is behind all that is in memory.
    """

    __slots__ = (
        "acked",
        "active",
        "blocked",
        "changed",
        "delayed",
        "floor",
        "head_place",
        "id",
        "key",
        "leased",
        "line",
        "look_ms",
        "need",
        "prefix",
        "recorded",
        "retrying",
        "returned",
        "stored",
        "tail",
        "throttle",
        "throttle_keys",
        "token_credit",
        "tokens",
        "tokens_ms",
    )

    def __init__(self, lane_id: int, key: "FairnessKey", throttle_keys: tuple[str, ...] = ()) -> None:
        self.id = lane_id
        self.key = key
        self.throttle_keys = throttle_keys
        self.throttle: LaneTokens | None = None
        """What its messages must have tokens of; None for a lane without throttle keys, and in dead letter queues."""
        self.active = False
        """Whether it has pending messages. Set by the shard with the key's place in the ring, hence a field."""
        self.blocked = False
        """Whether it waits for its throttle."""
        self.head_place = b""
        """The place under which the key's heap of lanes knows it; not above that of its first message."""
        self.token_credit = 0
        """What is left of its turn among the lanes that wait for the same tokens, in millionths of a token."""
        self.tokens = self.tokens_ms = 0
        """What it may spend, in millionths of a token, and when it last got or spent some."""
        self.look_ms: int | None = None
        """When somebody will see whether they lie idle."""
        self.need = 0
        """What its first message takes, as of when it had to wait."""
        self.prefix = pack_u64(lane_id)
        self.stored = 0
        """Messages in the ``messages`` family: pending, leased and acked."""
        self.leased = NO_LEASES
        """Its messages that are leased; to add one, use :meth:`leases`."""
        self.acked = NONE_ACKED
        """Its messages that are acked and still lie on disk (:mod:`core.model.acked_messages`)."""
        self.delayed = 0
        """Messages in the ``delayed`` family that will come to this lane."""
        self.retrying = 0
        """Those of them that were delivered before: their key counts them as in flight."""
        self.line: list[Entry] | deque[Entry] = []
        """The messages in order. A list while it is short, see :data:`SHORT`; a deque from when it was found long."""
        self.returned = NONE_RETURNED
        """A heap of those that came out of order."""
        self.tail: bytes | None = None
        self.floor = self.prefix
        """No message of this lane has a smaller key: where recovery starts to read."""
        self.recorded = False
        """Whether the ``lanes`` family has the lane's record, with a floor that still holds."""
        self.changed = False
        """Whether its counts differ from the last ledger entry."""

    @property
    def end(self) -> bytes:
        """Behind all its messages."""
        return self.prefix + LAST

    @property
    def pending(self) -> int:
        """Messages that could be delivered."""
        return self.stored - len(self.leased) - len(self.acked)

    @property
    def claimed(self) -> Set[bytes]:
        """What is stored and not pending: a scan of the disk passes it over."""
        return self.leased.union(self.acked) if self.acked else self.leased

    @property
    def idle(self) -> bool:
        """Nothing is, and nothing will come by itself."""
        return not (self.stored or self.delayed)

    def leases(self) -> set[bytes]:
        """Its leased messages, to be added to."""
        if self.leased is NO_LEASES:
            self.leased = set()
        return self.leased

    # --- counts: of the lane, and of its queue ---

    def store(self, size_bytes: int) -> None:
        """Count a message that is stored, and pending now. (The enqueue loop inlines this.)"""
        self.stored += 1
        queue = self.key.queue
        queue.pending += 1
        queue.grow(size_bytes)

    def discard(self, size_bytes: int) -> None:
        """Count a pending message that leaves the ``messages`` family."""
        self.stored -= 1
        queue = self.key.queue
        queue.pending -= 1
        queue.shrink(size_bytes)

    def drop(self, pending: int, delayed: int, retrying: int) -> None:
        """Count pending and delayed messages that are removed, all but their sizes. ``retrying``: how many of the delayed ones were retried."""
        self.stored -= pending
        self.delayed -= delayed
        self.retrying -= retrying
        self.key.queue.pending -= pending
        self.key.queue.delayed -= delayed

    def put_off(self, size_bytes: int, *, retrying: bool) -> None:
        """Count a message that is delayed now."""
        self.delayed += 1
        self.retrying += retrying
        queue = self.key.queue
        queue.delayed += 1
        queue.grow(size_bytes)

    def lift(self, size_bytes: int, *, retrying: bool) -> None:
        """Count a delayed message that leaves the ``delayed`` family."""
        self.drop(0, 1, retrying)
        self.key.queue.shrink(size_bytes)

    def unlease(self, message_key: bytes) -> None:
        """Make a leased message pending. The caller puts it in line, or takes it out."""
        self.leased.remove(message_key)
        queue = self.key.queue
        queue.in_flight -= 1
        queue.pending += 1

    def bury(self, message_key: bytes) -> None:
        """Make a leased message an acked one; its queue has counted it out."""
        self.leased.remove(message_key)
        if not self.acked:
            self.acked = []
        self.acked.append(message_key)

    def exhume(self, message_key: bytes) -> None:
        """Take up a stored message that was acked before a restart."""
        self.leases().add(message_key)
        self.bury(message_key)
        self.key.queue.pending -= 1

    def take_acked(self) -> list[bytes]:
        """Return the acked messages, which are removed now."""
        acked, self.acked = self.acked, NONE_ACKED
        self.stored -= len(acked)
        return acked

    # --- the line ---

    def warm(self) -> "Lane":
        """The lane itself: it is an object. A cold one (:class:`core.model.cold_lanes.ColdLane`) becomes one by this."""
        return self

    def add(self, key: bytes, record: bytes | None) -> bool:
        """Put a pending message in line, with its record if memory allows; returns whether it is held in memory now.

        The caller counts it in ``stored``, or takes it out of ``leased``.
        """
        if key < self.floor:
            self.floor = key
            self.recorded = False
        entry = (key, record)
        if self.tail is not None and key >= self.tail:
            return False
        if self.line and key < self.line[-1][0]:
            if self.returned is NONE_RETURNED:
                self.returned = []
            heappush(self.returned, entry)
        elif record is None and self.tail is None:
            self.tail = key  # the last in line, and no room: this is where the tail begins
            return False
        else:
            self.line.append(entry)
        return True

    def pop(self) -> Entry | None:
        """Take the next message out of memory; None when the buffer is empty (there may be a tail to refill it)."""
        line, returned = self.line, self.returned
        if returned and (not line or returned[0] < line[0]):
            return heappop(returned)
        if not line:
            return None
        return line.pop(0) if isinstance(line, list) else line.popleft()

    def lengthen(self) -> deque[Entry]:
        """The line as a deque, because it is long. Not while a loop has the line: that would go on with what is no line any more."""
        line = self.line = deque(self.line)
        return line

    def peek(self) -> Entry | None:
        """The next message, left where it is; None when the buffer is empty."""
        if self.returned and (not self.line or self.returned[0] < self.line[0]):
            return self.returned[0]
        return self.line[0] if self.line else None

    def remove(self, keys: Set[bytes]) -> list[Entry]:
        """Take messages out of the middle of the line; returns those that were in memory."""
        removed = self._cut_few(keys) if len(keys) <= FEW else self._cut_many(keys)
        out_of_order = [entry for entry in self.returned if entry[0] in keys]
        if out_of_order:
            self.returned = [entry for entry in self.returned if entry[0] not in keys]
            heapify(self.returned)
        if self.returned and (not self.line or max(self.returned) > self.line[-1]):
            self.line, self.returned = self.buffered(), NONE_RETURNED
        return removed + out_of_order

    def _cut_few(self, keys: Iterable[bytes]) -> list[Entry]:
        """Find each key in the line by halves: a line may be long."""
        line, removed = self.line, []
        for key in keys:
            index = bisect_left(line, key, key=_key_of)
            if index < len(line) and line[index][0] == key:
                removed.append(line[index])
                del line[index]
        return removed

    def _cut_many(self, keys: Set[bytes]) -> list[Entry]:
        removed = [entry for entry in self.line if entry[0] in keys]
        if removed:
            self.line = [entry for entry in self.line if entry[0] not in keys]
        return removed

    def buffered(self) -> list[Entry]:
        """What is in memory, in delivery order."""
        return sorted((*self.line, *self.returned), key=lambda entry: entry[0])

    def refill(self, items: list[Entry], *, exhausted: bool) -> None:
        """Take what a scan from ``tail`` found; ``exhausted``: there was no more."""
        claimed = self.claimed
        self.line.extend(entry for entry in items if entry[0] not in claimed)
        self.tail = None if exhausted else after(items[-1][0])

    def spill(self, keep: int) -> list[Entry]:
        """Forget all but the first ``keep`` messages of a buffer with more; returns what was dropped."""
        entries = self.buffered()
        kept, dropped = entries[:keep], entries[keep:]
        self.line = kept
        self.returned = NONE_RETURNED
        self.tail = dropped[0][0]
        return dropped

    def clear(self) -> list[Entry]:
        """Forget everything in memory; returns what was dropped, in no order."""
        entries = [*self.line, *self.returned]
        self.line, self.returned = [], NONE_RETURNED
        self.tail = None
        return entries


def head(state: "State", lane: "Lane") -> "Entry":
    """The next message of a lane that has one, read from disk if need be, and left where it is."""
    entry = lane.peek()
    if entry is None:
        refill(state, lane)
        entry = lane.peek()
    if entry is None:
        raise DamageError(f"lane {lane.id} counts {lane.pending} pending messages and has none")
    return entry


def next_entry(state: "State", lane: "Lane") -> "Entry":
    """Pop the next message of a lane that has one, from disk if need be."""
    entry = lane.pop()
    if entry is None:
        refill(state, lane)
        entry = lane.pop()
    if entry is None:
        raise DamageError(f"lane {lane.id} counts {lane.pending} pending messages and has none")
    return entry


class HeadBuffers:
    """The memory that the head buffers of a shard's lanes take together."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        """What the records in memory take. (The enqueue and delivery loops add up what they put in and take out.)"""

    @property
    def room_bytes(self) -> int:
        """What still fits."""
        return self.bytes_max - self.used_bytes

    def hold(self, record: bytes) -> None:
        """Count a record that is kept."""
        self.used_bytes += len(record) + ENTRY_BYTES

    def release(self, record: bytes | None) -> None:
        """Count a record that leaves memory, if it was kept."""
        if record is not None:
            self.used_bytes -= len(record) + ENTRY_BYTES

    def remove(self, lane: Lane, keys: Set[bytes]) -> None:
        """Take messages out of the middle of a lane's line."""
        self.used_bytes -= held_bytes(lane.remove(keys))

    def clear(self, lane: Lane) -> None:
        """Forget what a lane has in memory."""
        self.used_bytes -= held_bytes(lane.clear())

    def spill(self, lane: Lane, keep: int) -> None:
        """Forget all but the first ``keep`` messages of a lane's buffer."""
        self.used_bytes -= held_bytes(lane.spill(keep))


def refill(state: "State", lane: "Lane") -> None:
    """Read on from the lane's tail until something is in memory, or nothing is left."""
    state.settle_writes()
    families, limits, buffers = state.store.families, state.settings.limits, state.buffers
    messages_max = limits.refill_messages_max
    bytes_max = min(limits.refill_bytes_max, buffers.bytes_max // (len(lane.key.queue.ring) + 1))
    claimed = lane.claimed
    while lane.tail is not None and not lane.line:
        items: list[Entry] = []
        bytes_read = 0
        for key, record in islice(state.store.scan(lane.tail, lane.end, families.messages), messages_max):
            keep = len(record) + ENTRY_BYTES <= buffers.room_bytes
            items.append((key, record if keep else None))
            if keep and key not in claimed:
                buffers.hold(record)
            bytes_read += len(record)
            if bytes_read >= bytes_max:
                break
        lane.refill(items, exhausted=len(items) < messages_max and bytes_read < bytes_max)


def unpack_stored(record: bytes) -> Record:
    """Decode a record that was stored.

    One that can't be read is damage, :class:`DamageError`: never the fault of the client whose command came across it, and no
    refusal, because the command may have changed something by then.
    """
    try:
        return unpack_record(record)
    except InvalidFrameError as cause:
        raise DamageError(f"a message's record can't be read: {cause}") from cause


def extension_of(record: bytes) -> Extension:
    """What only some stored records carry; :class:`DamageError` as of :func:`unpack_stored`."""
    if record[:2] == PLAIN_BYTES:
        return Extension()
    return unpack_stored(record).extension


SAMPLE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Records that are read at once; the last one may be larger. Some milliseconds."""


def sample(items: Iterable[tuple[bytes, bytes]], count_max: int) -> tuple[list[tuple[bytes, bytes]], bool]:
    """The first of some stored items, and whether they are all."""
    looked: list[tuple[bytes, bytes]] = []
    left_bytes = SAMPLE_BYTES_MAX
    for key, value in items:
        if len(looked) >= count_max or left_bytes <= 0:
            return looked, False
        looked.append((key, value))
        left_bytes -= len(value)
    return looked, True
