"""What an OpenTelemetry collector does, over HTTP: it takes exports, and a test looks at them."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """Listens on a port of its own for the length of a block; a subclass says what becomes of an export."""

    def __init__(self) -> None:
        collector = self

        class Taking(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = Thread(target=self.server.serve_forever)

    def take(self, path: str, body: bytes) -> None:
        """One export."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class TraceCollector(Collector):
    """Takes traces. ``spans``: what came, each with the name of the service that sent it."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[tuple[str, Span]] = []

    def take(self, path: str, body: bytes) -> None:
        """Keep the spans of one export."""
        if path != "/v1/traces":
            return
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            (service,) = (each.value.string_value for each in resource.resource.attributes if each.key == "service.name")
            self.spans += [(service, span) for scope in resource.scope_spans for span in scope.spans]
