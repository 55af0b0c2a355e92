from typing import NamedTuple

import pytest

from fila_cluster.ops.top.columns import Column, SortedRows


class Row(NamedTuple):
    name: str
    size: int | None
    hue: str = ""


COLUMNS: tuple[Column[Row], ...] = (
    Column("name", 0, lambda row: row.name, lambda row: row.name, right=False),
    Column("size", 6, lambda row: str(row.size), lambda row: row.size),
    Column("hue", 6, lambda row: row.hue, lambda row: row.hue, right=False, screen_cells=100),
)


def listing(*rows: Row, sort: int = 1, height: int = 3) -> SortedRows[Row]:
    made = SortedRows(COLUMNS, lambda row: row.name, sort=sort)
    made.resize(80, height)
    made.fill(rows)
    return made


def names(of: SortedRows[Row]) -> str:
    return "".join(row.name for row in of.rows)


ROWS = Row("a", 1), Row("b", 5), Row("c", None), Row("d", 3), Row("e", 5)


def test_numbers_are_sorted_highest_first_equal_ones_as_they_came_the_unknown_last():
    assert names(listing(*ROWS)) == "bedac"


def test_the_unknown_comes_last_in_the_other_direction_too():
    made = listing(*ROWS)
    made.sort_by(1)
    assert names(made) == "adbec"


def test_names_are_sorted_from_a_to_z():
    made = listing(*reversed(ROWS))
    made.sort_by(0)
    assert names(made) == "abcde"
    made.sort_by(0)
    assert names(made) == "edcba"


def test_sorting_moves_on_among_the_columns_that_are_shown():
    made = listing(*ROWS)
    made.sort_beside(1)
    assert made.sort == 0  # the third one needs a wider screen
    made.sort_beside(-1)
    assert made.sort == 1
    made.resize(100, 3)
    made.sort_beside(1)
    assert made.sort == 2


def test_a_screen_that_became_narrow_hides_the_column_that_is_sorted_by():
    made = listing(*ROWS)
    made.resize(100, 3)
    made.sort_by(2)
    made.resize(80, 3)
    made.sort_beside(1)
    assert made.sort == 1


def test_the_cursor_stays_with_its_row():
    made = listing(*ROWS)
    made.move(2)
    assert made.chosen == ("d", 3, "")
    made.fill([Row("d", 99), Row("a", 1), Row("b", 5)])
    assert made.chosen is not None
    assert made.chosen.name == "d"


def test_on_the_first_line_it_stays_on_the_line():
    made = listing(*ROWS)
    made.fill([Row("b", 1), Row("z", 99)])
    assert made.chosen == ("z", 99, "")


def test_a_row_that_is_gone_leaves_the_cursor_where_it_was():
    made = listing(*ROWS)
    made.go(3)
    made.fill([row for row in ROWS if row.name != "a"])
    assert made.cursor == 3
    made.fill(ROWS[:1])
    assert made.chosen == ROWS[0]
    made.fill([])
    assert made.chosen is None
    assert made.visible() == []


def test_the_cursor_is_always_seen():
    made = listing(*ROWS)
    assert [row.name for row in made.visible()] == ["b", "e", "d"]
    made.go(4)
    assert [row.name for row in made.visible()] == ["d", "a", "c"]
    made.move(-1)
    assert made.top == 2
    made.move(-99)
    assert (made.cursor, made.top) == (0, 0)


def test_more_room_shows_more_rows():
    made = listing(*ROWS, height=2)
    made.go(4)
    made.resize(80, 4)
    assert len(made.visible()) == 4


@pytest.mark.parametrize("wanted", ["B", " b ", "b"])
def test_filters_look_for_a_part_of_the_name_in_any_case(wanted: str):
    made = listing(Row("ABC", 1), Row("cd", 2), Row("b", 3))
    made.filter_by(wanted)
    assert [row.name for row in made.rows] == ["b", "ABC"]
    assert made.total == 3
    made.filter_by("")
    assert len(made.rows) == 3


def test_filters_look_at_another_text_if_there_is_one():
    made = SortedRows(COLUMNS, lambda row: row.name, text_of=lambda row: row.hue)
    made.fill([Row("a", 1, "red"), Row("red", 1, "blue")])
    made.filter_by("red")
    assert names(made) == "a"


def test_the_rows_that_were_given_are_left_as_they_are():
    given = list(ROWS)
    listing(*ROWS).fill(given)
    assert given == list(ROWS)
