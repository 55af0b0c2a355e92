"""Django's tasks: enqueued with the transaction, run by the worker, their outcomes in the database."""

import asyncio
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import OperationalError, transaction
from django.db.backends.signals import connection_created
from django.db.models.signals import pre_save
from django.test import Client as Browser
from django.test import override_settings
from django.utils import timezone

from fila_cluster.django import FilaBackend
from fila_cluster.django.execution import LOST_MAX
from fila_cluster.django.framework import InvalidTask, task_signals
from fila_cluster.django.models import TaskRecord
from fila_cluster.django.worker import UNSENT_AFTER, TaskWorker
from tests.django.conftest import NAMESPACE, RunWorker, backend
from tests.support.cluster.cluster import PATIENCE_S, environment, eventually
from tests.support.cluster.guarded import guarded_cluster

DEFAULT, LETTERS = f"{NAMESPACE}/default", f"{NAMESPACE}/default.dlq"


def records() -> Any:
    return TaskRecord.objects.order_by("enqueued_at")


def messages(client: Any, queue: str = DEFAULT) -> list[Any]:
    return client.browse(queue, limit=1000) if any(each.name == queue for each in client.list_queues(queue)) else []


@contextmanager
def rolled_back() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def test_a_task_is_sent_with_its_transaction(tasks: ModuleType, client: Any) -> None:
    with transaction.atomic():
        result = tasks.add.enqueue(1, y=2)
        assert messages(client) == []
        assert result.status == "READY"
    (message,) = messages(client)
    assert message.json()["id"] == result.id
    assert message.headers["django-task"] == "tests.django.project.tasks.add"
    assert records().get().sent
    with rolled_back():
        tasks.add.enqueue(3)
    assert (len(messages(client)), records().count()) == (1, 1)


def test_what_a_task_returns_is_in_its_result(tasks: ModuleType, work: RunWorker) -> None:
    told: list[tuple[str, str]] = []

    def started(task_result: Any, **_: Any) -> None:
        told.append(("started", task_result.id))

    def finished(task_result: Any, **_: Any) -> None:
        told.append((task_result.status.value, task_result.id))

    task_signals.task_started.connect(started)
    task_signals.task_finished.connect(finished)
    result = tasks.add.enqueue(1, y=2)
    work()
    result.refresh()
    assert (result.status, result.return_value, result.attempts, result.worker_ids) == ("SUCCESSFUL", 3, 1, ["tester"])
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert tasks.add.get_result(result.id).return_value == 3
    assert told == [("started", result.id), ("SUCCESSFUL", result.id)]
    task_signals.task_started.disconnect(started)
    task_signals.task_finished.disconnect(finished)


def test_coroutines_contexts_and_the_asynchronous_methods(tasks: ModuleType, work: RunWorker) -> None:
    async def enqueue() -> Any:
        return await tasks.multiply.aenqueue(3, 4)

    async def returned(result: Any) -> Any:
        await result.arefresh()
        return (await tasks.multiply.aget_result(result.id)).return_value

    product, context = asyncio.run(enqueue()), tasks.who.enqueue()
    work()
    assert asyncio.run(returned(product)) == 12
    assert tasks.who.get_result(context.id).return_value == {"id": context.id, "attempt": 1}


def test_a_task_that_fails_is_a_dead_letter_and_a_redrive_runs_it_again(
    tasks: ModuleType, client: Any, work: RunWorker
) -> None:
    result = tasks.fail.enqueue("no paper")
    work()
    result.refresh()
    assert (result.status, result.attempts) == ("FAILED", 1)
    assert result.errors[0].exception_class is LookupError
    assert result.errors[0].traceback.endswith("LookupError: no paper\n")
    (letter,) = client.browse(LETTERS)
    assert (letter.json()["id"], letter.attempts, letter.error) == (result.id, 1, result.errors[0].traceback)
    client.redrive(LETTERS)
    work()
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == ("FAILED", 2, 2)


def test_a_task_that_returns_what_is_no_json_to_django_fails(tasks: ModuleType, work: RunWorker) -> None:
    results = {what: tasks.say.enqueue(what) for what in ("object", "datetime", "bytes", "nan")}
    work()
    for result in results.values():
        result.refresh()
    assert [results[what].errors[0].exception_class for what in ("object", "datetime")] == [TypeError] * 2
    assert [results[what].return_value for what in ("bytes", "nan")] == [["text"], None]


