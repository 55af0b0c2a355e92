"""Types of parameters, durations and Lua scripts, and the options of a queue as flags."""

import os
import re
import sys
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import click

from fila_cluster.figures import duration_s
from fila_proto_zmq.commands import QUEUE_OPTIONS, Option


class Duration(click.ParamType):  # type: ignore[type-arg] # generic since click 8.2 only
    """A duration option; its value is in seconds, as the client needs it."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read a duration; a bare number is milliseconds."""
        if isinstance(value, float):
            return value
        try:
            return duration_s(str(value))
        except ValueError as wrong:
            self.fail(str(wrong), param, ctx)


DURATION = Duration()


def payload_of(argument: str) -> bytes:
    """Return the bytes of an argument as they were typed, UTF-8 or not; ``-``: what standard input has."""
    return sys.stdin.buffer.read() if argument == "-" else os.fsencode(argument)


_NOT_A_NAME = re.compile(r"[\s(]")
"""Characters that a script has and a file's name hardly ever."""


class Script(click.ParamType):  # type: ignore[type-arg] # generic since click 8.2 only
    """A script option; its value is the Lua text."""

    name = "script"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the file's text, or else the value itself, unless it looks like the name of a missing file."""
        text = str(value)
        if _is_file(text):
            return self._read(Path(text), param, ctx)
        if text.endswith(".lua") or not _NOT_A_NAME.search(text):
            self.fail(f"{text!r}: there is no such file, and it is not Lua", param, ctx)
        return text

    def _read(self, path: Path, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return path.read_text(encoding="utf-8")
        except OSError as error:
            self.fail(f"cannot read {path}: {error.strerror}", param, ctx)
        except UnicodeDecodeError:
            self.fail(f"{path} is not UTF-8 text", param, ctx)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or a null byte in it
        return False


SCRIPT = Script()


class NumberOrWord(click.ParamType):  # type: ignore[type-arg] # generic since click 8.2 only
    """A whole number, or one of some words that stand for one."""

    name = "count"

    def __init__(self, words: tuple[str, ...]) -> None:
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Return the number, or the word."""
        return str(value) if value in self._words else int(click.INT.convert(value, param, ctx))


F = TypeVar("F", bound=Callable[..., Any])


_KINDS: dict[str, dict[str, Any]] = {
    "duration": {"type": DURATION, "metavar": "D"},
    "size": {"type": int, "metavar": "N"},
    "count": {"type": int, "metavar": "N"},
    "number": {"type": float, "metavar": "X"},
    "text": {"metavar": "TEXT"},
    "texts": {"metavar": "TEXT", "multiple": True},
    "queue": {"metavar": "X"},
    "script": {"type": SCRIPT, "metavar": "SCRIPT"},
}
_HINTS = {"duration": " Format: 500ms, 30s, 5m, 2h.", "script": " A file, or the text itself.", "texts": " May be repeated."}


def flag(option: Option, default: Any = None) -> Callable[[F], F]:
    """Return the flag of an option, for a command."""
    kind = _KINDS.get(option.kind) or {"type": click.Choice(option.choices)}
    if option.kind == "count" and option.choices:
        kind = {"type": NumberOrWord(option.choices), "metavar": "|".join(("N", *option.choices))}
    text = option.meaning + _HINTS.get(option.kind, "")
    return click.option(f"--{option.flag}", option.name, **kind, default=default, help=text)


def queue_options(command: F) -> F:
    """Give a command the options of a queue; those that are left out are None."""
    return reduce(lambda decorated, option: flag(option)(decorated), reversed(QUEUE_OPTIONS.values()), command)


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were not left out."""
    return {name: value for name, value in options.items() if value is not None}
