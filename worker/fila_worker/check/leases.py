"""The records of leases, and the marks of acked ones."""

from collections.abc import Iterator

from fila_worker.check.findings import Finding, RecordChange
from fila_worker.check.reading import CheckReading, decoded
from fila_worker.core.keys import MESSAGE_KEY_BYTES, u64
from fila_worker.core.model.acked_messages import Mark, is_mark, pack_mark, parse_mark
from fila_worker.core.model.leases import FINISHED, LeaseRecord, decode_lease, member_ended


def check_leases(reading: CheckReading) -> Iterator[Finding]:
    """Check that leases can be read, name messages that are there, and name each message once."""
    for key, data in reading.scan("leases"):
        if len(key) != 8:  # a u64
            yield Finding("lease", f"a lease record has the key {key.hex()}, which is not a lease id")
        elif is_mark(data):
            yield from _check_mark(reading, key, data)
        elif not data.startswith(FINISHED):
            yield from _check_lease(reading, key, decoded(decode_lease, data))


def _check_mark(reading: CheckReading, key: bytes, data: bytes) -> Iterator[Finding]:
    lease, mark = u64(key), decoded(parse_mark, data)
    if mark is None:
        yield Finding("lease", f"the mark of the acked lease {lease} cannot be read")
        return
    found = _existing(reading, mark.keys)
    if len(found) < len(mark.keys):
        gone = len(mark.keys) - len(found)
        yield Finding(
            "lease",
            f"the mark of the acked lease {lease} names {gone} messages that are not there",
            changes=(RecordChange("leases", key, _without(mark, found)),),
        )
    for message in found:
        if message in reading.acked:
            yield Finding("lease", f"message {message.hex()} is acked in two leases, one of them {lease}")
        reading.acked.add(message)


def _without(mark: Mark, found: list[bytes]) -> bytes | None:
    """Return the record of a lease whose acked messages are ``found``."""
    if found:
        return pack_mark(mark.client, found)
    return FINISHED + mark.client if mark.client else None


def _check_lease(reading: CheckReading, key: bytes, record: LeaseRecord | None) -> Iterator[Finding]:
    lease = u64(key)
    if record is None or len(record.keys) % MESSAGE_KEY_BYTES:
        yield Finding("lease", f"the record of lease {lease} cannot be read")
        return
    if record.queue not in reading.queues:
        if "queues" not in reading.incomplete:
            yield Finding("lease", f"lease {lease} is on queue number {record.queue}, which has no record")
        return
    starts = range(0, len(record.keys), MESSAGE_KEY_BYTES)
    keys = [record.keys[start : start + MESSAGE_KEY_BYTES] for start in starts]
    found = _existing(reading, [each for each in keys if member_ended(each) is None])
    if not found:
        yield Finding(
            "lease",
            f"lease {lease} on {reading.name_of(record.queue)} has no message",
            reading.queue_name(record.queue),
            changes=(RecordChange("leases", key, None),),
        )
    for message in found:
        other = reading.leased.setdefault(message, lease)
        if other != lease:
            yield Finding(
                "lease", f"message {message.hex()} is in two leases, {other} and {lease}", reading.queue_name(record.queue)
            )


def _existing(reading: CheckReading, keys: list[bytes]) -> list[bytes]:
    found = reading.store.get_many(keys, reading.families.messages)
    return [key for key, message in zip(keys, found, strict=True) if message is not None]
