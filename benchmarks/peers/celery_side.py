"""The Celery project that is measured: it sends no-op tasks, or runs a worker until it has run them. A process of its own,
see ``celery_tasks``.

    python -m benchmarks.peers.celery_side send URL COUNT
    python -m benchmarks.peers.celery_side work URL COUNT POOL CONCURRENCY

Prints one line of JSON: ``seconds``, ``cpu_s`` (of the worker and its children), ``count``.
"""

import json
import os
import signal
import sys
import threading
import time
from typing import Any

import psutil
from celery import Celery, signals
from celery.worker import state

import fila_cluster.celery  # noqa: F401  # registers fila://

app = Celery("noop", set_as_current=True)
app.conf.update(
    task_ignore_result=True,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    worker_redirect_stdouts=False,
)

LOOK_S = 0.002


@app.task(name="noop")  # type: ignore[untyped-decorator]
def noop(number: int) -> None:
    """Do nothing."""


def send(count: int) -> dict[str, float]:
    """Send tasks one after the other, each confirmed."""
    noop.delay(-1)  # connects, and declares the queue
    began, cpu_s = time.perf_counter(), time.process_time()
    for number in range(count - 1):
        noop.delay(number)
    return {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - cpu_s, "count": count - 1}


def work(count: int, pool: str, concurrency: int) -> None:
    """Run a worker until so many tasks are done; print how long it took from the first to the last."""
    watcher = threading.Thread(target=_watch, args=(count,), daemon=True)

    @signals.worker_ready.connect(weak=False)  # type: ignore[untyped-decorator]
    def _ready(**_: Any) -> None:
        watcher.start()

    quiet = {"loglevel": "ERROR", "quiet": True, "without_gossip": True, "without_mingle": True, "without_heartbeat": True}
    app.Worker(pool=pool, concurrency=concurrency, **quiet).start()


def _watch(count: int) -> None:
    done = state.all_total_count
    began: float | None = None
    before_s = _cpu_s()
    first = 0
    while done[0] < count or state.active_requests:
        if began is None and done[0]:
            began, first, before_s = time.perf_counter(), done[0], _cpu_s()
        time.sleep(LOOK_S)
    ended = time.perf_counter()
    result = {
        "seconds": ended - (began or ended),
        "cpu_s": _cpu_s() - before_s,
        "count": done[0],
        "measured": done[0] - first,
    }
    print(json.dumps(result), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)


def _cpu_s() -> float:
    """Return the CPU time of this process and its children so far."""
    me = psutil.Process()
    return sum(sum(each.cpu_times()[:2]) for each in (me, *me.children(recursive=True)))


def main(what: str, url: str, count: str, *rest: str) -> None:
    """Do what the command line says."""
    app.conf.broker_url = url
    if what == "send":
        print(json.dumps(send(int(count))), flush=True)
    else:
        work(int(count), rest[0], int(rest[1]))


if __name__ == "__main__":
    main(*sys.argv[1:])
