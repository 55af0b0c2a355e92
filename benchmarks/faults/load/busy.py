"""Producers that send as fast as they can and retry when they are asked to, and consumers that receive and ack; each role in
a process of its own."""

import multiprocessing
import threading
import time
import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Self

from fila_cluster import Client, Message
from fila_cluster.errors import BatchError, FilaError

QUEUES = ["busy-0", "busy-1", "busy-5", "busy-7"]
PAYLOAD = bytes(1024)
BATCH = 100
TIMEOUT_S = 5.0
CONTEXT = multiprocessing.get_context("spawn")


@dataclass
class Tally:
    """What the clients of one process saw."""

    taken: int = 0
    acked: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    came_back: int = 0
    """Messages that were refused with a ``retry_after``, and sent again after it."""
    helped: int = 0
    """Retries that were accepted, at least in part."""
    untimed: int = 0
    """Messages that were refused as overloaded without a ``retry_after``."""
    ack_s: list[float] = field(default_factory=list)
    acks_refused: Counter[str] = field(default_factory=Counter)


def produce(endpoint: str, threads: int, tally: Tally, stop: threading.Event) -> list[threading.Thread]:
    """Send as fast as answers come, and retry after ``retry_after``."""
    return [threading.Thread(target=_produce, args=(endpoint, number, tally, stop)) for number in range(threads)]


def _produce(endpoint: str, number: int, tally: Tally, stop: threading.Event) -> None:
    batch = [Message(PAYLOAD, {"kind": "order"}, fairness_key=f"k{index % 10}") for index in range(BATCH)]
    queue = QUEUES[number % len(QUEUES)]
    waited = False
    with Client(endpoint, timeout=TIMEOUT_S) as client:
        while not stop.is_set():
            taken, error = _enqueue(client, queue, batch)
            tally.taken += taken
            tally.helped += waited and taken > 0
            waited = False
            if error is None:
                continue
            tally.refused[error.code] += 1
            if error.retry_after:
                waited = not stop.wait(error.retry_after)
                tally.came_back += waited
            else:
                tally.untimed += error.code in {"OVERLOADED", "RATE_LIMITED"}
                stop.wait(0.05)


def _enqueue(client: Client, queue: str, batch: list[Message]) -> tuple[int, FilaError | None]:
    """Return how many messages were accepted, and the first refusal."""
    try:
        return len(client.enqueue_many(queue, batch)), None
    except BatchError as error:
        results = error.results
        return sum(isinstance(each, str) for each in results), next(each for each in results if isinstance(each, FilaError))
    except FilaError as error:
        return 0, error


def consume(endpoint: str, threads: int, tally: Tally, stop: threading.Event) -> list[threading.Thread]:
    """Receive and ack from all queues."""
    return [threading.Thread(target=_consume, args=(endpoint, number, tally, stop)) for number in range(threads)]


def _consume(endpoint: str, number: int, tally: Tally, stop: threading.Event) -> None:
    with Client(endpoint, timeout=TIMEOUT_S) as client:
        turn = number
        while not stop.is_set():
            turn += 1
            with suppress(FilaError):
                deliveries = client.receive(QUEUES[turn % len(QUEUES)], 500, wait=0.05)
                if deliveries:
                    _ack(client, deliveries, tally)


def _ack(client: Client, deliveries: list[Any], tally: Tally) -> None:
    started = time.monotonic()
    try:
        client.ack(deliveries)
        tally.acked += len(deliveries)
    except FilaError as error:
        tally.acks_refused[error.code] += 1
    tally.ack_s.append(time.monotonic() - started)


def apart(role: str, endpoint: str, threads: int, pipe: Connection) -> None:
    """Run clients in a process of their own, until the pipe says stop."""
    warnings.simplefilter("ignore", ResourceWarning)
    tally, stop = Tally(), threading.Event()
    running = {"produce": produce, "consume": consume}[role](endpoint, threads, tally, stop)
    for thread in running:
        thread.start()
    pipe.recv()
    stop.set()
    for thread in running:
        thread.join()
    pipe.send(tally)


class Clients:
    """Clients of one role in a process of their own, for the length of a ``with`` block; afterwards ``tally`` is what they
    saw."""

    def __init__(self, role: str, endpoint: str, threads: int) -> None:
        self._pipe, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=apart, args=(role, endpoint, threads, theirs))
        self.tally = Tally()

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.send("stop")
        self.tally = self._pipe.recv()
        self._process.join()
