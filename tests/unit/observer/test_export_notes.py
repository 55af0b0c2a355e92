"""An export that fails is noted once, and once more when it works again; never with a collector's password."""

import json
import os
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from fila_cluster.ops.analysis.watch import Watch
from fila_cluster.ops.observer.otlp import OtlpExport
from fila_cluster.ops.observer.settings import without_password
from fila_process.journal import Journal
from fila_proto_zmq.commands import Metrics
from fila_proto_zmq.events import LogSettings

Answer = Callable[[int], None]


@pytest.fixture
def collector() -> Iterator[tuple[str, Answer]]:
    """Its endpoint, and what says with which status it answers from now on."""
    status = [200]

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status[0])
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Taking)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://user:canary@127.0.0.1:{server.server_port}", lambda code: status.__setitem__(0, code)
    server.shutdown()
    thread.join()
    server.server_close()


async def nobody() -> Metrics:
    raise AssertionError("nobody asks")


def test_a_change_of_state_is_noted_and_a_state_is_not(collector: tuple[str, Answer]):
    endpoint, answer = collector
    reader, writer = os.pipe()
    export = OtlpExport(Watch(nobody), endpoint, "fila", 1000, Journal("observer", LogSettings("json"), writer))
    for status in (200, 400, 400, 400, 200, 200, 400):
        answer(status)
        export.export()
    os.close(writer)
    with os.fdopen(reader) as lines:
        told = [json.loads(line) for line in lines]
    assert [event["event"] for event in told] == ["export.failing", "export.recovered", "export.failing"]
    assert {event["otlp_endpoint"] for event in told} == {endpoint.replace("user:canary@", "")}


@pytest.mark.parametrize(
    ("endpoint", "shown"),
    [
        ("http://collector:4318", "http://collector:4318"),
        ("https://me:secret@collector/v1", "https://collector/v1"),
        ("https://token@collector", "https://collector"),
        ("https://a:p@ss@collector", "https://collector"),
    ],
)
def test_an_endpoint_is_noted_without_its_password(endpoint: str, shown: str):
    assert without_password(endpoint) == shown
