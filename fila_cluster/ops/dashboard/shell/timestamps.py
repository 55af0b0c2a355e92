"""Points in time for people: in UTC, and their distance from now."""

from datetime import UTC, datetime, timedelta

from fila_cluster.figures import aged


def moment(at: datetime) -> str:
    """Return a time to the millisecond: ids are no finer, and logs can be searched for it."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} UTC"


def clock(at: datetime, now: datetime) -> str:
    """Return a short time for tables: the time of day, or, if that is long ago, the day and the minute."""
    return f"{at.astimezone(UTC):%H:%M:%S}" if now - at < timedelta(hours=20) else f"{at.astimezone(UTC):%Y-%m-%d %H:%M}"


def distance(at: datetime, now: datetime) -> str:
    """Return ``3 m ago`` or ``in 3 m``."""
    seconds = (at - now).total_seconds()
    return f"in {aged(seconds)}" if seconds >= 0 else f"{aged(-seconds)} ago"
