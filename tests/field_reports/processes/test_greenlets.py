"""The blocking client under gevent, patched as celery and gunicorn patch, blocks no other greenlet.

Source: redis/redis-py issue 308, celery/celery issue 322, Bogdanp/dramatiq issue 431
Right: other greenlets run while one waits for a message; fifty senders and a consumer share a client, each message once
"""

from tests.field_reports.processes.conftest import Program

GREENLETS = """
from gevent import monkey; monkey.patch_all()
import sys
import gevent
from fila_cluster import Client

endpoint, queue = sys.argv[1:]
client = Client(endpoint, timeout=60)
ticks = []

def tick():
    while len(ticks) < 20:
        ticks.append(1)
        gevent.sleep(0.001)
    client.enqueue(queue, b"after the ticks")

gevent.spawn(tick)
(delivery,) = client.receive(queue, wait=60)  # comes only if the other greenlet runs meanwhile
assert len(ticks) == 20
delivery.ack()

got = []
def consume():
    with client.consume(queue) as consumer:
        for delivery in consumer:
            got.append(delivery.payload)
            delivery.ack()
            if len(got) == 50:
                return

senders = [gevent.spawn(client.enqueue, queue, b"%d" % number) for number in range(50)]
gevent.joinall([gevent.spawn(consume), *senders], timeout=60, raise_error=True)
assert sorted(map(int, got)) == list(range(50)), got
client.close()
print("sound")
"""


def test_greenlets_share_a_client(program: Program) -> None:
    done = program(GREENLETS)
    assert done.stdout == "sound\n", done.stderr
