"""Restart the processes of an app one after the other under load, again and again; show that no message is lost or handled
twice.

``fila-cluster work`` runs a coroutine and a function in some processes. A producer enqueues numbers all the time, for both.
Each round sends a SIGHUP and waits until all processes are new. The handlers note each number when they begin with it, so a
message that is given back unfinished and handled again counts twice. At last SIGTERM ends the app while messages are left;
another one handles the rest.

Nothing may be lost, and nothing handled twice: a restart takes back no message that a handler has.
"""

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.faults.load.counting_app import COROUTINE, FUNCTION
from benchmarks.harness.report.results import Verified
from benchmarks.harness.workload import Benchmark, Run, number
from fila_cluster import Client, Message
from tests.support.cluster.cluster import PATIENCE_S, Cluster, eventually, running
from tests.support.cluster.working import WorkingApp

ROOT: Final = Path(__file__).parents[2]
APP: Final = "benchmarks.faults.load.counting_app:app"
QUEUES: Final = (COROUTINE, FUNCTION)
BATCH: Final = 10
ALL = "Messages"


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    restarts: int = number("Rolling restarts.")
    processes: int = number("Processes of the app.", 2)
    pause_ms: int = number("Pause of the producer after each 20 messages, in milliseconds.", 50)


@dataclass
class Producer:
    """Enqueues numbers until it is stopped. ``sent``: how many are confirmed."""

    endpoint: str
    pause_s: float
    sent: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Enqueue."""
        with Client(self.endpoint, timeout=PATIENCE_S) as client:
            while not self.stop.is_set():
                for queue in QUEUES:
                    numbers = range(self.sent, self.sent + BATCH)
                    client.enqueue_many(queue, [Message(b"%d" % each, fairness_key=f"k{each % 5}") for each in numbers])
                    self.sent += BATCH
                self.stop.wait(self.pause_s)


def restarted(scale: Scale, cluster: Cluster, notes: Path) -> tuple[int, float]:
    """Run the app and its restarts. Return how many messages were sent, and the seconds of a restart."""
    producer = Producer(cluster.endpoint, scale.pause_ms / 1000)
    thread = threading.Thread(target=producer.run)
    env = {"COUNTING_NOTES": str(notes)}
    first = WorkingApp(cluster.endpoint, APP, ROOT, "--processes", scale.processes, env=env)
    try:
        thread.start()
        began = time.monotonic()
        for _ in range(scale.restarts):
            first.renew()
        took_s = (time.monotonic() - began) / scale.restarts
        first.end()  # while messages come in
    finally:
        producer.stop.set()
        thread.join()
        first.close()
    last = WorkingApp(cluster.endpoint, APP, ROOT, env=env)
    try:
        with cluster.client() as client:
            eventually(lambda: all(client.queue_stats(queue).depth == 0 for queue in QUEUES), "empty queues")
        last.end()
    finally:
        last.close()
    return producer.sent, took_s


def measure(run: Run[Scale]) -> None:
    """Run, and judge."""
    with run.directory() as directory, running(directory / "data", workers=2) as cluster:
        with cluster.client() as client:
            for queue in QUEUES:
                client.create_queue(queue)
        sent, took_s = restarted(run.scale, cluster, directory / "notes")
        with cluster.client() as client:
            stats = [client.queue_stats(queue) for queue in QUEUES]
        noted = Counter((directory / "notes").read_text().split())
    counts = {
        "lost": sent - len(noted),
        "handled twice": noted.total() - len(noted),
        "failed attempts": sum(each.nacked + each.expired for each in stats),
    }
    run.figure(ALL, "handled", "fila-cluster", "", len(noted))
    run.figure(ALL, "seconds of a rolling restart", "fila-cluster", "s", took_s)
    for name, count in counts.items():
        run.figure(ALL, name, "fila-cluster", "", count)
        run.promise(f"{name}: {count}, none may", count == 0)
    run.verified.add(Verified(sent, noted.total(), counts["lost"], counts["handled twice"]))


BENCHMARK = Benchmark("handlers", measure, Scale(2), Scale(20), Scale(200))
