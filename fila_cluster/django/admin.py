"""The admin's read-only page of tasks, with a link to the dead letters on the dashboard of ``OPTIONS["dashboard"]``."""

from typing import Any, ClassVar

from django.contrib import admin
from django.utils.html import format_html

from fila_cluster.django.backend import FilaBackend
from fila_cluster.django.framework import task_backends
from fila_cluster.django.models import TaskRecord


@admin.register(TaskRecord)
class TaskAdmin(admin.ModelAdmin):  # type: ignore[misc] # Django is not typed
    """Tasks and their outcomes. Only ``enqueue`` makes them."""

    list_display = ("task_path", "queue_name", "status", "enqueued_at", "finished_at", "dead_letter")
    list_filter = ("status", "queue_name", "backend")
    search_fields: ClassVar[list[str]] = ["id", "task_path"]

    def dead_letter(self, record: TaskRecord) -> str:
        """Return a link to the dashboard, for a task that failed."""
        if record.status != TaskRecord.Status.FAILED or record.backend not in task_backends.settings:
            return ""
        backend = task_backends[record.backend]
        if not isinstance(backend, FilaBackend) or not backend.settings.dashboard:
            return ""
        address = backend.settings.dashboard.rstrip("/")
        return str(
            format_html(
                '<a href="{}/dead-letters?queue={}.dlq">dead letters</a>', address, backend.queue_of(record.queue_name)
            )
        )

    def has_add_permission(self, request: Any) -> bool:
        """Return False: only ``enqueue`` adds tasks."""
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        """Return False: the page is read-only."""
        return False
