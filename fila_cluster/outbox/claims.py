"""The SQL of a relay's turn: its rows, and their outcomes.

PostgreSQL: a turn is one transaction, in which a relay holds an advisory lock for each of its strands and the locks of its
rows. So relays do not wait for each other (SKIP LOCKED), a row of a strand is sent only when the earlier rows are noted as
sent, and the locks of a killed relay are free at once.

SQLite has no such locks, and a transaction that is open while the broker answers would stop all writers. So a turn reads,
sends, and notes in a transaction of its own; relays that read the same rows send them with the same dedup ids in the same
order.

**Rejected:** a lock on rows alone (a second relay would take the later rows of a fairness key); leases with an end in the
table (two more writes for each row, and rows of a killed relay wait for that end); ids in the order of commits (PostgreSQL
does not have them).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import randrange
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Row,
    Select,
    String,
    bindparam,
    cast,
    delete,
    func,
    literal,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY

from fila_cluster.errors import InvalidArgumentError
from fila_cluster.outbox.table import ERROR_CHARACTERS_MAX, FRESH, LANES, REFUSED, SENT, outbox, queue_of_strand

POSTGRESQL: Final = "postgresql"
SQLITE: Final = "sqlite"
STRANDS_AT_ONCE: Final = 32
"""Of one turn: the other strands are for other relays."""
STRANDS_SEEN: Final = 128
"""Of one turn: those of queues that rest are left out."""
REFUSED_AT_ONCE: Final = 32
"""Of one turn: refused rows that are due again may not take the room of fresh ones."""
PAUSE_S_MAX: Final = 3600.0
"""Between two tries of a refused row. A later time was noted by a clock that was ahead: such a row is due."""
BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of the fresh rows of one turn, and of those that were refused before, unless the first one alone is larger."""
ROUNDS_MAX: Final = 2
"""How often a relay looks at all strands without finding rows before it pauses: some may be another relay's."""
LOCK_SPACE: Final = 0x66696C61
"""Sets the advisory locks of this table apart from the application's own."""


@dataclass(slots=True)
class Claim:
    """The rows of a turn, in the order of their numbers. ``more``: others may be waiting."""

    rows: list[Row[Any]]
    more: bool = True


