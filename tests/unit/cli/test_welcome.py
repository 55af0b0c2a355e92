"""What people see at a terminal when a cluster serves, and when they name no command."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fila_cluster.cli.processes.next_step import suggest
from fila_cluster.cli.processes.welcome import announce, announcing, quieter, welcome_lines
from fila_cluster.cli.root import root
from fila_cluster.cli.shared.invocation import Invocation
from fila_cluster.errors import UnauthenticatedError
from fila_cluster.run.config.settings import Address, Auth, Dashboard, Server, Settings, Telemetry
from fila_proto_zmq.commands import ClusterStatus, GetClusterStatus, WorkerStatus
from tests.unit.client.peer import answering, broker

LISTEN = Address("127.0.0.1", 5555)
URL = "http://127.0.0.1:8555"
NOBODY = "tcp://127.0.0.1:1"


@pytest.fixture(autouse=True)
def no_endpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FILA_ENDPOINT", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)


def test_the_welcome_names_data_dashboard_and_two_commands(tmp_path: Path):
    shown = welcome_lines(Settings(server=Server(data_dir=tmp_path)), LISTEN, URL)
    assert f"  data       {tmp_path}" in shown
    assert f"  dashboard  {URL} · no login: only this machine reaches it" in shown
    assert "  try next   fila-cluster queue create orders" in shown
    assert "             fila-cluster enqueue orders hello" in shown


def test_commands_name_an_endpoint_that_is_not_the_default_one():
    shown = welcome_lines(Settings(), Address("0.0.0.0", 7000), None)
    assert "  try next   fila-cluster --endpoint tcp://127.0.0.1:7000 queue create orders" in shown
    assert [line for line in shown if "dashboard" in line] == []


@pytest.mark.parametrize(
    ("settings", "login"),
    [
        (Settings(auth=Auth(enabled=True)), "log in with an API key, as `fila-cluster auth init` has printed it"),
        (
            Settings(dashboard=Dashboard(listen_addr=Address("0.0.0.0", 8555))),
            "no login: all who reach this address may use it",
        ),
    ],
)
def test_the_welcome_says_how_to_log_in(settings: Settings, login: str):
    assert f"  dashboard  {URL} · {login}" in welcome_lines(settings, LISTEN, URL)


def test_pipes_and_json_get_the_line_alone(at_a_terminal: None, monkeypatch: pytest.MonkeyPatch):
    assert announcing(Invocation(None, as_json=False), Settings()) is not announce
    assert announcing(Invocation(None, as_json=True), Settings()) is announce
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert announcing(Invocation(None, as_json=False), Settings()) is announce


def test_the_log_is_quiet_only_for_people_who_chose_no_level(at_a_terminal: None, monkeypatch: pytest.MonkeyPatch):
    people, programs = Invocation(None, as_json=False), Invocation(None, as_json=True)
    assert quieter(people, Settings()).telemetry.log_level == "warning"
    assert quieter(people, Settings(telemetry=Telemetry(log_level="info"))).telemetry.log_level == "info"
    assert quieter(programs, Settings()).telemetry.log_level == "info"
    monkeypatch.setattr("sys.stderr.isatty", lambda: False)
    assert quieter(people, Settings()).telemetry.log_level == "info"


def without_a_command(*options: str) -> str:
    done = CliRunner().invoke(root, options)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def test_without_a_command_and_a_broker_up_is_the_next_step():
    shown = without_a_command("--endpoint", NOBODY)
    assert shown.startswith(f"No broker answers at {NOBODY}.\n")
    assert "fila-cluster up " in shown


def test_without_a_command_beside_a_broker_a_queue_is_the_next_step():
    status = ClusterStatus("0.1", 2, [WorkerStatus("worker-0", 1, "up", [0, 1], 0, 0)])
    with broker(answering(**{GetClusterStatus.__name__: status})) as peer:
        shown = json.loads(without_a_command("--json", "--endpoint", peer.endpoint))
    assert shown["found"] == f"A broker runs at {peer.endpoint}: fila-cluster 0.1, 1 worker, 2 shards."
    assert [step["command"] for step in shown["next"]] == [
        f"fila-cluster --endpoint {peer.endpoint} queue create orders",
        f"fila-cluster --endpoint {peer.endpoint} enqueue orders hello",
        f"fila-cluster --endpoint {peer.endpoint} top",
        "fila-cluster --help",
    ]


def test_a_broker_that_refuses_is_one_that_runs(capsys: pytest.CaptureFixture[str]):
    with broker(answering(**{GetClusterStatus.__name__: UnauthenticatedError("which key?")})) as peer:
        suggest(Invocation(peer.endpoint, as_json=True))
    assert json.loads(capsys.readouterr().out)["found"] == f"A broker at {peer.endpoint} refuses: which key?"


def completed(*words: str) -> list[str]:
    environment = {"_ROOT_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(("root", *words)), "COMP_CWORD": str(len(words))}
    done = CliRunner().invoke(root, env=environment)
    return [line.removeprefix("plain,") for line in done.stdout.splitlines()]


def test_a_shell_completes_commands_and_options():
    assert completed("qu") == ["queue"]
    assert completed("queue", "pu") == ["purge"]
    assert completed("--js") == ["--json"]
    assert completed("up", "--no-d") == ["--no-dashboard"]
