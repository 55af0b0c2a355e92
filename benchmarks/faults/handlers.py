"""Restart the processes of an app one after the other under load, again and again; show that no message is lost or handled twice.

``fila-cluster work`` runs a coroutine and a function in some processes. A producer enqueues numbers all the time, for both. Each round sends
a SIGHUP and waits until all processes are new. The handlers note each number when they begin with it, so a message that is given back
unfinished and handled again counts twice. At last SIGTERM ends the app while messages are left; another one handles the rest.

Nothing may be lost, and nothing handled twice: a restart takes back no message that a handler has.
"""

import json
import signal
import subprocess
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.faults.counting_app import COROUTINE, FUNCTION
from benchmarks.harness.results import Verified
from benchmarks.harness.workload import Benchmark, Run, number
from fila_cluster import Client, Message
from tests.support.cluster import PATIENCE_S, Cluster, command, environment, eventually, running

ROOT: Final = Path(__file__).parents[2]
QUEUES: Final = (COROUTINE, FUNCTION)
BATCH: Final = 10
RENEWED, ALL = "all processes are new", "Messages"


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


class WorkingApp:
    """A running ``fila-cluster work``; ``log`` has its lines."""

    def __init__(self, endpoint: str, notes: Path, processes: int) -> None:
        self.log: list[str] = []
        self._process = subprocess.Popen(
            command("--endpoint", endpoint, "work", "benchmarks.faults.counting_app:app", "--processes", processes),
            cwd=ROOT,
            env=environment(COUNTING_NOTES=str(notes)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line.startswith("ready: "), (line, self.log)

    def renew(self) -> None:
        """Restart the processes one after the other, and wait until all are new."""
        before = self._count(RENEWED)
        self._process.send_signal(signal.SIGHUP)
        eventually(lambda: self._count(RENEWED) > before, "new processes")

    def end(self) -> None:
        """Drain it; it must end well."""
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        assert code == 0, (code, self.log)

    def close(self) -> None:
        """Leave nothing behind: processes whose supervisor is gone drain by themselves."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream
            stream.close()

    def _count(self, event: str) -> int:
        return sum(_event(line) == event for line in list(self.log))

    def _read(self) -> None:
        assert self._process.stderr
        for line in self._process.stderr:
            self.log.append(line.rstrip())


def _event(line: str) -> str:
    with suppress(ValueError):
        return str(json.loads(line)["event"])
    return ""


def restarted(scale: Scale, cluster: Cluster, notes: Path) -> tuple[int, float]:
    """Run the app and its restarts. Return how many messages were sent, and the seconds of a restart."""
    producer = Producer(cluster.endpoint, scale.pause_ms / 1000)
    thread = threading.Thread(target=producer.run)
    first = WorkingApp(cluster.endpoint, notes, scale.processes)
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
    last = WorkingApp(cluster.endpoint, notes, 1)
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
