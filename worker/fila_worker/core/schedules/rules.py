"""When a schedule is due: an interval or a cron expression, with a jitter for each due time."""

from hashlib import blake2b
from typing import Final

from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import SCHEDULE_INTERVAL_MS_MAX, SCHEDULE_INTERVAL_MS_MIN, SCHEDULE_JITTER_MS_MAX
from fila_worker.core.calendar import Calendar, DueTimes

SKIP: Final = "skip"
ONCE: Final = "once"
ALL: Final = "all"
CATCH_UPS: Final = (SKIP, ONCE, ALL)
"""What is done about the due times of an outage: nothing, one message for the last one, or one for each."""


class Interval:
    """The times ``anchor + every``, ``anchor + 2 · every`` and so on."""

    def __init__(self, anchor_ms: int, every_ms: int) -> None:
        self.anchor_ms = anchor_ms
        self.every_ms = every_ms

    def after(self, time_ms: int) -> int | None:
        """Return the first one after a time."""
        return self.anchor_ms + max(1, (time_ms - self.anchor_ms) // self.every_ms + 1) * self.every_ms

    def before(self, time_ms: int) -> int | None:
        """Return the last one up to a time, included; None: there is none."""
        number = (time_ms - self.anchor_ms) // self.every_ms
        return self.anchor_ms + number * self.every_ms if number >= 1 else None


def due_times(calendar: Calendar, cron: str, every_ms: int, timezone: str, anchor_ms: int) -> DueTimes:
    """Return the due times of a rule. ``anchor_ms``: where intervals begin. Raise :class:`InvalidArgumentError`."""
    if bool(cron) == bool(every_ms):
        raise InvalidArgumentError("a schedule has either a cron expression or an interval (every): give one of them")
    if cron:
        return calendar.times(cron, timezone)
    if not SCHEDULE_INTERVAL_MS_MIN <= every_ms <= SCHEDULE_INTERVAL_MS_MAX:
        raise InvalidArgumentError(
            f"interval of {every_ms} ms: use {SCHEDULE_INTERVAL_MS_MIN} to {SCHEDULE_INTERVAL_MS_MAX} (a second to a year)"
        )
    return Interval(anchor_ms, every_ms)


def check_rest(catch_up: str, jitter_ms: int, every_ms: int) -> None:
    """Raise :class:`InvalidArgumentError` for a bad catch-up or jitter."""
    if catch_up not in CATCH_UPS:
        raise InvalidArgumentError(f"catch_up={catch_up[:100]!r}: use 'skip', 'once' or 'all'")
    most = min(SCHEDULE_JITTER_MS_MAX, every_ms or SCHEDULE_JITTER_MS_MAX)
    if not 0 <= jitter_ms <= most:
        raise InvalidArgumentError(f"jitter of {jitter_ms} ms: use 0 to {most} (a day, or the interval)")


def jitter_of(name: str, due_ms: int, jitter_ms: int) -> int:
    """Return how much later than its due time a message comes, 0 to ``jitter_ms``: the same whenever it is computed."""
    if not jitter_ms:
        return 0
    digest = blake2b(f"{due_ms} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % (jitter_ms + 1)
