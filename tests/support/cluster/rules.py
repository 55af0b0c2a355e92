"""Clients that try two rules of the broker for as long as a test likes: order within a key, and a limit over the whole cluster."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from fila_cluster import Client, Delivery, Message
from fila_cluster.errors import FilaError
from tests.support.cluster.cluster import eventually


class _Threads:
    """Threads with a client each, until they are to end."""

    def __init__(self, endpoint: str, timeout: float) -> None:
        self.stopping = threading.Event()
        self._endpoint, self._timeout = endpoint, timeout
        self._threads: list[threading.Thread] = []
        self._crashed: list[BaseException] = []

    def start(self, work: Callable[[Client], None]) -> None:
        def run() -> None:
            try:
                with Client(self._endpoint, timeout=self._timeout) as client:
                    work(client)
            except BaseException as error:
                self._crashed.append(error)
                raise

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def end(self) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join()
        if self._crashed:
            raise self._crashed[0]


class OrderedLoad:
    """A producer of numbers for some keys, and consumers, on a queue with ``max_in_flight_per_key=1``."""

    def __init__(self, endpoint: str, queue: str, *, keys: int = 8, timeout: float = 5.0, pause: float = 0.02) -> None:
        self.queue, self._keys, self._pause = queue, keys, pause
        self._lock = threading.Lock()
        self._seen: dict[str, list[int]] = defaultdict(list)
        """The numbers of each key in the order in which they came. By the dates of leases they can't be sorted: hosts' clocks may differ."""
        self._sent: dict[str, int] = defaultdict(int)
        self._producing = _Threads(endpoint, timeout)
        self._consuming = _Threads(endpoint, timeout)
        self._endpoint, self._timeout = endpoint, timeout

    def start(self, consumers: int = 2) -> None:
        """Begin. The queue must be there."""
        self._producing.start(self._produce)
        for _ in range(consumers):
            self._consuming.start(self._consume)

    def _produce(self, client: Client) -> None:
        while not self._producing.stopping.wait(self._pause):
            for key in [f"k{number}" for number in range(self._keys)]:
                number = self._sent[key]
                while not self._producing.stopping.is_set():
                    with suppress(FilaError):  # unknown, or refused: the same number again
                        client.enqueue(self.queue, str(number).encode(), fairness_key=key, dedup_id=f"{key}-{number}")
                        self._sent[key] = number + 1
                        break

    def _consume(self, client: Client) -> None:
        while not self._consuming.stopping.is_set():
            with suppress(FilaError):
                for delivery in client.receive(self.queue, 4, wait=0.2):
                    with self._lock:
                        self._seen[delivery.fairness_key].append(int(delivery.payload))
                    delivery.ack()

    @property
    def messages(self) -> int:
        """How many were confirmed."""
        return sum(self._sent.values())

    def abandon(self) -> None:
        """Have all threads end soon."""
        self._producing.stopping.set()
        self._consuming.stopping.set()

    def stop(self) -> None:
        """End the producer, wait until all is consumed, and end the consumers."""
        self._producing.end()
        with Client(self._endpoint, timeout=self._timeout) as client:
            eventually(lambda: _depth(client, self.queue) == 0, f"{self.queue} is empty", 120)
        self._consuming.end()

    def wrong(self) -> list[str]:
        """What was delivered before an earlier one was settled, or never."""
        found = []
        for key, numbers in self._seen.items():
            if numbers != sorted(numbers):
                found.append(f"{key}: one was delivered before an earlier one was settled")
            if missing := {*range(self._sent[key])}.difference(numbers):
                found.append(f"{key}: {len(missing)} confirmed messages were never delivered, {sorted(missing)[:5]}")
        return found


class ThrottledLoad:
    """Messages of one throttle key on several queues, always more than the limit lets through, and a consumer of each queue."""

    KEY = "shared"
    BACKLOG = 200

    def __init__(
        self, endpoint: str, queues: Sequence[str], *, rate: int, burst: int, timeout: float = 5.0, ahead_ms: float = 0.0
    ) -> None:
        """``ahead_ms``: how far the clocks of some hosts are ahead of this one's; by those deliveries come before they were sent."""
        self.queues, self.rate, self.burst = list(queues), rate, burst
        self._ahead_ms = ahead_ms
        self._lock = threading.Lock()
        self._leased_ms: dict[tuple[str, int], float] = {}
        self._threads = _Threads(endpoint, timeout)

    def start(self, client: Client) -> None:
        """Set the limit and begin. The queues must be there."""
        client.set_config(f"throttle.{self.KEY}", f"{self.rate},{self.burst}")
        for queue in self.queues:
            self._threads.start(partial(self._produce, queue=queue))
            self._threads.start(partial(self._consume, queue=queue))

    def _produce(self, client: Client, queue: str) -> None:
        while not self._threads.stopping.wait(0.1):
            with suppress(FilaError):
                missing = self.BACKLOG - _depth(client, queue)
                client.enqueue_many(queue, [Message(b"", throttle_keys=[self.KEY]) for _ in range(missing)])

    def _consume(self, client: Client, queue: str) -> None:
        while not self._threads.stopping.is_set():
            with suppress(FilaError):
                for delivery in client.receive(queue, 20, wait=0.2):
                    self._note(delivery)
                    delivery.ack()

    def _note(self, delivery: Delivery) -> None:
        leased_ms = delivery.leased_at.timestamp() * 1000
        if leased_ms - time.time() * 1000 > self._ahead_ms / 2 > 0:
            leased_ms -= self._ahead_ms
        with self._lock:
            self._leased_ms[delivery.id, delivery.attempts] = leased_ms

    @property
    def delivered(self) -> int:
        """How many were delivered."""
        return len(self._leased_ms)

    def abandon(self) -> None:
        """Have all threads end soon."""
        self._threads.stopping.set()

    def stop(self) -> None:
        """End."""
        self._threads.end()

    def excess(self) -> float:
        """By how many deliveries the worst window is over burst + rate × its length."""
        drifts = [index - self.rate * time_ms / 1000 for index, time_ms in enumerate(sorted(self._leased_ms.values()))]
        least, worst = float("inf"), float("-inf")
        for drift in drifts:
            least = min(least, drift)
            worst = max(worst, drift - least + 1 - self.burst)
        return worst


def _depth(client: Client, queue: str) -> int:
    with suppress(FilaError):
        return client.queue_stats(queue).depth
    return 1 << 30
