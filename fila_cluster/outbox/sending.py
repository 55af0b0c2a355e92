"""Rows to the broker: one frame for each queue of a turn, all in flight at a time, and the fate of each row."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import Row

from fila_cluster.client import Client, Request
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
