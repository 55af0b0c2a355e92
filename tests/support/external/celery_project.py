"""A Celery project: what tests run in real workers. Each run of a task is a line in a file, so that none is overlooked when processes are killed."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from celery import Celery
from celery.exceptions import Reject

import fila_cluster.celery  # noqa: F401  # registers fila://

FILE, BROKER = "CELERY_PROJECT_FILE", "CELERY_PROJECT_BROKER"

_TASKS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {}


def task(name: str, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Have every app of this project know a task."""

    def add_to_project(function: Callable[..., Any]) -> Callable[..., Any]:
        _TASKS[name] = function, options
        return function

    return add_to_project


def project(broker: str | None) -> Celery:
    """Return an app. Tests have their own ones, workers the one below."""
    app = Celery("project", broker=broker, backend="rpc://", set_as_current=False)
    app.conf.update(
        broker_connection_retry_on_startup=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        worker_redirect_stdouts=False,
    )
    for name, (function, options) in _TASKS.items():
        app.task(name=name, shared=False, **options)(function)
    return app


def note(*words: object) -> None:
    """Write a line: time, process, and ``words``. One write, so that lines of several processes do not mix."""
    line = " ".join(map(str, (time.time(), os.getpid(), *words)))
    descriptor = os.open(os.environ[FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


@task("add")
def add(first: int, second: int) -> int:
    """Add."""
    return first + second


@task("record", ignore_result=True)
def record(*words: object) -> None:
    """Write a line."""
    note(*words)


@task("work", ignore_result=True)
def work(word: str, number: int, seconds: float) -> None:
    """Write a line, take some time, and write another one."""
    note(word, number, "began")
    time.sleep(seconds)
    note(word, number, "ended")


@task("wait", ignore_result=True)
def wait(word: str, path: str) -> None:
    """Write a line, and return when there is a file."""
    note(word)
    while not os.path.exists(path):
        time.sleep(0.01)


@task("again", bind=True, max_retries=3)
def again(self: Any) -> list[Any]:
    """Fail twice. Return how often it was retried, and the headers that the retries have kept."""
    if self.request.retries < 2:
        raise self.retry(countdown=0.05)
    return [self.request.retries, self.request.headers]


@task("die_once", bind=True, ignore_result=True)
def die_once(self: Any) -> None:
    """End the process with SIGKILL the first time."""
    note("redelivered" if self.request.delivery_info["redelivered"] else "first")
    if not self.request.delivery_info["redelivered"]:
        os.kill(os.getpid(), signal.SIGKILL)


@task("refuse", ignore_result=True)
def refuse() -> None:
    """Ask for a dead letter."""
    raise Reject("refused", requeue=False)


@task("when", bind=True)
def when(self: Any) -> str:
    """Return the ETA that the task sees."""
    return str(self.request.eta)


app = project(os.environ.get(BROKER))
