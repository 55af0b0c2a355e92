"""AMQP's verbs, as kombu calls them, on the broker's queues.

A consumer is a feed whose credit is the channel's prefetch count; as in RabbitMQ, the count is for each consumer. Ack, reject
and requeue are ack, fail and retry. They are sent without waiting and repeated until the broker has confirmed them. Closing a
channel gives back what is unsettled.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any

from amqp.exceptions import NotFound
from amqp.protocol import queue_declare_ok_t
from kombu.transport import base
from kombu.utils.uuid import uuid

from fila_cluster.celery import envelope
from fila_cluster.celery.envelope import OutgoingMessage, outgoing
from fila_cluster.celery.exchanges import KINDS, Binding, destinations
from fila_cluster.client import Delivery
from fila_cluster.client.polled import ACK, RELEASE, PolledConsumer, failed, to_retry
from fila_proto_zmq.errors import FilaError, InvalidArgumentError, PermissionDeniedError, QueueExistsError, QueueNotFoundError
from fila_proto_zmq.limits import PREFETCH_MAX

if TYPE_CHECKING:
    from fila_cluster.celery.transport import CeleryConnection

_log = logging.getLogger("fila_cluster.celery")

PREFETCH_UNLIMITED = 1000
"""The messages that a consumer without a prefetch count may hold."""
TRANSIENT_IDLE_S = 60.0
"""Lifetime of an exclusive or auto-delete queue whose process is gone, unless it has its own."""
TRANSIENT_TTL_S = 3600.0
"""Messages of such a queue expire after an hour: a queue with messages is not idle."""
DECLARED_MAX = 10_000
"""Queues whose declarations and bindings a channel remembers, to make them again, and not twice."""

ARGUMENTS = frozenset({"x-expires", "x-message-ttl", "x-max-priority", "x-queue-type"})
"""Accepted arguments of RabbitMQ's queues. Some have no effect: all queues here have priorities, and are durable."""
INSTEAD = (
    dict.fromkeys(("x-max-length", "x-max-length-bytes", "x-overflow"), "the broker's [limits] bound all queues")
    | dict.fromkeys(("x-dead-letter-exchange", "x-dead-letter-routing-key"), "dead letters go to <queue>.dlq")
    | {"x-delivery-limit": "set max_attempts in broker_transport_options"}
)
"""Replacements of other arguments."""

Callback = Callable[[envelope.CeleryMessage], object]


@dataclass(slots=True, eq=False)
class _Consumer:
    """A consumer's feed, and the callback for its messages."""

    tag: str
    queue: str
    feed: PolledConsumer
    callback: Callback
    no_ack: bool


