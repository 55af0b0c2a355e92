"""Django's task framework: ``django.tasks`` (Django 6), else the package ``django-tasks``; not typed. One error's name
differs."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final


def _installed() -> str:
    try:
        if find_spec("django.tasks"):
            return "django.tasks"
    except ModuleNotFoundError as error:
        raise ImportError(f"fila_cluster.django needs Django ({error}): pip install 'fila-cluster[django]'") from error
    if find_spec("django_tasks"):
        return "django_tasks"
    raise ImportError(
        f"Django {import_module('django').get_version()} has no django.tasks: use Django 6, or pip install django-tasks"
    )


PACKAGE: Final = _installed()
"""The package in use."""

_base: Any = import_module(f"{PACKAGE}.base")
_errors: Any = import_module(f"{PACKAGE}.exceptions")

task_backends: Any = import_module(PACKAGE).task_backends
BaseTaskBackend: Any = import_module(f"{PACKAGE}.backends.base").BaseTaskBackend
task_signals: Any = import_module(f"{PACKAGE}.signals")
Task: Any = _base.Task
TaskContext: Any = _base.TaskContext
TaskError: Any = _base.TaskError
TaskResult: Any = _base.TaskResult
TaskResultStatus: Any = _base.TaskResultStatus
normalize_json: Any = _base.normalize_json
TaskResultDoesNotExist: Any = _errors.TaskResultDoesNotExist
InvalidTask: Any = getattr(_errors, "InvalidTask", None) or _errors.InvalidTaskError
