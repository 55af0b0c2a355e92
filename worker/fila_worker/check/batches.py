"""Batches: their records can be read, and their parts count the members that are stored."""

from collections.abc import Iterator

from fila_worker.check.findings import Change, Finding
from fila_worker.check.reading import UNREADABLE, Reading
from fila_worker.core.batch_parts import PartRecord, Place, decode_part, encode_part, parse_place, part_key
from fila_worker.core.batches.stored import check_record


def is_record(key: bytes, value: bytes) -> bool:
    """Return whether a record of a batch, or of a part of one, can be read."""
    try:
        check_record(key, value)
    except UNREADABLE:
        return False
    return True


def parse_part(item: tuple[bytes, bytes]) -> dict[Place, PartRecord]:
    """Return a stored part by its place. Raise one of ``UNREADABLE``."""
    key, value = item
    return {parse_place(key): decode_part(value)}


def check_batches(reading: Reading) -> Iterator[Finding]:
    """Compare the counts of parts with the members that were found. Else a batch would wait for members that are not there."""
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
        change = Change("state", part_key(place), encode_part(repaired))
        yield Finding("batch", text, place.queue, changes=(change,))
