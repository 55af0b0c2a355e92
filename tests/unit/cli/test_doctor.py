"""Each check of the doctor by what it reads, and the command without a cluster."""

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from fila_cluster.cli.root import root
from fila_cluster.client.views import ClusterStatus, ShardOutage, WorkerStatus
from fila_cluster.errors import RequestTimeoutError, UnauthenticatedError, UnsupportedVersionError
from fila_cluster.run.asking import HttpAnswer
from fila_cluster.run.config.settings import Address
from fila_cluster.run.doctor import checks
from fila_cluster.run.doctor.checks import Diagnosis, Level
from fila_cluster.run.doctor.looking import available_memory

GIB = 1024**3
HERE = "tcp://127.0.0.1:5555"
LISTEN = Address("127.0.0.1", 5555)
URL = "http://127.0.0.1:8555"
DATA = Path("/data")
WORKER = WorkerStatus("worker-0", 1, "up", [0], 0, 0)
DOWN = WorkerStatus("worker-1", 1, "down", [1], 0, 0)
HURT = WorkerStatus("worker-2", 1, "up", [2], 0, 0, [ShardOutage(2, "quarantined", "damaged")])


@pytest.mark.parametrize(
    ("finding", "level", "says"),
    [
        (checks.check_python((3, 11, 0), (3, 11)), Level.OK, "3.11.0"),
        (checks.check_python((3, 10, 9), (3, 11)), Level.ERROR, "use Python 3.11 or later"),
        (checks.check_library("pyzmq", "26.10.0", "26.2"), Level.OK, "26.10.0"),
        (checks.check_library("pyzmq", "26.1.9", "26.2"), Level.ERROR, "pip install --upgrade 'pyzmq>=26.2'"),
        (checks.check_library("pyzmq", None, "26.2"), Level.ERROR, "not installed"),
        (checks.check_library("lupa", "2.8", "2.4", "GLIBC_2.38 not found"), Level.ERROR, "GLIBC_2.38 not found"),
        (checks.check_pages(installed=True), Level.OK, "installed"),
        (checks.check_pages(installed=False), Level.WARNING, "pip install 'fila-cluster[dashboard]'"),
        (checks.check_config(None, None), Level.OK, "defaults"),
        (checks.check_config(Path("fila.toml"), None), Level.OK, "fila.toml"),
        (checks.check_config(None, "there is no 'x' in [server]"), Level.ERROR, "there is no 'x' in [server]"),
        (checks.check_port("clients", LISTEN, None, serves=False), Level.OK, "127.0.0.1:5555 is free"),
        (checks.check_port("clients", LISTEN, "in use; stop it", serves=True), Level.OK, "the cluster that runs"),
        (checks.check_port("clients", LISTEN, "in use; stop it", serves=False), Level.ERROR, "stop it"),
        (checks.check_data_dir(DATA, exists=True, writable=True), Level.OK, "/data is writable"),
        (checks.check_data_dir(DATA, exists=False, writable=True), Level.OK, "/data can be made"),
        (checks.check_data_dir(DATA, exists=True, writable=False), Level.ERROR, "/data is not writable"),
        (checks.check_data_dir(DATA, exists=False, writable=False), Level.ERROR, "/data can't be made"),
        (checks.check_disk(4 * GIB, GIB), Level.OK, "4.0 GiB free"),
        (checks.check_disk(4 * GIB - 1, GIB), Level.WARNING, "free some soon"),
        (checks.check_disk(GIB - 1, GIB), Level.ERROR, "nothing is enqueued below 1.0 GiB"),
        (checks.check_open_files(-1), Level.OK, "no limit"),
        (checks.check_open_files(4096), Level.OK, "at most 4,096"),
        (checks.check_open_files(4095), Level.WARNING, "LimitNOFILE="),
        (checks.check_open_files(1023), Level.ERROR, "LimitNOFILE="),
        (checks.check_memory(GIB, 4), Level.OK, "1.0 GiB available"),
        (checks.check_memory(GIB, 5), Level.WARNING, "1.2 GiB for 5 workers"),
        (checks.check_memory(GIB // 10, 1), Level.ERROR, "1 worker"),
        (checks.check_broker(HERE, ClusterStatus("1", 1, [WORKER]), named=True), Level.OK, "1 worker"),
        (checks.check_broker(HERE, ClusterStatus("1", 2, [WORKER, DOWN]), named=True), Level.WARNING, "worker-1 is down"),
        (checks.check_broker(HERE, ClusterStatus("1", 3, [HURT]), named=True), Level.WARNING, "shard 2 is quarantined"),
        (checks.check_broker(HERE, RequestTimeoutError("late"), named=True), Level.ERROR, f"none answers at {HERE}"),
        (checks.check_broker(HERE, RequestTimeoutError("late"), named=False), Level.WARNING, "fila-cluster up"),
        (checks.check_broker(HERE, UnauthenticatedError("no key"), named=False), Level.ERROR, "set FILA_API_KEY"),
        (checks.check_broker(HERE, UnsupportedVersionError("1 or 2"), named=False), Level.ERROR, "the same version"),
        (checks.check_versions(HERE, "1.0", "1.0"), Level.OK, "1.0"),
        (checks.check_versions(HERE, "1.0", "1.1"), Level.WARNING, "pip install fila-cluster==1.1"),
        (checks.check_clock(HERE, 5.0), Level.OK, f"agrees with {HERE}"),
        (checks.check_clock(HERE, 60.0), Level.WARNING, f"60 s ahead of {HERE}"),
        (checks.check_clock(HERE, -60.0), Level.WARNING, f"60 s behind {HERE}"),
        (checks.check_dashboard(URL, HttpAnswer(200, b"")), Level.OK, f"{URL} answers"),
        (checks.check_dashboard(URL, None), Level.WARNING, "does not answer"),
        (checks.check_dashboard(URL, HttpAnswer(404, b"")), Level.WARNING, "something else listens there"),
        (checks.check_dashboard(URL, HttpAnswer(503, b'{"reasons": [{"shard": 3}]}')), Level.WARNING, "shard 3"),
        (checks.check_dashboard(URL, HttpAnswer(503, b"[]")), Level.WARNING, "not ready"),
    ],
)
def test_a_check(finding: Diagnosis, level: Level, says: str):
    assert (finding.level, bool(finding.action)) == (level, level != Level.OK)
    assert says in f"{finding.found} → {finding.action}"


def test_a_container_s_memory_is_what_it_has_left(tmp_path: Path):
    free = available_memory(tmp_path)
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(tmp_path) > free // 2
    (tmp_path / "memory.max").write_text("5000\n")
    assert available_memory(tmp_path) == 4000


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("FILA_ENDPOINT", raising=False)
    monkeypatch.setattr("fila_cluster.run.doctor.looking.BROKER_S_MAX", 0.1)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(code: int, *arguments: object, listen: str = "127.0.0.1:0") -> dict[str, tuple[str, str]]:
    done = CliRunner().invoke(root, ["--json", *map(str, arguments), "doctor", "--listen", listen, "--no-dashboard"])
    assert (done.exit_code, done.stderr) == (code, "")
    shown = json.loads(done.stdout)
    assert shown["ok"] is (code == 0)
    return {each["check"]: (each["level"], each["found"]) for each in shown["findings"]}


def test_without_a_cluster_silence_is_a_warning(machine: Path):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free = f"127.0.0.1:{probe.getsockname()[1]}"
    seen = found(0, listen=free)
    assert seen["broker"] == ("warning", f"none answers at tcp://{free}")
    assert seen["port of clients"] == ("ok", f"{free} is free")
    assert seen["data directory"] == ("ok", f"{machine / 'fila-data'} can be made")
    assert "clock" not in seen


def test_a_port_that_the_system_will_pick_is_asked_by_nobody(machine: Path):
    assert "broker" not in found(0)


def test_a_port_that_another_program_has_is_an_error(machine: Path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        assert found(1, listen=taken)["port of clients"] == (
            "error",
            f"cannot listen on tcp://{taken}: address already in use",
        )


def test_silence_of_a_broker_that_is_named_is_an_error(machine: Path):
    assert found(1, "--endpoint", "tcp://127.0.0.1:1")["broker"] == ("error", "none answers at tcp://127.0.0.1:1")


def test_a_wrong_configuration_is_found_and_the_rest_is_looked_at(machine: Path):
    (machine / "fila.toml").write_text("[server]\nworker = 2\n")
    seen = found(1)
    assert seen["configuration"] == ("error", "fila.toml: there is no 'worker' in [server]; did you mean 'workers'?")
    assert "disk space" in seen
