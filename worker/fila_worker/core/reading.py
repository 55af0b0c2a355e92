"""The heads of lanes: what is next, read from disk where memory ends."""

from itertools import islice
from typing import TYPE_CHECKING

from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.record import PLAIN_BYTES, Extension, Record, unpack_record
from fila_worker.core.lanes import ENTRY_BYTES
from fila_worker.core.store import DamageError

if TYPE_CHECKING:
    from fila_worker.core.lanes import Entry, Lane
    from fila_worker.core.state import State


def head(shard: "State", lane: "Lane") -> "Entry":
    """The next message of a lane that has one, read from disk if need be, and left where it is."""
    entry = lane.peek()
    if entry is None:
        refill(shard, lane)
        entry = lane.peek()
    if entry is None:
        raise DamageError(f"lane {lane.id} counts {lane.pending} pending messages and has none")
    return entry


def next_entry(shard: "State", lane: "Lane") -> "Entry":
    """Pop the next message of a lane that has one, from disk if need be."""
    entry = lane.pop()
    if entry is None:
        refill(shard, lane)
        entry = lane.pop()
    if entry is None:
        raise DamageError(f"lane {lane.id} counts {lane.pending} pending messages and has none")
    return entry


def refill(shard: "State", lane: "Lane") -> None:
    """Read on from the lane's tail until something is in memory, or nothing is left."""
    shard.settle_writes()
    families, limits = shard.store.families, shard.settings.limits
    messages_max = limits.refill_messages_max
    bytes_max = min(limits.refill_bytes_max, shard.settings.buffer_bytes // (len(lane.key.queue.ring) + 1))
    while lane.tail is not None and not lane.line:
        items: list[Entry] = []
        bytes_read = 0
        for key, record in islice(shard.store.scan(lane.tail, lane.end, families.messages), messages_max):
            keep = shard.buffered_bytes + len(record) + ENTRY_BYTES <= shard.settings.buffer_bytes
            items.append((key, record if keep else None))
            if keep and key not in lane.leased:
                shard.buffered_bytes += len(record) + ENTRY_BYTES
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
