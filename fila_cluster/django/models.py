"""A task and its outcome. ``enqueue`` writes the row in the caller's transaction. ``sent``: the broker has confirmed its
message; a worker sends those that are not, by the same id."""

from typing import Any, ClassVar, Final

from django.db import models, router

ERRORS_MAX: Final = 20
"""The last errors of a task that is retried often."""
TRACEBACK_CHARACTERS_MAX: Final = 16_384
"""The end of a longer one is kept, with the error."""
WORKER_IDS_MAX: Final = 100
"""The last attempts whose workers are kept."""


class TaskRecord(models.Model):  # type: ignore[misc] # Django is not typed
    """One task."""

    class Status(models.TextChoices):  # type: ignore[misc]
        """The names of Django's tasks."""

        READY = "READY", "Ready"
        RUNNING = "RUNNING", "Running"
        FAILED = "FAILED", "Failed"
        SUCCESSFUL = "SUCCESSFUL", "Successful"

    id = models.CharField(primary_key=True, max_length=36)
    backend = models.CharField(max_length=100)
    task_path = models.TextField()
    queue_name = models.CharField(max_length=200)
    priority = models.SmallIntegerField(default=0)
    run_after = models.DateTimeField(null=True)
    arguments = models.JSONField()
    options = models.JSONField(default=dict)
    sent = models.BooleanField(default=False)
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.READY)
    enqueued_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    last_attempted_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    return_value = models.JSONField(null=True)
    errors = models.JSONField(default=list)
    worker_ids = models.JSONField(default=list)

    class Meta:
        """Names and indexes."""

        app_label = "fila_tasks"
        verbose_name = "task"
        ordering: ClassVar[list[str]] = ["-enqueued_at"]
        indexes: ClassVar[list[Any]] = [
            models.Index(fields=["enqueued_at"], condition=models.Q(sent=False), name="fila_tasks_unsent"),
            models.Index(fields=["status", "finished_at"], name="fila_tasks_finished"),
        ]

    def __str__(self) -> str:
        return f"{self.task_path} {self.id}"

    @classmethod
    def written(cls) -> Any:
        """Return all rows, read where they are written: a replica may lack rows whose messages have come already."""
        return cls.objects.using(router.db_for_write(cls))

    @property
    def is_finished(self) -> bool:
        """Whether it has an outcome."""
        return self.status in {self.Status.FAILED, self.Status.SUCCESSFUL}
