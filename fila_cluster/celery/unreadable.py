"""Messages that a worker cannot read become dead letters, and the worker keeps running. (Celery acks a message whose body it
cannot decode, and one without a task's headers ends its worker, and the next one that gets it.)"""

import logging
from collections.abc import Callable
from typing import Any

from celery.bootsteps import Step

from fila_cluster.celery.transport import Transport

_log = logging.getLogger("fila_cluster.celery")

_OF_BAD_DATA = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class Unreadable(Step):  # type: ignore[misc]  # Celery has no types
    """Part of the consumers of workers on this broker."""

    def include_if(self, parent: Any) -> bool:
        """Return whether ``parent``, a consumer, is on this broker."""
        return bool(parent.conninfo.transport.driver_type == Transport.driver_type)

    def create(self, parent: Any) -> None:
        """Replace the consumer's handlers of errors and tasks."""
        parent.on_decode_error = _refuse
        create = parent.create_task_handler
        parent.create_task_handler = lambda: _guarded(create())


def _guarded(handle: Callable[[Any], object]) -> Callable[[Any], None]:
    def handle_or_refuse(message: Any) -> None:
        try:
            handle(message)
        except _OF_BAD_DATA as error:
            _refuse(message, error)

    return handle_or_refuse


def _refuse(message: Any, error: Exception) -> None:
    queue = message.delivery_info["routing_key"]
    _log.error("a message for %r is not a task that this worker can read: %r", queue, error, exc_info=error)
    if not message.acknowledged:
        message.reject()
