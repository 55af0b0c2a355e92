"""``fila-cluster bench`` on a real cluster."""

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator

import psutil
import pytest
from click.testing import CliRunner, Result

from fila_cluster import Client
from fila_cluster.cli.root import root
from fila_cluster.run.bench import running as bench_running
from tests.support.cluster.cluster import PATIENCE_S, Cluster, command, environment, eventually, is_dead, running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster") / "data") as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with cluster.client() as client:
        client.create_queue("users-own")
        client.enqueue("users-own", b"stays")
        yield client
        assert [(queue.name, queue.pending) for queue in client.list_queues()] == [("users-own", 1), ("users-own.dlq", 0)]
        client.delete_queue("users-own")


def bench(cluster: Cluster, *arguments: object) -> Result:
    return CliRunner().invoke(root, ["--endpoint", cluster.endpoint, "--json", "bench", *map(str, arguments)])


def queue_of_the_run(client: Client) -> str:
    """The queue of a run that has begun."""
    found: list[str] = []

    def is_there() -> bool:
        found[:] = [queue.name for queue in client.list_queues(bench_running.QUEUE_PREFIX) if not queue.is_dead_letter]
        return bool(found)

    eventually(is_there, "a queue of the run")
    return found[0]


def test_every_message_is_verified_and_the_figures_are_printed(cluster: Cluster, client: Client):
    result = bench(cluster, "--messages", 500, "--payload", 200, "--keys", 7, "--producers", 2, "--consumers", 2)
    assert (result.exit_code, result.stderr) == (0, "")
    figures = json.loads(result.stdout)
    assert (figures["sent"], figures["received"], figures["lost"], figures["repeated"], figures["damaged"]) == (
        500,
        500,
        0,
        0,
        0,
    )
    assert figures["workload"]["payload_bytes"] == 200
    assert min(figures["enqueue_rate"], figures["receive_rate"], figures["rate"], figures["seconds"]) > 0
    for name in ("enqueue_latency", "delivery_latency"):
        assert 0 < figures[name]["p50"] <= figures[name]["p99"] <= figures[name]["max"]
    assert sum(each["count"] for each in figures["delivery_histogram"]) == 500


def test_a_rate_and_a_duration_say_how_many_messages_are_sent(cluster: Cluster, client: Client):
    result = bench(cluster, "--rate", 1000, "--duration", "200ms", "--batch", 1)
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout)["sent"] == 201


def test_people_see_a_table_and_a_histogram(cluster: Cluster, client: Client):
    result = CliRunner().invoke(root, ["--endpoint", cluster.endpoint, "bench", "--messages", "300", "--backlog"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert "verified: 300 messages sent, all of them came, once and whole" in result.stdout
    assert "receive + ack" in result.stdout
    assert "p99.9" in result.stdout
    assert "█" in result.stdout


def interfering(cluster: Cluster, with_queue: Callable[[Client, str], None]) -> threading.Thread:
    """A thread that does something to the queue of the run that begins."""

    def interfere() -> None:
        with cluster.client() as client:
            with_queue(client, queue_of_the_run(client))

    thread = threading.Thread(target=interfere)
    thread.start()
    return thread


def test_lost_and_foreign_messages_are_a_failure(cluster: Cluster, client: Client):
    def steal_and_add(client: Client, queue: str) -> None:
        client.ack(client.receive(queue, 1, wait=PATIENCE_S))
        client.enqueue(queue, b"nobody's")

    thread = interfering(cluster, steal_and_add)
    result = bench(cluster, "--messages", 2000, "--backlog", "--consumers", 2)
    thread.join()
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: 1 message never came; 1 message came that nobody sent so (")
    figures = json.loads(result.stdout)
    assert (figures["lost"], figures["damaged"]) == (1, 1)


def test_a_queue_that_is_deleted_meanwhile_ends_the_run_with_one_line(cluster: Cluster, client: Client):
    thread = interfering(cluster, lambda client, queue: client.delete_queue(queue, force=True))
    result = bench(cluster, "--duration", "1m")
    thread.join()
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: no queue 'fila-bench.")


@pytest.mark.parametrize("option", [("--rate", "nan"), ("--rate", "0"), ("--payload", 39), ("--duration", "soon")])
def test_bad_options_are_refused_before_anything_is_created(cluster: Cluster, client: Client, option: tuple[object, ...]):
    result = bench(cluster, *option)
    assert result.exit_code == 2
    assert str(option[0]) in result.stderr


def start(cluster: Cluster) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("--endpoint", cluster.endpoint, "bench", "--duration", "5m"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_removes_the_queue_and_leaves_no_process(cluster: Cluster, client: Client, number: signal.Signals):
    with start(cluster) as run:
        queue = queue_of_the_run(client)
        eventually(lambda: client.queue_stats(queue).acked > 0, "acknowledged messages")
        children = psutil.Process(run.pid).children()
        run.send_signal(number)
        output, complaint = run.communicate(timeout=PATIENCE_S)
    assert (run.returncode, output, complaint.strip()) == (1, "", "Aborted!")
    assert children
    assert all(map(is_dead, children))
    assert client.list_queues(bench_running.QUEUE_PREFIX) == []


def test_the_children_of_a_run_that_is_killed_remove_its_queue(cluster: Cluster, client: Client):
    with start(cluster) as run:
        queue = queue_of_the_run(client)
        eventually(lambda: client.queue_stats(queue).acked > 0, "acknowledged messages")
        run.kill()
        run.communicate(timeout=PATIENCE_S)
    eventually(lambda: client.list_queues(bench_running.QUEUE_PREFIX) == [], "the queue's end")
