"""The table of tasks."""

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc] # Django is not typed
    """Make the table."""

    initial = True

    dependencies: ClassVar[list[Any]] = []

    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="TaskRecord",
            fields=[
                ("id", models.CharField(max_length=36, primary_key=True, serialize=False)),
                ("backend", models.CharField(max_length=100)),
                ("task_path", models.TextField()),
                ("queue_name", models.CharField(max_length=200)),
                ("priority", models.SmallIntegerField(default=0)),
                ("run_after", models.DateTimeField(null=True)),
                ("arguments", models.JSONField()),
                ("options", models.JSONField(default=dict)),
                ("sent", models.BooleanField(default=False)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("READY", "Ready"),
                            ("RUNNING", "Running"),
                            ("FAILED", "Failed"),
                            ("SUCCESSFUL", "Successful"),
                        ],
                        default="READY",
                        max_length=16,
                    ),
                ),
                ("enqueued_at", models.DateTimeField()),
                ("started_at", models.DateTimeField(null=True)),
                ("last_attempted_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                ("return_value", models.JSONField(null=True)),
                ("errors", models.JSONField(default=list)),
                ("worker_ids", models.JSONField(default=list)),
            ],
            options={
                "verbose_name": "task",
                "ordering": ["-enqueued_at"],
                "indexes": [
                    models.Index(condition=models.Q(("sent", False)), fields=["enqueued_at"], name="fila_tasks_unsent"),
                    models.Index(fields=["status", "finished_at"], name="fila_tasks_finished"),
                ],
            },
        ),
    ]
