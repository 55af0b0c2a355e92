"""The base of all events, and how much of an event is shown."""

from traceback import extract_tb
from typing import ClassVar, Literal, TypeAlias

import msgspec

Level: TypeAlias = Literal["debug", "info", "warning", "error", "critical"]

TEXT_MAX = 300
"""Characters of a field that are written; names come from users, and some have no bound of their own."""

FRAMES_MAX = 12
"""Lines of code that are shown of an error."""


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a process writes its log. ``auto``: for people if standard error is a terminal, else JSON."""

    format: Literal["auto", "json", "console"] = "auto"
    level: Literal["debug", "info", "warning", "error"] = "info"


class Event(msgspec.Struct):
    """Something that happened in a cluster's life."""

    event: ClassVar[str]
    level: ClassVar[Level] = "info"
    advice: ClassVar[str] = ""
    """The advice to an operator; empty: there is nothing to do."""

    def fields(self) -> dict[str, object]:
        """Return the known fields, long texts cut."""
        return {name: _bounded(getattr(self, name)) for name in self.__struct_fields__}


def _bounded(value: object) -> object:
    return f"{value[:TEXT_MAX]}…" if isinstance(value, str) and len(value) > TEXT_MAX else value


def printable(text: str) -> str:
    """Return a text without anything that breaks a line or steers a terminal."""
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def where(error: BaseException) -> list[str]:
    """Return the lines of code that an error came through, the last one first."""
    frames = reversed(extract_tb(error.__traceback__)[-FRAMES_MAX:])
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
