"""A program that ends without having closed or flushed its producer has sent what it gave to it.

Source: dpkp/kafka-python issue 524, dpkp/kafka-python issue 477
Right: all messages are stored when the program has ended; if the broker is away, the program ends at the client's timeout and says so
Result: mended
"""

import socket
import subprocess
import sys

from fila_cluster import Client
from tests.field_reports.processes.conftest import Program
from tests.support.cluster.cluster import PATIENCE_S, environment

SENDS = """
import sys
from fila_cluster import Client
producer = Client(sys.argv[1], timeout=float((sys.argv + ["20"])[3])).producer(sys.argv[2])
for number in range(1000):
    producer.send(b"%d" % number)
"""


def test_everything_is_stored(program: Program, client: Client, queue: str) -> None:
    done = program(SENDS)
    assert (done.returncode, done.stderr) == (0, "")
    assert client.queue_stats(queue).pending == 1000


def test_also_at_an_exit_by_an_exception(program: Program, client: Client, queue: str) -> None:
    done = program(SENDS + "raise SystemExit(3)")
    assert done.returncode == 3
    assert client.queue_stats(queue).pending == 1000


def test_it_does_not_wait_for_ever() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        endpoint = f"tcp://127.0.0.1:{mute.getsockname()[1]}"
        command = [sys.executable, "-c", SENDS, endpoint, "q", "0.3"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=environment())
    assert done.returncode == 0
    assert f"no broker answers at {endpoint}" in done.stderr
