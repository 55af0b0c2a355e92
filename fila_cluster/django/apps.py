"""The application: its tables are called ``fila_tasks_…``."""

from django.apps import AppConfig


class FilaTasks(AppConfig):  # type: ignore[misc] # Django is not typed
    """Tasks and their results."""

    name = "fila_cluster.django"
    label = "fila_tasks"
    verbose_name = "Tasks of fila-cluster"
    default_auto_field = "django.db.models.BigAutoField"
