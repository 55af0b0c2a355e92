"""Batches: their records can be read, and their parts count the members that are stored."""

from collections.abc import Iterator

from fila_worker.check.findings import Change, Finding
from fila_worker.check.reading import UNREADABLE, Reading
from fila_worker.core.callback_group_parts import PART, PartRecord, decode_part, encode_part, parse_place, part_key
from fila_worker.core.callback_groups.stored import check_record


def is_record(reading: Reading, key: bytes, value: bytes) -> bool:
    """Return whether a record of a batch, or of a part of one, can be read. Note what a part counts."""
    try:
        check_record(key, value)
        if key.startswith(PART):
            reading.batch_parts[parse_place(key)] = decode_part(value)
    except UNREADABLE:
        return False
    return True


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
