"""The recording in README.md: commands in a real terminal, drawn as a picture that any page may show."""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.recording.__main__ import PICTURE, SCENES, UP
from tests.recording.picture import Scene, draw
from tests.recording.terminal import COLUMNS, ROWS, Shown, Terminal

SVG = "{http://www.w3.org/2000/svg}"
BYTES_MAX = 1_000_000


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(tmp_path, {"PATH": "/usr/bin:/bin"})


def texts(picture: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def test_the_picture_of_the_readme_is_of_these_commands_and_small():
    drawn = ElementTree.fromstring(PICTURE.read_text())
    description = drawn.find(f"{SVG}desc")
    assert description is not None
    assert description.text == "; ".join([UP, *(each for commands in SCENES.values() for each in commands)])
    assert PICTURE.stat().st_size < BYTES_MAX
    assert f"]({PICTURE.relative_to(Path(__file__).parents[2])})" in (PICTURE.parents[2] / "README.md").read_text()


def test_a_command_is_typed_and_its_output_shown():
    drawn = draw([Scene("a title", [Shown("ls -a", "a <b>\n\x1b[1;32mgreen\x1b[0m", 0.1)])])
    assert texts(drawn) == ["a title", "$", "l", "s", "-", "a", "a <b>", "green"]
    assert "font-weight:bold" in drawn
    assert "<script" not in drawn
    assert set(re.findall(r"https?://[^\"\s]+", drawn)) == {SVG.strip("{}")}


def test_moments_follow_each_other_and_the_last_screen_stays_where_nothing_moves():
    drawn = draw([Scene("first", [Shown("one", "", 0)]), Scene("second", [Shown("two", "", 0)])])
    begins = [float(found) for found in re.findall(r"([\d.]+)%\{opacity:1\}", drawn)]
    assert begins == sorted(begins)
    assert len(re.findall(r"\{opacity:1;animation", drawn)) == 4


@pytest.mark.parametrize("output", ["\n" * ROWS, "x" * (COLUMNS + 1)])
def test_what_does_not_fit_is_an_error(output: str):
    with pytest.raises(ValueError, match="show less"):
        draw([Scene("a title", [Shown("ls", output, 0)])])


def test_commands_run_in_a_terminal(terminal: Terminal):
    assert terminal.run("stty size").output == f"{ROWS} {COLUMNS}"
    assert terminal.run("echo a b | tr a-z A-Z").output == "A B"
    with pytest.raises(SystemExit, match=r"exited with 1"):
        terminal.run("false")


def test_a_command_that_stays_is_stopped_in_the_end(terminal: Terminal):
    program = "import time; print('here I am', flush=True); time.sleep(600)"
    with terminal.staying(f'{sys.executable} -c "{program}"', until="here") as shown:
        assert shown.output == "here I am"
