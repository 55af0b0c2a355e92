"""``relay``: committed rows of the outbox to the broker, a frame for each queue of a turn, until it is stopped."""

import logging
import math
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Engine, Row, inspect
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionLeftError

from fila_cluster.client import AsyncClient, Client, Request, checks
from fila_cluster.client.forwarding import CommandsAhead
from fila_cluster.client.message import Message
from fila_cluster.client.protocol.encoding import seal_message, seal_rows
from fila_cluster.client.protocol.producing import ids_of
from fila_cluster.errors import (
    FilaError,
    InvalidArgumentError,
    PermissionDeniedError,
    QueueNotFoundError,
    UnauthenticatedError,
    UnsupportedVersionError,
)
from fila_cluster.outbox.claims import PAUSE_S_MAX, Claims, note_refused, note_sent
from fila_cluster.outbox.table import CHANNEL, outbox
from fila_proto_zmq.limits import DEDUP_WINDOW_MS_MAX, FRAME_MESSAGES_MAX

OF_THE_QUEUE: Final = (QueueNotFoundError, PermissionDeniedError)
"""Errors that concern all rows of a queue, beside those that may pass: the queue rests, and its order is kept."""
OF_THE_RELAY: Final = (UnauthenticatedError, UnsupportedVersionError)
"""Lasting errors that do not depend on a row."""
TTL_S_MIN: Final = 0.001
"""Of a message that has expired in the outbox: the broker treats it as others that expire."""


@dataclass(slots=True)
class Fates:
    """The outcomes of the rows of a turn, by number."""

    sent: list[int] = field(default_factory=list)
    refused: dict[int, FilaError] = field(default_factory=dict)
    """Rows that the broker, or a check, refuses for themselves."""
    resting: dict[str, tuple[int, FilaError]] = field(default_factory=dict)
    """Queues that take no messages now, with the first row that was refused, and why."""


def send(client: Client, rows: Iterable[Row[Any]], dedup_window_ms: int) -> Fates:
    """Enqueue rows in their order within each queue, and return their outcomes. Raise errors that concern all rows."""
    fates = Fates()
    by_queue: defaultdict[str, list[_Sealed]] = defaultdict(list)
    for row in rows:
        try:
            by_queue[row.queue].append((row.number, seal_message(message_of(row))))
        except (InvalidArgumentError, TypeError, ValueError) as error:
            fates.refused[row.number] = error if isinstance(error, FilaError) else InvalidArgumentError(str(error))
    _Sending(client, fates, dedup_window_ms).send_all(by_queue)
    return fates


_Sealed = tuple[int, Any]
"""A row's number, and its sealed message."""


class _Sending:
    def __init__(self, client: Client, fates: Fates, dedup_window_ms: int) -> None:
        self._commands = CommandsAhead(client)
        self._fates = fates
        self._dedup_window_ms = dedup_window_ms

    def send_all(self, by_queue: dict[str, list[_Sealed]]) -> None:
        calls = [(queue, rows, self._start(queue, rows)) for queue, rows in by_queue.items()]
        for queue, rows, call in calls:
            self._judge(queue, rows, call)

    def _start(self, queue: str, rows: Sequence[_Sealed]) -> Any:
        command = seal_rows([sealed for _, sealed in rows])
        command.dedup_window_ms = self._dedup_window_ms
        return self._commands.start(Request(queue, command))

    def _judge(self, queue: str, rows: Sequence[_Sealed], call: Any) -> None:
        try:
            results = ids_of(self._commands.outcome(call), len(rows))
        except OF_THE_RELAY:
            raise
        except FilaError as error:
            if type(error) is FilaError:  # of the client alone: it is closed
                raise
            self._refused_together(queue, rows, error.with_traceback(None))  # it would keep the payloads for the collector
            return
        for (number, _), result in zip(rows, results, strict=True):
            if not isinstance(result, FilaError):
                self._fates.sent.append(number)
            elif result.retryable or isinstance(result, OF_THE_QUEUE):
                self._fates.resting.setdefault(queue, (number, result))
            else:
                self._fates.refused[number] = result

    def _refused_together(self, queue: str, rows: Sequence[_Sealed], error: FilaError) -> None:
        """Find the rows that cause the refusal of a frame."""
        if error.retryable or isinstance(error, OF_THE_QUEUE):
            self._fates.resting.setdefault(queue, (rows[0][0], error))
        elif len(rows) == 1:
            self._fates.refused[rows[0][0]] = error
        else:
            half = len(rows) // 2
            for part in (rows[:half], rows[half:]):
                if queue not in self._fates.resting:
                    self._judge(queue, part, self._start(queue, part))


