"""Delete the rows of tasks that are over."""

from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from fila_cluster.django.models import TaskRecord

ROWS_MAX = 1000
"""Rows that one statement deletes: a long one would delay others."""


class Command(BaseCommand):  # type: ignore[misc] # Django is not typed
    """``manage.py fila_prune``."""

    help = "Delete the rows of finished tasks."

    def add_arguments(self, parser: CommandParser) -> None:
        """Describe the options."""
        parser.add_argument(
            "--days", type=float, default=14.0, help="Tasks that ended so many days ago, or before (default: 14)."
        )
        parser.add_argument(
            "--failed", action="store_true", help="Failed ones, too: their dead letters can't be run again then."
        )

    def handle(self, **options: Any) -> None:
        """Delete them."""
        statuses = [TaskRecord.Status.SUCCESSFUL, *([TaskRecord.Status.FAILED] if options["failed"] else [])]
        over = TaskRecord.written().filter(
            status__in=statuses, finished_at__lt=timezone.now() - timedelta(days=options["days"])
        )
        total = 0
        while ids := list(over.order_by("finished_at").values_list("id", flat=True)[:ROWS_MAX]):
            total += TaskRecord.objects.filter(id__in=ids).delete()[0]
        self.stdout.write(f"{total} deleted")
