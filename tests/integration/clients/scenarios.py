"""What a client in another language must do, shown by a worker program of it, on a real cluster.

A worker consumes a queue until SIGTERM, and prints a line of JSON for each event: ``begun``, ``settled``, ``error``, ``stopped``. A message's
payload says what its handler does: ``{"sleep": milliseconds, "fail": times}``.
"""

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from fila_cluster import Message
from fila_cluster.errors import FilaError
from tests.support.cluster.cluster import PATIENCE_S, Cluster, eventually, is_dead, running
from tests.support.cluster.http import address, answers

Event = dict[str, Any]


class Worker:
    """A running worker, and what it has printed so far."""

    def __init__(self, command: Sequence[str | Path], url: str) -> None:
        env = os.environ | {"FILA_HTTP": url}
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        self.told: list[Event] = []
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.told.append(json.loads(line))

    def events(self, name: str) -> list[Event]:
        return [event for event in list(self.told) if event["event"] == name]

    def stop(self) -> None:
        """Stop it as its supervisor would, and wait for its end."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == 0
        self._reader.join(PATIENCE_S)
        assert self.events("stopped")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(PATIENCE_S)
        assert self.process.stdout
        self.process.stdout.close()


@contextmanager
def at_work(command: Sequence[str | Path], url: str, *options: object) -> Iterator[Worker]:
    worker = Worker([*command, *map(str, options)], url)
    try:
        yield worker
    finally:
        worker.close()


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    env = {"FILA_SCHEDULER__CONSUMER_TIMEOUT_MS": "2000"}
    with running(folder / "data", "--dashboard", "127.0.0.1:0", workers=2, env=env) as running_one:
        eventually(lambda: answers(running_one), "an observer")
        yield running_one


def makes_all_calls(command: Sequence[str | Path], cluster: Cluster, queue: str) -> None:
    """The calls, their results and their errors."""
    with cluster.client() as client:
        client.create_queue(queue)
        done = subprocess.run(
            [*command, queue], env=os.environ | {"FILA_HTTP": address(cluster)}, capture_output=True, text=True,
            timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        ids = told["ids"]
        assert sorted(told["taken"]) == sorted(
            [
                [ids[0], '{"order":17}', "acme", {"kind": "json"}],
                [ids[1], "", "default", {}],
                [ids[2], "grüße", "default", {}],
            ]
        )
        assert told["pending"] == 3
        assert told["errors"] == [
            ["QUEUE_NOT_FOUND", False],
            ["BATCH", False],
            ["CONNECTION_LOST", True],
            ["QUEUE_NOT_FOUND", False],
        ]
        assert told["results"] == [None, "LEASE_EXPIRED"]
        stats = client.queue_stats(queue)
        assert (stats.pending, stats.in_flight, stats.delayed) == (1, 0, 1)


def works_and_stops(command: Sequence[str | Path], cluster: Cluster, queue: str) -> None:
    """A failure and its retry, a lease that is renewed while a handler runs, and a stop in good order."""
    url = address(cluster)
    with cluster.client() as client:
        client.create_queue(queue, visibility_timeout=1.0)
        long, failing = client.enqueue_many(queue, [Message(b'{"sleep": 3500}'), Message(b'{"fail": 1}')])
        with at_work(command, url, queue, 2, 2) as worker:
            eventually(lambda: client.queue_stats(queue).depth == 0, lambda: str(worker.told))
            begun = [(event["id"], event["attempts"]) for event in worker.events("begun")]
            assert sorted(begun) == sorted([(long, 0), (failing, 0), (failing, 1)])
            assert "it failed on purpose" in worker.events("begun")[-1]["error"]
            eventually(lambda: len(worker.events("settled")) == 3, "the confirmations")
            assert Counter(event["action"] for event in worker.events("settled")) == {"ack": 2, "nack": 1}
            assert worker.events("error") == []
        with at_work(command, url, queue, 1, 5) as worker:
            client.enqueue_many(queue, [Message(b'{"sleep": 2500}') for _ in range(5)])
            eventually(lambda: len(worker.events("begun")) == 1 and client.queue_stats(queue).in_flight == 5, "it works")
            worker.stop()
            assert [event["action"] for event in worker.events("settled")].count("ack") == 1
            stats = client.queue_stats(queue)
            assert (stats.pending, stats.in_flight) == (4, 0)
            assert {view.attempts for view in client.browse(queue)} == {0}
        client.create_queue(f"{queue}-once", delivery="at_most_once")
        with at_work(command, url, f"{queue}-once", 1, 3) as worker:
            client.enqueue_many(f"{queue}-once", [Message(b'{"sleep": 1000}') for _ in range(3)])
            eventually(lambda: len(worker.events("begun")) == 2, "it works")
            worker.stop()
            done = {event["id"] for event in worker.events("settled")}
            assert done == {event["id"] for event in worker.events("begun")}, "it can't go back, so it is done before the end"
        client.purge_queue(queue)
        client.enqueue(queue, b'{"sleep": 600000}')
        with at_work(command, url, queue, 1, 1, 1) as worker:
            eventually(lambda: bool(worker.events("begun")), "it works")
            worker.process.send_signal(signal.SIGTERM)
            eventually(lambda: client.queue_stats(queue).pending == 1, "a handler that is out of time gives back")
            assert client.browse(queue)[0].attempts == 0


def outlives_restarts(command: Sequence[str | Path], cluster: Cluster, queue: str) -> None:
    """Every process of the broker is killed, and later stopped, while two workers are busy: nothing is lost, and what is confirmed stays done."""
    url = address(cluster)
    with ExitStack() as stack:
        client = stack.enter_context(cluster.client())
        client.create_queue(queue, visibility_timeout=5.0, partitions=2)
        one, other = (stack.enter_context(at_work(command, url, queue, 16, 32)) for _ in range(2))
        ids = set[str]()

        def confirmed() -> set[str]:
            return {event["id"] for worker in (one, other) for event in worker.events("settled") if event["action"] == "ack"}

        def load(number: int) -> None:
            messages = [
                Message(b'{"sleep": 20}', fairness_key=f"k{each % 7}", dedup_id=f"{len(ids)}-{each}")
                for each in range(number)
            ]

            def are_in() -> bool:
                try:
                    ids.update(client.enqueue_many(queue, messages))
                except FilaError:  # the connection of before the restart
                    return False
                return True

            eventually(are_in, "all are enqueued")

        for end in ("kill", "terminate"):
            load(1500)
            reached = len(confirmed()) + 200
            eventually(lambda reached=reached: len(confirmed()) >= reached, "some are done")
            children = cluster.children()
            for child in children:
                getattr(child, end)()
            eventually(lambda gone=children: all(map(is_dead, gone)), "all have ended")
            eventually(cluster.all_up, "all workers")
        load(200)
        eventually(lambda: client.queue_stats(queue).depth == 0, lambda: str(client.queue_stats(queue)))
        one.stop()
        other.stop()
        told = [*one.told, *other.told]
        assert {event["id"] for event in told if event["event"] == "begun"} == ids
        done = {event["id"]: event["at"] for event in told if event["event"] == "settled" and event["action"] == "ack"}
        assert len(done) > len(ids) - 200, "the answers of a restart's moment are lost, others are not"
        late = [event for event in told if event["event"] == "begun" and event["at"] > done.get(event["id"], event["at"])]
        assert late == []


def runs_its_page(producer: Sequence[str | Path], consumer: Sequence[str | Path], cluster: Cluster) -> None:
    """The programs of a tutorial: one enqueues, the other one works until Ctrl-C."""
    env = os.environ | {"FILA_HTTP": address(cluster)}
    with cluster.client() as client:
        client.create_queue("orders")
        made = subprocess.run(producer, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert (made.returncode, made.stderr) == (0, "")
        with subprocess.Popen(consumer, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as working:
            try:
                eventually(lambda: client.queue_stats("orders").depth == 0, "all is done")
                working.send_signal(signal.SIGINT)
                printed, _ = working.communicate(timeout=PATIENCE_S)
            finally:
                working.kill()
        assert (working.returncode, printed.count("order ")) == (0, 3), printed
