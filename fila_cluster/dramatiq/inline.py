"""Dramatiq's worker in the thread of a test: ``fila.run_until_idle(broker)``.

Its parts are Dramatiq's own, and none of their threads is started. They take one message at a time, and stop when none is
ready. So no other thread uses the broker, and the clock of :mod:`fila_cluster.testing` moves only when the test moves it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dramatiq import Worker
from dramatiq.worker import _ConsumerThread, _WorkerThread

from fila_cluster.dramatiq.consumer import FilaConsumer
from fila_cluster.errors import InvalidArgumentError

if TYPE_CHECKING:
    from fila_cluster import Client, Delivery
    from fila_cluster.dramatiq.broker import FilaBroker


class DramatiqInlineWorker:
    """A worker of all queues that a broker has declared. It takes its messages with ``client``."""

    def __init__(self, broker: "FilaBroker", client: "Client") -> None:
        if broker.client.endpoint != client.endpoint:
            raise InvalidArgumentError(
                f"this FilaBroker sends to {broker.client.endpoint}, and this test's broker is {client.endpoint}: make it "
                "without an endpoint in tests, so that FILA_ENDPOINT names it"
            )
        self._broker = broker
        self._worker = Worker(broker, worker_threads=1)
        self._ready = {name: _Ready(client, broker.queue_of(name)) for name in broker.get_declared_queues()}
        parts: dict[str, Any] = {"broker": broker, "work_queue": self._worker.work_queue, "worker_timeout": 0}
        for name, ready in self._ready.items():
            thread = _ConsumerThread(queue_name=name, prefetch=1, **parts)
            thread.consumer = FilaConsumer(broker, client, ready, 0.0)
            self._worker.consumers[name] = thread
        self._runner = _WorkerThread(consumers=self._worker.consumers, **parts)

    @property
    def taken(self) -> int:
        """How many deliveries were taken so far."""
        return sum(ready.taken for ready in self._ready.values())

    @contextmanager
    def booted(self) -> Iterator[None]:
        """Emit the signals of a worker's start and end to middleware."""
        self._broker.emit_before("worker_boot", self._worker)
        self._broker.emit_after("worker_boot", self._worker)
        try:
            yield
        finally:
            self._broker.emit_before("worker_shutdown", self._worker)
            self._broker.emit_after("worker_shutdown", self._worker)

    def run_one_of_each(self) -> None:
        """Run a message of each queue, if one is ready there."""
        for thread in self._worker.consumers.values():
            assert thread.consumer is not None
            message = next(thread.consumer)
            if message is not None:
                thread.handle_message(message)
            while not self._worker.work_queue.empty():
                self._runner.process_message(self._worker.work_queue.get().message)


class _Ready:
    """The ready messages of a queue, for a consumer. ``taken``: how many those were."""

    def __init__(self, client: "Client", queue: str) -> None:
        self._client = client
        self._queue = queue
        self.taken = 0

    def take(self, _: float) -> "Delivery | None":
        found = self._client.receive(self._queue, 1)
        self.taken += len(found)
        return found[0] if found else None

    def close(self) -> None:
        """Nothing is open."""