class Channel(base.StdChannel):  # type: ignore[misc]  # kombu has no types
    """A channel of a :class:`~fila_cluster.celery.transport.CeleryConnection`."""

    Message = envelope.CeleryMessage

    def __init__(self, connection: "CeleryConnection", channel_id: int) -> None:
        self.connection: CeleryConnection | None = connection
        self.channel_id = channel_id
        self.closed = False
        self.no_ack_consumers: set[str] = set()
        self.events: defaultdict[str, set[Callable[..., object]]] = defaultdict(set)
        self._fila = connection
        self._client = connection.fila
        self._names = connection.names
        self._exchanges = connection.exchanges
        self._prefetch = 0
        self._consumers: dict[str, _Consumer] = {}
        self._unsettled: dict[int, Delivery] = {}
        """By delivery tag. As many as the feeds' credit at most."""
        self._tags = count(1)
        self._kinds: dict[str, str] = {}
        """The kinds of the exchanges that were declared here."""
        self._bound: defaultdict[str, set[tuple[str, Binding]]] = defaultdict(set)
        """The exchanges and bindings of queues that were bound here."""
        self._declared: dict[str, dict[str, Any]] = {}
        """How queues were declared here."""
        self._transient: set[str] = set()
        """The queues that end with their last consumer."""

    # --- exchanges ----------------------------------------------------------------------------------------------------

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str | None = "direct",  # noqa: A002  # kombu's name
        passive: bool = False,
        **_: Any,
    ) -> None:
        """Note the kind of an exchange. It is stored with its first binding."""
        kind = type or "direct"
        if kind not in KINDS:
            raise InvalidArgumentError(f"exchange {exchange!r} is of type {kind!r}: use one of {', '.join(sorted(KINDS))}")
        if not passive:
            self._kinds[exchange or f"amq.{kind}"] = kind

    def exchange_delete(self, exchange: str, if_unused: bool = False, **_: Any) -> None:
        """Remove an exchange and its bindings."""
        if not (if_unused and self._exchanges.all(exchange)):
            self._kinds.pop(exchange, None)
            self._exchanges.delete(exchange)

    def exchange_bind(self, *_: Any, **__: Any) -> None:
        """Refuse: bind queues."""
        raise NotImplementedError("exchanges cannot be bound to exchanges on fila://: bind the queues to both")

    exchange_unbind = exchange_bind

    # --- queues -------------------------------------------------------------------------------------------------------

    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
        **_: Any,
    ) -> Any:
        """Create a queue, unless it exists. An existing one keeps its options, and needs no right to create queues."""
        refused: FilaError | None = None
        name = queue or f"amq.gen-{uuid()}"
        stored = self._names.queue(name)
        if not passive:
            options = self._options(arguments or {}, transient=exclusive or auto_delete)
            self._forget_if_many()
            self._declared[name] = options
            if auto_delete or exclusive:
                self._transient.add(name)
            try:
                if self._create(stored, options):
                    return queue_declare_ok_t(name, 0, 0)
            except PermissionDeniedError as error:
                refused = error
        try:
            stats = self._client.queue_stats(stored)
        except QueueNotFoundError as error:
            if refused is not None:
                raise refused from error
            raise NotFound(str(error), method_sig=(50, 10)) from error
        return queue_declare_ok_t(name, stats.pending + stats.delayed, stats.consumers)

    def prepare_queue_arguments(self, arguments: dict[str, Any] | None, **options: Any) -> dict[str, Any]:
        """Return a queue's arguments under the names of RabbitMQ, as other brokers get them."""
        prepared: dict[str, Any] = base.to_rabbitmq_queue_arguments(arguments or {}, **options)
        return prepared

    def queue_bind(
        self, queue: str, exchange: str | None = None, routing_key: str | None = "", arguments: Any = None, **_: Any
    ) -> None:
        """Bind a queue to an exchange. Every queue is bound to the default exchange."""
        if not exchange:
            return
        binding = Binding(self._kinds.get(exchange, "direct"), queue, routing_key or "")
        if (exchange, binding) not in self._bound.get(queue, ()) or queue in self._transient:
            try:
                self._exchanges.bind(exchange, binding, transient=queue in self._transient)
            except PermissionDeniedError:
                # A producer, which names queues directly. The worker that consumes the queue binds it.
                if queue in self._transient:
                    raise
            else:
                self._forget_if_many()
                self._bound[queue].add((exchange, binding))

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str | None = "", arguments: Any = None, **_: Any
    ) -> None:
        """Undo :meth:`queue_bind`."""
        if exchange:
            binding = Binding(self._kinds.get(exchange, "direct"), queue, routing_key or "")
            if queue in self._bound:
                self._bound[queue].discard((exchange, binding))
            self._exchanges.unbind(exchange, binding)

    def queue_purge(self, queue: str, **_: Any) -> int:
        """Remove the messages that are not leased; return how many."""
        return self._client.purge_queue(self._names.queue(queue))

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any) -> int:
        """Delete a queue, its messages and its bindings; return how many messages it had."""
        stored = self._names.queue(queue)
        try:
            stats = self._client.queue_stats(stored)
            if (if_unused and stats.consumers) or (if_empty and stats.depth):
                return 0
            self._client.delete_queue(stored, force=queue in self._transient)
        except QueueNotFoundError:
            return 0
        finally:
            self._transient.discard(queue)
            self._declared.pop(queue, None)
        for exchange, binding in self._bound.pop(queue, set()):
            self._exchanges.unbind(exchange, binding)
        return stats.depth

    def after_reply_message_received(self, queue: str) -> None:
        """Delete the queue of a reply."""
        self.queue_delete(queue)

    # --- producing ----------------------------------------------------------------------------------------------------

    def prepare_message(
        self,
        body: bytes | str,
        priority: int | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: dict[str, Any] | None = None,
        properties: dict[str, Any] | None = None,
    ) -> OutgoingMessage:
        """Return the message for :meth:`basic_publish`."""
        return outgoing(body, priority, content_type, content_encoding, headers, properties)

    def basic_publish(
        self, message: OutgoingMessage | bytes | str, exchange: str = "", routing_key: str | None = "", **_: Any
    ) -> None:
        """Enqueue a message, once for each queue that it goes to, and return when it is durable."""
        if isinstance(message, (bytes, str)):  # as ``celery amqp basic.publish`` passes it
            message = self.prepare_message(message)
        if exchange:
            self._enqueue_routed(message, exchange, routing_key or "")
        else:
            self._enqueue_named(message, routing_key or "")

    # --- consuming ----------------------------------------------------------------------------------------------------

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, a_global: bool = False, **_: Any) -> None:
        """Set how many unsettled messages each consumer may hold; 0: ``PREFETCH_UNLIMITED``."""
        self._prefetch = prefetch_count
        for each in list(self._consumers.values()):
            each.feed.set_prefetch(self._credit)

    def basic_consume(
        self, queue: str, no_ack: bool = False, callback: Callback | None = None, consumer_tag: str | None = None, **_: Any
    ) -> str:
        """Begin to hand the messages of a queue to ``callback``."""
        tag = consumer_tag or uuid()
        feed = self._client.feed(self._names.queue(queue), self._credit)
        self._consumers[tag] = _Consumer(tag, queue, feed, callback or (lambda _: None), no_ack=no_ack)
        if no_ack:
            self.no_ack_consumers.add(tag)
        self._fila.consuming()
        return tag

    def basic_cancel(self, consumer_tag: str, **_: Any) -> None:
        """End a consumer. Its unsettled messages stay with this channel."""
        consumer = self._consumers.pop(consumer_tag, None)
        self.no_ack_consumers.discard(consumer_tag)
        if consumer is None or not self._fila.connected:  # a consumer ends with its connection
            return
        consumer.feed.close()
        if consumer.queue in self._transient:
            self.queue_delete(consumer.queue, if_unused=True)

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> envelope.CeleryMessage | None:
        """Return a message that is ready, or None."""
        try:
            deliveries = self._client.receive(self._names.queue(queue), 1)
        except QueueNotFoundError as error:
            raise NotFound(str(error), method_sig=(60, 70)) from error
        return self._message(deliveries[0], None, no_ack=no_ack) if deliveries else None

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> None:
        """Acknowledge."""
        for delivery in self._settled(delivery_tag, multiple=multiple):
            self._client.settle_soon(delivery, ACK)
        self._fila.send_soon()

    def basic_reject(self, delivery_tag: int, requeue: bool = False) -> None:
        """Dead-letter a message, or give it back with one attempt counted, so that ``max_attempts`` can end it."""
        how = to_retry("requeued by its worker") if requeue else failed("rejected by its worker")
        for delivery in self._settled(delivery_tag, multiple=False):
            self._client.settle_soon(delivery, how)
        self._fila.send_soon()

    def basic_recover(self, requeue: bool = False) -> None:
        """Give back all unsettled messages of this channel."""
        while self._unsettled:
            self._client.settle_soon(self._unsettled.popitem()[1], RELEASE)
        self._client.push()

    def message_to_python(self, raw_message: envelope.CeleryMessage) -> envelope.CeleryMessage:
        """Return a message as it is: consumers get it ready."""
        return raw_message

    def flow(self, active: bool = True) -> None:
        """Refuse: a consumer's credit is its flow."""
        raise NotImplementedError("fila:// has no flow: cancel the consumer, or set its prefetch count")

    def deliver(self) -> bool:
        """Hand over one message of each consumer; False if there was none."""
        handed_over = False
        for consumer in list(self._consumers.values()):
            if consumer.tag not in self._consumers:  # cancelled by the callback before
                continue
            try:
                delivery = consumer.feed.take()
            except FilaError as error:  # kombu connects again then, declares its queues, and gets the reason
                raise ConnectionResetError(f"the broker has ended the consumer of {consumer.queue!r}: {error}") from error
            if delivery is not None:
                handed_over = True
                consumer.callback(self._message(delivery, consumer.tag, no_ack=consumer.no_ack))
        return handed_over

    def close(self) -> None:
        """End all consumers, and give back unsettled messages."""
        if self.closed:
            return
        self.closed = True
        try:
            if self._fila.connected:
                self._leave()
        finally:
            self._consumers.clear()
            self._unsettled.clear()
            self._fila.remove(self)
            self.connection = None

    # --- inside -------------------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        """End all consumers, and give back unsettled messages, also if the broker does not answer."""
        try:
            for tag in list(self._consumers):
                self.basic_cancel(tag)
        finally:
            self.basic_recover(requeue=True)

    def _forget_if_many(self) -> None:
        if max(len(self._declared), len(self._bound)) >= DECLARED_MAX:
            self._declared.clear()
            self._bound.clear()
            self._transient.clear()

    @property
    def _credit(self) -> int:
        return min(self._prefetch or PREFETCH_UNLIMITED, PREFETCH_MAX)

    def _options(self, arguments: dict[str, Any], *, transient: bool) -> dict[str, Any]:
        """Return the options of ``create_queue``, given the arguments of RabbitMQ."""
        options: dict[str, Any] = {}
        for name in sorted(arguments.keys() - ARGUMENTS):
            _log.warning("the argument %s of queues is ignored: %s", name, INSTEAD.get(name, "fila:// has nothing like it"))
        if (expires_ms := arguments.get("x-expires")) is not None:
            options["idle_expiry"] = expires_ms / 1000
        if (ttl_ms := arguments.get("x-message-ttl")) is not None:
            options["default_ttl"] = max(ttl_ms, 1) / 1000
        if transient:
            options = {"idle_expiry": TRANSIENT_IDLE_S, "default_ttl": TRANSIENT_TTL_S} | options
            return options | {"dead_letter": "discard"}
        return options | self._fila.queue_options

    def _create(self, stored: str, options: dict[str, Any]) -> bool:
        """Create a queue; False if it is there already."""
        try:
            self._client.create_queue(stored, **options)
        except QueueExistsError:
            return False
        return True

    def _enqueue_routed(self, message: OutgoingMessage, exchange: str, routing_key: str) -> None:
        """Enqueue to the queues that are bound to an exchange."""
        # Events. Remote control declares its fanout and direct exchanges.
        may_be_old = message.is_transient and self._kinds.get(exchange, "topic") == "topic"
        queues = destinations(self._exchanges.bindings(exchange, routing_key, may_be_old=may_be_old))
        if not queues:
            return
        headers, options = message.sealed(exchange, routing_key), message.options(datetime.now(UTC))
        for queue in queues:
            try:
                self._client.enqueue(self._names.queue(queue), message.body, headers, **options)
            except QueueNotFoundError:
                self._exchanges.forget(exchange, queue)

    def _enqueue_named(self, message: OutgoingMessage, queue: str) -> None:
        """Enqueue to one queue. It is made again if it was declared here and has been removed since, as idle queues are."""
        stored, headers, options = self._names.queue(queue), message.sealed("", queue), message.options(datetime.now(UTC))
        try:
            self._client.enqueue(stored, message.body, headers, **options)
        except QueueNotFoundError as error:
            if queue in self._declared:
                self._create(stored, self._declared[queue])
                self._client.enqueue(stored, message.body, headers, **options)
            elif not (message.is_transient or message.is_reply):  # the caller of a reply has gone
                raise NotFound(str(error), method_sig=(60, 40)) from error

    def _message(self, delivery: Delivery, consumer_tag: str | None, *, no_ack: bool) -> envelope.CeleryMessage:
        tag = next(self._tags)
        message = envelope.CeleryMessage(delivery, self, tag, consumer_tag)
        if no_ack:
            self._client.settle_soon(delivery, ACK)
            self._fila.send_soon()
        else:
            self._unsettled[tag] = delivery
        return message

    def _settled(self, tag: int, *, multiple: bool) -> Iterable[Delivery]:
        self._fila.check()
        tags = [each for each in list(self._unsettled) if each <= tag] if multiple else [tag]
        for each in tags:
            with suppress(KeyError):  # given back before, with its channel
                yield self._unsettled.pop(each)
