"""A worker process: reads its queues, runs tasks in threads, and sends committed tasks whose messages were not sent.

A thread for each queue takes deliveries, and passes one on when a thread for tasks is free. So at most one message of each
queue waits here. When the worker stops, tasks that have not begun go back at once, to their places.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from django.db import close_old_connections
from django.utils import timezone

from fila_cluster import Client, Delivery
from fila_cluster.django.execution import DATABASE_PAUSE_S, Execution
from fila_cluster.django.models import TaskRecord
from fila_cluster.errors import FilaError

if TYPE_CHECKING:
    from fila_cluster.django.backend import FilaBackend

_log = logging.getLogger("fila_cluster.django")

TAKE_S: Final = 0.5
"""How long to wait for a message before looking whether to stop."""
PAUSE_S: Final = 1.0
"""How long to wait after an error of the broker or the database."""
UNSENT_AFTER: Final = timedelta(seconds=10)
"""A task that is not sent so long after its enqueue is sent by a worker."""
UNSENT_MAX: Final = 500
"""Tasks that one look sends."""
LOOK_S: Final = 10.0
"""How often to look for them."""


class TaskWorker:
    """One process's worker. ``queues`` are Django's names; ``threads``: how many tasks run at once."""

    def __init__(self, backend: "FilaBackend", queues: Iterable[str], *, threads: int, worker_id: str) -> None:
        self._backend = backend
        self._client: Client = backend.client
        self._queues = sorted(backend.queue_of(queue) for queue in queues)
        self._threads = threads
        self._execution = Execution(backend, self._client, worker_id)
        self._stop = threading.Event()
        self._slots = threading.Semaphore(threads)

    def stop(self) -> None:
        """Begin nothing new. Safe in a signal handler."""
        self._stop.set()

    def run(self, *, batch: bool = False, grace_s: float = 30.0, alive: Callable[[], bool] = lambda: True) -> bool:
        """Work until :meth:`stop`, or until ``alive()`` is false; with ``batch`` until no task waits. Return whether the
        running tasks ended within ``grace_s``: the others go back with the end of the client."""
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="fila-task")
        others = [threading.Thread(target=self._feed, args=(queue, pool), daemon=True) for queue in self._queues]
        others.append(threading.Thread(target=self._send_unsent, daemon=True))
        for thread in others:
            thread.start()
        while not self._stop.wait(0.1 if batch else TAKE_S):
            if not alive() or (batch and self._is_idle()):
                self._stop.set()
        for thread in others:
            thread.join()
        ended = threading.Thread(target=pool.shutdown, daemon=True)
        ended.start()
        ended.join(grace_s)
        return not ended.is_alive()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _feed(self, queue: str, pool: ThreadPoolExecutor) -> None:
        while not self._stop.is_set():
            try:
                self._backend.make(queue)
                self._take(queue, pool)
            except FilaError as error:
                _log.warning("Queue %s: %s", queue, error)
                self._stop.wait(PAUSE_S)

    def _take(self, queue: str, pool: ThreadPoolExecutor) -> None:
        with self._client.consume(queue, prefetch=self._threads) as deliveries:
            while not self._stop.is_set():
                delivery = deliveries.take(TAKE_S)
                if delivery is None:
                    continue
                while not self._slots.acquire(timeout=TAKE_S):
                    if self._stop.is_set():
                        self._client.give_back([delivery])
                        return
                pool.submit(self._run, delivery)

    def _run(self, delivery: Delivery) -> None:
        try:
            self._execution.run(delivery)
        except Exception:
            _log.exception("Message %s goes back: its task could not begin", delivery.id)
            self._stop.wait(DATABASE_PAUSE_S)
            with suppress(FilaError):  # its lease has ended: it went back by itself
                self._client.give_back([delivery])
        finally:
            self._slots.release()

    def _is_idle(self) -> bool:
        try:
            infos = [info for queue in self._queues for info in self._client.list_queues(queue) if info.name == queue]
        except FilaError:
            return False
        return len(infos) == len(self._queues) and not any(
            (info.pending and not info.paused) or info.in_flight for info in infos
        )

    def run_due(self, most: int) -> int:
        """Run in this thread all tasks that are due, and those that they enqueue; return the number of deliveries. For tests.
        Unsent tasks are sent first, as a test may never end its transaction. :class:`RuntimeError` after ``most``
        deliveries."""
        for queue in self._queues:
            self._backend.make(queue)
        ran = 0
        while ran < most:
            self.send_unsent(timedelta(0))
            deliveries = self._client.receive_any(dict.fromkeys(self._queues, 1))
            if not deliveries:
                return ran
            for delivery in deliveries:
                self._execution.run(delivery)
            ran += len(deliveries)
        raise RuntimeError(
            f"{ran} deliveries, and there may be more: do tasks enqueue each other without end? Else pass a larger most="
        )

    def _send_unsent(self) -> None:
        while True:
            try:
                self.send_unsent(UNSENT_AFTER)
            except Exception:  # the database is away, with an error of any kind: this thread must not end
                _log.exception("Could not look for tasks that were not sent")
            finally:
                close_old_connections()
            if self._stop.wait(LOOK_S):
                return

    def send_unsent(self, after: timedelta) -> int:
        """Send tasks that were enqueued so long ago and not sent; return how many. The dedup window makes them come once."""
        unsent = TaskRecord.written().filter(
            sent=False, backend=self._backend.alias, status=TaskRecord.Status.READY, enqueued_at__lte=timezone.now() - after
        )
        sent = 0
        resting: set[str] = set()
        """Queues whose tasks have to wait: their other tasks are not tried."""
        while not self._stop.is_set():
            oldest = unsent.exclude(queue_name__in=resting).order_by("enqueued_at")
            for record in oldest[: UNSENT_MAX - sent]:
                if self._stop.is_set():
                    return sent
                if not self._backend.send(record):
                    resting.add(record.queue_name)
                    break
                sent += 1
            else:
                return sent
        return sent
