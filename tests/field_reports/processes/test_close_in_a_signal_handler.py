"""A signal handler that closes the client, as programs do at SIGTERM, does not hang when it hits a call in its middle.

Source: dpkp/kafka-python issue 2086, pika/pika issue 686, pika/pika issue 1686
Right: the program ends, whatever the client was doing; what is sent from such a handler, other than close, is an error
Result: mended
"""

import pytest

from fila_cluster import Client
from fila_cluster.errors import FilaError
from tests.field_reports.processes.conftest import Program

CLOSING = """
import signal, sys
from fila_cluster import Client
from fila_cluster.errors import FilaError

endpoint, queue = sys.argv[1:]
calls = {
    "enqueue": lambda client: client.enqueue(queue, b"x"),
    "send": lambda client: client.producer(queue).send(b"x"),
    "look": lambda client: client.queue_stats(queue),
    "consume": lambda client: [delivery.ack() for delivery in client.consume(queue)],
}

def at_alarm(what):
    signal.signal(signal.SIGALRM, what)

def closes(client, moment_s):
    def handler(*_):
        client.close()
    at_alarm(handler)
    signal.setitimer(signal.ITIMER_REAL, moment_s)

for name in sys.stdin.read().split():
    for number in range(12):
        client = Client(endpoint, timeout=20)
        client.enqueue(queue, b"ready")
        closes(client, 0.002 + number * 0.0011)
        try:
            while True:
                calls[name](client)
        except FilaError as error:
            assert "closed" in str(error), error
        assert client.closed
print("sound")
"""


@pytest.mark.parametrize("call", ["enqueue", "send", "look", "consume"])
def test_each_program_ends(program: Program, call: str) -> None:
    done = program(CLOSING.replace("sys.stdin.read()", repr(call)), "-W", "ignore")
    assert done.stdout == "sound\n", done.stderr


def test_anything_else_is_an_error_there(client: Client, queue: str) -> None:
    """As if the handler had come while this thread has the lock."""
    assert client.list_queues(queue)
    producer = client.producer(queue)
    for lock in (client._io._lock, client._session.pipelines.lock):
        for call in (lambda: client.enqueue(queue, b"x"), lambda: client.list_queues(queue)):
            with lock, pytest.raises(FilaError, match="signal handler"):
                call()
    with client._session.pipelines.lock, pytest.raises(FilaError, match="signal handler"):
        producer.send(b"x")
    producer.close()
    assert client.queue_stats(queue).depth == 0
