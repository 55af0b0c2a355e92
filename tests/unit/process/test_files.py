"""Files that are whole or not at all."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fila_process.files import write_whole


def test_a_file_is_replaced_and_private(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(b"old")
    path.chmod(0o644)
    write_whole(path, [b"new ", b"content"])
    assert path.read_bytes() == b"new content"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["keys.json"]


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(b"old")

    def pieces() -> Iterator[bytes]:
        yield b"half"
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        write_whole(path, pieces())
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["keys.json"]


def test_a_draft_that_another_process_left_is_not_written_through(tmp_path: Path) -> None:
    """A draft may be a link, or open in the process that made it: the new content must not get there."""
    path, elsewhere = tmp_path / "keys.json", tmp_path / "elsewhere"
    elsewhere.write_bytes(b"theirs")
    (tmp_path / "keys.json.new").symlink_to(elsewhere)
    write_whole(path, [b"secret"])
    assert (elsewhere.read_bytes(), path.read_bytes(), path.is_symlink()) == (b"theirs", b"secret", False)
