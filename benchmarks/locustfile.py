"""A load for Locust: many tenants that enqueue, and consumers that receive and acknowledge, over the client library.

    pip install 'fila-cluster[locust]'
    locust -f benchmarks/locustfile.py --host tcp://127.0.0.1:5555                    # its page: http://localhost:8089
    locust -f benchmarks/locustfile.py --host tcp://127.0.0.1:5555 --headless --users 50 --spawn-rate 10 --run-time 1m

``--host`` is the cluster's endpoint (else ``FILA_ENDPOINT``). Payloads are the lines of a web server's log (``--payloads
FILE``; the default is the log of the test data, if it is there), the tenant of a line is the address in it: few tenants send
much, most send little. Each Locust process makes a queue of its own and removes it in the end; ``--queue NAME`` uses a queue
that exists, and leaves it there.

What Locust shows: ``enqueue`` and ``enqueue 50`` until the confirmation, ``receive`` until messages come, ``ack``, and
``delivery``, the time from the call of enqueue to the consumer (by the clocks of the machines that run Locust). A payload
that is not as it was sent counts as a failure of ``delivery``.

Locust patches the standard library with gevent. The blocking client waits in locks, and in ``poll`` on a descriptor, never
inside ZeroMQ; gevent makes both of them wait for one user while the others go on. So users are clients of this library
without any bridge.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4
from weakref import WeakKeyDictionary

from locust import User, constant, constant_throughput, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.runners import MasterRunner

from fila_cluster import Client, Delivery, Message
from fila_cluster.errors import FilaError, QueueNotFoundError

LOG = Path(__file__).parents[1] / "tests" / "data" / "apache_access.log"
LINES_MAX = 100_000
BATCH = 50
WAIT_S = 1.0
IDLE_EXPIRY_S = 600.0
"""If Locust is killed, the broker removes its queue so long after the last message."""

T = TypeVar("T")


class Load:
    """What all users of this process share: the queue, and lines with their tenants. The same lines in every process."""

    def __init__(self, queue: str, *, is_own: bool, payloads: Path) -> None:
        self.queue = queue
        self.is_own = is_own
        self.lines = lines_of(payloads)
        self._number = count()

    def next_message(self) -> Message:
        """Return the next line as a message."""
        number = next(self._number) % len(self.lines)
        line = self.lines[number]
        headers = {"line": str(number), "sent": repr(time.time())}
        return Message(line, headers, fairness_key=tenant_of(line))

    def is_whole(self, delivery: Delivery) -> bool:
        """Return whether a message of such a process is as it was sent."""
        number = int(delivery.headers.get("line", "-1"))
        return 0 <= number < len(self.lines) and delivery.payload == self.lines[number]


LOADS: "WeakKeyDictionary[Environment, Load]" = WeakKeyDictionary()


def lines_of(path: Path) -> list[bytes]:
    """Return the lines of a log; without a file, lines made up of 200 tenants of which each sends half as often as the one
    before."""
    if path.is_file():
        with path.open("rb") as file:
            lines = [line.rstrip(b"\n") for _, line in zip(range(LINES_MAX), file, strict=False)]
        if lines:
            return lines
    tenants = [200 // (1 + number % 200) for number in range(2000)]
    return [
        b"tenant-%d GET /orders/%d" % (tenant, number) + b"." * (number * 37 % 500) for number, tenant in enumerate(tenants)
    ]


def tenant_of(line: bytes) -> str:
    """Return the first word of a line."""
    return line.partition(b" ")[0][:100].decode(errors="replace") or "nobody"


def add_options(parser: LocustArgumentParser) -> None:
    """Add this load's own options to Locust's."""
    parser.add_argument("--queue", default="", help="a queue that exists; default: one of its own")
    parser.add_argument("--payloads", default=str(LOG), help="a file whose lines are the payloads")


def make_queue(environment: Environment, **_: Any) -> None:
    """Make the queue, and read the payloads."""
    if isinstance(environment.runner, MasterRunner):
        return  # its workers have the users
    options = environment.parsed_options
    assert options is not None
    load = Load(options.queue or f"locust.{uuid4().hex}", is_own=not options.queue, payloads=Path(options.payloads))
    if load.is_own:
        with connect(environment.host) as client:
            client.create_queue(load.queue, idle_expiry=IDLE_EXPIRY_S)
    LOADS[environment] = load


def remove_queue(environment: Environment, **_: Any) -> None:
    """Remove the queue, if it was made here."""
    load = LOADS.pop(environment, None)
    if load is not None and load.is_own:
        with connect(environment.host) as client:
            with suppress(QueueNotFoundError):
                client.delete_queue(load.queue, force=True)


events.init_command_line_parser.add_listener(add_options)  # type: ignore[no-untyped-call]
events.test_start.add_listener(make_queue)  # type: ignore[no-untyped-call]
events.test_stop.add_listener(remove_queue)  # type: ignore[no-untyped-call]


def connect(host: str | None) -> Client:
    """Return a client of the cluster under test."""
    return Client(host or os.environ.get("FILA_ENDPOINT"))


class FilaUser(User):
    """A user with a client of its own, as a program elsewhere would have."""

    abstract = True

    def on_start(self) -> None:
        """Connect."""
        self.load = LOADS[self.environment]
        self.client = connect(self.host)

    def on_stop(self) -> None:
        """Give back what is not acknowledged."""
        self.client.close()

    def timed(self, name: str, call: Callable[[], T], size_bytes: Callable[[T], int]) -> T | None:
        """Call the broker, and report that to Locust; None if it failed."""
        began = time.perf_counter()
        result, error = None, None
        try:
            result = call()
        except FilaError as failed:
            error = failed
        took_ms = (time.perf_counter() - began) * 1000
        self.report(name, took_ms, 0 if result is None else size_bytes(result), error)
        return result

    def report(self, name: str, took_ms: float, size_bytes: int, error: Exception | None = None) -> None:
        """Report one request to Locust."""
        self.environment.events.request.fire(
            request_type="fila", name=name, response_time=took_ms, response_length=size_bytes, exception=error, context={}
        )


class Producer(FilaUser):
    """A program that enqueues about 20 times a second, one message at a time, and sometimes many."""

    weight = 4
    wait_time = constant_throughput(20)

    @task(20)
    def enqueue(self) -> None:
        """Enqueue one message."""
        message = self.load.next_message()
        call = self.client.enqueue
        self.timed(
            "enqueue",
            lambda: call(self.load.queue, message.payload, message.headers, fairness_key=message.fairness_key),
            lambda _: len(message.payload),
        )

    @task(1)
    def enqueue_many(self) -> None:
        """Enqueue many messages at once."""
        messages = [self.load.next_message() for _ in range(BATCH)]
        size_bytes = sum(len(message.payload) for message in messages)
        self.timed(f"enqueue {BATCH}", lambda: self.client.enqueue_many(self.load.queue, messages), lambda _: size_bytes)


class Consumer(FilaUser):
    """A program that receives and acknowledges as fast as it can."""

    weight = 1
    wait_time = constant(0)

    @task
    def receive(self) -> None:
        """Receive what is there, check it, and acknowledge it."""
        deliveries = self.timed(
            "receive",
            lambda: self.client.receive(self.load.queue, BATCH, wait=WAIT_S),
            lambda received: sum(len(delivery.payload) for delivery in received),
        )
        now = time.time()
        for delivery in deliveries or ():
            wrong = None if self.load.is_whole(delivery) else ValueError("a payload is not as it was sent")
            took_ms = (now - float(delivery.headers.get("sent", now))) * 1000
            self.report("delivery", took_ms, len(delivery.payload), wrong)
        if deliveries:
            self.timed("ack", lambda: self.client.ack(deliveries), lambda _: 0)
