"""The harness itself: statistics, checked messages, results, tables, and the page."""

import asyncio
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.harness.machine import ROOT, Machine
from benchmarks.harness.messages import Check, Load, time_of
from benchmarks.harness.processes import Gate, together
from benchmarks.harness.report.histogram import Histogram
from benchmarks.harness.report.page import START, write_page
from benchmarks.harness.report.plots import pictures
from benchmarks.harness.report.results import Chart, Figure, Promise, Result, Series, Verified, newest, read, write
from benchmarks.harness.report.spread import interval, ratios, spread
from benchmarks.harness.report.tables import cell, markdown
from benchmarks.names import MODULES

MACHINE = Machine("a processor", 2, 4.0, "Linux 6", "CPython 3.11", {"pyzmq": "26"}, "abc", 0.5)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def result(name: str = "rates", size: str = "small", at: datetime = NOON) -> Result:
    """A result with two columns, a chart, a promise and a note."""
    figures = [
        Figure("Rates", row, column, "/s", [90.0, 100.0, 120.0]) for row in ("in", "out") for column in ("ours", "other")
    ]
    chart = Chart("Curve", "percentile", "ms", [Series("ours", [50, 99], [1, 2])], x_percentiles=True)
    return Result(
        1, name, size, f"python -m benchmarks {name}", at, 3.0, MACHINE, {"messages": 10}, {"ours": {"version": "1"}}, figures,
        [chart], [Promise("fast enough", True)], ["A note."], Verified(10, 10), {},
    )  # fmt: skip


def test_a_figure_is_a_median_with_its_ends() -> None:
    assert spread([3.0, 1.0, 10.0]) == (3.0, 1.0, 10.0)
    assert ratios([1.0, 4.0], [2.0, 2.0]) == [0.5, 2.0]


@pytest.mark.parametrize(("count", "low", "high"), [(5, 1, 5), (6, 1, 6), (9, 2, 8), (30, 10, 21)])
def test_an_interval_is_made_of_order_statistics(count: int, low: int, high: int) -> None:
    """The ranks of the 95 % interval of a median, as tables of the sign test have them."""
    found = interval([float(value) for value in range(1, count + 1)])
    assert (found.low, found.high) == (low, high)


def test_percentiles_come_from_the_histogram() -> None:
    histogram = Histogram(number * 1_000_000 for number in range(1, 1001))
    assert histogram.count == 1000
    assert histogram.ms(50) == pytest.approx(500, rel=0.002)
    assert histogram.ms(99) == pytest.approx(990, rel=0.002)
    assert histogram.max_ms == pytest.approx(1000, rel=0.002)
    assert max(histogram.series("all").x) == 99.9, "a percentile is shown only if enough values are above it"
    again = Histogram()
    again.merge(histogram.encoded())
    assert (again.count, again.ms(50)) == (1000, histogram.ms(50))


def test_payloads_have_their_number_their_time_and_their_size() -> None:
    load = Load(3, 64, first=7)
    assert [len(payload) for payload in load.payloads()] == [64, 64, 64]
    assert len(set(load.payloads())) == 3
    assert time_of(load.payload(8, 123)) == 123
    assert [(part.first, part.count) for part in Load(5).parts(2)] == [(0, 2), (2, 2), (4, 1)]


def test_a_check_knows_what_is_missing_repeated_and_damaged() -> None:
    load = Load(4, 64)
    first, second, third, _ = load.payloads()
    check = Check(load)
    check.note([first, second, second])
    check.note([third[:-1] + bytes([third[-1] ^ 1])])
    assert check.left == 0
    assert check.verified() == Verified(sent=4, received=4, missing=1, repeated=1, damaged=1)
    assert not check.verified().sound


def test_a_message_that_was_not_sent_is_damage() -> None:
    check = Check(Load(2, 64))
    check.note(Load(3, 64, first=1).payloads())
    assert check.verified() == Verified(sent=2, received=3, missing=1, repeated=0, damaged=2)


def test_checks_of_several_consumers_are_merged() -> None:
    load = Load(4, 64)
    one, other = Check(load, 0), Check(load, 0)
    one.expect(2)
    one.note(load.payloads()[:2])
    other.note(load.payloads()[1:])
    one.merge(other)
    assert one.verified() == Verified(sent=4, received=5, missing=0, repeated=1, damaged=0)


async def _add(gate: Gate, one: int, other: int) -> int:
    gate.wait()
    await asyncio.sleep(0)
    return one + other


async def _fail(gate: Gate) -> None:
    gate.wait()
    raise ValueError("a reason")


def test_client_processes_return_values_and_their_failures_end_the_benchmark() -> None:
    assert together((_add, 1, 2), (_add, 3, 4), precise=[1]) == [3, 7]
    with pytest.raises(SystemExit, match="a reason"):
        together((_add, 1, 2), (_fail,))


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read(write(result(), tmp_path)) == result()


def test_the_largest_and_then_the_newest_result_is_shown(tmp_path: Path) -> None:
    for size, hours in (("full", 0), ("full", 1), ("small", 2), ("tiny", 3)):
        write(result(size=size, at=NOON + timedelta(hours=hours)), tmp_path)
    shown = newest(tmp_path)["rates"]
    assert (shown.size, shown.started_at) == ("full", NOON + timedelta(hours=1))


def test_cells_have_three_digits_and_the_ends() -> None:
    assert cell(Figure("t", "r", "c", "/s", [12345.6])) == "12,346/s"
    assert cell(Figure("t", "r", "c", "ms", [1.234, 1.2, 2.0])) == "1.23 ms (1.20 … 2)"
    assert cell(Figure("t", "r", "c", "s", [0.99999])) == "1 s"
    assert cell(None) == "–"
    assert markdown([Figure("t", "a | b", "c", "", [1.0])]) == "| | c |\n| --- | ---: |\n| a \\| b | 1 |"


def test_pictures_are_svg_and_the_same_each_time() -> None:
    made = pictures(result())
    assert list(made) == ["Rates", "Curve"]
    assert made == pictures(result())
    for svg in made.values():
        assert ElementTree.fromstring(svg).tag.endswith("svg")


def test_the_page_is_made_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    text = "By hand.\n<!-- made by python -m benchmarks page: {0} -->\n<!-- end of {0} -->\n"
    page.write_text("".join(text.format(name) for name in ("machine", "rates", "absent")))
    assert write_page(page, {"rates": result()}) == ["absent"]
    written = page.read_text()
    assert written.count("By hand.") == 3
    assert "| in | 100/s (90 … 120) | 100/s (90 … 120) |" in written
    assert "a processor, 2 cores" in written
    assert "- Kept: fast enough" in written
    images = sorted(path.name for path in (tmp_path / "images" / "benchmarks").iterdir())
    assert images == ["rates-1.svg", "rates-2.svg"]
    assert all(f"(images/benchmarks/{name})" in written for name in images)
    write_page(page, {"rates": result()})
    assert page.read_text() == written, "the page is reproducible"


def test_every_benchmark_is_listed_and_every_part_of_the_page_is_one() -> None:
    listed = set(
        re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.+?) \|", (ROOT / "benchmarks/README.md").read_text(), re.M)))
    )
    assert set(MODULES) <= listed
    pages = [(ROOT / f"docs/{page}.md").read_text() for page in ("benchmarks", "measurements")]
    assert {name for page in pages for name in START.findall(page)} - {"machine"} <= set(MODULES)


def test_a_page_with_a_marker_that_has_no_end_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text("<!-- made by python -m benchmarks page: rates -->\n")
    with pytest.raises(SystemExit, match="has no line"):
        write_page(page, {"rates": result()})
