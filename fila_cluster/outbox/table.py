"""The table ``fila_outbox``: one row for a message, until the broker has it and for a while after.

A row is *fresh* until it is sent or refused for itself, *refused* while it waits for another try (``due_at``), and *sent*
until it is deleted. Each state has an index of its own, so a relay never reads past rows that do not concern it.

A *strand* is a queue and one of 64 hashes of fairness keys. Rows of a strand are sent in the order of their numbers by one
relay at a time, which keeps the order within a fairness key; relays share the strands."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from numbers import Integral, Real
from typing import Any, Final, Unpack
from uuid import uuid4
from zlib import crc32

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Connection,
    DateTime,
    Executable,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    bindparam,
    func,
    insert,
    select,
)
from sqlalchemy.orm import Session, scoped_session

from fila_cluster.client import checks
from fila_cluster.client.message import BytesLike, EnqueueOptions, Message
from fila_cluster.client.protocol.encoding import seal_message
from fila_cluster.errors import InvalidArgumentError
from fila_proto_zmq.limits import DEDUP_ID_BYTES_MAX, DELAY_MS_MAX, QUEUE_NAME_BYTES_MAX

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


_KEPT: Final = tuple(sorted(set(Message.__dataclass_fields__) - {"payload", "headers", "delay", "deliver_at", "dedup_id"}))
"""The options that the table keeps as they are given."""
_PLAIN: Final = Message(b"")


def add(
    session: "Session | scoped_session[Any] | Connection",
    queue: str,
    payload: BytesLike,
    headers: Mapping[str, str] | None = None,
    *,
    notify: bool = True,
    **options: Unpack[EnqueueOptions],
) -> str:
    """Add a message to the outbox, and return its dedup id. It is enqueued once the transaction commits.

    ``session`` has the transaction: a Session or a Connection; with an AsyncSession, ``await session.run_sync(outbox.add,
    queue, payload, …)``. ``options`` are those of ``enqueue``; ``delay`` and ``ttl`` count from now, by this machine's clock.
    Without a ``dedup_id`` the message gets one of its own. ``notify``: wake waiting relays at the commit (PostgreSQL); False:
    they find the row at their next look, and a high rate of commits does not queue up for PostgreSQL's lock of notifications.

    Raises :class:`InvalidArgumentError` as ``enqueue`` does before it asks the broker. A queue that does not exist, and a
    payload that is too large for the broker, show in ``fila-cluster outbox status``.
    """
    _check_session(session)
    name = checks.queue_name(queue)
    row = _row(name, _message(payload, headers, options))
    values = {f"new_{column}": value for column, value in row.items()}
    if isinstance(session, Connection):
        session.execute(_adding(notify, session), values)
    else:
        # A Session may have several databases: it takes the one of this table.
        adding = _adding(notify, session.connection(bind_arguments={"clause": outbox}))
        session.execute(adding, values, bind_arguments={"clause": outbox})
    return str(row["dedup_id"])


_ADD: Final = insert(outbox).values(
    {
        name: bindparam(f"new_{name}")
        for name in ("strand", "queue", "dedup_id", "payload", "headers", "options", "size_bytes", "created_at")
    }
)
_ADD_AND_NOTIFY: Final = select(func.pg_notify(CHANNEL, "")).add_cte(_ADD.cte("added"))
"""In one statement: a round trip less."""


def _message(payload: BytesLike, headers: Mapping[str, str] | None, options: EnqueueOptions) -> Message:
    try:
        return Message(payload, headers, **options)
    except TypeError as error:
        known = ", ".join(sorted(set(Message.__dataclass_fields__) - {"payload", "headers"}))
        raise InvalidArgumentError(f"{str(error).partition('() ')[2]}; the options are {known}") from None


def _row(queue: str, message: Message) -> dict[str, Any]:
    """Return the values of a row, for a message with the checks of ``enqueue``."""
    envelope, _ = seal_message(message)
    now = datetime.now(UTC)
    kept = {name: _plain(value) for name in _KEPT if (value := getattr(message, name)) != getattr(_PLAIN, name)}
    if (due := _due(message, now)) is not None:
        kept["deliver_at"] = due.isoformat()
    return {
        "strand": strand_of(queue, message.fairness_key),
        "queue": queue,
        "dedup_id": message.dedup_id or str(uuid4()),
        "payload": bytes(message.payload),
        "headers": dict(message.headers) if message.headers else None,
        "options": kept or None,
        "size_bytes": len(envelope),
        "created_at": now,
    }


def _plain(value: Any) -> Any:
    """Return an option as a JSON value."""
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    return value if isinstance(value, str) else list(value)


def _due(message: Message, now: datetime) -> datetime | None:
    """Return when a message may be delivered, as a point in time: a relay may take it much later than it was added."""
    delayed = (
        now + timedelta(milliseconds=checks.milliseconds("delay", message.delay, DELAY_MS_MAX)) if message.delay else None
    )
    instants = [instant.astimezone(UTC) for instant in (delayed, message.deliver_at) if instant is not None]
    return max(instants, default=None)


def _check_session(session: object) -> None:
    if hasattr(session, "run_sync"):  # sqlalchemy.ext.asyncio is not imported: since SQLAlchemy 2.1 it needs an extra
        raise InvalidArgumentError(
            f"an {type(session).__name__} is awaited: use `await session.run_sync(outbox.add, queue, payload, …)`"
        )
    if not isinstance(session, Session | scoped_session | Connection):
        raise InvalidArgumentError(
            f"session is a {type(session).__name__}: pass the Session or Connection of your transaction"
        )


def _adding(notify: bool, connection: Connection) -> Executable:
    return _ADD_AND_NOTIFY if notify and connection.dialect.name == "postgresql" else _ADD
