"""The page of benchmarks: tables and plots between markers, made from results. Text outside of the markers is written by
hand.

A part stands between ``<!-- made by python -m benchmarks page: NAME -->`` and ``<!-- end of NAME -->``. ``machine`` is the
part about the machine and the versions; each other name is a benchmark.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from benchmarks.harness.machine import Machine
from benchmarks.harness.report.plots import pictures
from benchmarks.harness.report.results import Result
from benchmarks.harness.report.tables import markdown

MACHINE = "machine"
START = re.compile(r"<!-- made by python -m benchmarks page: (.+) -->\n")


def write_page(page: Path, results: Mapping[str, Result]) -> list[str]:
    """Write the parts of a page whose results there are. Return the names of parts that were left as they are."""
    text, left = page.read_text(), []
    images = page.parent / "images" / page.stem
    for found in START.finditer(text):
        name, start, end = found[1], found[0], f"<!-- end of {found[1]} -->\n"
        if text.count(start) != 1 or text.count(end) != 1:
            raise SystemExit(f"{page.name}: the part {name!r} stands twice, or has no line {end.strip()!r}")
        if name != MACHINE and name not in results:
            left.append(name)
            continue
        made = machines(results) if name == MACHINE else part(results[name], images, images.parent.name + "/" + images.name)
        text = f"{text.partition(start)[0]}{start}{made}\n{end}{text.partition(end)[2]}"
    page.write_text(text)
    return left


def part(result: Result, images: Path, link: str) -> str:
    """Return what the page has of a result, and write its pictures into ``images``, which the page calls ``link``."""
    images.mkdir(parents=True, exist_ok=True)
    for old in images.glob(f"{result.name}-*.svg"):
        old.unlink()
    drawn = pictures(result)
    blocks = [f"```console\n$ {result.command}\n```"]
    for title, figures in result.tables().items():
        blocks.append(f"**{title}**\n\n{markdown(figures)}")
        blocks += _picture(result, title, drawn, images, link)
    for chart in result.charts:
        blocks += _picture(result, chart.title, drawn, images, link)
    blocks += result.notes
    if result.promises:
        blocks.append("\n".join(f"- {'Kept' if each.kept else '**Not kept**'}: {each.text}" for each in result.promises))
    blocks += [_checked(result)]
    return "\n\n".join(blocks)


def _picture(result: Result, title: str, drawn: Mapping[str, str], images: Path, link: str) -> list[str]:
    if title not in drawn:
        return []
    file = f"{result.name}-{list(drawn).index(title) + 1}.svg"
    (images / file).write_text(drawn[title])
    return [f"![{title}]({link}/{file})"]


def _checked(result: Result) -> str:
    parts = [f"Size {result.size}, {result.seconds:,.0f} s, commit `{result.machine.commit or 'unknown'}`"]
    parts += [
        f"{name}: {', '.join(f'{key} {value}' for key, value in facts.items())}" for name, facts in result.systems.items()
    ]
    if result.verified.sent:
        parts.append(f"{result.verified.received:,} messages came, each once and as it was sent")
    return "; ".join(parts) + "."


def machines(results: Mapping[str, Result]) -> str:
    """Return the machines and versions of all results."""
    by_facts: dict[str, list[str]] = {}
    for name, result in sorted(results.items()):
        by_facts.setdefault(facts(result.machine), []).append(name)
    return "\n".join(f"- {text}: {', '.join(names)}" for text, names in by_facts.items()) or "- No results yet."


def facts(machine: Machine) -> str:
    """Return a machine in one line."""
    libraries = ", ".join(f"{name} {version}" for name, version in machine.libraries.items())
    return (
        f"{machine.cpu}, {machine.cores} cores, {machine.memory_gib:g} GiB, {machine.kernel}, {machine.python}, {libraries}"
    )
