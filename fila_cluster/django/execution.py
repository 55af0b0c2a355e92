"""One task: from its delivery to its outcome in the database and the end of its lease.

The outcome is written first, then the message is settled. If the process dies between the two the message comes again, and
its row shows that the task is done. While the database is away, tasks wait without a counted attempt. A task whose outcome
could not be stored runs again.
"""

import logging
import traceback
from typing import TYPE_CHECKING, Any, Final

import msgspec
from django.db import IntegrityError, connections, router, transaction
from django.utils import timezone
from django.utils.module_loading import import_string

from fila_cluster import Client, Delivery
from fila_cluster.django.framework import (
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_signals,
)
from fila_cluster.django.models import ERRORS_MAX, TRACEBACK_CHARACTERS_MAX, WORKER_IDS_MAX, TaskRecord
from fila_cluster.django.tasks import TaskMessage
from fila_cluster.errors import AlreadySettledError, FilaError

if TYPE_CHECKING:
    from fila_cluster.django.backend import FilaBackend


def task_of(record: TaskRecord) -> Any:
    """Return the task of a row. Raises ImportError if it is gone, and TypeError if its name is not a task."""
    found = import_string(record.task_path)
    if not isinstance(found, Task):
        raise TypeError(f"{record.task_path} is {type(found).__name__}, not a task: decorate it with @task")
    options = {name: value for name, value in record.options.items() if hasattr(found, name)}
    return found.using(
        priority=record.priority, queue_name=record.queue_name, run_after=record.run_after, backend=record.backend, **options
    )


def result_of(record: TaskRecord) -> Any:
    """Return the result of a row."""
    result = TaskResult(
        task=task_of(record),
        id=record.id,
        status=TaskResultStatus[record.status],
        enqueued_at=record.enqueued_at,
        started_at=record.started_at,
        last_attempted_at=record.last_attempted_at,
        finished_at=record.finished_at,
        args=record.arguments["args"],
        kwargs=record.arguments["kwargs"],
        backend=record.backend,
        errors=[TaskError(**error) for error in record.errors],
        worker_ids=list(record.worker_ids),
    )
    object.__setattr__(result, "_return_value", record.return_value)  # a frozen dataclass, as Django's own backends fill it
    return result


_log = logging.getLogger("fila_cluster.django")

DATABASE_PAUSE_S: Final = 5.0
"""The pause of a task that could not begin, or whose outcome could not be stored."""
LOST_MAX: Final = 5
"""How often a task's worker may die: a task that kills its process must not do so for ever."""
NO_ROW: Final = "there is no row of task {}: it was deleted, or another database has it"


