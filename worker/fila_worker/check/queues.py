"""The queues, the ledger, and their counts."""

from collections.abc import Iterator
from typing import Final

from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.names import check_routing_key, shard_of
from fila_worker.check.findings import Finding, RecordChange
from fila_worker.check.reading import CheckReading, decoded
from fila_worker.core.enqueue.insert import LAST_QUEUE_ID
from fila_worker.core.keys import pack_u32
from fila_worker.core.model.ledger import parse_entry
from fila_worker.core.model.queues import QueueRecord, decode_queue, encode_queue

_ID_BYTES: Final = 4


def check_queues(reading: CheckReading) -> Iterator[Finding]:
    """Check the records of queues: they can be read, lie on this shard, and belong together."""
    names: dict[str, int] = {}
    for key, data in reading.scan("queues"):
        record = decoded(decode_queue, data)
        if len(key) != _ID_BYTES or record is None:
            yield Finding("queue", f"the record of queue number {key.hex()} cannot be read")
            continue
        queue_id = int.from_bytes(key, "big")
        reading.queues[queue_id] = record
        yield from _check_name(reading, queue_id, record, names)
    for queue_id, record in reading.queues.items():
        letters = record.dead_letters
        if letters and not record.gone and letters not in reading.queues:
            repaired = _changed(record, dead_letters=0)
            yield Finding(
                "queue",
                f"queue {record.name!r} has the dead letter queue number {letters}, which has no record",
                record.name,
                changes=(_save(queue_id, repaired),),
            )
    yield from _check_last_id(reading)


def _check_name(reading: CheckReading, queue_id: int, record: QueueRecord, names: dict[str, int]) -> Iterator[Finding]:
    try:
        check_routing_key(record.name)
    except InvalidArgumentError as error:
        yield Finding("queue", f"queue number {queue_id}: {error}")
        return
    home = shard_of(record.name, reading.shards)
    if home != reading.index:
        yield Finding("queue", f"queue {record.name!r} belongs on shard {home}, and is on shard {reading.index}", record.name)
    if not record.gone and names.setdefault(record.name, queue_id) != queue_id:
        yield Finding(
            "queue", f"queue {record.name!r} is there twice, as number {names[record.name]} and {queue_id}", record.name
        )


def _check_last_id(reading: CheckReading) -> Iterator[Finding]:
    stored = int.from_bytes(reading.store.get(LAST_QUEUE_ID, reading.families.state) or b"", "big")
    highest = max(reading.queues, default=0)
    if stored < highest:
        change = RecordChange("state", LAST_QUEUE_ID, pack_u32(highest))
        yield Finding(
            "counter", f"the last queue number is stored as {stored}, and there is number {highest}", changes=(change,)
        )


def check_ledger(reading: CheckReading) -> Iterator[Finding]:
    """Read the ledger's entries: the counts of lanes since the last fold, the sizes of queues, and the counters."""
    for key, data in reading.scan("ledger"):
        entry = decoded(parse_entry, data)
        if len(key) != 8 or entry is None:  # a u64
            yield Finding(
                "ledger", f"the ledger entry {key.hex()} cannot be read", changes=(RecordChange("ledger", key, None),)
            )
            continue
        reading.counts |= entry.lanes
        reading.counters = (entry.sequence, entry.lane)
        for queue_id, size_bytes in entry.sizes.items():
            if queue_id in reading.queues:
                reading.queues[queue_id].size_bytes = size_bytes


def check_totals(reading: CheckReading) -> Iterator[Finding]:
    """Compare what is kept of queues and of the shard with the messages."""
    if reading.incomplete & {"queues", "ledger", "leases", "messages"}:
        return
    yield from _check_counters(reading)
    for queue_id, record in reading.queues.items():
        if record.gone:
            continue  # its messages are being removed
        size_bytes = reading.sizes[queue_id]
        if record.size_bytes != size_bytes:
            yield Finding(
                "size",
                f"queue {record.name!r} counts {record.size_bytes:,} bytes, its messages have {size_bytes:,}",
                record.name,
                sizes={queue_id: size_bytes},
            )
        yield from _check_known(reading, queue_id, record)


def _check_counters(reading: CheckReading) -> Iterator[Finding]:
    used = (max(reading.counters[0], reading.highest[0]), max(reading.counters[1], reading.highest[1]))
    if used != reading.counters:
        yield Finding(
            "counter",
            f"the counters of messages and lanes are {reading.counters}, and there are the numbers {reading.highest}: "
            "numbers would be used twice",
            counters=used,
        )


def _check_known(reading: CheckReading, queue_id: int, record: QueueRecord) -> Iterator[Finding]:
    """Check the notes for the search by an id: the messages' priorities, and whether some are of other shards."""
    missing = reading.priorities.get(queue_id, set()) - set(record.priorities) if record.priorities else set()
    stranger = queue_id in reading.strangers and not record.strangers
    if not missing and not stranger:
        return
    priorities = sorted(set(record.priorities) | missing)
    repaired = _changed(record, priorities=priorities, strangers=record.strangers or stranger)
    yield Finding(
        "queue",
        f"queue {record.name!r} has messages that cannot be found by their ids: "
        + (
            f"their priorities {sorted(missing)} are not noted"
            if missing
            else "that they come from other shards is not noted"
        ),
        record.name,
        changes=(_save(queue_id, repaired),),
    )


def _changed(record: QueueRecord, **fields: object) -> QueueRecord:
    for name, value in fields.items():
        setattr(record, name, value)  # later findings must see earlier repairs of the record
    return record


def _save(queue_id: int, record: QueueRecord) -> RecordChange:
    return RecordChange("queues", pack_u32(queue_id), encode_queue(record))
