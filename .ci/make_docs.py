"""Write the parts of the docs that are made from code, and Grafana's dashboards: ``make docs``. With ``--check``, name what is not up to date.

A part stands between ``<!-- made by .ci/make_docs.py: NAME -->`` and ``<!-- end of NAME -->``. Text outside these lines is written by hand;
``figures.py`` checks the figures in it.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import figures
from parts import client, configuration, grafana, lifecycle, operation, protocol, reference, turns, usage

DOCS = Path(__file__).parents[1] / "docs"

PARTS: dict[str, Callable[[], str]] = {
    "lifecycle": lifecycle.lifecycle,
    "commands": protocol.commands,
    "structs": protocol.structs,
    "worker commands": protocol.worker_commands,
    "worker structs": protocol.worker_structs,
    "errors": protocol.errors,
    "limits": protocol.limits,
    "reasons": operation.reasons,
    **{f"metrics: {group}": part for group, part in operation.METRICS.items()},
    "alerts": operation.alerts,
    **{f"events: {group}": part for group, part in operation.EVENTS.items()},
    "concerns": operation.concerns,
    "configuration": configuration.options,
    "cli": usage.commands,
    "handlers": reference.handlers,
    "http": reference.operations,
    **client.PARTS,
}

PICTURES: dict[str, Callable[[], str]] = {"images/turns.svg": turns.svg}

START = re.compile(r"<!-- made by \.ci/make_docs\.py: (.+) -->\n")


def with_parts(text: str) -> str:
    """Return the text of a page with its parts as the code says."""
    for found in START.finditer(text):
        name, start = found[1], found[0]
        end = f"<!-- end of {name} -->\n"
        if name not in PARTS or text.count(start) != 1 or text.count(end) != 1:
            sys.exit(f"{name!r} is no part that .ci/make_docs.py makes, stands twice, or has no line {end.strip()!r}")
        text = f"{text.partition(start)[0]}{start}{PARTS[name]()}\n{end}{text.partition(end)[2]}"
    return text


def main(*, check: bool) -> None:
    """Write the pages and pictures, or name those that would change; name phrases whose figure the code does not have."""
    pages = {page: page.read_text() for page in sorted(DOCS.glob("*.md"))}
    placed = [name for text in pages.values() for name in START.findall(text)]
    if sorted(placed) != sorted(PARTS):
        sys.exit(f"each part stands on one page; these do not: {sorted(set(PARTS).symmetric_difference(placed))}")
    made_of = {page: with_parts(text) for page, text in pages.items()} | {
        DOCS / name: picture() for name, picture in PICTURES.items()
    }
    made_of |= grafana.files()
    stale = {file: made for file, made in made_of.items() if not file.exists() or file.read_text() != made}
    if check and stale:
        sys.exit(f"not as the code says: {', '.join(file.name for file in stale)}. Run `make docs`")
    for page, text in pages.items():
        if phrases := figures.missing(page.name, text):
            sys.exit(f"{page.name} lacks these phrases; is a figure of the code another one, or the wording? {phrases}")
    for file, made in stale.items():
        file.write_text(made)


if __name__ == "__main__":
    main(check="--check" in sys.argv[1:])
