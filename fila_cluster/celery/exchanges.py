"""Exchanges: each is a queue of the broker whose messages are its bindings. They are only browsed, never delivered.

So bindings are as durable as messages, reach all processes at once, and need permissions on the namespace only.
``fila-cluster queue browse`` shows them. A binding is stale when its queue is gone: the next producer that uses it finds that
out, or the next process that binds a short-lived queue to the same exchange.
"""

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

from amqp.exceptions import ResourceError

from fila_cluster.client import Client
from fila_proto_zmq.errors import MessageNotFoundError, QueueExistsError, QueueNotFoundError
from fila_proto_zmq.limits import QUEUE_NAME_BYTES_MAX

EXCHANGE_PREFIX = "kombu.exchange."
"""In front of the name of an exchange, whose queue holds its bindings."""

_TO_ESCAPE = re.compile(rb"[^A-Za-z0-9._-]|\.(?=x[0-9a-f]{2})")
_DIGEST_BYTES = 16


class Names:
    """Names of this broker's queues for Celery's queues and exchanges, in a namespace; "": without one. A byte that a queue's
    name may not have is written as ``.xHH``, and so is a dot before such a piece: different names stay different."""

    def __init__(self, namespace: str) -> None:
        self.prefix = f"{namespace}/" if namespace else ""

    def queue(self, name: str) -> str:
        """Return the broker's name of one of Celery's queues."""
        return self.prefix + _escaped(name, QUEUE_NAME_BYTES_MAX - len(self.prefix))

    def exchange(self, name: str) -> str:
        """Return the name of the queue that has the bindings of an exchange."""
        prefix = self.prefix + EXCHANGE_PREFIX
        return prefix + _escaped(name, QUEUE_NAME_BYTES_MAX - len(prefix))


@lru_cache(maxsize=4096)
def _escaped(name: str, room: int) -> str:
    escaped = _TO_ESCAPE.sub(lambda found: b".x%02x" % found[0][0], name.encode()).decode()
    if len(escaped) <= room:
        return escaped
    digest = blake2b(name.encode(), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{escaped[: room - len(digest) - 1]}-{digest}"


KINDS = frozenset({"direct", "topic", "fanout"})


class Binding(NamedTuple):
    """A queue that is bound to an exchange of ``kind``. ``key``: the routing key, or a topic's pattern."""

    kind: str
    queue: str
    key: str

    def takes(self, routing_key: str) -> bool:
        """Return whether a message with this routing key goes to the queue."""
        if self.kind == "fanout":
            return True
        if self.kind == "topic":
            return _matches(self.key, routing_key)
        return self.key == routing_key

    def packed(self) -> bytes:
        """Return it as the payload of a message."""
        return json.dumps(self._asdict(), separators=(",", ":")).encode()


def unpacked(payload: bytes) -> Binding | None:
    """Return the binding in a message; None if it is not a binding."""
    try:
        found: Any = json.loads(payload)
        binding = Binding(found["kind"], found["queue"], found["key"])
    except (ValueError, TypeError, KeyError):
        return None
    return binding if binding.kind in KINDS and all(isinstance(each, str) for each in binding) else None


def destinations(bindings: Iterable[Binding]) -> list[str]:
    """Return the queues of bindings, each once, in the order of the bindings."""
    return list(dict.fromkeys(each.queue for each in bindings))


def _matches(pattern: str, routing_key: str) -> bool:
    """Return whether a topic's pattern takes a routing key: words with dots between them, ``*`` stands for one, ``#`` for any
    number. The cost is at most the product of both lengths."""
    words = routing_key.split(".")
    matched = {0}
    """How many words the pattern may have used so far."""
    for part in pattern.split("."):
        if part == "#":
            matched = set(range(min(matched), len(words) + 1))
        else:
            matched = {used + 1 for used in matched if used < len(words) and part in ("*", words[used])}
        if not matched:
            return False
    return len(words) in matched


BINDINGS_MAX = 10_000
"""Of one exchange: a process that publishes to it has them in memory."""
FRESH_S = 1.0
"""How long a process that publishes may miss a new binding: of events, and with a direct binding in its cache."""
IDLE_EXPIRY_S = 24 * 3600.0
"""After a day an exchange without bindings goes."""
EXCHANGES_MAX = 1000
"""Exchanges whose bindings a connection remembers."""
_PAGE = 1000


class Exchanges:
    """One connection's cache of the exchanges of a namespace. Several threads may use it."""

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
        """Add a binding, unless it exists. ``transient``: look for others whose queues are gone."""
        known = self._read(exchange)
        if binding in known:
            return
        if transient and known:
            self._sweep(exchange, known)
        if len(known) >= BINDINGS_MAX:
            raise ResourceError(f"the exchange {exchange!r} has {len(known)} bindings, at most {BINDINGS_MAX}: unbind some")
        name = self._names.exchange(exchange)
        if not known:
            # Without it the first enqueue would make it by a template that matches, for example with bindings that expire.
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
