"""Write the parts of the docs that are made from code: ``python .ci/make_docs.py``; with ``--check`` say which are not as they should be.

A part stands between ``<!-- made by .ci/make_docs.py: NAME -->`` and ``<!-- end of NAME -->``.
"""

import sys
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

from fila_worker.core.lifecycle import LIFE, Attempts, Place, Reason, Step

DOCS = Path(__file__).parents[1] / "docs"


def lifecycle() -> str:
    """The life of a message: a drawing, and a table."""
    return "\n".join(["```mermaid", *_drawing(), "```", "", *_table()])


def _drawing() -> Iterator[str]:
    names = {place: place.name.title().replace("_", "") for place in Place} | {Place.NOWHERE: "[*]", Place.GONE: "[*]"}
    yield "stateDiagram-v2"
    yield f"    {names[Place.DEAD_LETTER]}: {Place.DEAD_LETTER}"
    edges = sorted(LIFE, key=lambda step: (list(Place).index(step.before), list(Place).index(step.after)))
    for (before, after), steps in groupby(edges, key=lambda step: (step.before, step.after)):
        labels = [_label(step) for step in steps]
        if after is Place.DEAD_LETTER:
            reasons = {reason for step in LIFE if step.before is before for reason in step.unless}
            labels += [f"or else: {', '.join(each for each in Reason if each in reasons)}"] if reasons else []
        yield f"    {names[before]} --> {names[after]}: {'<br>'.join(labels)}"


def _label(step: Step) -> str:
    attempts = {Attempts.SAME: "", Attempts.ONE_MORE: " (attempts + 1)", Attempts.ZERO: " (attempts = 0)"}
    return step.event + ("" if step.before is Place.NOWHERE else attempts[step.attempts])


def _table() -> Iterator[str]:
    yield "| a message that is | and then | is | attempts | but a dead letter for the first of these reasons that holds |"
    yield "|---|---|---|---|---|"
    for step in LIFE:
        reasons = ", ".join(f"`{reason}`" for reason in step.unless) or "–"
        yield f"| {step.before} | {step.event} | {step.after} | {step.attempts.value} | {reasons} |"


PARTS: dict[tuple[str, str], Callable[[], str]] = {("protocol.md", "lifecycle"): lifecycle}


def with_parts(page: str, text: str) -> str:
    """The text of a page with its parts as they should be."""
    for (name, part), make in PARTS.items():
        if name == page:
            start, end = f"<!-- made by .ci/make_docs.py: {part} -->\n", f"<!-- end of {part} -->\n"
            if text.count(start) != 1 or text.count(end) != 1:
                sys.exit(f"{page} has no part {part!r}, or several: it stands between {start.strip()} and {end.strip()}")
            text = f"{text.partition(start)[0]}{start}{make()}\n{end}{text.partition(end)[2]}"
    return text


def main(*, check: bool) -> None:
    """Write the pages, or say which ones would change."""
    stale = []
    for page in sorted({page for page, _ in PARTS}):
        path = DOCS / page
        text = path.read_text()
        if (made := with_parts(page, text)) != text:
            stale.append(page)
            if not check:
                path.write_text(made)
    if check and stale:
        sys.exit(f"not as the code says: {', '.join(stale)}. Run make docs")


if __name__ == "__main__":
    main(check="--check" in sys.argv[1:])
