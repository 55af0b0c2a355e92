"""The tasks of this backend, with this broker's options for tenants and limits, and their messages."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import msgspec

from fila_cluster.django.framework import Task

SCHEDULING: Final = ("fairness_key", "weight", "throttle_keys", "cost")
"""The options of ``Client.enqueue`` that a task may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilaTask(Task):  # type: ignore[misc] # it is found at run time
    """A task with options for the scheduler, as in ``task.using(fairness_key=tenant)``; None: by the backend's functions. The
    decorator ``task`` takes them in Django 6.1 and in the package ``django-tasks``, not in Django 6.0."""

    fairness_key: str | None = None
    weight: int | None = None
    throttle_keys: Sequence[str] | None = None
    cost: float | None = None

    def using(self, **changes: Any) -> "FilaTask":
        """Return a task with other options; None leaves one as it is."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


TASK_HEADER: Final = "django-task"
"""The path of the task, for the queue's hooks."""


class TaskMessage(msgspec.Struct, kw_only=True, frozen=True):
    """The payload, as JSON. All fields but the last are those of the row (:class:`fila_cluster.django.models.TaskRecord`)."""

    id: str
    backend: str
    task_path: str
    queue_name: str
    priority: int
    run_after: datetime | None
    arguments: dict[str, Any]
    options: dict[str, Any]
    enqueued_at: datetime
    on_commit: bool
    """Whether it was sent when its row was committed."""

    @property
    def row(self) -> dict[str, Any]:
        """The fields of its row."""
        return {name: getattr(self, name) for name in ROW}


ROW: Final = TaskMessage.__struct_fields__[:-1]
"""The names of the row's fields."""
