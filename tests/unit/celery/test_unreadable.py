"""Messages in a queue of Celery's that are no tasks: dead letters, and the worker goes on."""

import json
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker

from fila_cluster.celery.testing import InlineWorker
from fila_cluster.testing import Fila

BODY = b"[[1, 2], {}, {}]"
TASK = {"task": "add", "id": "1", "lang": "py"}


def said(**different: Any) -> dict[str, str]:
    """The headers of a message from kombu."""
    usual = {
        "headers": TASK,
        "properties": {},
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "priority": 0,
    }
    return {"celery": json.dumps(usual | {"exchange": "", "routing_key": "celery"} | different)}


UNREADABLE: dict[str, tuple[bytes, dict[str, str]]] = {
    "bytes without headers": (b"\xff", {}),
    "the headers of a task, not from kombu": (BODY, {"task": "add", "id": "1"}),
    "no JSON": (BODY, {"celery": "{"}),
    "JSON that is too deep": (BODY, {"celery": "[" * 5000}),
    "no object": (BODY, {"celery": "5"}),
    "a lack": (BODY, {"celery": "{}"}),
    "a type that kombu cannot make": (BODY, {"celery": '{"__type__": "datetime", "__value__": 5}'}),
    "headers that are none": (BODY, said(headers=[1])),
    "properties that are none": (BODY, said(properties="x")),
    "a content type that is none": (BODY, said(content_type={})),
    "a priority that is none": (BODY, said(priority="x")),
    "pickle": (b"x", said(content_type="application/x-python-serialize", content_encoding="binary")),
    "a compression that is none": (BODY, said(headers=TASK | {"compression": "stone"})),
    "no id": (BODY, said(headers={"task": "add"})),
    "an unknown task without an id": (BODY, said(headers={"task": "who"})),
    "a task that is no text": (BODY, said(headers=TASK | {"task": [1]})),
    "an unknown task": (BODY, said(headers=TASK | {"task": "who"})),
    "a time limit that is none": (BODY, said(headers=TASK | {"timelimit": "x"})),
    "an ETA that is none": (BODY, said(headers=TASK | {"eta": "soon"})),
    "a body that is no JSON": (b"garbage", said()),
    "a body that is no task's": (b"5", said()),
    "a body without arguments": (b"[]", said()),
}


@pytest.mark.parametrize(("payload", "headers"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_message_that_is_no_task_is_a_dead_letter(fila: Fila, app: Celery, payload: bytes, headers: dict[str, str]) -> None:
    fila.create_queue("celery")
    fila.enqueue("celery", payload, headers)
    result = app.send_task("add", (1, 2))
    assert fila.run_until_idle(InlineWorker(app)) == 2
    fila.assert_dead("celery", 1)
    assert fila.queue("celery").dead[0].payload == payload
    assert result.get(timeout=1) == 3


def test_a_worker_with_an_event_loop_goes_on_too(fila: Fila, app: Celery) -> None:
    fila.create_queue("celery")
    for payload, headers in UNREADABLE.values():
        fila.enqueue("celery", payload, headers)
    with start_worker(app, perform_ping_check=False):
        assert app.send_task("add", (1, 2)).get(timeout=30) == 3
    fila.assert_dead("celery", len(UNREADABLE))


def test_a_task_that_ends_in_bad_data_of_celerys_own_is_not_run_twice(fila: Fila, app: Celery) -> None:
    fila.create_queue("celery")
    fila.enqueue("celery", b"[5, 6, 7]", said())
    assert fila.run_until_idle(InlineWorker(app)) == 1
    fila.assert_acked("celery", 1)


def test_what_is_wrong_outside_the_message_is_left_to_celery(
    fila: Fila, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise OSError("the result backend is away")

    monkeypatch.setattr(app.backend, "mark_as_failure", away)
    fila.create_queue("celery")
    fila.enqueue("celery", BODY, said(headers=TASK | {"task": "who"}))
    with pytest.raises(OSError, match="the result backend is away"):
        fila.run_until_idle(InlineWorker(app))
