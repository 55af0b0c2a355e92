"""Where the router listens: with its workers, at an address, on a path."""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fila_cluster.run.config.settings import Address
from fila_cluster.run.supervisor import CannotStartError
from fila_cluster.run.supervisor.endpoints import IN_DATA_DIR, Ports, WorkerEndpoint, check_socket_path
from fila_proto_zmq.errors import InvalidConfigError


def test_over_tcp_on_any_address():
    with Ports() as ports:
        worker_endpoint = WorkerEndpoint.parse("tcp://0.0.0.0:0", "--worker-listen").reserve(ports, "--worker-listen")
    assert worker_endpoint.address
    assert worker_endpoint.address.port
    assert worker_endpoint.endpoint == f"tcp://0.0.0.0:{worker_endpoint.address.port}"
    assert worker_endpoint.join == f"tcp://127.0.0.1:{worker_endpoint.address.port}"


def test_on_the_disk_wherever_the_children_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    worker_endpoint = WorkerEndpoint.parse("ipc://here", "--worker-listen")
    assert worker_endpoint.endpoint == worker_endpoint.join == f"ipc://{tmp_path}/here"
    with Ports() as ports:
        assert worker_endpoint.reserve(ports, "--worker-listen") is worker_endpoint


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
    worker_endpoint = WorkerEndpoint.parse(f"ipc://{tmp_path}/data/here", "--worker-listen")
    with pytest.raises(
        CannotStartError, match=rf"there is no directory {tmp_path}/data; make it, or correct --worker-listen"
    ):
        worker_endpoint.check_path("--worker-listen")
    worker_endpoint.check_path("--worker-listen", tmp_path / "data")
    IN_DATA_DIR.check_path("--worker-listen", tmp_path / "data")


HERE = Address("127.0.0.1", 0)


@pytest.fixture
def ports() -> Iterator[Ports]:
    with Ports() as ports:
        yield ports


def test_a_free_port_can_be_listened_on_again_and_again(ports: Ports):
    address = ports.reserve(HERE, "--listen")
    assert address.port
    for _ in range(2):
        with socket.create_server((address.host, address.port)):
            pass
    assert ports.reserve(address, "--listen") == address


@pytest.mark.skipif(sys.platform != "linux", reason="no other system lets a port be kept")
def test_a_reserved_port_is_given_to_one_process_only(ports: Ports):
    address = ports.reserve(HERE, "--listen")
    with socket.socket() as somebody, pytest.raises(OSError, match="in use"):
        somebody.bind((address.host, address.port))


def test_a_port_in_use_is_an_error_with_the_flag_to_change(ports: Ports):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotStartError) as caught:
            ports.reserve(Address("127.0.0.1", port), "--worker-listen")
    assert str(caught.value) == (
        f"cannot listen on tcp://127.0.0.1:{port}: address already in use; "
        "stop the other process or choose another --worker-listen"
    )


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
def test_an_address_of_no_machine_or_another_one_is_refused(ports: Ports, host: str):
    with pytest.raises(CannotStartError, match=f"cannot listen on tcp://{host}:0: "):
        ports.reserve(Address(host, 0), "--listen")


@pytest.mark.parametrize("host", ["0.0.0.0", "localhost"])
def test_other_ways_to_say_this_machine(ports: Ports, host: str):
    assert ports.reserve(Address(host, 0), "--listen").host == host


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


def test_a_path_is_taken_while_a_process_listens_there(path: Path):
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