def test_a_backend_may_retry(tasks: ModuleType, client: Any, work: RunWorker) -> None:
    tasks.ATTEMPTS.clear()
    result = tasks.fail_twice.enqueue()
    while not result.is_finished:
        work("retried")
        result.refresh()
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", 3, 3)
    assert [error.exception_class for error in result.errors] == [RuntimeError, RuntimeError]
    assert messages(client, f"{NAMESPACE}/retried.dlq") == []


def test_a_task_of_later_stays_with_the_broker(tasks: ModuleType, client: Any, work: RunWorker) -> None:
    later = timezone.now() + timedelta(hours=1)
    result = tasks.add.using(run_after=later).enqueue(1)
    work()
    result.refresh()
    assert result.status == "READY"
    (message,) = messages(client)
    assert message.state == "delayed"
    assert abs(message.due_at - later) < timedelta(seconds=1)


@pytest.mark.parametrize("named", [True, False])
def test_without_use_tz_a_time_is_of_the_projects_zone(tasks: ModuleType, client: Any, named: bool) -> None:
    at_noon = (datetime.now(ZoneInfo("Asia/Tokyo")) + timedelta(days=2)).replace(hour=12, microsecond=0)
    with override_settings(USE_TZ=False, TIME_ZONE="Asia/Tokyo"), timezone.override("America/Lima"):
        result = tasks.add.using(run_after=at_noon if named else at_noon.replace(tzinfo=None)).enqueue(1)
        result.refresh()
        assert (result.status, result.errors) == ("READY", [])
        assert tasks.add.get_result(result.id).task.run_after == at_noon.replace(tzinfo=None)
    assert [message.due_at for message in messages(client)] == [at_noon]


def test_what_a_task_says_of_its_scheduling(tasks: ModuleType, client: Any) -> None:
    tasks.add.enqueue(1, tenant="acme")
    tasks.add.using(fairness_key="trial", weight=3, cost=2).enqueue(2, tenant="acme")
    tasks.send_mail.enqueue("a@example.com")
    found = {
        message.json()["arguments"]["args"][0]: message
        for message in messages(client) + messages(client, f"{NAMESPACE}/emails")
    }
    assert (found[1].fairness_key, found[1].weight, found[1].priority) == ("acme", 1, 0)
    assert (found[2].fairness_key, found[2].weight, found[2].cost) == ("trial", 3, 2)
    assert (found["a@example.com"].priority, found["a@example.com"].throttle_keys) == (-10, ["mail-provider"])


def test_a_task_that_could_not_be_sent_is_sent_by_a_worker_and_once(
    tasks: ModuleType, client: Any, work: RunWorker, caplog: Any
) -> None:
    away = FilaBackend("default", {"OPTIONS": {"endpoint": "tcp://127.0.0.1:1", "timeout": 0.05}})
    result = away.enqueue(tasks.add, [1], {})
    assert "a worker will send it" in caplog.text
    away.client.close()
    record = records().get()
    assert (record.id, record.sent) == (result.id, False)

    worker = TaskWorker(backend(), ["default"], threads=1, worker_id="tester")
    assert worker.send_unsent(UNSENT_AFTER) == 0  # its sending may still be under way
    records().update(enqueued_at=record.enqueued_at - UNSENT_AFTER)
    assert worker.send_unsent(UNSENT_AFTER) == 1
    records().update(sent=False)  # the process died before it noted that
    assert worker.send_unsent(UNSENT_AFTER) == 1
    assert len(messages(client)) == 1
    assert worker.send_unsent(UNSENT_AFTER) == 0


def test_a_task_waits_for_its_queue_or_key_and_holds_up_no_other_queue(tasks: ModuleType, tmp_path: Path) -> None:
    with guarded_cluster(tmp_path / "data") as guarded:
        options = {"endpoint": guarded.cluster.endpoint, "server_key": guarded.server_key, "namespace": "shop"}

        def as_allowed(name: str, *allowed: str) -> Any:
            key = guarded.key(name, *allowed)
            return FilaBackend("default", {"QUEUES": ["default", "emails"], "OPTIONS": options | {"api_key": key}})

        half = as_allowed("half", "admin:shop/default", "produce:shop/default")
        half.enqueue(tasks.send_mail, ["a@example.com"], {})
        half.enqueue(tasks.add, [1], {})
        records().filter(queue_name="default").update(sent=False)
        assert TaskWorker(half, ["default"], threads=1, worker_id="half").send_unsent(timedelta(0)) == 1
        found = records().values_list("queue_name", "sent", "status")
        assert list(found) == [("emails", False, "READY"), ("default", True, "READY")]

        whole = as_allowed("whole", "admin:shop/*", "produce:shop/*", "consume:shop/*")
        assert TaskWorker(whole, ["emails"], threads=1, worker_id="whole").send_unsent(timedelta(0)) == 1
        assert whole.client.queue_stats("shop/emails").pending == 1
        half.client.close()
        whole.client.close()


