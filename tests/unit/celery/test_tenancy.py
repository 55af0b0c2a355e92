"""``fair``: a function of the user's names the tenant of each task."""

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from kombu import Connection

from fila_cluster.celery import SentTask, Share, fair


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app on kombu's broker in memory."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    yield app
    app.close()


def headers_of(app: Celery, **options: Any) -> dict[str, Any]:
    """The headers of a task's message, as a consumer gets it."""
    with Connection("memory://") as connection:
        app.send_task("shop.pay", args=("acme", 7), kwargs={"currency": "EUR"}, connection=connection, **options)
        message = connection.default_channel.basic_get(options.get("queue", "celery"))
        assert message is not None
        headers: dict[str, Any] = message.headers
        return headers


def test_the_function_sees_the_task_and_names_its_key(app: Celery) -> None:
    seen: list[SentTask] = []

    def key(task: SentTask) -> str:
        seen.append(task)
        return str(task.args[0])

    fair(app, key=key)
    assert headers_of(app, queue="payments")["fila-fairness-key"] == "acme"
    (task,) = seen
    assert (task.name, task.args, task.kwargs, task.queue) == ("shop.pay", ("acme", 7), {"currency": "EUR"}, "payments")
    assert task.id == task.headers["id"]


def test_a_share_says_more(app: Celery) -> None:
    fair(app, key=lambda task: Share("acme", weight=3, throttle_keys=("mail",), cost=2))
    headers = headers_of(app)
    assert [headers[f"fila-{name}"] for name in ("fairness-key", "weight", "throttle-keys", "cost")] == [
        "acme",
        3,
        ["mail"],
        2,
    ]


def test_headers_of_the_caller_win(app: Celery) -> None:
    fair(app, key=lambda task: Share("acme", weight=3))
    headers = headers_of(app, headers={"fila-fairness-key": "other"})
    assert (headers["fila-fairness-key"], headers["fila-weight"]) == ("other", 3)


def test_none_says_nothing(app: Celery) -> None:
    fair(app, key=lambda task: None)
    assert not [name for name in headers_of(app) if name.startswith("fila-")]


def test_the_function_sees_headers_of_the_caller(app: Celery) -> None:
    fair(app, key=lambda task: task.headers.get("tenant"))
    headers = headers_of(app, headers={"tenant": "acme"})
    assert (headers["tenant"], headers["fila-fairness-key"]) == ("acme", "acme")


def test_the_app_may_be_configured_later() -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    fair(app, key=lambda task: task.args[0])
    assert not app.configured
    app.conf.update(task_serializer="yaml", task_create_missing_queues=False)
    with Connection("memory://") as connection:
        app.send_task("shop.pay", args=("acme", 7), connection=connection)
        message = connection.default_channel.basic_get("celery")
    assert message is not None
    assert (message.content_type, message.headers["fila-fairness-key"]) == ("application/x-yaml", "acme")
    app.close()


def test_an_app_that_has_sent_tasks_becomes_fair(app: Celery) -> None:
    headers_of(app)
    fair(app, key=lambda task: Share("acme"))
    fair(app, key=lambda task: Share("second", weight=2))
    headers = headers_of(app)
    assert (headers["fila-fairness-key"], headers["fila-weight"]) == ("second", 2)
