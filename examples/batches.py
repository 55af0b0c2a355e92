"""Count the requests of a web server's log in pieces, over several queues, and report when the last piece is counted.

Each piece is a message of one batch. The batch's callback is enqueued once, when all pieces are acked or dead-lettered,
whichever worker is the last, and says how many there were. One piece is damaged: it becomes a dead letter, and the report
says so.

fila-cluster up                          # in one terminal
python examples/batches.py access.log    # in another
"""

import json
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from fila_cluster import Client, Delivery, Message

QUEUES = [f"count-{number}" for number in range(4)]
REPORTS = "reports"
LINES = 200
DAMAGED = 7
STATUS = re.compile(r'" (\d{3}) ')

totals: Counter[str] = Counter()
totals_lock = threading.Lock()


def pieces(log: Path) -> Iterator[list[str]]:
    """Yield the lines of a log, some at a time."""
    with log.open() as lines:
        while piece := list(islice(lines, LINES)):
            yield piece


def enqueue(client: Client, log: Path) -> str:
    """Enqueue the pieces as a batch, and return its id."""
    with client.batch(Message(log.name.encode()), REPORTS, name="count requests") as batch:
        for number, piece in enumerate(pieces(log)):
            payload = b"no JSON" if number == DAMAGED else json.dumps(piece).encode()
            batch.enqueue(QUEUES[number % len(QUEUES)], payload)
    return batch.id


def work(client: Client, queue: str) -> None:
    """Count the status codes in what comes, until nothing comes any more."""
    while deliveries := client.receive(queue, 10, wait=1.0):
        for delivery in deliveries:
            count(delivery)


def count(delivery: Delivery) -> None:
    """Count one piece."""
    try:
        found = Counter(code for line in delivery.json() for code in STATUS.findall(line)[:1])
    except ValueError:
        delivery.fail("this piece is damaged")
        return
    with totals_lock:
        totals.update(found)
    delivery.ack()


def main() -> None:
    """Run against the broker that ``FILA_ENDPOINT`` names, or the one on this machine."""
    log = Path(sys.argv[1])
    with Client() as client:
        for queue in (*QUEUES, REPORTS):
            client.create_queue(queue)
        batch = enqueue(client, log)
        workers = [threading.Thread(target=work, args=(client, queue)) for queue in QUEUES]
        for worker in workers:
            worker.start()
        (callback,) = client.receive(REPORTS, wait=60.0)
        headers = callback.headers
        assert headers["fila-batch"] == batch
        print(
            f"{callback.text()}: {headers['fila-batch-total']} pieces, {headers['fila-batch-acked']} counted, "
            f"{headers['fila-batch-dead']} damaged"
        )
        with totals_lock:
            print(f"{totals.total():,} requests: {', '.join(f'{each:,} × {code}' for code, each in totals.most_common(3))}")
        callback.ack()
        for worker in workers:
            worker.join()
        for queue in (*QUEUES, REPORTS):
            client.delete_queue(queue, force=True)


if __name__ == "__main__":
    main()
