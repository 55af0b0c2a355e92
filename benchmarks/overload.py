"""Ask for ten times more than the broker can do, beside clients that never read; show what it accepts and refuses, and its memory.

    python benchmarks/overload.py [--seconds 60] [--deaf 100] [--json overload.json]

The queues of a cluster with two workers have a limit. First the program measures the capacity, with producers and consumers that keep up
with each other. Then, for so many seconds each, ten times as many producers send as fast as they can while the consumers stay the same,
and clients that never read what they ask for join. It prints the messages accepted a second beside the capacity, refusals and whether
retries after ``retry_after`` were accepted, how long acks took (they are always admitted), and the most memory of router and workers.

The exit code is 1 if less than 80 % of the capacity was accepted, an ack was refused, or a process exceeded its bound.
"""

import argparse
import multiprocessing
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import zmq
from cluster import OneCluster
from concluding import conclude
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from fila_cluster import Client, Message
from fila_cluster.errors import BatchError, FilaError
from fila_proto_zmq.codec import encode_command
from fila_proto_zmq.commands import Browse, Hello, Receive, Subscribe

PRODUCERS, CONSUMERS = 2, 2
TIMES = 10
QUEUES = ["busy-0", "busy-1", "busy-5", "busy-7"]
DEAF_QUEUES = ["deaf-0", "deaf-1", "deaf-2", "deaf-3"]
"""Two of each kind on each shard. Clients that never read have queues of their own, because what they leased is away until the leases end."""
DEAF_MESSAGES = 10_000
LIMIT = 20_000
"""Messages that a queue holds before enqueues are refused."""
PAYLOAD = bytes(1024)
BATCH = 100
SHARE_MIN = 0.8
RSS_MIB_MAX = 400
DEAF_QUESTIONS = 10
"""Questions a second of each client that never reads."""
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
    """Clients of one role in a process of their own, for the length of a ``with`` block; afterwards ``tally`` is what they saw."""

    def __init__(self, role: str, endpoint: str, threads: int) -> None:
        self._pipe, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=apart, args=(role, endpoint, threads, theirs))
        self.tally = Tally()

    def __enter__(self) -> "Clients":
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.send("stop")
        self.tally = self._pipe.recv()
        self._process.join()


class Deaf:
    """Clients that ask and never read: bare sockets with the smallest buffers."""

    def __init__(self, endpoint: str, clients: int) -> None:
        self._context = zmq.Context()
        self._stop = threading.Event()
        self._sockets = [self._connected(endpoint) for _ in range(clients)]
        self._thread = threading.Thread(target=self._ask)
        self.asked = 0

    def _connected(self, endpoint: str) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.DEALER)
        for option, value in ((zmq.RCVHWM, 1), (zmq.SNDHWM, 10), (zmq.RCVBUF, 4096), (zmq.LINGER, 0)):
            socket.setsockopt(option, value)
        socket.connect(endpoint)
        return socket

    def _ask(self) -> None:
        hello, subscribe = encode_command(Hello([1], "deaf"), 1), Subscribe(1, 1000)
        for number, socket in enumerate(self._sockets):
            self._send(socket, hello)
            self._send(socket, encode_command(subscribe, 2, DEAF_QUEUES[number % len(DEAF_QUEUES)]))
        requests = count(3)
        while not self._stop.wait(1 / DEAF_QUESTIONS):
            for number, socket in enumerate(self._sockets):
                asked = QUEUES[number % len(QUEUES)], DEAF_QUEUES[number % len(DEAF_QUEUES)]
                self._send(socket, encode_command(Browse(1000), next(requests), asked[0]))
                self._send(socket, encode_command(Receive(500), next(requests), asked[1]))

    def _send(self, socket: "zmq.Socket[bytes]", frame: list[bytes]) -> None:
        with suppress(zmq.Again):
            socket.send_multipart(frame, zmq.NOBLOCK)
            self.asked += 1

    def __enter__(self) -> "Deaf":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for socket in self._sockets:
            socket.close()
        self._context.term()


def phase(cluster: OneCluster, seconds: float, producers: int, deaf: int) -> dict[str, Any]:
    """Run clients for so long. Return the figures."""
    rss: dict[str, int] = {}
    with ExitStack() as stack:
        if deaf:
            stack.enter_context(Deaf(cluster.endpoint, deaf))
        consumers = stack.enter_context(Clients("consume", cluster.endpoint, CONSUMERS))
        senders = stack.enter_context(Clients("produce", cluster.endpoint, producers))
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            time.sleep(0.25)
            for processes in cluster.processes().values():
                for process in processes:
                    with suppress(Exception):
                        name = process.cmdline()[-1]
                        rss[name] = max(rss.get(name, 0), process.memory_info().rss)
    return {"seconds": seconds, "rss MiB": {name: size >> 20 for name, size in rss.items()}} | _figures(
        senders.tally, consumers.tally, seconds
    )