@pytest.mark.parametrize("options", [{"endpoint": "localhost"}, {"timeout": -1}])
def test_a_task_waits_for_settings_that_work(tasks: ModuleType, options: dict[str, Any], work: RunWorker) -> None:
    wrong = FilaBackend("default", {"OPTIONS": options})
    enqueued: list[Any] = []

    def note(task_result: Any, **_: Any) -> None:
        enqueued.append(task_result.id)

    task_signals.task_enqueued.connect(note)
    try:
        result = wrong.enqueue(tasks.add, [1], {})
    finally:
        task_signals.task_enqueued.disconnect(note)
    assert (records().get().sent, enqueued) == (False, [result.id])
    assert TaskWorker(backend(), ["default"], threads=1, worker_id="tester").send_unsent(timedelta(0)) == 1
    work()
    assert records().get().return_value == 1


def test_a_message_that_cannot_be_written_fails_its_task_only(tasks: ModuleType, client: Any) -> None:
    refused = tasks.send_mail.enqueue("\ud800")
    refused.refresh()
    assert (refused.status, refused.errors[0].exception_class_path) == ("FAILED", "builtins.UnicodeEncodeError")
    tasks.add.enqueue(1)
    records().filter(queue_name="default").update(sent=False)
    assert TaskWorker(backend(), ["default"], threads=1, worker_id="tester").send_unsent(timedelta(0)) == 1


@pytest.mark.parametrize("tenant", [7, UUID(int=7)])
def test_a_primary_key_may_be_the_tenant(tasks: ModuleType, client: Any, tenant: Any) -> None:
    tasks.add.using(fairness_key=tenant).enqueue(1)
    assert messages(client)[0].fairness_key == str(tenant)


def test_a_backend_may_be_given_a_client(tasks: ModuleType, client: Any) -> None:
    given = FilaBackend("default", {"OPTIONS": {"client": client, "namespace": "given"}})
    given.enqueue(tasks.add, [1], {})
    assert given.client is client
    assert client.queue_stats("given/default").pending == 1
    client.delete_queue("given/default")


def test_a_task_that_can_never_be_sent_fails(tasks: ModuleType, client: Any) -> None:
    result = tasks.add.using(throttle_keys="provider").enqueue(1)
    result.refresh()
    assert result.status == "FAILED"
    assert "throttle_keys" in result.errors[0].traceback


def test_a_task_may_be_sent_before_its_transaction_ends(tasks: ModuleType, work: RunWorker) -> None:
    with rolled_back():
        result = tasks.at_once.enqueue()
    assert records().count() == 0
    work("at_once")
    assert tasks.at_once.get_result(result.id).return_value == "done"


def test_what_was_done_is_not_done_again(tasks: ModuleType, client: Any, work: RunWorker) -> None:
    result = tasks.add.enqueue(1)
    (message,) = messages(client)
    work()
    client.enqueue(DEFAULT, message.payload)  # as after the death of a worker that had done it and not acked it
    work()
    result.refresh()
    assert result.attempts == 1
    assert messages(client) == []


def test_a_slower_attempt_that_fails_does_not_undo_a_success(tasks: ModuleType, client: Any, work: RunWorker) -> None:
    result = tasks.be_overtaken.enqueue()
    work()
    result.refresh()
    assert (result.status, result.return_value, result.errors) == ("SUCCESSFUL", "done", [])
    assert messages(client) == messages(client, LETTERS) == []


def test_a_task_that_kills_its_workers_is_given_up(tasks: ModuleType, client: Any, work: RunWorker) -> None:
    result = tasks.add.enqueue(1)
    for _ in range(LOST_MAX + 1):
        (delivery,) = client.receive(DEFAULT)
        delivery.nack("consumer lost")
    work()
    result.refresh()
    assert (result.status, result.attempts) == ("FAILED", 0)
    assert result.errors[0].traceback.endswith("given up after 6 attempts: consumer lost\n")


