"""Single values of the shard, the runtime config, and what is on its way to other shards."""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.names import shard_of
from fila_proto_zmq.record import unpack_record
from fila_worker.check.findings import Finding, RecordChange
from fila_worker.check.reading import UNREADABLE, CheckReading, decoded
from fila_worker.core.callback_group_parts import PART, PartRecord, decode_part, encode_part, parse_place, part_key
from fila_worker.core.callback_groups.owned import PREFIXES, check_record
from fila_worker.core.enqueue.insert import LAST_QUEUE_ID
from fila_worker.core.keys import u64
from fila_worker.core.manage.api_keys import API_KEYS, decode_keys
from fila_worker.core.model.due_index import CHECKPOINT
from fila_worker.core.model.ledger import EARLIER, decode_generations
from fila_worker.core.model.runtime_config import EDIT, GENERATION, PARK, VERSION, decode_edit
from fila_worker.core.model.shard_transfers import (
    INBOX,
    OUTBOX,
    STREAM_BYTES,
    OutboxEntry,
    decode_cursor,
    decode_outbox,
    stream_key,
)
from fila_worker.core.places.bank import KEY, ROW, decode_key, decode_row
from fila_worker.core.places.holdings import HELD, decode_held
from fila_worker.core.recovery import FORMAT, IDENTITY, Identity
from fila_worker.core.schedules.table import MESSAGE, PROGRESS, SCHEDULE, decode_message, decode_progress, decode_schedule
from fila_worker.storage.replica import LOG_NAME, MARKER_BYTES_MAX, POSITION, POSITION_BYTES


def is_record(reading: CheckReading, key: bytes, value: bytes) -> bool:
    """Return whether a record of a batch, or of a part of one, can be read. Note what a part counts."""
    try:
        check_record(key, value)
        if key.startswith(PART):
            reading.batch_parts[parse_place(key)] = decode_part(value)
    except UNREADABLE:
        return False
    return True


def check_batches(reading: CheckReading) -> Iterator[Finding]:
    """Compare the counts of parts with the found members. Else a batch would wait for members that are missing."""
    if reading.incomplete & {"state", "queues", "leases", "messages"}:
        return
    for place, part in reading.batch_parts.items():
        found = reading.members[place]
        if part.open == found:
            continue
        text = f"queue {place.queue!r} counts {part.open:,} members of a batch that are not done, and has {found:,}"
        missing = part.open - found
        repaired = PartRecord(
            part.owner,
            part.until_ms,
            part.added + max(0, -missing),
            part.acked,
            part.dead,
            part.removed + max(0, missing),
            part.sealed,
        )
        change = RecordChange("state", part_key(place), encode_part(repaired))
        yield Finding("batch", text, place.queue, changes=(change,))


_U32: Final = 4
_U64: Final = 8


def check_identity(reading: CheckReading) -> Iterator[Finding]:
    """Check that the store holds this shard, in a format that this version reads."""
    data = reading.store.get(IDENTITY, reading.families.state)
    if data is None:
        if next(reading.store.scan(b"", b"\xff" * 32, reading.families.queues), None) is not None:
            yield Finding("identity", "the shard has queues and no identity: a worker would begin its numbers again")
        return
    identity = decoded(msgspec.msgpack.Decoder(Identity).decode, data)
    if identity is None:
        yield Finding("identity", "the shard's identity cannot be read")
    elif identity.format != FORMAT:
        yield Finding("identity", f"the data has format {identity.format}, this version reads {FORMAT}")
    elif (identity.shard, identity.shards) != (reading.index, reading.shards):
        yield Finding(
            "identity",
            f"the data is of shard {identity.shard} of {identity.shards}, in the directory of shard {reading.index} of "
            f"{reading.shards}",
        )


def check_state(reading: CheckReading) -> Iterator[Finding]:
    """Check that single values have names and forms that are known."""
    for key, value in reading.scan("state"):
        if key == EARLIER:
            reading.earlier = decoded(decode_generations, value) or []
        if not (is_record(reading, key, value) if key.startswith(PREFIXES) else _well_formed(key, value)):
            shown = key.decode(errors="replace")
            yield Finding("state", f"the value {shown!r} of the shard is not known, or cannot be read")


_DECODERS: Final[dict[bytes, Callable[[bytes], object]]] = {
    API_KEYS: decode_keys,
    EARLIER: decode_generations,
    SCHEDULE: decode_schedule,
    PROGRESS: decode_progress,
    MESSAGE: decode_message,
    HELD: decode_held,
    KEY: decode_key,
    ROW: decode_row,
}
"""The decoders of values, by name; a name that ends in a colon is a prefix."""


def _well_formed(key: bytes, value: bytes) -> bool:
    if key.startswith(INBOX):
        return len(key) == len(INBOX) + _U32 + STREAM_BYTES and decoded(decode_cursor, value) is not None
    if key.startswith(OUTBOX):
        return len(key) == len(OUTBOX) + _U32 + STREAM_BYTES and len(value) == _U64
    if key.startswith(PARK):
        return len(value) == _U64 and decoded(bytes.decode, key) is not None
    if key.startswith(EDIT):
        return len(key) == len(EDIT) + _U64 and decoded(decode_edit, value) is not None
    for name, decode in _DECODERS.items():
        if key == name or (name.endswith(b":") and key.startswith(name)):
            return decoded(decode, value) is not None
    lengths = {VERSION: _U64, GENERATION: _U64, LAST_QUEUE_ID: _U32}
    return (
        key in {IDENTITY, CHECKPOINT, LOG_NAME} or lengths.get(key) == len(value) or (key == POSITION and _is_position(value))
    )


def _is_position(value: bytes) -> bool:
    return (
        POSITION_BYTES <= len(value) <= POSITION_BYTES + MARKER_BYTES_MAX
    )  # who has written the last marker comes behind it


def check_config(reading: CheckReading) -> Iterator[Finding]:
    """Check that the runtime config can be read."""
    for key, value in reading.scan("config"):
        front = 1 + _U64 if key.startswith(b"\0") else 0
        if len(key) <= front or decoded(bytes.decode, key[front:]) is None or decoded(bytes.decode, value) is None:
            yield Finding("config", f"the key {key.hex()} of the runtime config cannot be read")


def check_outbox(reading: CheckReading) -> Iterator[Finding]:
    """Check that messages for other shards can be read, and will be sent."""
    for key, data in reading.scan("outbox"):
        entry = decoded(decode_outbox, data) if len(key) == _U32 + STREAM_BYTES + _U64 else None
        if entry is None or not _is_message(entry):
            yield Finding("outbox", f"the message {key.hex()} for another shard cannot be read")
            continue
        queue, to_shard = entry.transfer.queue, int.from_bytes(key[:_U32], "big")
        if shard_of(queue, reading.shards) != to_shard:
            yield Finding(
                "outbox", f"a message for queue {queue!r} is on its way to shard {to_shard}, which has no such queue"
            )
        stream = stream_key(to_shard, key[_U32 : _U32 + STREAM_BYTES])
        number, last = key[-_U64:], reading.store.get(stream, reading.families.state)
        if last is None or last < number:
            yield Finding(
                "outbox",
                f"message {u64(number)} for queue {queue!r} on shard {to_shard} would never be sent",
                changes=(RecordChange("state", stream, number),),
            )


def _is_message(entry: OutboxEntry) -> bool:
    enqueue = entry.transfer.enqueue
    if enqueue is not None:
        return entry.owner is not None and len(enqueue.envelopes) == 1
    try:
        unpack_record(entry.transfer.record)
    except InvalidFrameError:
        return False
    return True
