"""``fila-cluster work``: ready, drained, restarted, reloaded, and what is wrong with an app."""

import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from fila_cluster import Client
from tests.support.cluster.cluster import PATIENCE_S, Cluster, command, environment, eventually
from tests.support.cluster.working import WorkingApp
from tests.support.external.collector import Collector

SHOP = """
import asyncio, logging, os, subprocess
from pathlib import Path
from fila_cluster.app import App

app = App()
log = logging.getLogger("shop")
QUEUE, FOLDER = os.environ["SHOP_QUEUE"], Path(__file__).parent

@app.handler(QUEUE, concurrency=2)
async def order(text: str) -> None:
    log.info("WORD %s", text)
    print("printed by a handler")
    if text == "spawn":
        (FOLDER / "spawned").write_text(str(subprocess.Popen(["sleep", "600"]).pid))
    while text == "hold" and not (FOLDER / "go-on").exists():
        await asyncio.sleep(0.01)
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with the app shop:app."""
    (tmp_path / "shop.py").write_text(SHOP.replace("WORD", "first"))
    return tmp_path


@pytest.fixture
def working(shop: Path, shared_cluster: Cluster, queue: str, request: pytest.FixtureRequest) -> Iterator[WorkingApp]:
    """That app at work."""
    flags = getattr(request, "param", [])
    with WorkingApp(shared_cluster.endpoint, "shop:app", shop, *flags, env={"SHOP_QUEUE": queue}) as app:
        yield app


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_drain_finishes_what_is_in_hand_and_gives_back_the_rest(
    working: WorkingApp, client: Client, queue: str, shop: Path
) -> None:
    assert working.ready_line == f"ready: shop:app · 1 process · {queue}\n"
    held = client.enqueue(queue, b"hold")
    working.tells("first hold")
    [event] = [event for event in working.events() if event["event"] == "first hold"]
    assert (event["message_id"], event["queue"], event["handler"]) == (held, queue, "order")
    client.enqueue(queue, b"hold")
    working.tells("first hold", 2)
    client.enqueue(queue, b"more")
    working.send(signal.SIGTERM)
    working.tells("draining")
    eventually(lambda: client.queue_stats(queue).consumers == 0, "no consumer")
    (shop / "go-on").touch()
    assert working.wait() == 0
    left = client.receive(queue, 10, wait=PATIENCE_S)
    assert [(delivery.payload, delivery.attempts) for delivery in left] == [(b"more", 0)]
    client.ack(left)
    assert "printed by a handler" in working.log


def test_lines_of_processes_are_never_mixed(shop: Path, shared_cluster: Cluster, client: Client, queue: str) -> None:
    """A pipe of packets gives back what one call wrote."""
    packets, end = os.pipe2(os.O_DIRECT)
    arguments = command("--endpoint", shared_cluster.endpoint, "work", "shop:app")
    env = environment(SHOP_QUEUE=queue, PYTHONUNBUFFERED="1")
    with subprocess.Popen(arguments, cwd=shop, env=env, stdout=subprocess.PIPE, stderr=end) as working:
        os.close(end)
        try:
            client.enqueue(queue, b"a")
            written = [os.read(packets, 1 << 16)]
            while b"printed by a handler" not in written[-1]:
                written.append(os.read(packets, 1 << 16))
            assert all(lines.endswith(b"\n") for lines in written), written
        finally:
            working.terminate()
            working.wait(PATIENCE_S)
            os.close(packets)


def test_a_second_signal_gives_back_what_is_in_hand(working: WorkingApp, client: Client, queue: str) -> None:
    client.enqueue(queue, b"hold")
    working.tells("first hold")
    working.send(signal.SIGINT)
    working.tells("draining")
    eventually(lambda: client.queue_stats(queue).consumers == 0, "no consumer")
    working.send(signal.SIGINT)
    assert working.wait() == 0
    [back] = client.receive(queue, 10, wait=PATIENCE_S)
    assert (back.payload, back.attempts) == (b"hold", 0)
    back.ack()