def _figures(producers: Tally, consumers: Tally, seconds: float) -> dict[str, Any]:
    acks = sorted(consumers.ack_s) or [0.0]
    return {
        "taken/s": producers.taken / seconds, "acked/s": consumers.acked / seconds, "refused": dict(producers.refused),
        "refused without retry_after": producers.untimed, "came back": producers.came_back, "helped": producers.helped,
        "acks refused": dict(consumers.acks_refused),
        "ack p50 ms": 1000 * acks[len(acks) // 2], "ack p99 ms": 1000 * acks[int(0.99 * (len(acks) - 1))], "ack max ms": 1000 * acks[-1],
    }  # fmt: skip


def measure(seconds: float, deaf: int, data_dir: Path) -> dict[str, dict[str, Any]]:
    """Measure capacity, overload, and overload beside clients that never read."""
    config = data_dir.parent / "fila.toml"
    config.write_text(f"[limits]\nmax_queue_messages = {LIMIT}\n")
    with OneCluster(data_dir, "--config", str(config), workers=2) as cluster:
        with Client(cluster.endpoint, timeout=30) as client:
            for queue in (*QUEUES, *DEAF_QUEUES):
                client.create_queue(queue, visibility_timeout=30)
            for queue in DEAF_QUEUES:
                for _ in range(DEAF_MESSAGES // BATCH):
                    client.enqueue_many(queue, [Message(PAYLOAD)] * BATCH)
        return {
            "capacity": phase(cluster, seconds / 3, PRODUCERS, 0),
            "overload": phase(cluster, seconds, TIMES * PRODUCERS, 0),
            "overload, never read": phase(cluster, seconds, TIMES * PRODUCERS, deaf),
        }


def verdict(phases: dict[str, dict[str, Any]]) -> list[str]:
    """Return the promises that do not hold."""
    capacity = phases["capacity"]["acked/s"]
    broken = []
    for name, figures in phases.items():
        if figures["acked/s"] < SHARE_MIN * capacity:
            broken.append(f"{name}: {figures['acked/s'] / capacity:.0%} of the capacity")
        if figures["acks refused"]:
            broken.append(f"{name}: acks were refused: {figures['acks refused']}")
        if figures["refused without retry_after"]:
            broken.append(f"{name}: {figures['refused without retry_after']} refusals do not say when to come back")
        broken += [
            f"{name}: {process} needed {size} MiB" for process, size in figures["rss MiB"].items() if size > RSS_MIB_MAX
        ]
    return broken


def show(console: Console, phases: dict[str, dict[str, Any]]) -> None:
    """Return the table."""
    table = Table(
        title=f"1 KB messages in batches of {BATCH}; {PRODUCERS} producers, then {TIMES} times as many", title_justify="left"
    )
    table.add_column("", no_wrap=True)
    for name in phases:
        table.add_column(name, justify="right")
    capacity = phases["capacity"]["acked/s"] or 1.0
    rows: dict[str, Any] = {
        "accepted a second": lambda each: f"{each['taken/s']:,.0f}",
        "done (acked) a second": lambda each: f"{each['acked/s']:,.0f} ({each['acked/s'] / capacity:.0%})",
        "refused": lambda each: ", ".join(f"{count:,} {code}" for code, count in each["refused"].items()) or "0",
        "accepted on the retry after retry_after": lambda each: (
            f"{each['came back']:,}, {each['helped'] / max(1, each['came back']):.0%}"
        ),
        "acks refused": lambda each: str(each["acks refused"] or 0),
        "ack p50 / p99 / max, ms": lambda each: (
            f"{each['ack p50 ms']:.1f} / {each['ack p99 ms']:.0f} / {each['ack max ms']:.0f}"
        ),
        "most memory, MiB": lambda each: ", ".join(
            f"{name.removeprefix('fila_')} {size}" for name, size in each["rss MiB"].items()
        ),
    }
    for name, text in rows.items():
        table.add_row(name, *map(text, phases.values()))
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of each overload")
    parser.add_argument("--deaf", type=int, default=100, help="clients that never read")
    parser.add_argument("--json", type=Path, help="write the figures to a file")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ResourceWarning)
    console = Console()
    with tempfile.TemporaryDirectory(prefix="fila-overload-") as directory:
        phases = measure(arguments.seconds, arguments.deaf, Path(directory) / "data")
    show(console, phases)
    conclude(console, phases, arguments.json, verdict(phases), sound="within the bounds", bad="OVER THE BOUNDS")


if __name__ == "__main__":
    main()
