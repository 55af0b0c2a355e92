"""Our broker with what Dramatiq's tests read of its own brokers: nothing that a message passes through is replaced.

Its tests look into ``StubBroker.queues`` and ``dead_letters``, want ``join`` to raise what an actor raised, and count messages
as ``RabbitmqBroker`` does. Here the queues and dead letters are those of the cluster.
"""

from collections.abc import Callable, Iterable
from typing import Any

from dramatiq import Message, MessageProxy
from dramatiq.errors import QueueNotFound

from fila_cluster.dramatiq import FilaBroker
from fila_cluster.dramatiq.consumer import FilaConsumer


class Queue:
    """One queue of the cluster, as the tests use a ``queue.Queue``."""

    def __init__(self, broker: "SuiteBroker", name: str) -> None:
        self._broker = broker
        self._name = broker.queue_of(name)

    def put(self, data: bytes) -> None:
        """Enqueue the bytes of a message."""
        self._broker.ensure(self._name)
        self._broker.client.enqueue(self._name, data)

    def get(self, timeout: float) -> bytes:
        """Take a message and return its bytes."""
        (delivery,) = self._broker.client.receive(self._name, wait=timeout)
        delivery.ack()
        return delivery.payload

    def qsize(self) -> int:
        """How many messages wait and are not with a worker."""
        return self._broker.info(self._name).pending

    @property
    def unfinished_tasks(self) -> int:
        return self._broker.info(self._name).depth


class Queues(set[str]):
    """The names of the declared queues, and what they stand for."""

    broker: "SuiteBroker"

    def __getitem__(self, name: str) -> Queue:
        if name not in self:
            raise KeyError(name)
        return Queue(self.broker, name)


class SuiteConsumer(FilaConsumer):
    """Notes how what fails has failed. Not the exception itself: a test looks whether that is freed."""

    failed: Callable[[str, Callable[[], BaseException]], None]

    def nack(self, message: MessageProxy) -> None:
        error = getattr(message, "_exception", None)
        if error is not None:
            kind, arguments = type(error), error.args
            self.failed(message.queue_name, lambda: kind(*arguments))
        del error
        super().nack(message)


class SuiteBroker(FilaBroker):
    """See above. ``fail_fast``: whether ``join`` raises what an actor raised, unless it is told."""

    def __init__(self, endpoint: str, *, fail_fast: bool, **options: Any) -> None:
        self.fail_fast_default = fail_fast
        self.failures: dict[str, list[Callable[[], BaseException]]] = {}
        super().__init__(endpoint, **options)
        self.queues = Queues()
        self.queues.broker = self

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 100) -> FilaConsumer:
        if self.fail_fast_default and queue_name not in self.queues:  # as StubBroker does
            raise QueueNotFound(queue_name)
        consumer = super().consume(queue_name, prefetch, timeout)
        consumer.__class__ = SuiteConsumer
        consumer.failed = lambda queue, error: self.failures.setdefault(queue, []).append(error)
        return consumer

    def enqueue(self, message: Any, *, delay: int | None = None) -> Any:
        if self.fail_fast_default and message.queue_name not in self.queues:
            raise QueueNotFound(message.queue_name)
        return super().enqueue(message, delay=delay)

    def join(
        self,
        queue_name: str,
        *,
        interval: int = 20,
        timeout: int | None = None,
        fail_fast: bool | None = None,
        min_successes: int = 0,
    ) -> None:
        """``min_successes``: how often RabbitMQ has to say that a queue is empty; here once is enough."""
        if self.fail_fast_default and queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        super().join(queue_name, interval=interval, timeout=timeout)
        if self.fail_fast_default if fail_fast is None else fail_fast:
            for error in self.failures.get(queue_name, []):
                raise error()

    def flush_all(self) -> None:
        super().flush_all()
        self.failures.clear()
        for queue in self.queues:
            self.client.purge_queue(self.queue_of(queue) + ".dlq")

    @property
    def dead_letters(self) -> list["Message[Any]"]:
        """The messages in the dead letter queues."""
        return [message for queue in sorted(self.queues) for message in self._letters(queue)]

    def get_queue_message_counts(self, queue_name: str) -> tuple[int, int, int]:
        """How many messages are pending, delayed, dead."""
        info = self.info(self.queue_of(queue_name))
        return info.pending + info.in_flight, info.delayed, self.info(self.queue_of(queue_name) + ".dlq").depth

    def _letters(self, queue: str) -> Iterable["Message[Any]"]:
        return [Message.decode(letter.payload) for letter in self.client.browse(self.queue_of(queue) + ".dlq")]

    def info(self, name: str) -> Any:
        return next(queue for queue in self.client.list_queues(name) if queue.name == name)

    def ensure(self, name: str) -> None:
        self._make(name)
