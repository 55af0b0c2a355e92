"""The backend: a row in the caller's transaction, and a message when it is committed.

The row is an outbox: a task whose ``enqueue`` was committed runs, also if the process dies before the sending. After a
rollback there is neither a row nor a message.
"""

import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from typing import Any, Final
from uuid import UUID, uuid4

import msgspec
from django.conf import settings as project
from django.core import checks
from django.db import router, transaction
from django.utils import timezone

from fila_cluster import Client
from fila_cluster.client.lazy import enqueue_making_queue, make_queue
from fila_cluster.django import settings
from fila_cluster.django.framework import (
    BaseTaskBackend,
    InvalidTask,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_signals,
)
from fila_cluster.django.tasks import ROW, SCHEDULING, TASK_HEADER, FilaTask, TaskMessage
from fila_cluster.errors import (
    FilaError,
    InvalidArgumentError,
    PermissionDeniedError,
    QueueNotFoundError,
    UnauthenticatedError,
    UnsupportedVersionError,
)
from fila_proto_zmq.names import check_new_queue_name

_log = logging.getLogger("fila_cluster.django")


DELIVERIES_MAX: Final = 10_000
"""Of one ``run_until_idle``."""
_OF_OPERATORS: Final = (QueueNotFoundError, PermissionDeniedError, UnauthenticatedError, UnsupportedVersionError)
"""Errors that an operator has to fix, whatever the message is."""


