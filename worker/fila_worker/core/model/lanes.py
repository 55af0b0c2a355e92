"""Lanes: lines of messages whose heads are in memory and whose tails are on disk.

A lane holds the messages of one fairness key that carry the same throttle keys. So a message that waits for tokens blocks
only messages that need the same tokens. All messages of a lane are in the ``messages`` family under the lane's prefix, leased
ones too, in delivery order. Memory holds only a *head buffer*::

    returned, line ┃ tail
    in memory      ┃ on disk only: from key ``tail`` on, less what is leased (None: everything is in memory)

``line`` is in order because messages mostly arrive in order. A message that arrives out of order (a retried message that
takes its old place, a more urgent one) goes to the small heap ``returned``. The smaller of the two heads is next. When both
are empty and there is a tail, a scan from ``tail`` refills the line. So memory does not grow with the backlog, and no scan
starts before its cursor, where the tombstones are.

Rejected: one sorted structure for everything (an insort per retry is cheap, but a lane of a million is not), and a
per-message object (a tuple of key and record is 64 bytes and costs 20 ns to build).
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence, Set
from heapq import heapify, heappop, heappush
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.record import BATCHED, PLAIN_BYTES, Extension, Record, unpack_record
from fila_worker.core.keys import LAST, after, pack_u64
from fila_worker.core.store import DamageError

if TYPE_CHECKING:
    from fila_worker.core.model.fairness_keys import FairnessKey
    from fila_worker.core.model.lane_tokens import LaneTokens
    from fila_worker.core.model.state import State

Entry: TypeAlias = tuple[bytes, bytes | None]
"""A message key and its record. The record is None if the memory budget had no room for it."""

_key_of = itemgetter(0)

FEW: Final = 64
"""Up to so many messages are searched one by one in a line. For more, the whole line is walked once."""


ENTRY_BYTES: Final = 170
"""The memory of an entry beside the bytes of its record: a key, a tuple, three object headers."""


NO_LEASES: Final = cast("set[bytes]", frozenset())
"""``leased`` of a lane without a lease so far, shared: with many keys most have none, and a set takes 216 bytes."""

NONE_ACKED: Final = cast("list[bytes]", ())
"""``acked`` of a lane that had no acked message yet, shared for the same reason."""

NONE_RETURNED: Final = cast("list[Entry]", ())
"""``returned`` of a lane to which no message was returned yet, shared for the same reason."""

SHORT: Final = 4
"""The most messages in a list when a turn begins. A list of one takes 100 bytes, a deque 700, but popping a list is slow."""


def held_bytes(entries: Iterable[Entry]) -> int:
    """Return the memory that the records of these entries take."""
    return sum(len(record) + ENTRY_BYTES for _, record in entries if record)


class Lane:
    """One line of messages.

    Invariants: ``stored`` counts the lane's keys in the ``messages`` family. ``leased`` and ``acked`` are parts of them. Each
    of the others is in exactly one of ``line``, ``returned`` and the range from ``tail``. The messages in ``returned`` come
    before the last message of ``line``, so a message behind that one is behind all messages in memory.
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
        """The tokens that its messages need. None for a lane without throttle keys, and in dead letter queues."""
        self.active = False
        """Whether it has pending messages. A field, because the shard sets it together with the key's place in the ring."""
        self.blocked = False
        """Whether it waits for tokens."""
        self.head_place = b""
        """Its place in the key's heap of lanes. Never above the place of its first message."""
        self.token_credit = 0
        """The rest of its turn among the lanes that wait for the same tokens, in millionths of a token."""
        self.tokens = self.tokens_ms = 0
        """The tokens that it may spend, in millionths, and when it last got or spent some."""
        self.look_ms: int | None = None
        """When a check is due whether its tokens lie idle; None: no check is planned."""
        self.need = 0
        """The tokens that its first message takes, as of when it had to wait."""
        self.prefix = pack_u64(lane_id)
        self.stored = 0
        """The number of messages in the ``messages`` family: pending, leased and acked."""
        self.leased = NO_LEASES
        """Its leased messages. To add one, use :meth:`leases`."""
        self.acked = NONE_ACKED
        """Its messages that are acked and still on disk (:mod:`core.model.acked_messages`)."""
        self.delayed = 0
        """The number of messages in the ``delayed`` family that will come to this lane."""
        self.retrying = 0
        """The number of delayed messages that were delivered before. Their key counts them as in flight."""
        self.line: list[Entry] | deque[Entry] = []
        """The messages in order. A list while it is short, see :data:`SHORT`; a deque once it was found long."""
        self.returned = NONE_RETURNED
        """A heap of messages that came out of order."""
        self.tail: bytes | None = None
        self.floor = self.prefix
        """A lower bound of its messages' keys, where recovery starts to read."""
        self.recorded = False
        """Whether the ``lanes`` family has the lane's record, with a floor that is still a lower bound."""
        self.changed = False
        """Whether its counts differ from the last ledger entry."""

    @property
    def end(self) -> bytes:
        """The key behind all its messages."""
        return self.prefix + LAST

    @property
    def pending(self) -> int:
        """The number of messages that could be delivered."""
        return self.stored - len(self.leased) - len(self.acked)

    @property
    def claimed(self) -> Set[bytes]:
        """The messages that are stored and not pending. A scan of the disk leaves them out."""
        return self.leased.union(self.acked) if self.acked else self.leased

    @property
    def idle(self) -> bool:
        """Whether it has no messages, stored or delayed."""
        return not (self.stored or self.delayed)

    def leases(self) -> set[bytes]:
        """Return its set of leased messages, for adding to it."""
        if self.leased is NO_LEASES:
            self.leased = set()
        return self.leased

    # --- counts: of the lane, and of its queue ---

    def store(self, size_bytes: int) -> None:
        """Count a message that is stored and becomes pending. (The enqueue loop inlines this.)"""
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
        """Count pending and delayed messages off, but not their sizes. ``retrying``: the delayed ones with a retry."""
        self.stored -= pending
        self.delayed -= delayed
        self.retrying -= retrying
        self.key.queue.pending -= pending
        self.key.queue.delayed -= delayed

    def put_off(self, size_bytes: int, *, retrying: bool) -> None:
        """Count a message that becomes delayed."""
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
        if queue.partition is not None:
            queue.partition.add_leased(-1)

    def acks(self) -> list[bytes]:
        """Return its list of acked messages, for adding to it. The caller takes them out of ``leased``, and off its queue's
        counts."""
        if self.acked is NONE_ACKED:
            self.acked = []
        return self.acked

    def recover_acked(self, message_key: bytes) -> None:
        """Count a stored message that was acked before a restart."""
        self.acks().append(message_key)
        self.key.queue.pending -= 1

    def take_acked(self) -> list[bytes]:
        """Return the acked messages, and take them off the counts. The caller removes them."""
        acked, self.acked = self.acked, NONE_ACKED
        self.stored -= len(acked)
        return acked

    # --- the line ---

    def warm(self) -> "Lane":
        """Return the lane itself: it is an object. (:class:`core.model.cold_lanes.ColdLane` makes one.)"""
        return self

    def add(self, key: bytes, record: bytes | None) -> bool:
        """Put a pending message in line, with its record if memory allows. Return whether the record is in memory.

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
            self.tail = key  # the last in line, and no room: the tail begins here
            return False
        else:
            self.line.append(entry)
        return True

    def pop(self) -> Entry | None:
        """Take and return the next message in memory; None if the buffer is empty (there may be a tail to refill it)."""
        line, returned = self.line, self.returned
        if returned and (not line or returned[0] < line[0]):
            return heappop(returned)
        if not line:
            return None
        return line.pop(0) if isinstance(line, list) else line.popleft()

    def lengthen(self) -> deque[Entry]:
        """Make a long line a deque, and return it. A loop over the line must continue with the new one."""
        line = self.line = deque(self.line)
        return line

    def peek(self) -> Entry | None:
        """Return the next message, and leave it in place; None if the buffer is empty."""
        if self.returned and (not self.line or self.returned[0] < self.line[0]):
            return self.returned[0]
        return self.line[0] if self.line else None

    def remove(self, keys: Set[bytes]) -> list[Entry]:
        """Take messages out of the middle of the line. Return those that were in memory."""
        removed = self._cut_few(keys) if len(keys) <= FEW else self._cut_many(keys)
        out_of_order = [entry for entry in self.returned if entry[0] in keys]
        if out_of_order:
            self.returned = [entry for entry in self.returned if entry[0] not in keys]
            heapify(self.returned)
        if self.returned and (not self.line or max(self.returned) > self.line[-1]):
            self.line, self.returned = self.buffered(), NONE_RETURNED
        return removed + out_of_order

    def _cut_few(self, keys: Iterable[bytes]) -> list[Entry]:
        """Take each key out of the line by binary search, because a line may be long. Return the messages."""
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
        """Return the messages in memory, in delivery order."""
        return sorted((*self.line, *self.returned), key=lambda entry: entry[0])

    def refill(self, items: list[Entry], *, exhausted: bool) -> None:
        """Add the result of a scan from ``tail``. ``exhausted``: the scan came to the lane's end."""
        claimed = self.claimed
        self.line.extend([entry for entry in items if entry[0] not in claimed] if claimed else items)
        self.tail = None if exhausted else after(items[-1][0])

    def spill(self, keep: int) -> list[Entry]:
        """Forget all but the first ``keep`` messages of the buffer. Return the forgotten ones."""
        entries = self.buffered()
        kept, dropped = entries[:keep], entries[keep:]
        self.line = kept
        self.returned = NONE_RETURNED
        self.tail = dropped[0][0]
        return dropped

    def clear(self) -> list[Entry]:
        """Forget all messages in memory. Return them, in no order."""
        entries = [*self.line, *self.returned]
        self.line, self.returned = [], NONE_RETURNED
        self.tail = None
        return entries


