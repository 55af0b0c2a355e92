"""The producer's span: one for each call, whose context its messages carry.

A batch is one span, not one for each message: they were sent together, and a consumer's spans hang below it either way.
"""

from collections.abc import Iterable, Iterator
from copy import copy
from typing import Any, Final

from opentelemetry.trace import Span

from fila_cluster.client.message import Message
from fila_cluster.tracing import attributes
from fila_cluster.tracing.carrier import fields_of, with_fields
from fila_proto_zmq.errors import BatchError

_FAIRNESS_KEY, _THROTTLE_KEYS, _PRIORITY = 0, 2, 3
"""Where these are among the options of ``enqueue``."""

OPERATION: Final = "enqueue"


class EnqueueSpan:
    """A recording span, from before the messages are sealed until the broker has confirmed or refused them."""

    __slots__ = ("_fields", "_span")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._fields = fields_of(span)

    def carried(self, headers: Any) -> Any:
        """The headers of a message with the span's context."""
        return with_fields(headers, self._fields) if self._fields else headers

    def carrying(self, messages: Iterable[Any]) -> Iterable[Any]:
        """The messages, copied, with the span's context."""
        return map(self._message, messages) if self._fields else messages

    def accepted(self, message_id: str, options: tuple[Any, ...]) -> None:
        """Say what is in, and end."""
        self._span.set_attribute(attributes.MESSAGE_ID, message_id)
        for name, value in _said(options):
            self._span.set_attribute(name, value)
        self._span.end()

    def all_accepted(self, count: int) -> None:
        """Say how many are in, and end."""
        self._span.set_attribute(attributes.BATCH_COUNT, count)
        self._span.end()

    def failed(self, error: BaseException) -> None:
        """Say what was raised, and how much of a batch it is about, and end."""
        attributes.set_exception(self._span, error)
        if isinstance(error, BatchError):
            self._span.set_attribute(attributes.BATCH_COUNT, len(error.results))
            self._span.set_attribute(attributes.FAILED_COUNT, sum(not isinstance(result, str) for result in error.results))
        self._span.end()

    def _message(self, message: Any) -> Any:
        """A message of a batch; what is none is refused further on."""
        if not isinstance(message, Message):
            return message
        carrying = copy(message)
        carrying.headers = with_fields(message.headers, self._fields)
        return carrying


def _said(options: tuple[Any, ...]) -> Iterator[tuple[str, str | int | list[str]]]:
    """The options that were given. Throttle keys in an iterator are gone by now."""
    fairness_key, throttle_keys, priority = options[_FAIRNESS_KEY], options[_THROTTLE_KEYS], options[_PRIORITY]
    if fairness_key is not None:
        yield attributes.FAIRNESS_KEY, fairness_key
    if throttle_keys and not isinstance(throttle_keys, Iterator):
        yield attributes.THROTTLE_KEYS, list(throttle_keys)
    if priority:
        yield attributes.PRIORITY, priority
