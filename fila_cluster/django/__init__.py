"""Django's tasks on this project's queues: a backend for ``TASKS``, its results in Django's database, and its worker.

``TASKS = {"default": {"BACKEND": "fila_cluster.django.FilaBackend"}}`` and ``"fila_cluster.django"`` in ``INSTALLED_APPS``.
It uses ``django.tasks`` (Django 6), or the package ``django-tasks`` with an older Django. It needs ``pip install
'fila-cluster[django]'``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fila_cluster.django.backend import FilaBackend

__all__ = ["FilaBackend"]


def __getattr__(name: str) -> Any:
    """Import the backend when it is asked for: Django imports this package before its applications are ready."""
    if name == "FilaBackend":
        import_module("fila_cluster.django.framework")  # first, because it says what is missing
        from fila_cluster.django.backend import FilaBackend  # noqa: PLC0415 # see above

        return FilaBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
