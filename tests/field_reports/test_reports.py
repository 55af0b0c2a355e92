"""Each scenario of this folder says where it comes from and what is right, and the table of README.md has it."""

from pathlib import Path

import pytest

from tests.field_reports.reports import FOLDER, README, modules, read, with_table

MODULES_MAX = 16


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.stem)
def test_a_scenario_has_its_source(path: Path) -> None:
    report = read(path)
    assert report.scenario.endswith(".")
    assert report.right


def test_the_table_is_that_of_now() -> None:
    assert README.read_text() == with_table(README.read_text()), "run python -m tests.field_reports"


def test_no_folder_is_too_large() -> None:
    assert all(len(list(folder.glob("*.py"))) <= MODULES_MAX for folder in FOLDER.iterdir() if folder.is_dir())
