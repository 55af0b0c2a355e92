"""Unusual starts and ends of ``fila-cluster up``: other sources of settings, other addresses, impatient users, closed streams."""

import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from fila_cluster import Client
from fila_cluster.errors import FilaError
from tests.support.cluster.cluster import PATIENCE_S, command, environment, eventually, running


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


def refused(*arguments: object, cwd: Path, **env: str) -> str:
    """The one line of a command that does not start."""
    result = subprocess.run(
        command(*arguments), cwd=cwd, env=environment(**env), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    return line


def endpoints_of(supervisor: psutil.Process) -> list[str]:
    """Where its router listens, as the system sees it."""
    routers = [child for child in supervisor.children() if "fila_router" in child.cmdline()]
    sockets = [each for router in routers for each in router.net_connections("tcp")]
    return [f"tcp://{each.laddr.ip}:{each.laddr.port}" for each in sockets if each.status == psutil.CONN_LISTEN]


def is_up(endpoint: str) -> bool:
    try:
        with Client(endpoint, timeout=1.0) as client:
            return [worker.state for worker in client.cluster_status().workers] == ["up"]
    except FilaError:
        return False


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


# --- on one host, or on several ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("up",),
        ("router", "--worker-listen", "127.0.0.1:5556", "--shards", 2),
        ("worker", "--join", "127.0.0.1:5556", "--shard", 0, "--shards", 2),
    ],
)
def test_with_brokers_a_host_is_one_of_several(tmp_path: Path, data_dir: Path, arguments: tuple[object, ...]):
    error = refused(*arguments, "--data-dir", data_dir, cwd=tmp_path, FILA_REPLICATION__LOG="kafka://k:9092")
    assert "[replication] log is set" in error
    assert "`fila-cluster node`" in error
    assert not data_dir.exists()


@pytest.mark.whole
def test_a_host_of_several_that_could_not_start_is_refused(tmp_path: Path, data_dir: Path):
    def line(*arguments: object) -> str:
        return refused("node", "--data-dir", data_dir, *arguments, cwd=tmp_path)

    kafka = ("--log", "kafka://k:9092", "--shards", 2)
    assert "add --log" in line()
    assert "--log k:9092: not a log that fila-cluster can use" in line("--log", "k:9092")
    assert "--join b: 'b' is not where another host listens" in line(*kafka, "--join", "b")
    assert "--worker-listen b: not an address" in line(*kafka, "--worker-listen", "b")
    assert "0.0.0.0:5555 can be reached from other machines" in line(*kafka, "--listen", "*:5555")
    assert "0.0.0.0:1 can be reached from other machines" in line(*kafka, "--worker-listen", "*:1")
    same = ("--listen", "127.0.0.1:5556", "--worker-listen", "127.0.0.1:5556")
    assert "--listen 127.0.0.1:5556 and --worker-listen 127.0.0.1:5556 are the same" in line(*kafka, *same)
    assert not data_dir.exists()


# --- where it listens -------------------------------------------------------------------------------------------------


