"""The port of a replicated log: what a shard needs of one partition, whoever keeps it.

A partition is a sequence of records that any number of processes append to and read. Its owner keeps several copies of it and reports an append
when enough of them have it. No call here waits for the network, and none but ``close`` takes longer than a moment.

All times are milliseconds of a steady clock of this process.
"""

from typing import NamedTuple, Protocol

from fila_proto_zmq.commands import LogReplicas
from fila_proto_zmq.errors import StorageError


class TrimmedError(StorageError):
    """The log does not begin as early as the reader needs it: the copy of the shard must be begun anew from a checkpoint."""


class LogEntry(NamedTuple):
    """A record in its place."""

    offset: int
    data: bytes


class AppendReport(NamedTuple):
    """The outcome of one append."""

    append: int
    """The number of the append: 1, 2, 3 … of this appender."""
    offset: int | None
    """Where the record is; None: the log does not say."""
    error: str = ""
    """Why it failed, or why its outcome is unknown: its writer must end. Empty: the record is in the log."""


class Appender(Protocol):
    """Appends to one partition, in order. It sends nothing behind an append that failed."""

    def append(self, data: bytes) -> int:
        """Begin to append a record; return the number of the append.

        It raises nothing: a record that is too large, or one too many without a report, is reported as failed.
        """

    def reports(self) -> list[AppendReport]:
        """Return the outcomes that are known by now, in the order of the appends, each once."""

    def close(self) -> None:
        """End. Appends without a report may be in the log or not."""


class Tail(Protocol):
    """Reads one partition from some offset on. It does not wake its process for records: read at times, or after a report."""

    def read(self, records_max: int) -> list[LogEntry]:
        """Return the next records that have arrived, at most so many.

        Raise :class:`TrimmedError`, :class:`fila_worker.log.rule.LostError` if the log has gone back, or :class:`StorageError` for what will not
        pass. What passes by itself (no broker answers) raises nothing: see ``asked_ms``.
        """

    @property
    def end(self) -> int | None:
        """The offset behind the last record, as of ``asked_ms``; None: not known yet."""

    @property
    def asked_ms(self) -> int | None:
        """When the partition was last asked for its end and answered; None: it has not answered since the last :meth:`ask`.

        Who cannot ask cannot append, and must not try to lead.
        """

    def ask(self) -> None:
        """Begin to ask for the end. No effect while a question is under way."""

    def close(self) -> None:
        """End."""


class Partition(Protocol):
    """One partition of the log."""

    @property
    def replicas(self) -> LogReplicas | None:
        """What the log last said of its own copies; None: nothing lately, or it does not say."""

    def appender(self) -> Appender:
        """Return a new appender. It connects in the background."""

    def tail(self, offset: int) -> Tail:
        """Return a new reader from ``offset`` on."""

    def trim(self, offset: int) -> None:
        """Let the log forget the records before ``offset``, soon. The record at ``offset`` stays, and always the last one.

        It may come to nothing if no broker answers: call it again with the next checkpoint.
        """
