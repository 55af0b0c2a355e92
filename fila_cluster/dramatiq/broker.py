"""The broker: queues, enqueues with the broker's own delay, and consumers.

A dramatiq queue is a queue of the same name, with its dead letters in ``<name>.dlq``. There are no delay queues: a delayed
message waits in the broker, and a worker holds none of them. Queues are made on first use, so that a module with actors can
be imported without a broker.
"""

import atexit
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from dramatiq import Broker, Message, Middleware, QueueJoinTimeout
from dramatiq.common import current_millis

from fila_cluster import Client, Producer
from fila_cluster.client.lazy import LazyClient, enqueue_making_queue, make_queue
from fila_cluster.dramatiq.consumer import ETA, DeliveredMessage, FilaConsumer, as_connection_errors
from fila_cluster.dramatiq.options import ACTOR_OPTIONS, Rule, arguments, check_options, ruled, without_once
from fila_cluster.errors import FilaError, QueueNotFoundError

DELIVERIES_MAX: Final = 10_000
"""Of one ``run_until_idle``."""
CONSUMER_TIMEOUT_MS: Final = 30_000
"""How long a consumer waits for a message before it returns None, unless its worker says otherwise."""


class FilaBroker(Broker):
    """Carries the messages of dramatiq's actors.

    ``endpoint``, ``api_key``, ``server_key``, ``timeout`` (seconds) and ``direct`` are those of
    :class:`~fila_cluster.Client`. ``namespace``: queues are named ``namespace/queue``. ``queue_options``: the options of
    ``Client.create_queue`` for queues that are made here; queues that exist keep theirs. The client is opened on first use,
    and once more in each child of a fork. ``confirm_delivery``: whether ``enqueue`` returns when the message is durable. If
    not, messages go out in batches, which is faster, and a killed process loses those of its last moments; later errors are
    logged. :meth:`close` and :meth:`join` wait for them. ``client``: use this client instead, and leave it open.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        middleware: list[Middleware] | None = None,
        api_key: str | None = None,
        server_key: str | None = None,
        timeout: float = 5.0,
        direct: bool | None = None,
        namespace: str | None = None,
        queue_options: Mapping[str, Any] | None = None,
        confirm_delivery: bool = True,
        client: Client | None = None,
    ) -> None:
        self.rules: dict[str, Rule] = {}
        """The functions of :func:`fila_cluster.dramatiq.fair`, by the option's name."""
        self._lazy = LazyClient(
            client, endpoint=endpoint, api_key=api_key, server_key=server_key, timeout=timeout, direct=direct
        )
        self._prefix = "" if namespace is None else f"{namespace}/"
        self._queue_options = dict(queue_options or {})
        self._confirm_delivery = confirm_delivery
        self._pipelines: dict[Client, _Pipeline] = {}
        super().__init__(middleware=middleware)
        self.queues: set[str] = set()
        self.actor_options |= ACTOR_OPTIONS

    @property
    def client(self) -> Client:
        """The client of this process, for operations that dramatiq lacks: redrive, throttles, why."""
        return self._lazy.get()

    def queue_of(self, queue_name: str) -> str:
        """Return the broker's name of a dramatiq queue."""
        return self._prefix + queue_name

    def close(self) -> None:
        """Wait until all sent messages are confirmed, give back unsettled ones, and disconnect."""
        self._flush_pipeline()
        self._lazy.close()
        self._pipelines.clear()

    def get_declared_queues(self) -> set[str]:
        """Return the names of all queues declared so far."""
        return self.queues.copy()

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue. It is made at the broker when it is first used."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.emit_after("declare_queue", queue_name)

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = CONSUMER_TIMEOUT_MS) -> FilaConsumer:
        """Return a consumer of a queue, with up to ``prefetch`` unsettled messages; ``timeout`` in milliseconds."""
        queue = self.queue_of(queue_name)
        with as_connection_errors():
            self._make(queue)
            return FilaConsumer(self, self.client, self.client.consume(queue, prefetch=prefetch), timeout / 1000)

    def enqueue(self, message: "Message[Any]", *, delay: int | None = None) -> "Message[Any]":
        """Enqueue a message, to be delivered in ``delay`` ms at the earliest; return it. It is durable then, if
        ``confirm_delivery``. A message that a worker has, as when ``Retries`` enqueues it once more, goes back with its
        ack instead."""
        held = message if isinstance(message, DeliveredMessage) else None
        if held is None:
            check_options(message)
        if delay is not None:
            message = message.copy(options={ETA: current_millis() + delay})
        elif held is not None:
            message = message.copy()
        message = ruled(message, self.rules)
        self.logger.debug("Enqueueing message %r on queue %r.", message.message_id, message.queue_name)
        self.emit_before("enqueue", message, delay)
        delay_ms = _left(message, delay)
        if held is None:
            self.put(message, delay_ms, confirmed=self._confirm_delivery)
        elif not held.run_again(without_once(message), delay_ms):
            self.put(message, delay_ms)  # its original is acked next
        self.emit_after("enqueue", message, delay)
        return message

    def put(self, message: "Message[Any]", delay_ms: int, *, confirmed: bool = True) -> None:
        """Enqueue a message as it is. Make its queue if necessary."""
        queue = self.queue_of(message.queue_name)
        options = arguments(message, self.actors.get(message.actor_name))
        options["delay"] = delay_ms / 1000
        payload = without_once(message).encode()
        with as_connection_errors():
            if confirmed:
                enqueue_making_queue(self.client, queue, payload, self._queue_options, **options)
            else:
                self._send(queue, payload, options)

    def flush(self, queue_name: str) -> None:
        """Remove the pending and delayed messages of a queue. Leased messages and dead letters stay."""
        with suppress(QueueNotFoundError):
            self.client.purge_queue(self.queue_of(queue_name))

    def flush_all(self) -> None:
        """Remove the pending and delayed messages of all declared queues."""
        for queue_name in self.queues:
            self.flush(queue_name)

    def join(self, queue_name: str, *, interval: int = 100, timeout: int | None = None) -> None:
        """Wait until a queue has no message, delayed ones included. ``interval`` and ``timeout`` in ms;
        :class:`QueueJoinTimeout`."""
        self._flush_pipeline()
        give_up_at = None if timeout is None else time.monotonic() + timeout / 1000
        while self._depth(queue_name):
            if give_up_at is not None and time.monotonic() >= give_up_at:
                raise QueueJoinTimeout(queue_name)
            time.sleep(interval / 1000)

    def run_until_idle(self, client: Client, *, most: int = DELIVERIES_MAX) -> int:
        """Run in this thread all due messages of declared queues, and those that actors send; return the number of
        deliveries. For tests. Messages that are due later stay. :class:`RuntimeError` after ``most`` deliveries."""
        from fila_cluster.dramatiq.inline import DramatiqInlineWorker  # noqa: PLC0415 # only tests need it

        worker = DramatiqInlineWorker(self, client)
        for queue_name in self.queues:
            self._make(self.queue_of(queue_name))
        with worker.booted():
            before = -1
            while before < worker.taken < most:
                before = worker.taken
                self._flush_pipeline()
                worker.run_one_of_each()
        if before < worker.taken:
            raise RuntimeError(
                f"{worker.taken} deliveries, and there may be more: do actors send to each other without end? Else pass a "
                "larger most="
            )
        return worker.taken

    def _depth(self, queue_name: str) -> int:
        name = self.queue_of(queue_name)
        return sum(queue.depth for queue in self.client.list_queues(name) if queue.name == name)

    def _send(self, queue: str, payload: bytes, options: Mapping[str, Any]) -> None:
        """Send without waiting. The queue must exist, because no answer is awaited that could make it."""
        pipeline = self._pipelines.get(self.client) or self._new_pipeline(self.client)
        if queue not in pipeline.made:
            self._make(queue)
            pipeline.made.add(queue)
        pipeline.producer.send(payload, queue=queue, **options)

    def _new_pipeline(self, client: Client) -> "_Pipeline":
        made = _Pipeline(client.producer(), set())
        pipeline = self._pipelines.setdefault(client, made)  # of several threads, one has it
        if pipeline is made:
            atexit.register(_flush_at_exit, weakref.ref(made.producer))
        return pipeline

    def _flush_pipeline(self) -> None:
        opened = self._lazy.opened
        if opened is not None and (pipeline := self._pipelines.get(opened)) is not None:
            pipeline.producer.flush()

    def _make(self, queue: str) -> None:
        make_queue(self.client, queue, self._queue_options)


class _Pipeline(NamedTuple):
    """The pipeline of one client; ``made``: the queues that it has made or found."""

    producer: Producer
    made: set[str]


def _flush_at_exit(reference: "weakref.ref[Producer]") -> None:
    """Wait for confirmations, in a process that ends without closing its broker."""
    producer = reference()
    if producer is not None:
        with suppress(FilaError):  # its client is closed, or that of a parent
            producer.flush()


def _left(message: "Message[Any]", delay: int | None) -> int:
    """Return the delay of a message: as given, or until its ETA."""
    if delay is not None:
        return max(0, delay)
    eta = message.options.get(ETA)
    return max(0, round(eta - current_millis())) if isinstance(eta, (int, float)) else 0
