"""Conclude a benchmark that judges: write the figures to a file, print what does not hold, set the exit code."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console


def conclude(
    console: Console, figures: Mapping[str, Any], path: Path | None, broken: list[str], *, sound: str, bad: str
) -> NoReturn:
    """Write the figures to ``path``, if there is one, print the verdict, and exit with 1 if something is broken."""
    if path:
        path.write_text(json.dumps(figures, indent=1) + "\n")
    console.print(f"{bad}: {'; '.join(broken)}" if broken else sound)
    raise SystemExit(1 if broken else 0)
