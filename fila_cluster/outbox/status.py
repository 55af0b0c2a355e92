"""The content of the outbox: waiting rows, refused rows with their errors, and sent rows that are kept."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from sqlalchemy import Connection, Engine, case, func, select

from fila_cluster.outbox.relaying import in_utc
from fila_cluster.outbox.table import REFUSED, SENT, outbox

QUEUES_SHOWN: Final = 100
"""Those with the most rows that wait."""
ROWS_SHOWN: Final = 20
"""Refused rows, the oldest first."""


@dataclass(frozen=True, slots=True)
class WaitingQueue:
    """A queue with unsent rows: ``waiting``, of which ``refused`` wait for another try. ``oldest_age``: seconds."""

    queue: str
    waiting: int
    refused: int
    oldest_age: float


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row whose last try failed. ``due_at``: when it is tried again; None: as soon as its queue takes messages."""

    number: int
    queue: str
    dedup_id: str
    attempts: int
    error: str
    created_at: datetime
    due_at: datetime | None


@dataclass(frozen=True, slots=True)
class Status:
    """The outbox at one moment. ``waiting``: rows that are not sent, ``refused`` ones among them; ``oldest_age``: seconds."""

    waiting: int
    refused: int
    oldest_age: float
    sent: int
    queues: list[WaitingQueue]
    rows: list[RefusedRow]


def status(engine: Engine) -> Status:
    """Return the content of the outbox. It counts rows: millions of them take seconds of the database."""
    with engine.connect() as connection:
        queues = _queues(connection)
        known = func.count(), func.count(case((REFUSED, 1))), func.min(outbox.c.created_at)
        waiting, refused, oldest = connection.execute(select(*known).where(outbox.c.sent_at.is_(None))).one()
        sent = connection.scalar(select(func.count()).where(SENT).select_from(outbox)) or 0
        return Status(waiting, refused, _age(oldest), sent, queues, _refused(connection))


def _queues(connection: Connection) -> list[WaitingQueue]:
    count = func.count()
    known = outbox.c.queue, count, func.count(case((REFUSED, 1))), func.min(outbox.c.created_at)
    asked = select(*known).where(outbox.c.sent_at.is_(None)).group_by(outbox.c.queue)
    busiest = asked.order_by(count.desc(), outbox.c.queue).limit(QUEUES_SHOWN)
    return [
        WaitingQueue(queue, waiting, refused, _age(oldest)) for queue, waiting, refused, oldest in connection.execute(busiest)
    ]


def _refused(connection: Connection) -> list[RefusedRow]:
    names = ("number", "queue", "dedup_id", "attempts", "error", "created_at", "due_at")
    columns = [outbox.c[name] for name in names]  # not the payload
    tried = select(*columns).where(outbox.c.sent_at.is_(None), outbox.c.error.is_not(None))
    return [
        RefusedRow(
            row.number,
            row.queue,
            row.dedup_id,
            row.attempts,
            row.error,
            in_utc(row.created_at),
            None if row.due_at is None else in_utc(row.due_at),
        )
        for row in connection.execute(tried.order_by(outbox.c.number).limit(ROWS_SHOWN))
    ]


def _age(moment: datetime | None) -> float:
    return 0.0 if moment is None else round(max(0.0, (datetime.now(UTC) - in_utc(moment)).total_seconds()), 3)
