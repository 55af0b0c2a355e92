"""What the dashboard's address answers, without a socket."""

import asyncio
import json
from typing import Any, NamedTuple

import pytest

from fila_cluster.ops.analysis.history import History
from fila_cluster.ops.analysis.watch import ASK_AGAIN_S, ASK_EVERY_S, Watch
from fila_cluster.ops.observer.app import application
from fila_proto_zmq.commands import ClusterStatus, Histogram, Metrics, ShardOutage, WorkerMetrics, WorkerStatus
from fila_proto_zmq.errors import RequestTimeoutError
from tests.unit.analysis.looks import follows, hosts, leads
from tests.unit.observer.told import cluster, shard


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
        answer = left.pop(0) if len(left) > 1 else left[0]  # the last one whenever it is asked again
        if isinstance(answer, RequestTimeoutError):
            raise answer
        return answer

    watch = Watch(ask)
    for _ in answers:
        asyncio.run(watch.look())
    return watch


GONE = RequestTimeoutError("nobody answered")


def status(*workers: WorkerStatus, silent: bool = False) -> Metrics:
    """What is heard of a cluster of two shards. ``silent``: workers that are up do not answer."""
    heard = [] if silent else [worker for worker in workers if worker.state == "up"]
    times = Histogram([1], [0, 0], 0)
    answers = [WorkerMetrics(worker.name, 1, 1, times, [shard(index) for index in worker.shards]) for worker in heard]
    return Metrics(answers, ClusterStatus("1", 2, list(workers)))


def test_metrics_are_text_that_must_not_be_cached():
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


def test_it_asks_when_it_is_asked():
    watch = watching(cluster(), status(WorkerStatus("worker-0", 42, "up", [0, 1], 0, 0)))
    assert get(watch, "/readyz").status == 200
    watch = watching(status(WorkerStatus("worker-0", 42, "up", [0, 1], 0, 0)), GONE)
    assert get(watch, "/readyz").status == 503


def test_who_comes_together_shares_a_question_that_is_not_asked_yet():
    asked: list[float] = []
    answered = asyncio.Event()

    async def ask() -> Metrics:
        asked.append(0)
        await answered.wait()
        return cluster()

    async def main() -> None:
        watch = Watch(ask)
        first = [asyncio.ensure_future(watch.look_now()) for _ in range(100)]
        while not asked:
            await asyncio.sleep(0)
        late = [asyncio.ensure_future(watch.look_now()) for _ in range(100)]
        answered.set()
        await asyncio.gather(*first, *late)
        assert len(asked) == 2, "what is under way may be older than who asks now"

    asyncio.run(main())


def test_what_would_make_the_next_loss_worse_is_a_warning_and_it_is_ready():
    answer = get(watching(hosts(1, a=[leads(0)])), "/readyz")
    text = "one more loss makes shard 0 wait for a recovery from the log"
    warnings = [{"shard": 0, "state": "no_standby", "text": text}]
    assert (answer.status, json.loads(answer.body)) == (200, {"ready": True, "reasons": [], "warnings": warnings})


def test_it_is_not_ready_while_a_shards_log_does_not_confirm():
    stuck = hosts(1, a=[leads(0, problem="the log has confirmed nothing for 7.2 s")], b=[follows(0)])
    assert [reason["state"] for reason in reasons(stuck)] == ["no_quorum"]


def reasons(heard: Metrics | RequestTimeoutError) -> list[dict[str, object]]:
    answer = get(watching(heard), "/readyz")
    assert answer.status == 503
    assert json.loads(answer.body)["ready"] is False
    told: list[dict[str, object]] = json.loads(answer.body)["reasons"]
    return told


def test_each_shard_that_does_not_serve_is_a_reason():
    assert reasons(status(WorkerStatus("worker-0", 42, "down", [0], 0, 0))) == [
        {"shard": 0, "state": "down", "text": "shard 0 waits for worker-0 (pid 42), which is down"},
        {"shard": 1, "state": "down", "text": "shard 1 has no worker yet"},
    ]


def test_a_worker_that_is_up_and_does_not_answer_does_not_serve():
    assert reasons(status(WorkerStatus("worker-0", 42, "up", [0, 1], 0, 0), silent=True)) == [
        {"shard": index, "state": "silent", "text": f"shard {index} waits for worker-0 (pid 42), which does not answer"}
        for index in (0, 1)
    ]


def test_a_quarantined_shard_is_a_reason_with_its_cause():
    worker = WorkerStatus("worker-0", 42, "up", [0], 0, 0, [ShardOutage(1, "quarantined", "000012.sst is damaged")])
    text = "shard 1 is quarantined: 000012.sst is damaged"
    assert reasons(status(worker)) == [{"shard": 1, "state": "quarantined", "text": text}]


def test_a_router_that_is_away_is_the_reason():
    text = "the router does not answer: nobody answered"
    assert reasons(GONE) == [{"shard": None, "state": "down", "text": text}]


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

    monkeypatch.setattr("fila_cluster.ops.analysis.watch.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(Watch(ask).run())
    assert pauses == [ASK_EVERY_S, ASK_AGAIN_S, ASK_AGAIN_S, ASK_EVERY_S]
