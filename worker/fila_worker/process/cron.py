"""Cron expressions and time zones, read by ``cronsim`` and the time zone database.

A skipped or repeated hour, when clocks change, is treated as Debian's cron does. A due time at a fixed hour that is skipped
comes right after the gap, and one in a repeated hour comes once, the first time. An hourly due time follows real time.
**Rejected:** croniter: it comes twice at a fixed hour that is repeated.
"""

from datetime import UTC, datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import CRON_BYTES_MAX, TIME_ZONE_BYTES_MAX
from fila_worker.core.calendar import DueTimes

_YEAR_MAX = 9000
"""Dates end in the year 9999."""


class CronTimes:
    """The due times of a cron expression in a time zone. They are whole seconds."""

    def __init__(self, cron: str, zone: ZoneInfo) -> None:
        self._cron = cron
        self._zone = zone

    def after(self, time_ms: int) -> int | None:
        """Return the first one after a time; None: none in the next 50 years."""
        return self._next(time_ms // 1000, reverse=False)

    def before(self, time_ms: int) -> int | None:
        """Return the last one up to a time, included; None: none in the last 50 years."""
        last = self._next(time_ms // 1000 + 1, reverse=True)
        if last is None:
            return None
        # Around a change of the clocks the library finds other times backwards than forwards: forwards counts.
        found, following = None, self.after(last - _CHANGE_MS if self._differs(last, time_ms) else last - 1000)
        while following is not None and following <= time_ms:
            found, following = following, self.after(following)
        return found

    def _differs(self, last: int, time_ms: int) -> bool:
        following = self.after(last)
        return self.after(last - 1000) != last or (following is not None and following <= time_ms)

    def _next(self, second: int, *, reverse: bool) -> int | None:
        moment = datetime.fromtimestamp(second, self._zone)
        if moment.year > _YEAR_MAX:
            return None
        following = next(CronSim(self._cron, moment, reverse), None)
        return None if following is None else round(following.timestamp()) * 1000


_CHANGE_MS = 3 * 3600 * 1000
"""Longer than any change of the clocks."""


class CronCalendar:
    """The calendar of a worker."""

    def times(self, cron: str, timezone: str) -> DueTimes:
        """Return the due times of a cron expression in a time zone. Raise :class:`InvalidArgumentError`."""
        return _times(cron, timezone)

    def check_zone(self, timezone: str) -> None:
        """Raise :class:`InvalidArgumentError` for an unknown time zone."""
        _zone(timezone)

    def iso(self, time_ms: int) -> str:
        """Return a time in UTC as ISO 8601 writes it, with milliseconds if it has some."""
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
        return moment.isoformat(timespec="milliseconds" if time_ms % 1000 else "seconds").replace("+00:00", "Z")


CALENDAR = CronCalendar()


@lru_cache(maxsize=1024)
def _times(cron: str, timezone: str) -> CronTimes:
    if not 0 < len(cron) <= CRON_BYTES_MAX:
        raise InvalidArgumentError(f"cron expression of {len(cron)} characters: use 1 to {CRON_BYTES_MAX}")
    times = CronTimes(cron, _zone(timezone))
    try:
        first = times.after(0)
    except CronSimError as wrong:
        raise InvalidArgumentError(
            f"bad cron expression {cron!r}: {wrong}; use minute hour day month weekday, such as '0 3 * * *'"
        ) from None
    if first is None:
        raise InvalidArgumentError(f"the cron expression {cron!r} has no due time in 50 years")
    return times


def _zone(timezone: str) -> ZoneInfo:
    try:
        if len(timezone) <= TIME_ZONE_BYTES_MAX:
            return ZoneInfo(timezone)
    except (ValueError, OSError):  # ZoneInfoNotFoundError is a KeyError
        pass
    except KeyError:
        pass
    raise InvalidArgumentError(
        f"unknown time zone {timezone[:TIME_ZONE_BYTES_MAX]!r}: use a name of the time zone database, such as 'Europe/Lisbon'"
    )
