"""The port for dates, cron expressions and time zones.

The core has no dates, and reads no files with time zones: the worker passes a calendar (:mod:`fila_worker.process.cron`).
"""

from typing import Protocol

from fila_proto_zmq.errors import InvalidArgumentError


class DueTimes(Protocol):
    """Points in time, Unix ms, each later than the one before. The same each time they are asked for."""

    def after(self, time_ms: int) -> int | None:
        """Return the first one after a time; None: the last one is past."""
        ...

    def before(self, time_ms: int) -> int | None:
        """Return the last one up to a time, included; None: all are later."""
        ...


class Calendar(Protocol):
    """Dates and time zones."""

    def times(self, cron: str, timezone: str) -> DueTimes:
        """Return the due times of a cron expression in a time zone. Raise :class:`InvalidArgumentError`."""
        ...

    def check_zone(self, timezone: str) -> None:
        """Raise :class:`InvalidArgumentError` for an unknown time zone."""
        ...

    def iso(self, time_ms: int) -> str:
        """Return a time in UTC as ISO 8601 writes it."""
        ...


class NoCalendar:
    """Rejects cron expressions. Used by tools that only read."""

    def times(self, cron: str, timezone: str) -> DueTimes:
        """Refuse."""
        raise InvalidArgumentError(f"cron={cron!r}: this process reads no cron expressions")

    def check_zone(self, timezone: str) -> None:
        """Refuse."""
        raise InvalidArgumentError(f"timezone={timezone[:100]!r}: this process reads no time zones")

    def iso(self, time_ms: int) -> str:
        """Return the Unix ms as text."""
        return str(time_ms)
