"""Lua scripts as people give them on a command line: a file, or the text itself."""

import re
from pathlib import Path
from typing import Any

import click

_NOT_A_NAME = re.compile(r"[\s(]")
"""What a script has and the name of a file hardly ever."""


class Script(click.ParamType):  # type: ignore[type-arg] # generic since click 8.2 only
    """A script option; its value is the Lua text."""

    name = "script"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Read the file if there is one; else it is the text, unless it looks like the name of a missing file."""
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
