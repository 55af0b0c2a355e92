"""Tests of users: tasks in the test's own thread, over a broker in its own process, on a clock that the test moves."""

import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
from django.db import transaction
from django.test import override_settings

from fila_cluster.django.framework import PACKAGE, task_signals
from fila_cluster.django.models import TaskRecord
from fila_cluster.errors import InvalidArgumentError
from fila_cluster.testing import Fila, broker
from tests.django.conftest import NAMESPACE, backend
from tests.django.project import tasks

DEFAULT, RETRIED = f"{NAMESPACE}/default", f"{NAMESPACE}/retried"
PAGE = (Path(__file__).parents[2] / "docs/testing.md").read_text()


@pytest.fixture
def fila(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fila]:
    """As the fixture of the plugin, which need not be installed here. No task was enqueued."""
    TaskRecord.objects.all().delete()
    with broker("fila") as fila:
        monkeypatch.setenv("FILA_ENDPOINT", fila.endpoint)
        yield fila


def test_tasks_run_in_the_tests_own_thread_without_a_connection(fila: Fila) -> None:
    before = {each.laddr for each in psutil.Process().net_connections()}
    total, context = tasks.add.enqueue(1, y=2), tasks.who.enqueue()
    fila.assert_pending(DEFAULT, 2)
    assert fila.run_until_idle(backend()) == 2
    total.refresh()
    context.refresh()
    assert (total.return_value, total.worker_ids) == (3, ["run_until_idle"])
    assert context.return_value == {"id": context.id, "attempt": 1}
    fila.assert_acked(DEFAULT, 2)
    assert {each.laddr for each in psutil.Process().net_connections()} <= before


def test_a_coroutine_runs(fila: Fila) -> None:
    product = tasks.multiply.enqueue(3, 4)
    assert fila.run_until_idle(backend()) == 1
    assert tasks.multiply.get_result(product.id).return_value == 12


def test_a_task_of_later_runs_when_the_clock_is_moved(fila: Fila) -> None:
    result = tasks.add.using(run_after=fila.clock.now() + timedelta(hours=1)).enqueue(1)
    assert fila.run_until_idle(backend()) == 0
    fila.assert_delayed(DEFAULT, 1)
    fila.clock.advance(3599)
    assert fila.run_until_idle(backend()) == 0
    fila.clock.advance(1)
    assert fila.run_until_idle(backend()) == 1
    result.refresh()
    assert result.status == "SUCCESSFUL"


def test_what_is_more_urgent_runs_first(fila: Fila) -> None:
    begun: list[int] = []

    def started(task_result: Any, **_: Any) -> None:
        begun.append(task_result.args[0])

    for priority in (0, 10, -10, 20):
        tasks.add.using(priority=priority).enqueue(priority)
    task_signals.task_started.connect(started)
    fila.run_until_idle(backend())
    task_signals.task_started.disconnect(started)
    assert begun == [20, 10, 0, -10]


def test_retries_come_at_their_time_and_end(fila: Fila) -> None:
    tasks.ATTEMPTS.clear()
    with override_settings(TASKS=changed("retried", max_attempts=3, retry_delay=60.0)):
        done = tasks.fail_twice.enqueue()
        for pause in (60, 120):
            assert fila.run_until_idle(backend("retried")) == 1
            fila.clock.advance(pause - 1)
            assert fila.run_until_idle(backend("retried")) == 0
            fila.clock.advance(1)
        assert fila.run_until_idle(backend("retried")) == 1
        done.refresh()
        assert (done.return_value, done.attempts, len(done.errors)) == (3, 3, 2)
    tasks.ATTEMPTS.clear()
    with override_settings(TASKS=changed("retried", max_attempts=2, retry_delay=60.0)):
        failed = tasks.fail_twice.enqueue()
        fila.run_until_idle(backend("retried"))
        fila.clock.advance(60)
        fila.run_until_idle(backend("retried"))
        failed.refresh()
        assert (failed.status, failed.attempts) == ("FAILED", 2)
    (letter,) = fila.queue(RETRIED).dead
    assert (letter.json()["id"], letter.attempts) == (failed.id, 2)
    assert letter.error.endswith("RuntimeError: attempt 2\n")


def test_a_transaction_that_is_never_committed_is_enough(fila: Fila) -> None:
    with transaction.atomic():  # as in a TestCase of Django
        with transaction.atomic():
            kept = tasks.add.enqueue(1)
        with transaction.atomic():
            tasks.add.enqueue(2)
            transaction.set_rollback(True)
        fila_queues = fila.list_queues()
        assert fila.run_until_idle(backend()) == 1
        kept.refresh()
        assert (fila_queues, kept.return_value) == ([], 1)
        transaction.set_rollback(True)
    fila.assert_empty(DEFAULT)
    assert not TaskRecord.objects.exists()


def test_a_worker_does_not_read_from_a_replica(fila: Fila) -> None:
    with override_settings(DATABASE_ROUTERS=["tests.django.project.routing.ReadFromReplica"]):
        result = tasks.add.enqueue(1)
        assert fila.run_until_idle(backend()) == 1
    result.refresh()
    assert result.return_value == 1


def test_tasks_that_tasks_enqueue_run_in_whatever_queue(fila: Fila) -> None:
    tasks.count_down.enqueue(3)
    assert fila.run_until_idle(backend("anywhere")) == 4
    assert {record.return_value: record.queue_name for record in TaskRecord.objects.all()} == {
        3: "default", 2: "step-3", 1: "step-2", 0: "step-1",
    }  # fmt: skip


def test_tasks_without_an_end_are_an_error(fila: Fila) -> None:
    tasks.without_end.enqueue()
    with pytest.raises(RuntimeError, match="5 deliveries, and there may be more"):
        backend().run_until_idle(fila, most=5)


def test_an_interrupt_ends_the_test(fila: Fila) -> None:
    result = tasks.interrupt.enqueue()
    with pytest.raises(KeyboardInterrupt):
        fila.run_until_idle(backend())
    result.refresh()
    assert result.status == "FAILED"
    fila.assert_dead(DEFAULT, 1)


def test_a_backend_of_another_broker_is_refused(fila: Fila) -> None:
    with (
        broker() as other,
        pytest.raises(InvalidArgumentError, match=r"\['default'\] sends to memory://fila, .* broker is memory://test-"),
    ):
        other.run_until_idle(backend())


def test_the_tests_of_the_page_pass(fila: Fila, monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = re.findall(r"^```python django\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    made = ModuleType("shop.tasks")
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.tasks", made)
    with override_settings(TASKS=changed("default", namespace=None)):
        exec(INVOICES.format(package=PACKAGE), made.__dict__)
        page: dict[str, Any] = {}
        exec(source.replace("from django.tasks", f"from {PACKAGE}").replace("@pytest.mark.django_db\n", ""), page)
        found = [test for name, test in page.items() if name.startswith("test_")]
        assert found
        for test in found:
            test(fila)


INVOICES = """
from {package} import task

@task(queue_name="emails")
def send_invoice(customer, number):
    if customer == "nobody":
        raise LookupError("no such customer")
    return f"invoice {{number}} to {{customer}}"
"""


def changed(alias: str, **options: Any) -> dict[str, Any]:
    """The project's TASKS with other OPTIONS for a backend."""
    from django.conf import settings  # noqa: PLC0415

    found: dict[str, Any] = settings.TASKS
    return found | {alias: found[alias] | {"OPTIONS": found[alias]["OPTIONS"] | options}}
