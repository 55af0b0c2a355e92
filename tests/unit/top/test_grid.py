"""A list on a screen, without a cluster."""

import asyncio

from rich.cells import cell_len
from textual.app import App, ComposeResult

from fila_cluster.ops.analysis.rows import QueueRow
from fila_cluster.ops.top.columns import QUEUES, Column, SortedRows
from fila_cluster.ops.top.grid import Grid


class Counting:
    """A column that counts how often it is read to be shown."""

    def __init__(self) -> None:
        self.shown = 0

    def text(self, name: str) -> str:
        self.shown += 1
        return name


class Shown(App[None]):
    def __init__(self, grid: Grid) -> None:
        super().__init__()
        self.grid = grid

    def compose(self) -> ComposeResult:
        yield self.grid


def lines(grid: Grid) -> list[str]:
    return [grid.render_line(y).text for y in range(grid.size.height)]


def test_of_ten_thousand_rows_only_those_are_drawn_that_are_seen():
    column = Counting()
    grid = Grid(SortedRows([Column("name", 0, column.text, lambda row: row, right=False)], str), id="list")

    async def main() -> None:
        async with Shown(grid).run_test(size=(80, 24)) as pilot:
            await pilot.pause()
            grid.fill([f"row-{number:05d}" for number in range(10_000)], "")
            assert column.shown == 0
            await pilot.pause()
            assert 23 <= column.shown <= 3 * 23
            await pilot.press("end")
            await pilot.pause()
            assert lines(grid)[-1].startswith("row-09999")
            await pilot.press("home", "pagedown", "down")
            assert grid.listing.chosen == "row-00024"

    asyncio.run(main())


def test_whatever_the_names_lines_have_the_width_of_the_screen():
    odd = ["大" * 60, "a\x1b[31m\nb", "", "é" * 300, "short"]
    grid = Grid[QueueRow](SortedRows(QUEUES, lambda row: row.name), id="list")
    seen: list[list[str]] = []

    async def main(width: int) -> None:
        async with Shown(grid).run_test(size=(width, 10)) as pilot:
            await pilot.pause()
            grid.fill([QueueRow(name, "idle", 0, False, *[10**9] * 4, 1e5, 10**9, 1e9, 1e9, 1e9, 10**9) for name in odd], "")
            await pilot.pause()
            seen.append(lines(grid))

    asyncio.run(main(80))
    assert {cell_len(line) for line in seen[0]} == {80}
    assert not any("\x1b" in line or "\n" in line for line in seen[0])
    assert any("…" in line for line in seen[0])
