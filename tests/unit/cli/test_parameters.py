"""What people type as arguments: durations, and scripts as a file or as text."""

from pathlib import Path

import click
import pytest

from fila_cluster import Message
from fila_cluster.cli.queues.messages import message_options
from fila_cluster.cli.shared.parameters import DURATION, SCRIPT


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("1500", 1.5), ("500ms", 0.5), ("30s", 30), ("1.5s", 1.5), ("5m", 300), ("2h", 7200)],
)
def test_what_a_duration_is(text: str, seconds: float):
    assert DURATION.convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1", "-5s", "5 s", "1d", "5M", "1e3", "ten", "٣s"])
def test_what_a_duration_is_not(text: str):
    with pytest.raises(click.BadParameter, match="500ms, 30s, 5m, 2h"):
        DURATION.convert(text, None, None)


def test_a_file_s_text_is_the_script(tmp_path: Path):
    file = tmp_path / "hook.lua"
    file.write_text("function on_enqueue(msg) return {} end -- ä", encoding="utf-8")
    assert SCRIPT.convert(str(file), None, None) == "function on_enqueue(msg) return {} end -- ä"


def test_a_file_with_an_unlikely_name_is_a_file_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("my hook (old)").write_text("x = 1")
    assert SCRIPT.convert("my hook (old)", None, None) == "x = 1"


@pytest.mark.parametrize(
    "text", ["function on_enqueue(msg) return {} end", "x = 1", "f()", "x=1\n", "-- " + "long " * 1000, "return (\0)"]
)
def test_what_cannot_be_a_name_is_the_script(text: str):
    assert SCRIPT.convert(text, None, None) == text


@pytest.mark.parametrize("text", ["hook.lua", "my hooks/missing.lua", "hooks/missing", "", "x", "/"])
def test_a_missing_file_is_no_script(text: str):
    with pytest.raises(click.BadParameter, match="there is no such file, and it is not Lua"):
        SCRIPT.convert(text, None, None)


def test_a_file_that_is_no_text(tmp_path: Path):
    file = tmp_path / "hook.lua"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(click.BadParameter, match="not UTF-8"):
        SCRIPT.convert(str(file), None, None)


def test_the_flags_of_a_message_are_its_options_with_their_defaults():
    @click.command()
    @message_options
    def command(**options: object) -> None:
        assert options | {"headers": None, "throttle_keys": None} == {
            name: getattr(usual, name) for name in Message.__dataclass_fields__ if name not in {"payload", "deliver_at"}
        }

    usual = Message(b"")
    command.main([], standalone_mode=False)
