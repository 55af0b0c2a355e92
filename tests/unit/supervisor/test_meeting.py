"""Where a router and its workers meet."""

from pathlib import Path

import pytest

from fila_cluster.supervisor.meeting import IN_DATA_DIR, Meeting
from fila_proto_zmq.errors import InvalidConfigError


def test_over_tcp_on_any_address():
    meeting = Meeting.parse("tcp://0.0.0.0:0", "--worker-listen").reserve("--worker-listen")
    assert meeting.address
    assert meeting.address.port
    assert meeting.endpoint == f"tcp://0.0.0.0:{meeting.address.port}"
    assert meeting.join == f"tcp://127.0.0.1:{meeting.address.port}"


def test_on_the_disk_wherever_the_children_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    meeting = Meeting.parse("ipc://here", "--worker-listen")
    assert meeting.endpoint == meeting.join == f"ipc://{tmp_path}/here"
    assert meeting.reserve("--worker-listen") is meeting


def test_in_the_data_directory_by_default():
    assert (IN_DATA_DIR.endpoint, IN_DATA_DIR.address) == ("ipc://router.ipc", None)


@pytest.mark.parametrize("text", ["", "nonsense", "udp://a:1"])
def test_nowhere_else(text: str):
    with pytest.raises(InvalidConfigError, match=r"--join .*: write tcp://HOST:PORT or ipc://PATH"):
        Meeting.parse(text, "--join")