class Claims:
    """Takes rows for one relay. ``cursor``: the last strand that was served; strands are served in rotation."""

    def __init__(self, engine: Engine, batch: int) -> None:
        if engine.dialect.name not in {POSTGRESQL, SQLITE}:
            raise InvalidArgumentError(f"the outbox's relay works with PostgreSQL and SQLite, not with {engine.dialect.name}")
        self._locks = engine.dialect.name == POSTGRESQL
        # A relay must see all commits before it got a strand's lock, whatever the engine's usual level is.
        self._engine = engine.execution_options(isolation_level="READ COMMITTED") if self._locks else engine
        self._batch = batch
        self._cursor = f"{randrange(LANES):02d}"  # relays that start together begin at different strands
        self._rounds = 0
        """How often all strands were seen since rows were found."""

    @contextmanager
    def turn(self) -> Iterator[Connection]:
        """Open the transaction of a turn."""
        with self._engine.begin() as connection:
            yield connection

    @property
    def held(self) -> bool:
        """Whether rows stay locked until the turn's transaction ends. If not, it should end before the broker is asked."""
        return self._locks

    def take(self, connection: Connection, resting: Iterable[str]) -> Claim:
        """Return the rows of a turn. ``resting``: queues to leave alone."""
        left_alone = frozenset(resting)
        strands = self._strands(connection, left_alone)
        found: list[Row[Any]] = []
        share = max(1, self._batch // max(1, len(strands)))
        for strand in strands:
            found += self._sizes(connection, _SIZES.where(FRESH, outbox.c.strand == strand), share)
        fresh = _fitting(found)
        if len(fresh) < len(found):  # too large together: the others are the first of the next turn
            self._cursor = found[len(fresh) - 1].strand
        now = datetime.now(UTC)
        due = (outbox.c.due_at <= now) | (outbox.c.due_at > now + timedelta(seconds=PAUSE_S_MAX))
        refused = _SIZES.where(REFUSED, due, outbox.c.queue.not_in(left_alone))
        again = _fitting(self._sizes(connection, refused, REFUSED_AT_ONCE, outbox.c.due_at))
        rows = self._rows(connection, [*fresh, *again])
        if rows:
            self._rounds = 0
        elif self._rounds >= ROUNDS_MAX:
            self._rounds = 0
            return Claim(rows, more=False)
        return Claim(rows)

    def _strands(self, connection: Connection, resting: frozenset[str]) -> list[str]:
        """Return the next strands that have fresh rows and are not another relay's, and move the cursor behind them."""
        seen = list(connection.scalars(_following(self._cursor)))
        if len(seen) < STRANDS_SEEN:
            self._rounds += 1
            seen += [strand for strand in connection.scalars(_following("")) if strand <= self._cursor][
                : STRANDS_SEEN - len(seen)
            ]
        wanted = [strand for strand in seen if queue_of_strand(strand) not in resting]
        if len(seen) < STRANDS_SEEN and len(wanted) <= STRANDS_AT_ONCE:  # that is all there is
            self._rounds = ROUNDS_MAX
        chosen = wanted[:STRANDS_AT_ONCE]
        if len(wanted) > len(chosen):
            self._cursor = chosen[-1]
        elif seen:
            self._cursor = seen[-1]
        return list(connection.scalars(_LOCK_STRANDS, {"strands": chosen})) if self._locks and chosen else chosen

    def _sizes(self, connection: Connection, asked: Select[Any], limit: int, *order: ColumnElement[Any]) -> list[Row[Any]]:
        asked = asked.order_by(*order, outbox.c.number).limit(limit)
        return list(connection.execute(asked.with_for_update(skip_locked=True) if self._locks else asked))

    def _rows(self, connection: Connection, numbers: Sequence[int]) -> list[Row[Any]]:
        if not numbers:
            return []
        return list(connection.execute(select(outbox).where(outbox.c.number.in_(numbers)).order_by(outbox.c.number)))

    def has_sent(self, connection: Connection, before: datetime) -> bool:
        """Return whether there are rows that were sent before a time."""
        return connection.scalar(select(outbox.c.number).where(SENT, outbox.c.sent_at < before).limit(1)) is not None

    def delete_sent(self, connection: Connection, before: datetime, limit: int) -> int:
        """Delete rows that were sent before a time, at most ``limit``; return how many there were."""
        old = select(outbox.c.number).where(SENT, outbox.c.sent_at < before).order_by(outbox.c.sent_at).limit(limit)
        if self._locks:
            old = old.with_for_update(skip_locked=True)
        return connection.execute(delete(outbox).where(outbox.c.number.in_(old.scalar_subquery()))).rowcount


def note_sent(connection: Connection, numbers: Sequence[int], *, keep: bool) -> None:
    """Note that the broker has these rows; without ``keep`` they are deleted."""
    if not numbers:
        return
    these = outbox.c.number.in_(numbers)
    connection.execute(
        update(outbox).where(these).values(sent_at=datetime.now(UTC), due_at=None) if keep else delete(outbox).where(these)
    )


def note_refused(connection: Connection, refused: Mapping[int, tuple[str, timedelta | None]]) -> None:
    """Count a failed try of each row, with its error, and the next time. None: the row stays fresh, as its queue rests."""
    now = datetime.now(UTC)
    for number, (error, pause) in refused.items():
        values = {"attempts": outbox.c.attempts + 1, "error": error[:ERROR_CHARACTERS_MAX].replace("\0", "")}
        due = {} if pause is None else {"due_at": now + pause}
        connection.execute(
            update(outbox).where(outbox.c.number == number, outbox.c.sent_at.is_(None)).values(**values, **due)
        )


_SIZES: Final = select(outbox.c.number, outbox.c.size_bytes, outbox.c.strand)


def _following(cursor: str) -> Select[Any]:
    """Return the strands behind ``cursor`` that have fresh rows, each by one look into the index."""
    first = select(func.min(outbox.c.strand).label("strand")).where(FRESH, outbox.c.strand > bindparam("cursor", cursor))
    strands = first.cte("strands", recursive=True)
    following = select(func.min(outbox.c.strand)).where(FRESH, outbox.c.strand > strands.c.strand).scalar_subquery()
    strands = strands.union_all(select(following).where(strands.c.strand.is_not(None)))
    return select(strands.c.strand).where(strands.c.strand.is_not(None)).limit(STRANDS_SEEN)


def _fitting(found: Sequence[Row[Any]]) -> list[int]:
    """Return the first of these rows that are not too large together."""
    numbers: list[int] = []
    total = 0
    for row in found:
        total += row.size_bytes
        if numbers and total > BATCH_BYTES_MAX:
            break
        numbers.append(row.number)
    return numbers


def _lock_strands() -> Select[Any]:
    name = func.unnest(cast(bindparam("strands"), ARRAY(String))).column_valued("strand")
    locked = func.pg_try_advisory_xact_lock(func.hashtextextended(name, literal(LOCK_SPACE)))
    return select(name).where(locked)


_LOCK_STRANDS: Final = _lock_strands()
