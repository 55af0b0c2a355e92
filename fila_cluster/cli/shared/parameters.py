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
        """Return the text of the file, if there is one; else the value itself, unless it looks like the name of a missing
        file."""
        text = str(value)
        if _is_file(text):
            return self._read(Path(text), param, ctx)
        if text.endswith(".lua") or not _NOT_A_NAME.search(text):
            self.fail(f"{text!r}: there is no such file, and it is no Lua", param, ctx)
        return text

    def _read(self, path: Path, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return path.read_text(encoding="utf-8")
        except OSError as error:
            self.fail(f"cannot read {path}: {error.strerror}", param, ctx)
        except UnicodeDecodeError:
            self.fail(f"{path} is no UTF-8 text", param, ctx)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or a null byte in it
        return False


SCRIPT = Script()


F = TypeVar("F", bound=Callable[..., Any])

_SCRIPT: dict[str, Any] = {"type": SCRIPT, "metavar": "SCRIPT"}
_DURATION: dict[str, Any] = {"type": DURATION, "metavar": "D"}
_NUMBER: dict[str, Any] = {"type": int, "metavar": "N"}

FLAGS: dict[str, dict[str, Any]] = {
    "on-enqueue": _SCRIPT | {"help": "Lua that defines on_enqueue(msg): how to schedule it. A file, or the text itself."},
    "on-failure": _SCRIPT | {"help": "Lua that defines on_failure(msg): what a nack means. A file, or the text itself."},
    "visibility-timeout": _DURATION | {"help": "How long a delivery is leased: 30s, 5m, … Default: the broker's."},
    "max-attempts": _NUMBER | {"help": "Deliveries before a message is dead-lettered. Default: no limit."},
    "dead-letter": {
        "metavar": "X",
        "help": "Where dead letters go: dlq (the default: NAME.dlq), discard, or the name of another queue.",
    },
    "delivery": {
        "type": click.Choice(["at_least_once", "at_most_once"]),
        "help": "At most once: removed when delivered, never retried. Default: at_least_once.",
    },
    "max-in-flight-per-key": _NUMBER
    | {"help": "Messages of a fairness key that may be out at a time; 1: strict order. Default: no limit."},
    "default-ttl": _DURATION | {"help": "How long a message may wait before it expires. Default: for ever."},
    "idle-expiry": _DURATION | {"help": "Delete the queue when it was idle for so long. Default: never."},
    "lua-timeout": _DURATION | {"help": "How long one run of a script may take. Default: the broker's."},
    "lua-memory-limit": _NUMBER | {"help": "Bytes that one run of a script may use. Default: the broker's."},
}


def queue_options(command: F) -> F:
    """Give a command the options of a queue; those that are left out are None."""
    flags = [click.option(f"--{name}", **attributes) for name, attributes in FLAGS.items()]
    return reduce(lambda decorated, flag: flag(decorated), reversed(flags), command)


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were not left out."""
    return {name: value for name, value in options.items() if value is not None}
