"""Where a router and its workers meet."""

from pathlib import Path

import pytest

from fila_cluster.supervisor.endpoints import IN_DATA_DIR, Ports, WorkerEndpoint
from fila_cluster.supervisor.failure import CannotStartError
from fila_proto_zmq.errors import InvalidConfigError


def test_over_tcp_on_any_address():
    with Ports() as ports:
        meeting = WorkerEndpoint.parse("tcp://0.0.0.0:0", "--worker-listen").reserve(ports, "--worker-listen")
    assert meeting.address
    assert meeting.address.port
    assert meeting.endpoint == f"tcp://0.0.0.0:{meeting.address.port}"
    assert meeting.join == f"tcp://127.0.0.1:{meeting.address.port}"


def test_on_the_disk_wherever_the_children_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    meeting = WorkerEndpoint.parse("ipc://here", "--worker-listen")
    assert meeting.endpoint == meeting.join == f"ipc://{tmp_path}/here"
    with Ports() as ports:
        assert meeting.reserve(ports, "--worker-listen") is meeting


def test_in_the_data_directory_by_default():
    assert (IN_DATA_DIR.endpoint, IN_DATA_DIR.address) == ("ipc://router.ipc", None)


@pytest.mark.parametrize("text", ["", "nonsense", "udp://a:1", "ipc://"])
def test_nowhere_else(text: str):
    with pytest.raises(InvalidConfigError, match=r"--join .*: write tcp://HOST:PORT or ipc://PATH"):
        WorkerEndpoint.parse(text, "--join")


def test_a_path_has_room_for_so_much_only():
    with pytest.raises(InvalidConfigError, match=r"--join ipc:///x+: as /x+ that is too long for a socket"):
        WorkerEndpoint.parse("ipc:///" + 107 * "x", "--join")
    assert WorkerEndpoint.parse("ipc:///" + 106 * "x", "--join").address is None


def test_a_path_is_checked_before_a_router_is_started(tmp_path: Path):
    meeting = WorkerEndpoint.parse(f"ipc://{tmp_path}/data/here", "--worker-listen")
    with pytest.raises(
        CannotStartError, match=rf"there is no directory {tmp_path}/data; make it, or correct --worker-listen"
    ):
        meeting.check_path("--worker-listen")
    meeting.check_path("--worker-listen", tmp_path / "data")
    IN_DATA_DIR.check_path("--worker-listen", tmp_path / "data")