def message_of(row: Row[Any]) -> Message:
    """Return the message of a row. Its time to live has run since the row was added."""
    options = dict(row.options or {})
    if "deliver_at" in options:
        options["deliver_at"] = datetime.fromisoformat(options["deliver_at"])
    if "ttl" in options:
        waited = datetime.now(UTC) - in_utc(row.created_at)
        options["ttl"] = max(TTL_S_MIN, options["ttl"] - max(timedelta(0), waited).total_seconds())
    return Message(row.payload, row.headers, dedup_id=row.dedup_id, **options)


def in_utc(moment: datetime) -> datetime:
    """Return a time of the table with its zone, which SQLite does not keep."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


_log = logging.getLogger("fila_cluster.outbox")

STOP_S_MAX: Final = 0.25
"""How long a relay that waits for PostgreSQL may take to notice that it is to stop."""


class RelayPauses:
    """Waits for commits. PostgreSQL by psycopg wakes it; other databases and drivers are read after each ``poll_s``."""

    def __init__(self, engine: Engine, poll_s: float, stop: Event) -> None:
        self._engine = engine
        self._poll_s = poll_s
        self._stop = stop
        self._listener: Any = None

    def listen(self) -> None:
        """Open a connection for notifications of commits, if the driver has them. Call it before rows are looked for."""
        if self._listener is not None or (self._engine.dialect.name, self._engine.driver) != ("postgresql", "psycopg"):
            return
        try:
            self._listener = _listening(self._engine)
        except _driver_error() as error:  # the following turn fails, too, unless only this connection is one too many
            _log.warning(
                "cannot listen to PostgreSQL, so the outbox is looked at each %g s: %s", self._poll_s, type(error).__name__
            )

    def wait(self, at_most_s: float) -> None:
        """Return after a commit, at the next look, or when the relay is to stop."""
        until = time.monotonic() + min(at_most_s, self._poll_s)
        if self._listener is None:
            self._stop.wait(max(0.0, until - time.monotonic()))
            return
        try:
            while not self._stop.is_set() and (left_s := until - time.monotonic()) > 0:
                if any(True for _ in self._listener.notifies(timeout=min(left_s, STOP_S_MAX), stop_after=1)):
                    list(self._listener.notifies(timeout=0))  # of other commits: one look is for all of them
                    return
        except _driver_error() as error:  # the server was restarted: the next turn connects again
            _log.warning("the connection that listens to PostgreSQL was lost: %s", type(error).__name__)
            self.close()

    def close(self) -> None:
        """Close the connection."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()


def _listening(engine: Engine) -> Any:
    """Return a connection of the driver outside the pool, with notifications of commits."""
    pooled = engine.raw_connection()
    listener: Any = pooled.driver_connection
    pooled.detach()
    try:
        listener.rollback()
        listener.autocommit = True
        listener.execute(f"LISTEN {CHANNEL}")
    except BaseException:
        listener.close()
        raise
    return listener


def _driver_error() -> type[Exception]:
    import psycopg  # noqa: PLC0415 # only where its connection is in use

    return psycopg.Error


BATCH: Final = 500
POLL_S: Final = 1.0
RETENTION_S: Final = 3600.0
PAUSE_S_MIN: Final = 0.25
"""Between two tries of a refused row, at first: doubled each time."""
REST_S_MAX: Final = 30.0
"""Of a queue that takes no messages: it may be created, or have room, at any time."""
RESTING_MAX: Final = 1000
"""Queues whose rest is remembered. Beyond, the one that rests longest is tried again."""
TROUBLE_S_MAX: Final = 5.0
"""Between two tries while the database is away."""
DELETED_PER_SENT: Final = 2
"""Rows that a turn may delete for each one that it may send, so that sent rows do not pile up."""


