"""Dramatiq tasks of many tenants: look at each request of a web server's access log, so that visitors do not wait for a busy one.

    python examples/tasks/dramatiq_access_log.py ACCESS_LOG [endpoint]

Each line of the log (in Apache's combined format) is a task. Its tenant is the address that it came from: ``fair`` reads it
from the task's arguments. A few visitors send much more than the others, who would wait behind them in a plain queue. The
actor fails on a malformed line; Dramatiq's own retries deliver it again, by the broker's delay, and then it is a dead letter
that says why. Needs ``pip install 'fila-cluster[dramatiq]'``.
"""

import logging
import sys
from collections import Counter
from pathlib import Path

import dramatiq
from dramatiq import Worker

from fila_cluster.dramatiq import FilaBroker, fair

LINES = 2000
DONE: list[str] = []
"""The addresses, in the order in which their requests were looked at."""
STATUSES: Counter[str] = Counter()


def look_at(line: str) -> None:
    """Count one request by its status."""
    status = line.split('"')[2].split(maxsplit=1)[0]
    STATUSES[f"{status[0]}xx"] += 1
    DONE.append(line.split(maxsplit=1)[0])


def main(log: str, endpoint: str | None = None) -> None:
    """Send all tasks, run them, and show in which order they were served."""
    logging.disable(logging.ERROR)  # what fails here is shown below
    broker = FilaBroker(endpoint, namespace="access-log")
    dramatiq.set_broker(broker)
    fair(broker, key=lambda message: message.args[0].split()[0])
    task = dramatiq.actor(look_at, max_retries=1, min_backoff=100, max_backoff=100)
    broker.declare_queue(task.queue_name)

    lines = Path(log).read_text(errors="replace").splitlines()[:LINES]
    for line in [*lines, "not-a-request"]:
        task.send(line)
    worker = Worker(broker, worker_threads=1)
    worker.start()
    broker.join(task.queue_name, timeout=120_000)
    worker.stop()

    served = Counter(DONE)
    busiest, requests = served.most_common(1)[0]
    first = DONE.index(busiest)
    second = DONE.index(busiest, first + 1)
    before = len(set(DONE[:second]))
    print(f"{len(DONE):,} requests of {len(served)} addresses: {dict(sorted(STATUSES.items()))}")
    print(
        f"{busiest} sent {requests} of them; {before - 1} of the {len(served) - 1} others were served before its second one"
    )
    (letter,) = broker.client.browse("access-log/default.dlq")
    print(f"dead letter after {letter.attempts} attempts: {letter.error.splitlines()[-1]}")
    broker.client.delete_queue("access-log/default", force=True)
    broker.close()


if __name__ == "__main__":
    main(*sys.argv[1:3])