def test_a_terminal_shows_a_line_below_what_handlers_print(
    client: Client, queue: str, shop: Path, shared_cluster: Cluster
) -> None:
    """Also a program that a handler has started, and that keeps its output open, holds up no end."""
    client.enqueue(queue, b"spawn")
    ours, theirs = pty.openpty()
    arguments = command("--endpoint", shared_cluster.endpoint, "work", "shop:app")
    shown = b""
    with subprocess.Popen(
        arguments, cwd=shop, env=environment(SHOP_QUEUE=queue), stdout=subprocess.PIPE, stderr=theirs, text=True
    ) as working:
        os.close(theirs)
        try:
            while "1 process · 1 done" not in shown.decode(errors="replace"):
                shown += os.read(ours, 4096)
            working.send_signal(signal.SIGTERM)
            with suppress(OSError):  # its end
                while data := os.read(ours, 4096):
                    shown += data
            assert working.wait(PATIENCE_S) == 0
            os.kill(int((shop / "spawned").read_text()), signal.SIGKILL)
            assert working.stdout is not None
            assert working.stdout.read() == f"ready: shop:app · 1 process · {queue}\n"
        finally:
            working.kill()
            os.close(ours)
    text = shown.decode(errors="replace")
    assert "first spawn" in text
    assert "printed by a handler" in text


@pytest.mark.parametrize("working", [["--processes", 2]], indirect=True)
def test_a_process_that_dies_is_replaced(working: WorkingApp, client: Client, queue: str) -> None:
    client.enqueue(queue, b"a")
    eventually(lambda: client.queue_stats(queue).acked == 1, "an ack")
    working.tells("first a")  # the log may come later
    [pid] = working.pids()
    os.kill(pid, signal.SIGKILL)
    working.tells("was killed by signal 9 (Killed); another one starts in 0 s")
    working.end()


@pytest.mark.parametrize("working", [["--reload"]], indirect=True)
def test_a_changed_file_restarts_and_one_that_does_not_start_replaces_nothing(
    working: WorkingApp, client: Client, queue: str, shop: Path
) -> None:
    (shop / "shop.py").write_text("this is no Python")
    working.tells("restarting the processes, one after the other: shop.py changed")
    working.tells("before it served: the others stay as they are")
    assert any("cannot import shop:app: see above" in line for line in working.log)
    client.enqueue(queue, b"a")
    working.tells("first a")
    (shop / "shop.py").write_text(SHOP.replace("WORD", "second"))
    working.tells("all processes are new")
    client.enqueue(queue, b"b")
    working.tells("second b")
    working.end()
    assert not any("first b" in line for line in working.log)


def test_processes_drain_when_their_supervisor_is_killed(working: WorkingApp, client: Client, queue: str) -> None:
    client.enqueue(queue, b"a")
    working.tells("first a")
    [pid] = working.pids()
    working.close()
    eventually(lambda: not alive(pid), "the process's end")


class Exports(Collector):
    """The names of spans and metrics that came."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for traces in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.names |= {span.name for scope in traces.scope_spans for span in scope.spans}
        else:
            for metrics in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.names |= {metric.name for scope in metrics.scope_metrics for metric in scope.metrics}


def test_metrics_and_spans_are_exported_where_the_environment_says(
    client: Client, queue: str, shop: Path, shared_cluster: Cluster
) -> None:
    client.enqueue(queue, b"a")
    with Exports() as collector:
        env = {"SHOP_QUEUE": queue, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}
        with WorkingApp(shared_cluster.endpoint, "shop:app", shop, env=env) as working:
            working.tells("first a")
            working.end()
    assert {f"handle {queue}", "fila.handler.messages", "fila.handler.duration", "fila.handler.in_hand"} <= collector.names


@pytest.mark.parametrize(
    ("app", "code", "said"),
    [
        ("shop", 2, "names no app: write MODULE:APP"),
        ("nothing:app", 1, "there is no module 'nothing' in"),
        ("shop:app", 1, "shop:app cannot work: no queue 'no-such-queue': create it"),
    ],
)
def test_an_app_that_cannot_work_is_told_and_ends(
    shop: Path, shared_cluster: Cluster, app: str, code: int, said: str
) -> None:
    env = {"SHOP_QUEUE": "no-such-queue"}
    with WorkingApp(shared_cluster.endpoint, app, shop, env=env, ready=False) as working:
        assert working.wait() == code
        log = "\n".join(working.log)
        assert said in log
        assert "Traceback" not in log
        assert working.ready_line == ""
