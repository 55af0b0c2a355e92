"""Tasks and results of Django, made from a :class:`TaskRecord`."""

from typing import Any

from django.utils.module_loading import import_string

from fila_cluster.django.framework import Task, TaskError, TaskResult, TaskResultStatus
from fila_cluster.django.models import TaskRecord


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
