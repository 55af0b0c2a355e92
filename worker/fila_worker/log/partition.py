"""The port of a replicated log: one partition, as a shard uses it.

A partition is a sequence of records that any number of processes append to and read. The log keeps several copies of it, and
reports an append when enough of them have it. Calls do not wait for the network. All return at once, except ``close``.

All times are milliseconds of a steady clock of this process.
"""

from typing import NamedTuple, Protocol

from fila_proto_zmq.commands import LogReplicas
from fila_proto_zmq.errors import StorageError


class TrimmedError(StorageError):
    """The log begins behind the offset that the reader needs: the copy of the shard must begin again from a checkpoint."""


class LogEntry(NamedTuple):
    """A record in its place."""

    offset: int
    data: bytes


class AppendReport(NamedTuple):
    """The outcome of one append."""

    append: int
    """The number of the append: 1, 2, 3 … of this appender."""
    offset: int | None
    """Where the record is; None: unknown."""
    error: str = ""
    """Why it failed, or why its outcome is unknown: its writer must end. Empty: the record is in the log."""


class Appender(Protocol):
    """Appends to one partition, in order. It sends nothing behind an append that failed."""

    def append(self, data: bytes) -> int:
        """Append a record; return the number of the append. A record too large, or one too many, is reported as failed."""

    def reports(self) -> list[AppendReport]:
        """Return the outcomes that are known by now, in the order of the appends, each once."""

    def close(self) -> None:
        """End. Appends without a report may be in the log or not."""


class Tail(Protocol):
    """The records of one partition from some offset on. Records do not wake the process: read at times, or after a report."""

    def read(self, records_max: int) -> list[LogEntry]:
        """Return the next records that have arrived, at most so many.

        Raise :class:`TrimmedError`, :class:`fila_worker.log.rule.LostError` if the log has gone back, or
        :class:`StorageError` for what does not pass. If no broker answers, return nothing: see ``asked_ms``.
        """

    @property
    def end(self) -> int | None:
        """The offset behind the last record, as of ``asked_ms``; None: unknown."""

    @property
    def asked_ms(self) -> int | None:
        """When the last answered question for the end was asked; None: no answer since the last :meth:`ask`.

        A process that cannot ask cannot append, and must not try to lead.
        """

    def ask(self) -> None:
        """Begin to ask for the end. No effect while a question is under way."""

    def close(self) -> None:
        """End."""


class Partition(Protocol):
    """One partition of the log."""

    @property
    def replicas(self) -> LogReplicas | None:
        """The last report of the log on its own copies; None: too old, or not available."""

    def appender(self) -> Appender:
        """Return a new appender. It connects in the background."""

    def tail(self, offset: int) -> Tail:
        """Return a new reader from ``offset`` on."""

    def trim(self, offset: int) -> None:
        """Remove the records before ``offset``, soon. The record at ``offset`` stays, and always the last one.

        If no broker answers, nothing is removed: call it again with the next checkpoint.
        """