def head(state: "State", lane: "Lane") -> "Entry":
    """Return the next message of a lane that has one, read from disk if need be. The message stays in place."""
    entry = lane.peek()
    if entry is None:
        refill(state, lane)
        entry = lane.peek()
    if entry is None:
        raise DamageError(f"lane {lane.id} counts {lane.pending} pending messages and has none")
    return entry


def next_entry(state: "State", lane: "Lane") -> "Entry":
    """Pop and return the next message of a lane that has one, from disk if need be."""
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
        """The memory of all records. (The enqueue and delivery loops add up what they put in and take out.)"""

    @property
    def room_bytes(self) -> int:
        """The bytes that still fit."""
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
        """Forget the messages that a lane has in memory."""
        self.used_bytes -= held_bytes(lane.clear())

    def spill(self, lane: Lane, keep: int) -> None:
        """Forget all but the first ``keep`` messages of a lane's buffer."""
        self.used_bytes -= held_bytes(lane.spill(keep))


def refill(state: "State", lane: "Lane") -> None:
    """Read on from the lane's tail until a message is in memory, or none is left."""
    state.settle_writes()
    families, limits, buffers, jobs = state.store.families, state.settings.limits, state.buffers, state.jobs
    messages_max = min(limits.refill_messages_max, max(limits.refill_messages_min, jobs.left))
    bytes_max = min(limits.refill_bytes_max, buffers.bytes_max // (len(lane.key.queue.ring) + 1))
    claimed = lane.claimed
    while lane.tail is not None and not lane.line:
        items: list[Entry] = []
        bytes_read, held, room = 0, 0, buffers.room_bytes
        for key, record in islice(state.store.scan(lane.tail, lane.end, families.messages), messages_max):
            size = len(record)
            if held + size + ENTRY_BYTES > room:
                items.append((key, None))
            else:
                items.append((key, record))
                if key not in claimed:
                    held += size + ENTRY_BYTES
            bytes_read += size
            if bytes_read >= bytes_max:
                break
        buffers.used_bytes += held
        jobs.charge(len(items))
        lane.refill(items, exhausted=len(items) < messages_max and bytes_read < bytes_max)


def unpack_stored(record: bytes) -> Record:
    """Return a stored record, decoded.

    A record that can't be read is damage, :class:`DamageError`: not the fault of the client whose command met it, and not a
    refusal, because the command may have changed something by then.
    """
    try:
        return unpack_record(record)
    except InvalidFrameError as cause:
        raise DamageError(f"a message's record can't be read: {cause}") from cause


def extension_of(record: bytes) -> Extension:
    """Return the fields that only some stored records have. Raise :class:`DamageError` as :func:`unpack_stored` does."""
    if record[:2] == PLAIN_BYTES:
        return Extension()
    return unpack_stored(record).extension


def tokens_of(records: Sequence[bytes]) -> dict[int, bytes]:
    """Return the tokens of the batches that messages are members of, by their indexes."""
    members = {index: extension_of(record).batch for index, record in enumerate(records) if record[1] & BATCHED}
    return {index: token for index, token in members.items() if token is not None}


SAMPLE_BYTES_MAX: Final = 4 * 1024 * 1024
"""The bytes of records that are read at once, which takes some milliseconds. The last record may exceed them."""


def sample(items: Iterable[tuple[bytes, bytes]], count_max: int) -> tuple[list[tuple[bytes, bytes]], bool]:
    """Return the first of some stored items, and whether they are all."""
    looked: list[tuple[bytes, bytes]] = []
    left_bytes = SAMPLE_BYTES_MAX
    for key, value in items:
        if len(looked) >= count_max or left_bytes <= 0:
            return looked, False
        looked.append((key, value))
        left_bytes -= len(value)
    return looked, True
