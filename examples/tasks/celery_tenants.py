"""Run the requests of a real web site as Celery tasks, with each client address as a tenant.

    make up                                    # in one terminal: the broker
    .venv/bin/python examples/tasks/celery_tenants.py PATH/TO/apache_access.log

One line makes this Celery project fair: ``fair(app, key=…)``. The program sends a task for each of the first lines of an
access log, all of them before a worker starts, and then runs a worker. The busiest client has sent hundreds of tasks, most
clients a few; all of them have their first task run before any has its second one.
"""

import os
import sys
from collections import Counter
from contextlib import suppress
from itertools import islice
from pathlib import Path

from celery import Celery
from celery.worker import state

from fila_cluster.celery import SentTask, fair

LINES = 1_000

endpoint = os.environ.get("FILA_ENDPOINT", "tcp://127.0.0.1:5555")
app = Celery("tenants", broker=endpoint.replace("tcp://", "fila://"), set_as_current=False)
app.conf.update(
    task_ignore_result=True, worker_prefetch_multiplier=1, worker_redirect_stdouts=False, task_default_queue="celery-tenants"
)
order: list[str] = []


def tenant_of(task: SentTask) -> str:
    """Name the tenant of a task: its first argument."""
    return str(task.args[0])


fair(app, key=tenant_of)


@app.task(name="serve")
def serve(address: str, total: int) -> None:
    """Serve a request. The last one ends the worker."""
    order.append(address)
    if len(order) == total:
        state.should_stop = 0


def main() -> None:
    """Send everything, then run it."""
    with Path(sys.argv[1]).open(encoding="utf-8", errors="replace") as log:
        addresses = [line.split(" ", 1)[0] for line in islice(log, LINES)]
    for address in addresses:
        serve.delay(address, len(addresses))
    worker = app.Worker(pool="solo", concurrency=1, loglevel="ERROR", quiet=True, without_mingle=True)
    with suppress(SystemExit):  # how a worker ends
        worker.start()
    tenants = len(set(addresses))
    arrived, run = Counter(addresses[:tenants]), Counter(order[:tenants])
    print(f"{len(order):,} tasks of {tenants:,} tenants, run by one worker")
    print(f"the first {tenants:,} tasks sent were of {len(arrived):,} tenants, the first {tenants:,} run of {len(run):,}")
    busiest, count = Counter(addresses).most_common(1)[0]
    print(f"{busiest} sent {count:,} tasks, and had {run[busiest]} of the first {tenants:,}")


if __name__ == "__main__":
    main()