@pytest.mark.whole
def test_all_of_it_can_be_said_by_variables(tmp_path: Path, data_dir: Path):
    said = environment(
        FILA_SERVER__LISTEN_ADDR="tcp://127.0.0.1:0",
        FILA_SERVER__DATA_DIR=str(data_dir),
        FILA_SERVER__WORKERS="1",
        FILA_DASHBOARD__LISTEN_ADDR="127.0.0.1:0",
        FILA_TELEMETRY__LOG_LEVEL="warning",
    )
    with subprocess.Popen(command("up"), cwd=tmp_path, env=said, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout
        try:
            ready = supervisor.stdout.readline().split()
            assert [ready[0], ready[3], ready[-2:]] == ["ready:", "dashboard", ["1", "workers"]]
            assert is_up(ready[1])
        finally:
            supervisor.terminate()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_over_ipv6_where_there_is_any(tmp_path: Path, data_dir: Path):
    everywhere = ("--worker-listen", "[::1]:0", "--dashboard", "[::1]:0")
    if not has_ipv6():
        assert "tcp://[::1]:0" in refused("up", "--data-dir", data_dir, "--listen", "[::1]:0", *everywhere, cwd=tmp_path)
        return
    with running(data_dir, *everywhere, listen="[::1]:0") as cluster:
        assert cluster.all_up()
        dashboard = cluster.ready_line.split()[4]
        with urlopen(f"{dashboard}/readyz", timeout=PATIENCE_S) as ready:
            assert ready.status == 200


def test_two_listeners_want_two_addresses(tmp_path: Path, data_dir: Path):
    address = "127.0.0.1:7"
    assert refused("up", "--data-dir", data_dir, "--listen", address, "--dashboard", address, cwd=tmp_path) == (
        f"Error: --listen {address} and --dashboard {address} are the same: give each a port of its own"
    )
    assert not data_dir.exists()


@pytest.mark.whole
def test_a_socket_in_use_is_not_taken_over(tmp_path: Path, data_dir: Path):
    meeting = ("--worker-listen", "ipc://data/here")  # in the directory that the first start makes
    with running(data_dir, *meeting, cwd=tmp_path) as cluster:
        second = refused("up", "--data-dir", "other", "--listen", "127.0.0.1:0", "--no-dashboard", *meeting, cwd=tmp_path)
        assert second == (
            f"Error: cannot listen on ipc://{data_dir}/here: "
            "address already in use; stop the other process or choose another --worker-listen"
        )
        assert "address already in use" in refused("router", "--shards", 1, *meeting, cwd=tmp_path)
        assert cluster.all_up()
        cluster.kill_all()
    with running(data_dir, *meeting, cwd=tmp_path) as again:  # what a killed router left there is in nobody's way
        assert again.all_up()
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("arguments", [("up", "--listen", "127.0.0.1:0"), ("worker", "--join", "ipc://x", "--shard", 0)])
def test_an_empty_data_dir_is_not_the_working_directory(tmp_path: Path, arguments: tuple[object, ...]):
    assert "names no directory" in refused(*arguments, "--data-dir", "", cwd=tmp_path)
    assert "FILA_SERVER__DATA_DIR=: names no directory" in refused(*arguments, cwd=tmp_path, FILA_SERVER__DATA_DIR="")
    assert not list(tmp_path.iterdir())


# --- how it ends ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_is_impatient_gets_the_same_end(data_dir: Path, number: signal.Signals):
    with running(data_dir) as cluster:
        give_up_at = time.monotonic() + PATIENCE_S
        while cluster.supervisor.poll() is None and time.monotonic() < give_up_at:
            cluster.supervisor.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                cluster.supervisor.wait(0.005)
        assert cluster.wait() == 0
        assert cluster.log == []


def test_a_daemon_may_have_its_streams_closed(tmp_path: Path, data_dir: Path):
    started = command("up", "--data-dir", data_dir, "--listen", "127.0.0.1:0", "--no-dashboard", "--workers", 1)
    closing = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    with subprocess.Popen([*closing, *started], cwd=tmp_path, env=environment()) as supervisor:
        try:
            running_one = psutil.Process(supervisor.pid)
            eventually(lambda: any(map(is_up, endpoints_of(running_one))), "it serves")
        finally:
            supervisor.terminate()
        assert supervisor.wait(PATIENCE_S) == 0


# --- what others may see ----------------------------------------------------------------------------------------------


def test_nothing_in_a_data_directory_that_was_there_before_can_be_read_by_others(tmp_path: Path):
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o755)
    data_dir.chmod(0o755)
    with running(data_dir, "--durability", "fsync") as cluster:
        with cluster.client() as client:
            client.create_queue("q")
            client.enqueue("q", b"secret")
        modes = {path: path.stat().st_mode & 0o077 for path in data_dir.rglob("*")}
        assert any(path.suffix == ".log" for path in modes)
        assert any(path.is_socket() for path in modes)
        assert {path for path, others in modes.items() if others} == set()
        assert data_dir.stat().st_mode & 0o777 == 0o755, "the directory is the user's"


def test_durability_is_one_flag_away(tmp_path: Path, data_dir: Path):
    result = subprocess.run(
        command("up", "--data-dir", data_dir, "--durability", "perhaps"),
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert result.returncode == 2
    assert "fsync" in result.stderr
    assert not data_dir.exists()
