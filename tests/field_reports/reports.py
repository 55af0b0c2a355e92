"""The scenarios of this folder, by the documentation of their modules."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
README: Final = FOLDER / "README.md"
BEGIN, END = "<!-- made by python -m tests.field_reports -->\n", "<!-- end of the table -->\n"
_SOURCE = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+) (?P<kind>issue|pull request) (?P<number>\d+)( \([^()]*\))?")
_PATHS: Final = {"issue": "issues", "pull request": "pull"}


@dataclass(frozen=True)
class Report:
    """One scenario. ``sources``: repository, kind and number of each public report."""

    path: Path
    scenario: str
    sources: tuple[tuple[str, str, int], ...]
    right: str
    result: str

    def row(self) -> str:
        """Return its row of the table."""
        links = ", ".join(
            f"[{repository} {number}](https://github.com/{repository}/{_PATHS[kind]}/{number})"
            for repository, kind, number in self.sources
        )
        return f"| [{self.scenario}]({self.path.relative_to(FOLDER)}) | {links} | {self.result} |\n"


def read(path: Path) -> Report:
    """Return the scenario of a module; raise ValueError if its documentation is not as README.md says."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    scenario, _, rest = text.partition("\n\n")
    fields = dict(line.split(": ", 1) for line in rest.splitlines() if ": " in line)
    if "\n" in scenario or list(fields)[:2] != ["Source", "Right"] or not set(fields) <= {"Source", "Right", "Result"}:
        raise ValueError(f"{path}: begin with a line for the scenario, an empty line, then lines Source: and Right:")
    found = [_SOURCE.fullmatch(each) for each in fields["Source"].split(", ")]
    if None in found:
        raise ValueError(f"{path}: a source is OWNER/NAME issue N, or OWNER/NAME pull request N: {fields['Source']}")
    sources = tuple((each["repository"], each["kind"], int(each["number"])) for each in found if each)
    return Report(path, scenario, sources, fields["Right"], fields.get("Result", "sound"))


def modules() -> list[Path]:
    """Return the modules of all scenarios, by folder."""
    return sorted(FOLDER.glob("*/test_*.py"))


def with_table(text: str) -> str:
    """Return the text of README.md with the table of now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    rows = []
    for folder in sorted({path.parent for path in modules()}):
        rows.append(f"\n### {folder.name.capitalize()}\n\n| scenario | reports | result |\n|---|---|---|\n")
        rows += [read(path).row() for path in modules() if path.parent == folder]
    return before + BEGIN + "".join(rows) + END + after
