"""Exchanges: each is a queue of the broker whose messages are its bindings. They are only browsed, never delivered.

So bindings are as durable as messages, all processes see them at once, an API key needs permissions on the namespace only, and operators
see them with ``fila-cluster queue browse``. A binding is found to be stale when its queue is gone: by the next producer that meets it, and
by the next process that binds a short-lived queue to the same exchange.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from amqp.exceptions import ResourceError

from fila_cluster.celery.names import Names
from fila_cluster.celery.routing import Binding, unpacked
from fila_cluster.client import Client
from fila_proto_zmq.errors import MessageNotFoundError, QueueExistsError, QueueNotFoundError

BINDINGS_MAX = 10_000
"""Of one exchange: a process that publishes to it has them in memory."""
FRESH_S = 1.0
"""How long a process that publishes may overlook a new binding: of events, and if it knows a direct one. All others look anew each time."""
IDLE_EXPIRY_S = 24 * 3600.0
"""After a day an exchange without bindings goes."""
EXCHANGES_MAX = 1000
"""Whose bindings a connection remembers."""
_PAGE = 1000


class Exchanges:
    """The exchanges of a namespace, as one connection sees them. Several threads may use it."""

    def __init__(self, client: Client, names: Names) -> None:
        self._client = client
        self._names = names
        self._known: dict[str, tuple[float, dict[Binding, str]]] = {}
        """The bindings of exchanges that were published to, with the ids of their messages, and when they were read."""

    def bindings(self, exchange: str, routing_key: str, *, may_be_old: bool) -> list[Binding]:
        """Return the bindings that take a message. ``may_be_old``: some of the last second may be missing."""
        read_at, known = self._known.get(exchange, (-math.inf, {}))
        if time.monotonic() - read_at < FRESH_S:
            taking = [each for each in known if each.takes(routing_key)]
            if may_be_old or (taking and all(each.kind == "direct" for each in taking)):
                return taking
        return [each for each in self._read(exchange) if each.takes(routing_key)]

    def all(self, exchange: str) -> list[Binding]:
        """Return all bindings of an exchange."""
        return list(self._read(exchange))

    def bind(self, exchange: str, binding: Binding, *, transient: bool) -> None:
        """Add a binding, unless there is the same one. ``transient``: look for others whose queues are gone."""
        known = self._read(exchange)
        if binding in known:
            return
        if transient and known:
            self._sweep(exchange, known)
        if len(known) >= BINDINGS_MAX:
            raise ResourceError(f"the exchange {exchange!r} has {len(known)} bindings, at most {BINDINGS_MAX}: unbind some")
        name = self._names.exchange(exchange)
        if not known:
            # It may not be there. The first enqueue would make it as a template that matches says: with bindings that expire, for one.
            self._make(name)
        try:
            self._add(name, binding)
        except QueueNotFoundError:  # it was deleted just now
            self._make(name)
            self._add(name, binding)
        self._known.pop(exchange, None)

    def unbind(self, exchange: str, binding: Binding) -> None:
        """Remove a binding."""
        self._remove(exchange, lambda each: each == binding)

    def forget(self, exchange: str, queue: str) -> None:
        """Remove all bindings of a queue to an exchange."""
        self._remove(exchange, lambda each: each.queue == queue)

    def delete(self, exchange: str) -> None:
        """Remove an exchange."""
        self._known.pop(exchange, None)
        with suppress(QueueNotFoundError):
            self._client.delete_queue(self._names.exchange(exchange), force=True)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _make(self, name: str) -> None:
        with suppress(QueueExistsError):
            self._client.create_queue(name, dead_letter="discard", idle_expiry=IDLE_EXPIRY_S)

    def _add(self, name: str, binding: Binding) -> None:
        self._client.enqueue(name, binding.packed(), fairness_key=binding.queue)

    def _read(self, exchange: str) -> dict[Binding, str]:
        read_at = time.monotonic()
        bindings: dict[Binding, str] = {}
        for message_id, binding in self._messages(self._names.exchange(exchange)):
            bindings.setdefault(binding, message_id)
        if len(self._known) >= EXCHANGES_MAX:
            self._known.clear()
        self._known[exchange] = read_at, bindings
        return bindings

    def _messages(self, name: str) -> Iterator[tuple[str, Binding]]:
        after, left = None, BINDINGS_MAX
        while left > 0:
            try:
                page = self._client.browse(name, limit=min(left, _PAGE), after=after)
            except (QueueNotFoundError, MessageNotFoundError):  # the message of the last page was removed meanwhile
                return
            for each in page:
                if (binding := unpacked(each.payload)) is not None:
                    yield each.id, binding
            if len(page) < _PAGE:
                return
            after, left = page[-1].id, left - len(page)

    def _remove(self, exchange: str, is_one: Callable[[Binding], bool]) -> None:
        # Twice the same one, if two processes have added it at once.
        name = self._names.exchange(exchange)
        for message_id, binding in list(self._messages(name)):
            if is_one(binding):
                with suppress(MessageNotFoundError, QueueNotFoundError):
                    self._client.cancel(name, message_id)
        self._known.pop(exchange, None)

    def _sweep(self, exchange: str, known: dict[Binding, str]) -> None:
        # The bindings were read before the queues, and a queue is there before its bindings.
        queues = {each.name for each in self._client.list_queues(self._names.prefix)}
        gone = {each for each in known if self._names.queue(each.queue) not in queues}
        if gone:
            self._remove(exchange, gone.__contains__)
