"""The table ``fila_outbox``: one row for a message, until the broker has it and for a while after.

A row is *fresh* until it is sent or refused for itself, *refused* while it waits for another try (``due_at``), and *sent*
until it is deleted. Each state has an index of its own, so a relay never reads past rows that do not concern it.

A *strand* is a queue and one of 64 hashes of fairness keys. Rows of a strand are sent in the order of their numbers by one
relay at a time, which keeps the order within a fairness key; relays share the strands.
"""

from typing import Final
from zlib import crc32

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    DateTime,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

from fila_proto_zmq.limits import DEDUP_ID_BYTES_MAX, QUEUE_NAME_BYTES_MAX

LANES: Final = 64
"""Strands of a queue. With more of them more relays work at a time, and each has more look-ups."""
CHANNEL: Final = "fila_outbox"
"""Of PostgreSQL's NOTIFY."""
ERROR_CHARACTERS_MAX: Final = 1000

metadata = MetaData()
"""Has the table of the outbox: create it with ``metadata.create_all(engine)``, or by Alembic (``docs/outbox.md``)."""

outbox = Table(
    "fila_outbox",
    metadata,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), Identity(), primary_key=True),
    Column("strand", String(QUEUE_NAME_BYTES_MAX + len("00:.dlq")), nullable=False),
    Column("queue", String(QUEUE_NAME_BYTES_MAX + len(".dlq")), nullable=False),
    Column("dedup_id", String(DEDUP_ID_BYTES_MAX), nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("headers", JSON(none_as_null=True)),
    Column("options", JSON(none_as_null=True)),
    Column("size_bytes", BigInteger, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("due_at", DateTime(timezone=True)),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("error", Text),
    Column("sent_at", DateTime(timezone=True)),
    sqlite_autoincrement=True,
)
"""``number`` is the order. ``size_bytes``: of payload and headers, for a relay before it reads them. Times are UTC."""

FRESH: Final = outbox.c.sent_at.is_(None) & outbox.c.due_at.is_(None)
REFUSED: Final = outbox.c.sent_at.is_(None) & outbox.c.due_at.is_not(None)
SENT: Final = outbox.c.sent_at.is_not(None)

for _name, _columns, _where in (
    ("fresh", (outbox.c.strand, outbox.c.number), FRESH),
    ("refused", (outbox.c.due_at,), REFUSED),
    ("sent", (outbox.c.sent_at,), SENT),
):
    Index(f"fila_outbox_{_name}", *_columns, postgresql_where=_where, sqlite_where=_where)


def strand_of(queue: str, fairness_key: str | None) -> str:
    """Return the strand of a message. The hash comes first, so that the strands of a queue lie among those of others."""
    return f"{crc32((fairness_key or 'default').encode()) % LANES:02d}:{queue}"


def queue_of_strand(strand: str) -> str:
    """Return the queue of a strand."""
    return strand.partition(":")[2]
