"""The observer as a process: how it starts, refuses to, and ends. There is no cluster; it says so."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

import msgspec
import pytest

from fila_cluster.ops.observer.settings import ObserverSettings
from fila_cluster.run.config.settings import Address
from fila_cluster.run.supervisor.endpoints import Ports
from tests.support.cluster.cluster import PATIENCE_S


def told(port: int, otlp_endpoint: str | None = None) -> bytes:
    settings = ObserverSettings(
        endpoint="tcp://127.0.0.1:1",
        host="127.0.0.1",
        port=port,
        otlp_endpoint=otlp_endpoint,
        service_name="fila",
        metrics_interval_ms=100,
    )
    return msgspec.json.encode(settings) + b"\n"


WITHOUT_THE_EXTRA = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "nicegui" else find(name, package)
from fila_cluster.ops.observer.__main__ import main
sys.exit(main())
"""
"""An observer that finds no NiceGUI, as where it is not installed."""

WITH_ANOTHER_VERSION = """
import sys
import nicegui.ui
def missing(name):
    raise AttributeError(name)
nicegui.ui.__getattr__ = missing
from fila_cluster.ops.observer.__main__ import main
sys.exit(main())
"""
"""An observer whose NiceGUI lacks what the dashboard needs to be loaded."""


@contextmanager
def observer(line: bytes, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-P", *(command or ("-m", "fila_cluster.ops.observer"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(line)
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def port() -> Iterator[int]:
    """A free one, which no other process is given meanwhile."""
    with Ports() as ports:
        yield ports.reserve(Address("127.0.0.1", 0), "--dashboard").port


def page(port: int, path: str) -> str:
    """What it answers, as soon as it does."""
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
                return str(answer.read().decode())
        except OSError:
            assert time.monotonic() < give_up_at, "it never answered"
            time.sleep(0.02)


@pytest.mark.parametrize("end", ["SIGTERM", "SIGINT", "its parent's end"])
def test_it_serves_without_a_cluster_and_stops_on_a_signal(port: int, end: str):
    with observer(told(port, otlp_endpoint="http://127.0.0.1:1")) as process:
        assert page(port, "/healthz") == "ok\n"
        assert "\nfila_up 0.0\n" in page(port, "/metrics")
        assert process.stdin is not None
        if end.startswith("SIG"):
            process.send_signal(signal.Signals[end])
        else:
            process.stdin.close()
        assert process.wait(PATIENCE_S) == 0


def test_it_remembers_without_the_dashboard_s_extra_too(port: int):
    with observer(told(port), "-c", WITHOUT_THE_EXTRA):
        assert "pip install 'fila-cluster[dashboard]'" in page(port, "/")
        assert "/queues/orders/receive" in page(port, "/api")
        history = msgspec.json.decode(page(port, "/history"))
    assert len(history["times"]) >= 1
    assert history["series"]["pending"] == [None] * len(history["times"])


def test_a_dashboard_that_cannot_be_loaded_is_left_out_and_takes_nothing_with_it(port: int):
    with observer(told(port), "-c", WITH_ANOTHER_VERSION) as process:
        assert "the log says why" in page(port, "/")
        assert "\nfila_up 0.0\n" in page(port, "/metrics")
        process.terminate()
        assert process.stderr is not None
        events = [msgspec.json.decode(line) for line in process.stderr.read().splitlines()]
    (left_out,) = (event for event in events if event["event"] == "dashboard.left_out")
    assert left_out["error"] == "AttributeError"
    assert left_out["trace"]


def test_an_address_in_use_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with observer(told(port)) as process:
            assert process.wait(PATIENCE_S) == 1
            assert process.stderr is not None
            (line,) = process.stderr.read().decode().splitlines()
    assert line == (
        f"fila observer: cannot listen on 127.0.0.1:{port}: Address already in use; "
        "stop the other process or choose another --dashboard"
    )


def test_settings_that_are_none_are_one_line():
    with observer(b'{"endpoint": 1}\n') as process:
        assert process.wait(PATIENCE_S) == 1
        assert process.stderr is not None
        (line,) = process.stderr.read().decode().splitlines()
    assert line.startswith("fila observer: ")
