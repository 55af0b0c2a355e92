"""Whether a router may listen on a path."""

import socket
from pathlib import Path

import pytest

from fila_cluster.supervisor.endpoints import check_socket_path
from fila_cluster.supervisor.failure import CannotStartError


def refusal(path: Path) -> str:
    with pytest.raises(CannotStartError) as caught:
        check_socket_path(path, "--worker-listen")
    return str(caught.value)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Relative, because a temporary directory's name may be longer than a socket's."""
    monkeypatch.chdir(tmp_path)
    return Path("here")


def test_where_nothing_is(path: Path):
    check_socket_path(path, "--worker-listen")
    assert not path.exists()


def test_where_somebody_listens_and_when_he_is_gone(path: Path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        assert refusal(path) == (
            "cannot listen on ipc://here: address already in use; stop the other process or choose another --worker-listen"
        )
    check_socket_path(path, "--worker-listen")


def test_a_file_is_not_overwritten(path: Path):
    path.write_text("precious")
    assert refusal(path) == (
        "cannot listen on ipc://here: something else is there, and would be overwritten; choose another --worker-listen"
    )
    assert path.read_text() == "precious"


def test_in_no_directory(path: Path):
    assert "there is no directory missing; make it, or correct --worker-listen" in refusal("missing" / path)


def test_what_the_system_says_is_passed_on(path: Path):
    assert refusal(Path("x" * 300)).startswith("cannot listen on ipc://xxx")
