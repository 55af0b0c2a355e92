"""A forked child that ends in the usual way takes nothing from its parent's connection.

Source: celery/celery issue 2476, celery/celery issue 284, celery/kombu issue 681
Right: the parent's consumer, leases and producer go on as if there had been no child
"""

from fila_cluster import Client
from tests.field_reports.processes.conftest import Program

FORKS = """
import gc, multiprocessing, sys
from fila_cluster import Client

endpoint, queue = sys.argv[1:]
client = Client(endpoint, timeout=60)
producer = client.producer(queue)
consumer = client.consume(queue, prefetch=5)
for number in range(4):
    producer.send(b"%d" % number)
producer.flush()
held = next(consumer)

def child():
    global client, producer, consumer, held
    del client, producer, consumer, held
    gc.collect()

for _ in range(3):
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode == 0, process.exitcode
    held.ack()
    held = next(consumer)
assert held.payload == b"3" and held.attempts == 0
held.ack()
producer.send(b"last").result(60)
consumer.close(); producer.close(); client.close()
print("sound")
"""


def test_the_parent_goes_on(program: Program, client: Client, queue: str) -> None:
    done = program(FORKS, "-W", "ignore")
    assert done.stdout == "sound\n", done.stderr
    stats = client.queue_stats(queue)
    assert (stats.acked, stats.depth, stats.nacked, stats.expired, stats.consumers) == (4, 1, 0, 0, 0)