class Turn(NamedTuple):
    """One turn of a relay: how many rows it sent and how many were refused, and whether others may be waiting."""

    sent: int
    refused: int
    more: bool


@dataclass(frozen=True, slots=True)
class _Options:
    batch: int
    retention: timedelta
    dedup_window_ms: int


def relay(
    engine: Engine,
    client: Client,
    *,
    stop: Event | None = None,
    poll: float = POLL_S,
    batch: int = BATCH,
    retention: float = RETENTION_S,
    dedup_window: float | None = None,
    on_turn: Callable[[Turn], object] | None = None,
) -> None:
    """Send committed messages of the outbox to the broker until ``stop`` is set. Blocks: run it in its own thread or process.

    Any number of relays may run at a time, also for one database. ``poll``: seconds between two looks into the table while
    nothing comes (PostgreSQL wakes it before). ``batch``: rows of a turn, at most. ``retention``: seconds for which sent rows
    are kept; 0: they are deleted at once. ``dedup_window``: for how many seconds the broker recognizes a message (a week at
    most; None: as it is configured); if a relay crashes, and another one continues within this time, messages are stored
    once. ``on_turn`` gets the result of each turn.

    It continues after outages of the database or the broker, and ends with :class:`FilaError` when the client is closed.
    Raises :class:`InvalidArgumentError` if the table does not exist, :class:`UnauthenticatedError` if the broker does not let
    the client in.
    """
    one = _Relay(engine, client, _options(batch, retention, dedup_window))
    stop = stop or Event()
    pauses = RelayPauses(engine, checks.positive_milliseconds("poll", poll, DEDUP_WINDOW_MS_MAX) / 1000, stop)
    check_table(engine)
    failures = 0
    try:
        while not stop.is_set():
            try:
                pauses.listen()
                turn = one.turn()
            except (DBAPIError, NoConnectionLeftError) as error:
                if not _may_pass(error):
                    raise
                _log.warning("the outbox's database is away: %s", _why(error))
                pauses.close()
                stop.wait(min(TROUBLE_S_MAX, PAUSE_S_MIN * 2.0 ** min(failures, 10)))
                failures += 1
                continue
            failures = 0
            if on_turn is not None:
                on_turn(turn)
            if not turn.more:
                pauses.wait(one.rests_for())
    finally:
        pauses.close()


def _may_pass(error: Exception) -> bool:
    if not isinstance(error, DBAPIError):
        return True
    # An InternalError is about the transaction: the server became a standby, which is read-only, or the transaction lasted
    # too long.
    return isinstance(error, OperationalError | InterfaceError | InternalError) or error.connection_invalidated


def _why(error: Exception) -> str:
    """Return the error without the data of a statement."""
    if not isinstance(error, DBAPIError):
        return "no connection of the engine's pool is free"
    text = "" if error.statement else " ".join(str(error.orig).split())
    return f"{type(error.orig).__name__} {text}".rstrip()


def relay_turn(
    engine: Engine, client: Client, *, batch: int = BATCH, retention: float = RETENTION_S, dedup_window: float | None = None
) -> Turn:
    """Send one batch of committed messages, and return: for programs that have a loop of their own, and for tests."""
    return _Relay(engine, client, _options(batch, retention, dedup_window)).turn()


def check_table(engine: Engine) -> None:
    """Raise :class:`InvalidArgumentError` if the table is missing, but not if the database is away."""
    try:
        found = inspect(engine).has_table(outbox.name)
    except (DBAPIError, NoConnectionLeftError) as error:
        if _may_pass(error):
            return
        raise InvalidArgumentError(f"cannot look for the table {outbox.name}: {_why(error)}") from None
    if not found:
        raise InvalidArgumentError(
            f"there is no table {outbox.name} in {engine.url.render_as_string()}: create it with `fila-cluster outbox init "
            "--url URL`, outbox.metadata.create_all(engine), or a migration"
        )


def _check_blocking(engine: object, client: object) -> None:
    if hasattr(engine, "sync_engine"):
        raise InvalidArgumentError(
            "engine is an AsyncEngine, and a relay blocks: make an engine for it with create_engine(), and call "
            "`await asyncio.to_thread(outbox.relay, engine, client)`"
        )
    if isinstance(client, AsyncClient):
        raise InvalidArgumentError("client is an AsyncClient, and a relay blocks: pass a Client")


