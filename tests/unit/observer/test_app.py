"""What the dashboard's address answers, without a socket."""

import asyncio
import json
from typing import Any, NamedTuple

import pytest

from fila_cluster.observer.app import application
from fila_cluster.observer.watch import ASK_AGAIN_S, ASK_EVERY_S, Watch
from fila_cluster.observing.history import History
from fila_proto_zmq.commands import ClusterStatus, Metrics, WorkerStatus
from fila_proto_zmq.errors import RequestTimeoutError
from tests.unit.observer.told import cluster


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: str


def get(watch: Watch, url: str, history: History | None = None) -> Answer:
    """One request, as a server makes it."""
    path, _, query = url.partition("?")
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": query.encode(), "headers": [], "app": None}
    asyncio.run(application(watch, history or History())(scope, receive, send))
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], headers, b"".join(part.get("body", b"") for part in sent[1:]).decode())


def watching(*answers: Metrics | RequestTimeoutError) -> Watch:
    """A watch that has asked as often as there are answers."""
    left = list(answers)

    async def ask() -> Metrics:
        answer = left.pop(0)
        if isinstance(answer, RequestTimeoutError):
            raise answer
        return answer

    watch = Watch(ask)
    for _ in answers:
        asyncio.run(watch.look())
    return watch


GONE = RequestTimeoutError("nobody answered")


def status(*workers: WorkerStatus) -> Metrics:
    return Metrics([], ClusterStatus("1", 2, list(workers)))


def test_metrics_are_text_that_nobody_keeps():
    answer = get(watching(cluster()), "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert answer.headers["cache-control"] == "no-store"
    assert "\nfila_up 1.0\n" in answer.body


def test_when_the_router_is_away_no_old_number_is_shown():
    answer = get(watching(cluster(), GONE), "/metrics")
    assert answer.status == 200
    assert [line for line in answer.body.splitlines() if not line.startswith("#")] == ["fila_up 0.0"]


def test_it_is_healthy_whatever_the_cluster_does():
    assert get(watching(GONE), "/healthz").status == 200


def test_it_is_ready_when_every_shard_has_a_worker_that_is_up():
    watch = watching(status(WorkerStatus("worker-0", 42, "up", [0, 1], 0, 0)))
    answer = get(watch, "/readyz")
    assert (answer.status, json.loads(answer.body)) == (200, {"ready": True, "reasons": []})


def test_it_is_not_ready_before_it_has_asked():
    answer = get(watching(), "/readyz")
    assert answer.status == 503
    assert json.loads(answer.body)["ready"] is False


def test_each_shard_that_does_not_serve_is_a_reason():
    answer = get(watching(status(WorkerStatus("worker-0", 42, "down", [0], 0, 0))), "/readyz")
    assert answer.status == 503
    assert json.loads(answer.body) == {
        "ready": False,
        "reasons": [
            {"shard": 0, "text": "shard 0 waits for worker-0 (pid 42), which is down"},
            {"shard": 1, "text": "shard 1 has no worker yet"},
        ],
    }


def test_a_router_that_is_away_is_the_reason():
    answer = get(watching(cluster(), GONE), "/readyz")
    assert answer.status == 503
    assert json.loads(answer.body)["reasons"] == [{"shard": None, "text": "the router does not answer: nobody answered"}]


def test_the_first_page_leads_to_the_others():
    answer = get(watching(cluster()), "/")
    assert answer.status == 200
    assert all(f'href="{page}"' in answer.body for page in ("metrics", "history", "readyz", "healthz"))


def test_what_is_not_there_is_404():
    assert get(watching(cluster()), "/nowhere").status == 404


def test_it_asks_every_second_and_more_often_while_something_is_down(monkeypatch: pytest.MonkeyPatch):
    up = status(WorkerStatus("worker-0", 42, "up", [0, 1], 0, 0))
    answers = [up, status(), GONE, up]
    pauses: list[float] = []

    async def ask() -> Metrics:
        answer = answers.pop(0)
        if isinstance(answer, RequestTimeoutError):
            raise answer
        return answer

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if not answers:
            raise asyncio.CancelledError

    monkeypatch.setattr("fila_cluster.observer.watch.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(Watch(ask).run())
    assert pauses == [ASK_EVERY_S, ASK_AGAIN_S, ASK_AGAIN_S, ASK_EVERY_S]