def test_a_task_waits_for_the_database_uncounted(tasks: ModuleType, work: RunWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []

    def refuse(**_: Any) -> None:
        if threading.current_thread().name.startswith("fila-task") and len(refused) < 2 * LOST_MAX:
            refused.append("")
            raise OperationalError("the database is away")

    monkeypatch.setattr("fila_cluster.django.worker.DATABASE_PAUSE_S", 0.0)
    result = tasks.add.enqueue(1)
    connection_created.connect(refuse)
    try:
        work()
    finally:
        connection_created.disconnect(refuse)
    result.refresh()
    assert (result.status, result.attempts, len(refused)) == ("SUCCESSFUL", 1, 2 * LOST_MAX)


def test_a_task_that_outlives_its_connection_runs_once(tasks: ModuleType, work: RunWorker) -> None:
    result = tasks.lose_connection.enqueue()
    work()
    result.refresh()
    assert (result.status, result.attempts) == ("SUCCESSFUL", 1)


def test_a_task_whose_outcome_is_not_stored_runs_again(
    tasks: ModuleType, client: Any, work: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []

    def refuse(instance: Any, **_: Any) -> None:
        if instance.is_finished and not refused:
            refused.append(instance.status)
            raise OperationalError("the database is away")

    monkeypatch.setattr("fila_cluster.django.execution.DATABASE_PAUSE_S", 0.0)
    result = tasks.add.enqueue(1)
    pre_save.connect(refuse, sender=TaskRecord)
    try:
        work()
    finally:
        pre_save.disconnect(refuse, sender=TaskRecord)
    result.refresh()
    assert (refused, result.status, result.attempts) == (["SUCCESSFUL"], "SUCCESSFUL", 2)
    assert messages(client) == []


def test_a_task_that_is_gone_from_the_code_fails(tasks: ModuleType, client: Any, work: RunWorker) -> None:
    result = tasks.add.enqueue(1)
    records().update(task_path="tests.django.project.tasks.gone")
    work()
    assert [error["exception_class_path"] for error in records().get().errors] == ["builtins.ImportError"]
    assert [letter.json()["id"] for letter in client.browse(LETTERS)] == [result.id]


def test_messages_of_nobody_are_dead_letters(tasks: ModuleType, client: Any, work: RunWorker) -> None:
    tasks.add.enqueue(1)
    records().delete()
    client.enqueue(DEFAULT, b"hello")
    client.enqueue(DEFAULT, b'{"id": "1", "on_commit": false, "priority": "high"}')
    work()
    errors = sorted(letter.error for letter in client.browse(LETTERS))
    assert [error[:18] for error in errors] == ["no task of Django:"] * 2 + ["there is no row of"]
    assert "`str` - at `$.priority`" in errors[0] + errors[1]


def test_what_is_no_task_here_is_refused(tasks: ModuleType) -> None:
    with pytest.raises(InvalidTask, match="not valid for backend"):
        tasks.add.using(queue_name="other")
    with pytest.raises(InvalidTask, match=r"ends in \.dlq"):
        tasks.add.using(backend="anywhere", queue_name="x.dlq")
    with pytest.raises(ImproperlyConfigured, match=r"'OPTIONS'\] has no option 'endpont': there are .*endpoint"):
        FilaBackend("any", {"OPTIONS": {"endpont": "tcp://127.0.0.1:5555"}})
    with pytest.raises(ImproperlyConfigured, match="max_attempts"):
        FilaBackend("any", {"OPTIONS": {"max_attempts": 0}})
    with pytest.raises(ImproperlyConfigured, match=r"\['endpoint'\] is a list: use a str"):
        FilaBackend("any", {"OPTIONS": {"endpoint": ["tcp://a:5555", "tcp://b:5555"]}})
    assert [each.id for each in FilaBackend("any", {"QUEUES": ["a/b/c"]}).check()] == ["fila.E002"]


def test_the_command_takes_queues_with_spaces_between(tasks: ModuleType, client: Any) -> None:
    mail, result = tasks.send_mail.enqueue("a@example.com"), tasks.add.enqueue(1)
    call_command("fila_worker", "--batch", "--queues", "emails, default,", stderr=io.StringIO())
    mail.refresh()
    result.refresh()
    assert mail.is_finished
    assert result.is_finished


def test_the_command_refuses_what_it_does_not_know(tasks: ModuleType) -> None:
    for arguments, text in {
        ("--backend", "anywhere", "--queues", "a b"): "--queues a b: bad queue name",
        ("--queues", "default,other"): "'other' is not in the backend's QUEUES",
        ("--threads", "0"): "--threads 0: use 1 or more",
        ("--backend", "missing"): "--backend missing",
    }.items():
        with pytest.raises(CommandError, match=text):
            call_command("fila_worker", *arguments)


def test_old_rows_are_pruned(tasks: ModuleType, work: RunWorker) -> None:
    tasks.add.enqueue(1)
    tasks.fail.enqueue("no paper")
    work()
    kept = tasks.add.enqueue(2)
    said = io.StringIO()
    call_command("fila_prune", days=1, stdout=said)
    call_command("fila_prune", days=0, stdout=said)
    call_command("fila_prune", "--failed", days=0, stdout=said)
    assert said.getvalue().split("\n") == ["0 deleted", "1 deleted", "1 deleted", ""]
    assert [record.id for record in records()] == [kept.id]


def test_the_admin_shows_tasks_and_links_to_their_dead_letters(tasks: ModuleType, work: RunWorker) -> None:
    tasks.fail.enqueue("no paper")
    work()
    browser = Browser()
    browser.force_login(User.objects.create_superuser("operator"))
    page = browser.get("/admin/fila_tasks/taskrecord/").content.decode()
    assert f'href="http://127.0.0.1:8555/dead-letters?queue={LETTERS}"' in page
    assert browser.get("/admin/fila_tasks/taskrecord/add/").status_code == 403


@pytest.mark.whole
def test_a_worker_stopped_in_the_middle_loses_and_repeats_nothing(
    tasks: ModuleType, client: Any, project: dict[str, str], tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    env = environment(**project, TASKS_TEST_NOTES=str(notes), PYTHONPATH=os.pathsep.join(sys.path))
    command = [sys.executable, "-m", "django", "fila_worker", "--threads", "2", "--processes", "2"]

    def noted() -> list[str]:
        return notes.read_text().split() if notes.exists() else []

    results = [tasks.note.enqueue(number) for number in range(150)]
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as started:
        try:
            eventually(lambda: len(noted()) >= 30 or started.poll() is not None, "some are done")
            started.send_signal(signal.SIGTERM)
            _, said = started.communicate(timeout=PATIENCE_S)
        finally:
            started.kill()
    assert started.returncode == 0, said
    assert "Traceback" not in said, said
    assert [(message.state, message.attempts) for message in messages(client)] == [("pending", 0)] * (150 - len(noted()))
    done = subprocess.run([*command, "--batch"], env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(map(int, noted())) == list(range(150))
    assert set(records().values_list("status", flat=True)) == {"SUCCESSFUL"}
    assert len(results) == records().count()


def test_processes_that_are_stopped_while_they_start_are_no_failure(project: dict[str, str], tmp_path: Path) -> None:
    # A module that Python itself imports: the processes of the worker, and not the one that starts them, say that they are there and go no further.
    (tmp_path / "sitecustomize.py").write_text(
        "import os, pathlib, time\n"
        "if 'FILA_WORKER_PARENT' in os.environ:\n"
        f"    pathlib.Path({str(tmp_path)!r}, f'{{os.getpid()}}.started').touch()\n"
        "    time.sleep(600)\n"
    )
    env = environment(**project, PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    command = [sys.executable, "-m", "django", "fila_worker", "--processes", "2"]
    with subprocess.Popen(command, env=env) as started:
        try:
            eventually(lambda: len(list(tmp_path.glob("*.started"))) == 2, "both are starting")
            started.send_signal(signal.SIGTERM)
            assert started.wait(PATIENCE_S) == 0
        finally:
            started.kill()


@pytest.mark.parametrize(
    ("missing", "advice"), [("django", "pip install 'fila-cluster[django]'"), ("django_tasks", "pip install django-tasks")]
)
def test_without_what_it_needs_the_import_says_what_to_install(missing: str, advice: str) -> None:
    code = f"""
import sys
import threading
from importlib import util
found = util.find_spec
util.find_spec = lambda name: None if name == 'django.tasks' and {missing!r} != 'django' else found(name)
sys.modules[{missing!r}] = None
from fila_cluster.django import FilaBackend
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 1
    assert advice in done.stderr.rstrip().rpartition("\n")[2], done.stderr
