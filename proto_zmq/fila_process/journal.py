"""The log of a process on standard error: a line for each event, for machines or for people.

A reader that stops reading a pipe must not hold up a broker. So a line that would not fit is not written; how many lines were
lost is logged as soon as the pipe is read again.
"""

import json
import os
import select
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, get_args

from fila_proto_zmq.events import Event, Level, LinesLost, LogSettings, printable

_LEVELS: Final = get_args(Level)

Style: TypeAlias = Callable[[dict[str, Any]], str]
"""Make a line of the fields that all events have and of an event's own fields, in this order."""


class Journal:
    """Writes events down. ``process``: the name of this process; ``fd``: where to write, standard error if not given."""

    def __init__(self, process: str, settings: LogSettings, fd: int | None = None) -> None:
        self._process, self._pid = process, os.getpid()
        self._lines = _Lines(sys.stderr.fileno() if fd is None else fd)
        self._level = _LEVELS.index(settings.level)
        for_people = self._lines.is_terminal if settings.format == "auto" else settings.format == "console"
        self._style: Style = _for_people(colors=self._lines.is_terminal) if for_people else json.dumps

    def tell(self, events: Iterable[Event]) -> None:
        """Write events down, in order. Never fails and never waits."""
        for event in events:
            if self._lines.lost and self._lines.has_room():
                lost, self._lines.lost = self._lines.lost, 0
                self._write(LinesLost(lost))
            self._write(event)

    def _write(self, event: Event) -> None:
        if _LEVELS.index(event.level) < self._level:
            return
        when = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        first = {"timestamp": when, "level": event.level, "event": event.event, "process": self._process, "pid": self._pid}
        self._lines.write(self._style(first | event.fields()))


class _Lines:
    """Where rendered lines go. ``lost``: the lines without room since the last report of lost lines."""

    def __init__(self, fd: int) -> None:
        self.lost = 0
        self.is_terminal = os.isatty(fd)
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    def has_room(self) -> bool:
        """Return whether a line can be written without waiting: a pipe has room as long as 4 KiB fit."""
        return bool(self._poll.poll(0))

    def write(self, line: str) -> None:
        """Write a line, or drop it."""
        if not self.has_room():
            self.lost += 1
            return
        with suppress(OSError):  # the reader is gone; that is no reason to stop serving
            os.write(self._fd, f"{line}\n".encode(errors="backslashreplace"))


def _for_people(*, colors: bool) -> Style:
    """Return a style with only the fields that are there. Names come from users: nothing may steer a terminal."""
    # structlog takes a quarter of a process's start, and a log for machines does without it.
    import structlog.dev  # noqa: PLC0415

    renderer = structlog.dev.ConsoleRenderer(colors=colors, sort_keys=False, pad_event_to=18)

    def render(entry: dict[str, Any]) -> str:
        present = {name: value for name, value in entry.items() if value is not None}
        shown = {name: printable(value) if isinstance(value, str) else value for name, value in present.items()}
        return str(renderer(None, "", shown))

    return render
