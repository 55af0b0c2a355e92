"""What the router counts, and how it gathers what its workers count: a worker that does not answer is left out."""

import pytest

from fila_proto_zmq.codec import encode_body, to_fault
from fila_proto_zmq.commands import ClusterStatus, GetMetrics, Histogram, Metrics, RouterMetrics, WorkerMetrics
from fila_proto_zmq.errors import InvalidFrameError, ShardUnavailableError
from fila_proto_zmq.frames import ERROR, REPLY, pack_header
from fila_router.core.fan_in import METRICS_MS_MAX
from tests.unit.router.desk import CLIENT, Desk


def ask(desk: Desk) -> dict[str, int]:
    """Ask for metrics; the workers that are asked in turn, each with the request id to answer."""
    assert desk.ask(GetMetrics(), key=b"") is None
    return desk.questions(GetMetrics.opcode)


def counted(worker: str) -> WorkerMetrics:
    return WorkerMetrics(worker, 1, 2, Histogram([10], [3, 4], 50), [])


def answer(desk: Desk, worker: str, request: int, body: bytes | None = None, flags: int = REPLY) -> None:
    header = pack_header(GetMetrics.opcode, request, flags)
    told = encode_body(Metrics([counted(worker)])) if body is None else body
    assert not desk.router.from_worker(worker.encode(), b"", header, b"", told, desk.now_ms)


def told(desk: Desk) -> Metrics:
    (answer,) = desk.answers()
    assert answer.client == CLIENT
    assert isinstance(answer.content, Metrics)
    return answer.content


def router_metrics(desk: Desk) -> RouterMetrics:
    for worker, request in ask(desk).items():
        answer(desk, worker, request)
    metrics = told(desk).router
    assert metrics is not None
    return metrics


def test_all_that_workers_count_arrives_with_the_state_of_the_cluster(desk: Desk):
    asked = ask(desk)
    assert list(asked) == ["worker-0", "worker-1"]
    for worker in ("worker-1", "worker-0"):
        assert desk.answers() == []
        answer(desk, worker, asked[worker])
    metrics = told(desk)
    assert metrics.workers == [counted("worker-1"), counted("worker-0")]
    assert isinstance(metrics.status, ClusterStatus)
    assert [worker.state for worker in metrics.status.workers] == ["up", "up"]


def test_a_worker_that_is_down_is_not_asked(desk: Desk):
    desk.unreachable("worker-1")
    asked = ask(desk)
    assert list(asked) == ["worker-0"]
    answer(desk, "worker-0", asked["worker-0"])
    metrics = told(desk)
    assert metrics.workers == [counted("worker-0")]
    assert metrics.status is not None
    assert {worker.name: worker.state for worker in metrics.status.workers} == {"worker-0": "up", "worker-1": "down"}


def test_a_worker_that_is_lost_meanwhile_is_left_out(desk: Desk):
    asked = ask(desk)
    answer(desk, "worker-0", asked["worker-0"])
    desk.unreachable("worker-1")
    metrics = told(desk)
    assert metrics.workers == [counted("worker-0")]
    answer(desk, "worker-1", asked["worker-1"])
    assert desk.answers() == []


def test_a_worker_that_does_not_answer_in_time_is_left_out(desk: Desk):
    asked = ask(desk)
    answer(desk, "worker-1", asked["worker-1"])
    desk.pass_ms(METRICS_MS_MAX - 250, "worker-0", "worker-1")
    assert desk.answers() == []
    desk.pass_ms(250, "worker-0", "worker-1")
    assert told(desk).workers == [counted("worker-1")]


@pytest.mark.parametrize(
    ("body", "flags"),
    [
        (encode_body(to_fault(InvalidFrameError("unknown opcode 61"))), REPLY | ERROR),
        (b"\xc1", REPLY),
        (b"\x91\x01", REPLY),
    ],
)
def test_a_worker_that_answers_nonsense_is_left_out(desk: Desk, body: bytes, flags: int):
    asked = ask(desk)
    answer(desk, "worker-0", asked["worker-0"], body, flags)
    answer(desk, "worker-1", asked["worker-1"])
    assert told(desk).workers == [counted("worker-1")]


def test_without_any_worker_the_router_answers_for_itself():
    for started in (False, True):
        desk = Desk(shards=2, started=started)
        assert ask(desk) == {}
        metrics = told(desk)
        assert metrics.workers == []
        assert metrics.status == ClusterStatus("9.9", 2, [])
        assert metrics.router is not None


def test_frames_are_counted_by_where_they_come_from_and_go_to(desk: Desk):
    before = router_metrics(desk)
    worker = desk.enqueue()
    assert worker is not None
    request = desk.last_request
    assert desk.reply(request, worker.decode())
    assert not desk.reply(request, worker.decode())  # nobody waits any more
    after = router_metrics(desk)
    assert after.from_clients - before.from_clients == 2  # this one, and the question
    assert after.to_workers - before.to_workers == 1
    assert after.from_workers - before.from_workers == 4  # two of them answers to the question
    assert after.to_clients - before.to_clients == 1


def test_what_waits_for_an_answer_is_counted_by_worker(desk: Desk):
    worker = desk.enqueue()
    assert worker is not None
    metrics = router_metrics(desk)
    other = ({"worker-0", "worker-1"} - {worker.decode()}).pop()
    assert metrics.in_flight == {worker.decode(): 1, other: 0}
    assert metrics.in_flight_bytes[worker.decode()] > metrics.in_flight_bytes[other] == 0


def test_refusals_are_counted_by_code(desk: Desk):
    for name in ("worker-0", "worker-1"):
        desk.unreachable(name)
    desk.enqueue()
    desk.enqueue()
    desk.frame(pack_header(99, 77))
    assert isinstance(desk.answers()[0].content, ShardUnavailableError)
    assert router_metrics(desk).refused == {"SHARD_UNAVAILABLE": 2, "INVALID_FRAME": 1}


def test_it_reports_what_was_measured_of_it_last(desk: Desk):
    desk.router.measured(rss_bytes=10, cpu_ms=20)
    desk.router.measured(rss_bytes=5, cpu_ms=30)
    metrics = router_metrics(desk)
    assert (metrics.rss_bytes, metrics.cpu_ms) == (5, 30)


def test_it_says_since_when_it_counts():
    desk = Desk(started=False)
    desk.now_ms = 500
    desk.router.tick(500)
    desk.router.tick(750)
    assert router_metrics(desk).started_ms == 500
