"""What the message of a task says: enough to make its row, if the transaction of ``enqueue`` has not made it."""

from datetime import datetime
from typing import Any, Final

import msgspec

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
