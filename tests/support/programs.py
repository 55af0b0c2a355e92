"""Programs that tests run in processes of their own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.cluster.cluster import PATIENCE_S

HOLD = """
import os, signal, sys
from fila_cluster import Client

client = Client(sys.argv[1])
held = client.receive(sys.argv[2], wait=60)
assert held
os.kill(os.getpid(), signal.SIGKILL)
"""


def hold_and_die(endpoint: str, queue: str) -> None:
    """Receive a message of ``queue`` and be killed with it in hand."""
    subprocess.run([sys.executable, "-c", HOLD, endpoint, queue], check=False, timeout=PATIENCE_S)


WAIT = """
import sys
from fila_cluster import Client
client = Client(sys.argv[1], direct=sys.argv[4] == "True")
if sys.argv[3] == "receive":
    client.receive(sys.argv[2], wait=600)
else:
    next(client.consume(sys.argv[2]))
"""


@contextmanager
def waiting(endpoint: str, queue: str, how: str, *, direct: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for a message of ``queue``, by ``receive`` or ``consume``; killed at the end."""
    process = subprocess.Popen([sys.executable, "-c", WAIT, endpoint, queue, how, str(direct)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


TRACED = """
import sys
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from fila_cluster import Client
from fila_cluster.tracing import instrument, processing

role, endpoint, queue, collector = sys.argv[1:]
provider = TracerProvider(resource=Resource.create({"service.name": role}))
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=collector + "/v1/traces")))
trace.set_tracer_provider(provider)
instrument()
tracer = trace.get_tracer("application")
with Client(endpoint) as client:
    if role == "producer":
        with tracer.start_as_current_span("checkout"):
            print(client.enqueue(queue, b"invoice", {"kind": "invoice"}, fairness_key="acme"))
    else:
        (delivery,) = client.receive(queue, wait=60)
        with processing(delivery), tracer.start_as_current_span("print"):
            print(delivery.id)
        delivery.ack()
provider.shutdown()
"""


def traced(role: str, endpoint: str, queue: str, collector: str) -> str:
    """Enqueue a message (``producer``) or receive and ack one (``consumer``), exporting spans; what the process prints."""
    command = [sys.executable, "-W", "error", "-c", TRACED, role, endpoint, queue, collector]
    return subprocess.run(command, check=True, timeout=PATIENCE_S, capture_output=True, text=True).stdout.strip()
