"""Its tasks."""

import os
import time
from datetime import datetime
from typing import Any

from django.db import connection

from fila_cluster.django.framework import PACKAGE

if PACKAGE == "django.tasks":
    from django.tasks import task
else:
    from django_tasks import task

ATTEMPTS: list[int] = []


def tenant_of(task: Any, args: list[Any], kwargs: dict[str, Any]) -> str | None:
    """The backend's fairness key: by an argument that tasks of tenants have."""
    tenant: str | None = kwargs.get("tenant")
    return tenant


@task
def add(x: int, y: int = 0, tenant: str | None = None) -> int:
    return x + y


@task(queue_name="emails", priority=10)
def send_mail(address: str) -> list[str]:
    return [address]


send_mail = send_mail.using(throttle_keys=["mail-provider"])


@task
async def multiply(x: int, y: int) -> int:
    return x * y


@task(takes_context=True)
def who(context: Any) -> dict[str, Any]:
    return {"id": context.task_result.id, "attempt": context.attempt}


@task
def fail(text: str) -> None:
    raise LookupError(text)


@task
def say(what: str) -> Any:
    return {"object": object(), "datetime": datetime(2026, 1, 1), "bytes": (b"text",), "nan": float("nan")}[what]


@task(backend="retried", queue_name="retried")
def fail_twice() -> int:
    ATTEMPTS.append(1)
    if len(ATTEMPTS) < 3:
        raise RuntimeError(f"attempt {len(ATTEMPTS)}")
    return len(ATTEMPTS)


@task(backend="at_once", queue_name="at-once")
def at_once() -> str:
    return "done"


@task
def lose_connection() -> str:
    connection.connection.close()  # as a database does that sees nothing for an hour
    return "done"


@task(backend="anywhere")
def count_down(number: int) -> int:
    if number:
        count_down.using(queue_name=f"step-{number}").enqueue(number - 1)
    return number


@task
def without_end() -> None:
    without_end.enqueue()


@task(takes_context=True)
def be_overtaken(context: Any) -> None:
    from fila_cluster.django.models import TaskRecord  # noqa: PLC0415 # Django must be set up for it

    # As another worker does while this one is silent.
    TaskRecord.objects.filter(id=context.task_result.id).update(status="SUCCESSFUL", return_value="done")
    raise LookupError("it is done already")


@task
def interrupt() -> None:
    raise KeyboardInterrupt


@task
def note(number: int) -> None:
    time.sleep(0.005)
    with open(os.environ["TASKS_TEST_NOTES"], "a") as notes:
        notes.write(f"{number}\n")
