"""Ctrl-C ends a flush, or a consumer, that waits for a broker which does not answer.

Source: confluentinc/confluent-kafka-python pull request 2126
Right: KeyboardInterrupt reaches the program at once, and it can end in order
"""

import signal
import subprocess
import sys

import pytest

from fila_cluster import Client
from tests.support.cluster.cluster import PATIENCE_S, Cluster, environment
from tests.support.cluster.forwarder import Forwarder

WAITS = """
import sys
from fila_cluster import Client

endpoint, queue, what = sys.argv[1:]
client = Client(endpoint, timeout=3600, direct=False)
client.list_queues()
print("connected", flush=True)
sys.stdin.readline()
producer = client.producer(queue)
try:
    if what == "flush":
        producer.send(b"x")
        print("waits", flush=True)
        producer.flush()
    else:
        print("waits", flush=True)
        next(client.consume(queue))
except KeyboardInterrupt:
    print("interrupted", flush=True)
    client.close()
"""


@pytest.mark.parametrize("what", ["flush", "consume"])
def test_it_ends(shared_cluster: Cluster, client: Client, queue: str, what: str) -> None:
    assert client.list_queues(queue)
    with Forwarder(shared_cluster.endpoint) as way:
        command = [sys.executable, "-W", "ignore", "-c", WAITS, way.endpoint, queue, what]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment()) as waiting:
            try:
                assert waiting.stdin
                assert waiting.stdout
                assert waiting.stdout.readline() == "connected\n"
                way.freeze()
                waiting.stdin.write("go on\n")
                waiting.stdin.flush()
                assert waiting.stdout.readline() == "waits\n"
                waiting.send_signal(signal.SIGINT)
                out, err = waiting.communicate(timeout=PATIENCE_S)
            finally:
                waiting.kill()
    assert (out, waiting.returncode) == ("interrupted\n", 0), err
