"""Celery's own worker in the thread of a test: ``fila.run_until_idle(InlineWorker(app))``.

It is the worker of ``celery worker --pool solo`` without its event loop and its remote control. It takes one message at a
time, and stops when none is ready. So no other thread uses the broker, and the clock of :mod:`fila_cluster.testing` moves
only when the test moves it.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from celery._state import _set_task_join_will_block, task_join_will_block
from celery.exceptions import WorkerShutdown
from celery.worker.consumer import Consumer

from fila_cluster.celery.transport import Transport
from fila_cluster.client import Client
from fila_proto_zmq.errors import InvalidArgumentError

DELIVERIES_MAX: Final = 10_000
"""Of one ``run_until_idle``."""


class InlineWorker:
    """A worker of a Celery app that runs tasks until none is ready."""

    def __init__(self, app: Any, *, queues: Iterable[str] | None = None) -> None:
        """``queues``: as of ``celery worker -Q``; by default the queues of the app."""
        self._app = app
        self._queues = None if queues is None else list(queues)

    def run_until_idle(self, client: Client, *, most: int = DELIVERIES_MAX) -> int:
        """Run all tasks that are ready, or sent meanwhile, in this thread; return the number of deliveries.

        Tasks that are due later stay. The app becomes the current one, as in every worker. Raise
        :class:`InvalidArgumentError` if its broker is not that of ``client``, :class:`RuntimeError` after ``most``
        deliveries.
        """
        self._app.set_current()
        self._check_broker(client.endpoint)
        run, waits_are_refused = _Run(self._queues, most), task_join_will_block()
        try:
            worker = self._app.WorkController(
                pool="solo",
                concurrency=1,
                use_eventloop=False,
                disable_rate_limits=True,
                task_events=False,
                without_gossip=True,
                without_mingle=True,
                without_heartbeat=True,
                consumer_cls=partial(_Consumer, run),
            )
            worker.start()
        finally:
            _set_task_join_will_block(waits_are_refused)  # a task may not wait for results, the test may
        if run.error is not None:
            raise run.error
        if worker.exitcode:
            raise RuntimeError(f"the worker has ended with the exit code {worker.exitcode}: its log says why")
        return run.handled

    def _check_broker(self, expected: str) -> None:
        """Connect once: a worker itself would try again and again."""
        with self._app.connection_for_read() as connection:
            is_ours = connection.transport.driver_type == Transport.driver_type
            found = connection.connect().fila.endpoint if is_ours else connection.as_uri(mask="")
        if found != expected:
            raise InvalidArgumentError(
                f"the app's broker is {found}, the test uses {expected}: set broker_url to fila://, without a host"
            )


class _Run:
    """The task of a worker, and its count of deliveries."""

    def __init__(self, queues: list[str] | None, most: int) -> None:
        self.queues = queues
        self.most = most
        self.handled = 0
        self.error: Exception | None = None


class _Consumer(Consumer):  # type: ignore[misc]  # Celery has no types
    """Celery's consumer of tasks, with another loop."""

    class Blueprint(Consumer.Blueprint):  # type: ignore[misc]
        """Its parts: those that tasks need."""

        default_steps = (
            "celery.worker.consumer.connection:Connection",
            "celery.worker.consumer.tasks:Tasks",
            "celery.worker.consumer.consumer:Evloop",
        )

    def __init__(self, run: _Run, *arguments: Any, **options: Any) -> None:
        self._run = run
        super().__init__(*arguments, **options)

    def loop(self, *_: Any) -> None:
        """Run all tasks that are ready, and end the worker."""
        self.on_ready()
        try:
            self._work()
        except Exception as error:  # the worker would try again, or log it
            self._run.error = error
        raise WorkerShutdown(0)

    def _work(self) -> None:
        run, channel, queues = self._run, self.connection.default_channel, self.app.amqp.queues
        consumer = self.task_consumer
        consumer.on_message = self.create_task_handler()
        names = [each.name for each in consumer.queues] if run.queues is None else run.queues
        for name in names:
            queues[name](channel).declare()
        idle = False
        while not idle:
            idle = True
            for name in names:
                message = channel.basic_get(name)
                if message is None:
                    continue
                if run.handled == run.most:
                    raise RuntimeError(
                        f"{run.handled} deliveries, and there are more: do tasks send each other without end, or is one "
                        "rejected with requeue for ever? Set max_attempts in broker_transport_options, or pass a larger most="
                    )
                run.handled, idle = run.handled + 1, False
                consumer._receive_callback(message)
                self.perform_pending_operations()
