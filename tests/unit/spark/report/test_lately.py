"""The last half hour for a report, asked of the program that answers at an address."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from click import ClickException

from fila_cluster import Client
from fila_cluster.cli.spark import report as cli
from fila_cluster.ops.analysis.history import SERIES, HalfHour, LastMinuteShare
from fila_cluster.spark.report import lately
from fila_cluster.spark.report.lately import NoHistoryError, WrongDashboardError, ask_half_hour
from fila_proto_zmq.commands import ClusterStatus, WorkerStatus
from tests.unit.client.peer import answering, broker

WORKERS = {"worker-0": 41, "worker-1": 42}
SHARE = {"fairness_key": "a", "weight": 1, "pending": 2, "entitled": 0.5, "actual": 0.25, "delivered_per_s": 3.0}


def answer(**changes: Any) -> bytes:
    told = {
        "queue": "eu/orders",
        "times": [1000.0, 1005.0],
        "series": {name: [None, 2.5] for name in SERIES},
        "shares": [SHARE],
        "workers": {"worker-0": 41, "worker-1": 99},
    }
    return json.dumps(told | changes).encode()


class Dashboard:
    """An HTTP server that answers everything with the same, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.status, self.body = 200, answer()
        self.asked: list[str] = []
        dashboard = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                dashboard.asked.append(self.path)
                self.send_response(dashboard.status)
                self.end_headers()
                self.wfile.write(dashboard.body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def dashboard() -> Iterator[Dashboard]:
    dashboard = Dashboard()
    yield dashboard
    dashboard.close()


def wrong(dashboard: Dashboard, workers: dict[str, int] = WORKERS) -> str:
    with pytest.raises(WrongDashboardError) as refused:
        ask_half_hour(dashboard.url, "orders", workers)
    return str(refused.value)


def test_it_asks_for_the_queue_by_its_whole_name(dashboard: Dashboard):
    told = ask_half_hour(f"{dashboard.url}/behind", "eu/orders", WORKERS)
    assert dashboard.asked == ["/behind/history?queue=eu%2Forders"]
    assert (told.times, told.series["pending"], told.shares) == ([1000, 1005], [None, 2.5], [LastMinuteShare(**SHARE)])


def test_no_proxy_is_asked(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert ask_half_hour(dashboard.url, "orders", WORKERS).times == [1000, 1005]


def test_a_queue_that_it_does_not_know_is_no_error_of_the_address(dashboard: Dashboard):
    dashboard.status, dashboard.body = 404, b'{"error": "no history of the queue \'orders\'\\u001b[31m: \\nwhy"}'
    with pytest.raises(NoHistoryError) as refused:
        ask_half_hour(dashboard.url, "orders", WORKERS)
    assert str(refused.value) == f"{dashboard.url} has no history of the queue 'orders'[31m: why"


def test_a_dashboard_whose_broker_is_away_may_be_the_right_one(dashboard: Dashboard):
    dashboard.body = answer(workers={})
    with pytest.raises(NoHistoryError, match="does not reach its broker just now"):
        ask_half_hour(dashboard.url, "orders", WORKERS)


def test_another_cluster_s_half_hour_is_not_taken(dashboard: Dashboard):
    assert wrong(dashboard, {"worker-0": 7, "worker-2": 99}) == f"{dashboard.url} shows another cluster"


@pytest.mark.parametrize("status", [404, 403, 500])
def test_an_answer_of_another_program_is_refused(dashboard: Dashboard, status: int):
    dashboard.status, dashboard.body = status, b"<html>no</html>"
    assert wrong(dashboard) == f"{dashboard.url} is not a dashboard of this version: it answers /history with {status}"


@pytest.mark.parametrize(
    "body",
    [
        b"<html>log in first</html>", b"", b"{}", b"[]", b"\xff", answer(times=[1000.0]), answer(times=["soon", "later"]),
        answer(times=[1000.0, 1e300]), answer(times=[-1e18, 5.0]), answer(series={"pending": [1, 2]}),
        answer(series={name: ["many", 1] for name in SERIES}), answer(shares=[{"fairness_key": "a"}]), answer()[:-5],
    ],
)  # fmt: skip
def test_an_answer_that_is_no_history(dashboard: Dashboard, body: bytes):
    dashboard.body = body
    assert wrong(dashboard) == f"{dashboard.url} is not a dashboard of this version: its answer is not a history"


def test_an_answer_without_end_is_cut(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lately, "_ANSWER_BYTES_MAX", 100)
    assert wrong(dashboard).endswith("its answer is not a history")


def speaking(words: bytes) -> Callable[[socket.socket], None]:
    return lambda listener: _speak(listener.accept()[0], words)


def _speak(connection: socket.socket, words: bytes) -> None:
    with connection:
        connection.recv(1000)
        connection.sendall(words)


@pytest.mark.parametrize("words", [b"", b"SSH-2.0-OpenSSH_9.2\r\n"])
def test_an_answer_that_is_not_http_is_refused(words: bytes):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        talking = threading.Thread(target=speaking(words), args=(listener,))
        talking.start()
        with pytest.raises(WrongDashboardError, match=f"nothing answers at {url}: .+"):
            ask_half_hour(url, "orders", WORKERS)
        talking.join()


def test_a_silent_address_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lately, "ANSWER_S_MAX", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(WrongDashboardError, match=f"nothing answers at {url}: timed out"):
            ask_half_hour(url, "orders", WORKERS)


def test_no_address_crashes_it():
    for url in ("http://a b:80", "http://" + "a" * 300, "http://..", "http://[::1"):
        with pytest.raises(WrongDashboardError, match="nothing answers at"):
            ask_half_hour(url, "orders", WORKERS)


# --- the command ------------------------------------------------------------------------------------------------------


def test_only_a_dashboard_that_was_named_has_to_be_there(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cli, "DASHBOARD_DEFAULT", dashboard.url)
    status = ClusterStatus("1", 1, [WorkerStatus("worker-0", 41, "up", [0], 0, 0)])
    with broker(answering(GetClusterStatus=status)) as peer, Client(peer.endpoint) as client:
        assert isinstance(cli._ask(None, "orders", client), HalfHour)
        assert cli._ask(None, "orders", client) == cli._ask(dashboard.url, "orders", client)
        dashboard.status = 500
        wrong = f"{dashboard.url} is not a dashboard of this version: it answers /history with 500"
        assert cli._ask(None, "orders", client) == f"{wrong} (--dashboard URL names another)"
        with pytest.raises(ClickException, match=f"^{wrong}$"):
            cli._ask(dashboard.url, "orders", client)
        dashboard.status, dashboard.body = 404, b'{"error": "no history"}'
        assert cli._ask(dashboard.url, "orders", client) == f"{dashboard.url} has no history"
