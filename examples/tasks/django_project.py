"""A Django project in one file: the requests of an access log become tasks, each in its visitor's name.

    python examples/tasks/django_project.py ACCESS_LOG [endpoint]

It makes a database in a temporary folder, enqueues a task for each line of the log (in Apache's combined format) inside one
transaction, rolls another transaction back, and runs what was committed with a worker in this process. A malformed line
fails: its error is in the result, and in the queue's dead letters. A real project has these parts in files of their own, and
runs ``manage.py fila_worker``. Needs ``pip install 'fila-cluster[django]'``.
"""

import logging
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import django
from django.conf import settings

LINES = 300
NAMESPACE = "django-example"


def tenant_of(task: object, args: list[str], kwargs: dict[str, str]) -> str:
    """The fairness key: the address that a request came from."""
    return args[0].split()[0]


def set_up(folder: str, endpoint: str | None) -> None:
    """Set what a project's settings would set."""
    options = {"endpoint": endpoint, "namespace": NAMESPACE, "fairness_key": tenant_of}
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.path.join(folder, "database")}},
        INSTALLED_APPS=["fila_cluster.django"],
        TASKS={"default": {"BACKEND": "fila_cluster.django.FilaBackend", "OPTIONS": options}},
        USE_TZ=True,
    )
    django.setup()
    logging.disable(logging.ERROR)  # what fails here is shown below


def main(log: str, endpoint: str | None = None) -> None:
    """Enqueue, work, and show the results."""
    with tempfile.TemporaryDirectory() as folder:
        set_up(folder, endpoint)
        work_through(Path(log).read_text(errors="replace").splitlines()[:LINES])


def work_through(lines: list[str]) -> None:
    """Do it for the lines of a log."""
    from django.core.management import call_command  # noqa: PLC0415 # Django is set up first
    from django.db import connections, transaction  # noqa: PLC0415

    from fila_cluster.django.framework import task_backends  # noqa: PLC0415
    from fila_cluster.django.worker import TaskWorker  # noqa: PLC0415

    status_of = make_task()
    call_command("migrate", verbosity=0)
    with transaction.atomic():
        results = [status_of.enqueue(line) for line in [*lines, "not-a-request"]]
    with transaction.atomic():
        status_of.enqueue(lines[0])
        transaction.set_rollback(True)

    backend = task_backends["default"]
    waiting = backend.client.queue_stats(f"{NAMESPACE}/default")
    print(f"{waiting.pending} tasks of {len(waiting.keys)} visitors are with the broker; the one that was rolled back is not")
    TaskWorker(backend, ["default"], threads=2, worker_id="example").run(batch=True)
    for result in results:
        result.refresh()
    print(dict(sorted(Counter(result.return_value for result in results[:-1]).items())))
    failed = results[-1]
    print(f"{failed.status}: {failed.errors[0].traceback.splitlines()[-1]}")
    (letter,) = backend.client.browse(f"{NAMESPACE}/default.dlq")
    print(f"its dead letter after {letter.attempts} attempt: {letter.json()['arguments']['args']}")

    backend.client.delete_queue(f"{NAMESPACE}/default", force=True)
    backend.client.close()
    connections.close_all()


def status(line: str) -> str:
    """Return the class of a request's status: 2xx, 3xx, …"""
    return line.split('"')[2].split(maxsplit=1)[0][0] + "xx"


def make_task() -> Any:
    """Make the function a task. In a project it is decorated with ``@task`` where it stands."""
    try:
        from django.tasks import task  # noqa: PLC0415
    except ImportError:  # Django 5.2
        from django_tasks import task  # noqa: PLC0415
    made = globals()["status"] = task(status)
    return made


if __name__ == "__main__":
    main(*sys.argv[1:3])