def _options(batch: int, retention: float, dedup_window: float | None) -> _Options:
    window_ms = 0 if dedup_window is None else checks.positive_milliseconds("dedup_window", dedup_window, DEDUP_WINDOW_MS_MAX)
    kept_ms = checks.milliseconds("retention", retention, 10 * DEDUP_WINDOW_MS_MAX)
    return _Options(checks.whole_number("batch", batch, 1, FRAME_MESSAGES_MAX), timedelta(milliseconds=kept_ms), window_ms)


@dataclass(slots=True)
class _Rest:
    """A queue that takes no messages: the end of its rest (monotonic), and its refusals in a row."""

    until: float
    failures: int


class _Relay:
    """A relay's state between turns. It may be lost: the table has all that counts."""

    def __init__(self, engine: Engine, client: Client, options: _Options) -> None:
        _check_blocking(engine, client)
        self._claims = Claims(engine, options.batch)
        self._client = client
        self._options = options
        self._resting: OrderedDict[str, _Rest] = OrderedDict()

    def turn(self) -> Turn:
        """Take rows, send them, and note their outcomes."""
        now = time.monotonic()
        fates = Fates()
        with self._claims.turn() as connection:
            claim = self._claims.take(connection, (queue for queue, rest in self._resting.items() if rest.until > now))
            old = self._claims.has_sent(connection, self._kept_since())
            if self._claims.held:
                fates = send(self._client, claim.rows, self._options.dedup_window_ms)
                deleted = self._note(connection, claim.rows, fates, old=old)
        if not self._claims.held:
            fates = send(self._client, claim.rows, self._options.dedup_window_ms)
            deleted = 0
            if claim.rows or old:
                with self._claims.turn() as connection:
                    deleted = self._note(connection, claim.rows, fates, old=old)
        self._remember({row.queue for row in claim.rows}, fates)
        return Turn(len(fates.sent), len(fates.refused), claim.more or deleted == self._deleted_max)

    def rests_for(self) -> float:
        """Return how many seconds it may wait before a queue that rests is to be tried."""
        now = time.monotonic()
        return min((rest.until - now for rest in self._resting.values() if rest.until > now), default=math.inf)

    def _kept_since(self) -> datetime:
        return datetime.now(UTC) - self._options.retention

    @property
    def _deleted_max(self) -> int:
        return DELETED_PER_SENT * self._options.batch

    def _note(self, connection: Connection, rows: Sequence[Row[Any]], fates: Fates, *, old: bool) -> int:
        """Note the fates of rows, and return how many old ones were deleted."""
        note_sent(connection, fates.sent, keep=bool(self._options.retention))
        tries = {row.number: row.attempts for row in rows}
        refused = {number: (_said(error), _pause(tries[number])) for number, error in fates.refused.items()}
        note_refused(connection, refused | {number: (_said(error), None) for number, error in fates.resting.values()})
        return self._claims.delete_sent(connection, self._kept_since(), self._deleted_max) if old else 0

    def _remember(self, tried: Iterable[str], fates: Fates) -> None:
        """Pause queues that take no messages, each time longer, and forget those that took some."""
        for queue in tried:
            known = self._resting.pop(queue, None)
            if queue not in fates.resting:
                continue
            error, failures = fates.resting[queue][1], known.failures if known else 0
            pause_s = max(error.retry_after or 0.0, min(REST_S_MAX, PAUSE_S_MIN * 2.0**failures))
            self._resting[queue] = _Rest(time.monotonic() + pause_s, min(failures + 1, 30))
            if not known:
                _log.warning("queue %s takes no messages, they wait in the outbox: %s", queue, error)
        while len(self._resting) > RESTING_MAX:
            self._resting.popitem(last=False)


def _said(error: FilaError) -> str:
    return f"{error.code}: {error}"


def _pause(attempts: int) -> timedelta:
    return timedelta(seconds=min(PAUSE_S_MAX, PAUSE_S_MIN * 2.0 ** min(attempts, 30)))