class FilaBackend(BaseTaskBackend):  # type: ignore[misc] # it is found at run time
    """Tasks on this project's queues. ``OPTIONS`` are the fields of :class:`fila_cluster.django.settings.Options`.
    ``ENQUEUE_ON_COMMIT`` (default true): a task's message is sent when the transaction of ``enqueue`` is committed."""

    task_class = FilaTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.enqueue_on_commit = bool(params.get("ENQUEUE_ON_COMMIT", True))
        self.settings = settings.read(alias, self.options)

    @property
    def client(self) -> Client:
        """The client of this process."""
        return self.settings.lazy().get()

    def queue_of(self, queue_name: str) -> str:
        """Return the broker's name of a queue."""
        return queue_name if self.settings.namespace is None else f"{self.settings.namespace}/{queue_name}"

    def validate_task(self, task: Any) -> None:
        """Raise InvalidTask if it can't be a task here."""
        super().validate_task(task)
        try:
            check_new_queue_name(self.queue_of(task.queue_name))
        except InvalidArgumentError as error:
            raise InvalidTask(str(error)) from error

    def check(self, **_: Any) -> Iterable[Any]:
        """Return the messages of Django's system checks."""
        from django.apps import apps  # noqa: PLC0415 # Django imports this module before its applications are ready

        if not apps.is_installed("fila_cluster.django"):
            yield checks.Error(
                "fila_cluster.django is not installed",
                hint="Add 'fila_cluster.django' to INSTALLED_APPS, and migrate.",
                id="fila.E001",
            )
        for queue in sorted(self.queues):
            try:
                check_new_queue_name(self.queue_of(queue))
            except InvalidArgumentError as error:
                yield checks.Error(f"TASKS[{self.alias!r}]['QUEUES']: {error}", id="fila.E002")

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Write the task's row, and send its message when the transaction is committed. Return its result, which is READY."""
        from fila_cluster.django.models import TaskRecord  # noqa: PLC0415 # see check()

        self.validate_task(task)
        result = TaskResult(
            task=task,
            id=str(uuid4()),
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        record = TaskRecord.objects.create(
            id=result.id,
            backend=self.alias,
            task_path=task.module_path,
            queue_name=task.queue_name,
            priority=task.priority,
            run_after=_as_stored(task.run_after),
            arguments={"args": result.args, "kwargs": result.kwargs},
            options=self._scheduling(task, result.args, result.kwargs),
            enqueued_at=result.enqueued_at,
        )
        send: Callable[[], None] = partial(self._send_new, record, result)
        if self.enqueue_on_commit:
            transaction.on_commit(send, using=router.db_for_write(TaskRecord))
        else:
            send()
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the result of a task. Raises TaskResultDoesNotExist."""
        from fila_cluster.django.execution import result_of  # noqa: PLC0415
        from fila_cluster.django.models import TaskRecord  # noqa: PLC0415 # see check()

        try:
            return result_of(TaskRecord.objects.get(id=result_id, backend=self.alias))
        except TaskRecord.DoesNotExist:
            raise TaskResultDoesNotExist(result_id) from None

    def send(self, record: Any) -> bool:
        """Send the message of a row. False if a worker has to try again. A message that can never be sent fails the task."""
        from fila_cluster.django.models import TaskRecord  # noqa: PLC0415 # see check()

        client: Client | None = None
        try:
            client = self.client
            self._enqueue(record, client)
        except Exception as error:
            if client is None or not _is_of_the_message(error):
                _log.warning("Task %s is not sent yet; a worker will send it: %s", record.id, error)
                return False
            _log.exception("Task %s can't be sent", record.id)
            failure = {
                "exception_class_path": f"{type(error).__module__}.{type(error).__qualname__}",
                "traceback": str(error),
            }
            TaskRecord.objects.filter(id=record.id).update(
                sent=True, status=TaskRecord.Status.FAILED, finished_at=timezone.now(), errors=[failure]
            )
            return True
        TaskRecord.objects.filter(id=record.id).update(sent=True)
        return True

    def run_until_idle(self, client: Client, *, most: int = DELIVERIES_MAX) -> int:
        """Run in this thread all tasks that are due, and those that they enqueue; return the number of deliveries. For tests.
        Tasks that are due later stay. :class:`RuntimeError` after ``most`` deliveries."""
        from fila_cluster.django.models import TaskRecord  # noqa: PLC0415 # see check()
        from fila_cluster.django.worker import TaskWorker  # noqa: PLC0415

        if self.client.endpoint != client.endpoint:
            raise InvalidArgumentError(
                f"TASKS[{self.alias!r}] sends to {self.client.endpoint}, and this test's broker is {client.endpoint}: leave "
                "'endpoint' out of its OPTIONS in the settings of tests"
            )
        ran = 0
        while True:
            # Without QUEUES a task may be in any queue, also one that a task has just used first.
            queues = self.queues or set(TaskRecord.written().filter(backend=self.alias).values_list("queue_name", flat=True))
            now = TaskWorker(self, queues, threads=1, worker_id="run_until_idle").run_due(most - ran)
            if not now:
                return ran
            ran += now

    # --- inside -------------------------------------------------------------------------------------------------------

    def _send_new(self, record: Any, result: Any) -> None:
        self.send(record)
        task_signals.task_enqueued.send(type(self), task_result=result)  # a worker sends what has to wait, and says nothing

    def _enqueue(self, record: Any, client: Client) -> None:
        message = TaskMessage(**{name: getattr(record, name) for name in ROW}, on_commit=self.enqueue_on_commit)
        enqueue_making_queue(
            client,
            self.queue_of(record.queue_name),
            msgspec.json.encode(message),
            self.settings.queue_options,
            headers={TASK_HEADER: record.task_path},
            priority=-record.priority,  # here lower is first
            deliver_at=_aware(record.run_after),
            dedup_id=record.id,
            **record.options,
        )

    def make(self, queue: str) -> None:
        """Make a queue, unless it exists, or this API key may not make queues."""
        make_queue(self.client, queue, self.settings.queue_options)

    def _scheduling(self, task: Any, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the task's own options, and the others by the functions."""
        found: dict[str, Any] = {}
        rules = self.settings.rules()
        for name in SCHEDULING:
            value = getattr(task, name, None)
            if value is None and name in rules:
                value = rules[name](task, args, kwargs)
            if value is not None:
                found[name] = _as_option(name, value)
        return found


def _as_option(name: str, value: Any) -> Any:
    """Return an option in its stored form. A tenant is often named by its primary key, a number or a UUID."""
    if name == "fairness_key" and isinstance(value, (int, UUID)):
        return str(value)
    return list(value) if name == "throttle_keys" and not isinstance(value, str) else value


def _is_of_the_message(error: Exception) -> bool:
    """Return whether the message itself causes an error, and not the connection, the API key or the queue."""
    if isinstance(error, FilaError):
        of_the_client = type(error) is FilaError  # it was closed just now
        return not (error.retryable or of_the_client or isinstance(error, _OF_OPERATORS))
    return isinstance(error, (TypeError, ValueError, ArithmeticError))


def _as_stored(moment: datetime | None) -> datetime | None:
    """Return a time for the database: without USE_TZ a naive one in the project's time zone."""
    if moment is None or project.USE_TZ or timezone.is_naive(moment):
        return moment
    stored: datetime = timezone.make_naive(moment, timezone.get_default_timezone())
    return stored


def _aware(moment: datetime | None) -> datetime | None:
    """Return a stored time with its zone: the project's, not the active one of this thread."""
    if moment is None or timezone.is_aware(moment):
        return moment
    aware: datetime = timezone.make_aware(moment, timezone.get_default_timezone())
    return aware
