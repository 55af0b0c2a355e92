"""Attributes of spans: OpenTelemetry's messaging conventions, and what only this broker has to say (``fila.…``)."""

from typing import Final

from opentelemetry.trace import Span, Status, StatusCode

from fila_cluster.client.delivery import Delivery
from fila_proto_zmq.errors import FilaError

SYSTEM: Final = "messaging.system"
DESTINATION: Final = "messaging.destination.name"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGE_ID: Final = "messaging.message.id"
BATCH_COUNT: Final = "messaging.batch.message_count"
ERROR_TYPE: Final = "error.type"

FAIRNESS_KEY: Final = "fila.fairness_key"
THROTTLE_KEYS: Final = "fila.throttle_keys"
PRIORITY: Final = "fila.priority"
ATTEMPTS: Final = "fila.attempts"
REASON: Final = "fila.reason"
SOURCE_QUEUE: Final = "fila.source_queue"
OUTCOME: Final = "fila.outcome"
FAILED_COUNT: Final = "fila.failed_count"

Attributes = dict[str, str | int | list[str]]


def of_operation(queue: str, name: str, kind: str = "") -> Attributes:
    """What every span says. ``kind`` is the conventions' operation type, where they have one."""
    attributes: Attributes = {SYSTEM: "fila", DESTINATION: queue, OPERATION_NAME: name}
    return attributes | {OPERATION_TYPE: kind} if kind else attributes


def of_delivery(delivery: Delivery) -> Attributes:
    """What a delivered message says of itself; no header, nothing of the payload."""
    optional: dict[str, str | int | list[str] | None] = {
        THROTTLE_KEYS: delivery.throttle_keys,
        PRIORITY: delivery.priority,
        REASON: delivery.reason,
        SOURCE_QUEUE: delivery.source_queue,
    }
    said = {name: value for name, value in optional.items() if value}
    return {MESSAGE_ID: delivery.id, FAIRNESS_KEY: delivery.fairness_key, ATTEMPTS: delivery.attempts, **said}


def set_error(span: Span, kind: str, text: str) -> None:
    """Say that what a span stands for failed."""
    span.set_attribute(ERROR_TYPE, kind)
    span.set_status(Status(StatusCode.ERROR, text or kind))


def set_exception(span: Span, error: BaseException) -> None:
    """Say what was raised: the code of our own errors, the class of others."""
    set_error(span, error.code if isinstance(error, FilaError) else type(error).__qualname__, str(error))