class Execution:
    """Runs deliveries of one backend, in any thread, as ``worker_id``."""

    def __init__(self, backend: "FilaBackend", client: Client, worker_id: str) -> None:
        self._backend = backend
        self._client = client
        self._worker_id = worker_id

    def run(self, delivery: Delivery) -> None:
        """Run a delivered task, and settle its message. After an exception from here the task has not begun."""
        _close_old_connections()
        try:
            record = self._begin(delivery)
            if record is not None:
                self._finish(delivery, record)
        except AlreadySettledError:
            _log.debug("Message %s was settled before", delivery.id)
        except FilaError as error:  # its lease ends, and it comes again
            _log.warning("Message %s could not be settled: %s", delivery.id, error)
        finally:
            _close_old_connections()

    def _begin(self, delivery: Delivery) -> TaskRecord | None:
        """Return the row of a task that is to be run now. None: it need not run, and the message is settled."""
        try:
            message = msgspec.json.decode(delivery.payload, type=TaskMessage)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            delivery.fail(f"no task of Django: {error}")
            return None
        record = self._record(message)
        if record is None:
            delivery.fail(NO_ROW.format(message.id))
        elif record.status == TaskRecord.Status.SUCCESSFUL:
            self._client.ack_soon((delivery,))
        elif record.status == TaskRecord.Status.FAILED and delivery.attempts:  # else it was redriven, and runs again
            delivery.fail(record.errors[-1]["traceback"] if record.errors else "")
        elif delivery.attempts >= self._backend.settings.max_attempts + LOST_MAX:
            self._failed(delivery, record, RuntimeError(f"given up after {delivery.attempts} attempts: {delivery.error}"))
        else:
            self._note_begin(record)
            return record
        return None

    def _record(self, message: TaskMessage) -> TaskRecord | None:
        """Return the row of a task. A task that was sent before its transaction is committed may lack it: then it is made."""
        record: TaskRecord | None = TaskRecord.written().filter(id=message.id).first()
        if record is not None or message.on_commit:
            return record
        made = TaskRecord(**message.row, sent=True)
        try:
            with transaction.atomic(using=router.db_for_write(TaskRecord)):
                made.save(force_insert=True)
                record = made
        except IntegrityError:  # committed meanwhile
            record = TaskRecord.written().get(id=message.id)
        return record

    def _note_begin(self, record: TaskRecord) -> None:
        now = timezone.now()
        record.status = TaskRecord.Status.RUNNING
        record.started_at = record.started_at or now
        record.last_attempted_at = now
        record.finished_at = None
        record.worker_ids = [*record.worker_ids, self._worker_id][-WORKER_IDS_MAX:]
        record.sent = True
        self._save(record, "started_at", "last_attempted_at", "finished_at", "worker_ids", "sent")

    def _finish(self, delivery: Delivery, record: TaskRecord) -> None:
        """Run a task that has begun, and settle its message."""
        error = self._run(record)
        _close_old_connections()  # the database may have closed this thread's while a long task ran
        try:
            if error is None:
                self._succeeded(delivery, record)
            else:
                self._failed(delivery, record, error)
        except FilaError:
            raise
        except Exception as failure:
            _log.exception("The outcome of task %s could not be stored: it runs again", record.id)
            delivery.retry(DATABASE_PAUSE_S, f"{type(failure).__name__}: {failure}")
        if isinstance(error, KeyboardInterrupt):
            raise error  # this thread is to end

    def _run(self, record: TaskRecord) -> BaseException | None:
        """Run a task; return its exception. Any exception is the task's outcome, SystemExit too."""
        try:
            result = result_of(record)
            task_signals.task_started.send_robust(type(self._backend), task_result=result)
            record.return_value = msgspec.json.decode(msgspec.json.encode(normalize_json(_call(result))))  # NaN is null
        except BaseException as error:
            return error
        return None

    def _succeeded(self, delivery: Delivery, record: TaskRecord) -> None:
        record.status = TaskRecord.Status.SUCCESSFUL
        record.finished_at = timezone.now()
        self._save(record, "finished_at", "return_value")
        self._client.ack_soon((delivery,))
        task_signals.task_finished.send_robust(type(self._backend), task_result=result_of(record))

    def _failed(self, delivery: Delivery, record: TaskRecord, error: BaseException) -> None:
        if TaskRecord.written().filter(id=record.id, status=TaskRecord.Status.SUCCESSFUL).exists():
            # This worker was silent for so long that another one has done it, which may be why this attempt failed.
            _log.warning("Task %s was done by another worker. Here it failed: %r", record.id, error)
            self._client.ack_soon((delivery,))
            return
        text = "".join(traceback.format_exception(error))[-TRACEBACK_CHARACTERS_MAX:]
        failure = {"exception_class_path": f"{type(error).__module__}.{type(error).__qualname__}", "traceback": text}
        record.errors = [*record.errors, failure][-ERRORS_MAX:]
        attempts = delivery.attempts + 1
        if attempts < self._backend.settings.max_attempts:
            record.status = TaskRecord.Status.READY
            self._save(record, "errors")
            delivery.retry(self._backend.settings.retry_after(attempts), text)
            return
        record.status = TaskRecord.Status.FAILED
        record.finished_at = timezone.now()
        self._save(record, "finished_at", "errors")
        delivery.fail(text)
        try:
            result = result_of(record)
        except Exception:  # its code is gone: that is why it failed
            _log.warning("Task %s failed: %s", record.id, failure["exception_class_path"])
        else:
            task_signals.task_finished.send_robust(type(self._backend), task_result=result)

    def _save(self, record: TaskRecord, *changed: str) -> None:
        record.save(update_fields=["status", *changed])


def _close_old_connections() -> None:
    """Close this thread's broken or old connections to databases, except within a test's own transaction."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def _call(result: Any) -> Any:
    task = result.task
    if task.takes_context:
        return task.call(TaskContext(task_result=result), *result.args, **result.kwargs)
    return task.call(*result.args, **result.kwargs)
