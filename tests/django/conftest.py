"""A Django project with a database of its own, on the shared cluster or on a broker in memory.

Django is set up when this module is imported, because it can be set up once in a process. The database and the broker are known later: nothing
is opened before it is used.
"""

import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import django
import pytest
from django.core.management import call_command
from django.db import connections

from fila_cluster import Client
from tests.support.cluster.cluster import Cluster

NAMESPACE = "django-tests"
os.environ |= {"DJANGO_SETTINGS_MODULE": "tests.django.project.settings", "TASKS_TEST_NAMESPACE": NAMESPACE}
django.setup()

# Django must be set up for these.
from fila_cluster.django import FilaBackend  # noqa: E402
from fila_cluster.django.framework import task_backends  # noqa: E402
from fila_cluster.django.models import TaskRecord  # noqa: E402
from fila_cluster.django.worker import TaskWorker  # noqa: E402
from tests.django.project import tasks as project_tasks  # noqa: E402

RunWorker = Callable[..., None]


def backend(alias: str = "default") -> FilaBackend:
    """A backend of the project."""
    found: FilaBackend = task_backends[alias]
    return found


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The project's database; its path. The client that its backends share is closed at the end."""
    database = str(tmp_path_factory.mktemp("django") / "database")
    connections.databases["default"]["NAME"] = database
    call_command("migrate", verbosity=0)
    yield database
    connections.close_all()
    backend().settings.lazy().close()


@pytest.fixture(scope="module")
def project(shared_cluster: Cluster, database: str) -> Iterator[dict[str, str]]:
    """The project, ready; its environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FILA_ENDPOINT", shared_cluster.endpoint)
        names = ("DJANGO_SETTINGS_MODULE", "TASKS_TEST_NAMESPACE", "FILA_ENDPOINT")
        yield {name: os.environ[name] for name in names} | {"TASKS_TEST_DATABASE": database}


@pytest.fixture
def client(project: dict[str, str]) -> Client:
    """A client, and no queue of the project."""
    client = backend().client
    for queue in client.list_queues(NAMESPACE + "/"):
        if not queue.is_dead_letter:
            client.delete_queue(queue.name, force=True)
    return client


@pytest.fixture
def tasks(client: Client) -> ModuleType:
    """The project's tasks, of which none was enqueued."""
    TaskRecord.objects.all().delete()
    return project_tasks


@pytest.fixture
def work(tasks: ModuleType) -> RunWorker:
    """Run what waits in a backend's queues, and return."""

    def work(alias: str = "default", **options: Any) -> None:
        worker = TaskWorker(backend(alias), backend(alias).queues, threads=2, worker_id="tester")
        assert worker.run(batch=True, **options)

    return work
