"""What a process says of itself, on standard error: a line for each event, for machines or for people.

Whoever forgets to read a pipe must not hold up a broker. So nothing is written that would not fit; how many lines were lost is said
as soon as somebody reads again.
"""

import os
import select
import sys
from collections.abc import Iterable
from contextlib import suppress
from logging import getLevelNamesMapping
from typing import Any, Final

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from fila_proto_zmq.events import Event, LinesLost, LogSettings, printable

_FIRST: Final = ("timestamp", "level", "event", "process", "pid")


class Journal:
    """Writes events down. ``process``: who this is; ``fd``: where to, standard error if not given."""

    def __init__(self, process: str, settings: LogSettings, fd: int | None = None) -> None:
        self._lines = _Lines(sys.stderr.fileno() if fd is None else fd)
        level = getLevelNamesMapping()[settings.level.upper()]
        self._log: Any = structlog.wrap_logger(
            self._lines,
            processors=[structlog.processors.add_log_level, structlog.processors.TimeStamper("iso"), *self._style(settings)],
            wrapper_class=structlog.make_filtering_bound_logger(level),
            process=process,
            pid=os.getpid(),
        )

    def _style(self, settings: LogSettings) -> list[Processor]:
        for_people = self._lines.is_terminal if settings.format == "auto" else settings.format == "console"
        if for_people:
            colors = self._lines.is_terminal
            return [_for_people, structlog.dev.ConsoleRenderer(colors=colors, sort_keys=False, pad_event_to=18)]
        return [_in_order, structlog.processors.JSONRenderer()]

    def tell(self, events: Iterable[Event]) -> None:
        """Write events down, in order. Never fails and never waits."""
        for event in events:
            if self._lines.lost and self._lines.has_room():
                lost, self._lines.lost = self._lines.lost, 0
                self._write(LinesLost(lost))
            self._write(event)

    def _write(self, event: Event) -> None:
        getattr(self._log, event.level)(event.event, **event.fields())


class _Lines:
    """Where rendered lines go. ``lost``: those for which there was no room, since it was last said."""

    def __init__(self, fd: int) -> None:
        self.lost = 0
        self.is_terminal = os.isatty(fd)
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    def has_room(self) -> bool:
        """Whether a line can be written without waiting: a pipe says so as long as 4 KiB fit."""
        return bool(self._poll.poll(0))

    def msg(self, line: str) -> None:
        """Write a line, or drop it."""
        if not self.has_room():
            self.lost += 1
            return
        with suppress(OSError):  # the reader is gone; that is no reason to stop serving
            os.write(self._fd, f"{line}\n".encode(errors="backslashreplace"))

    debug = info = warning = error = critical = msg


def _in_order(_logger: WrappedLogger, _method: str, entry: EventDict) -> EventDict:
    """What all lines have comes first."""
    return {**{name: entry[name] for name in _FIRST}, **entry}


def _for_people(_logger: WrappedLogger, _method: str, entry: EventDict) -> EventDict:
    """Only what there is; and as names come from users, nothing that breaks a line or steers a terminal."""
    present = {name: value for name, value in entry.items() if value is not None}
    return {name: printable(value) if isinstance(value, str) else value for name, value in present.items()}
