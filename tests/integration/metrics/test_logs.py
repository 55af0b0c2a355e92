"""The log of a real cluster: its story in order, every line whole, and no message in it."""

import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

import psutil
import pytest
import zmq

from fila_cluster import Message
from fila_cluster.errors import LuaCompilationError, QueueNotFoundError, ShardUnavailableError
from tests.support.cluster.cluster import PATIENCE_S, Cluster, command, environment, eventually, running

pytestmark = pytest.mark.whole

CANARY = "canary-4711"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


def names(cluster: Cluster, *of: str) -> list[str]:
    """The events' names, those of certain processes only if some are given."""
    return [event["event"] for event in cluster.events() if not of or event["process"] in of]


def in_order(story: list[str], told: list[str]) -> bool:
    """Whether ``told`` has all of ``story``, in that order, among others."""
    rest = iter(told)
    return all(each in rest for each in story)


def _kill_and_await(cluster: Cluster, told_last: str) -> int:
    """Kill the worker once it has logged its last event, and wait until its next life has joined; returns the pid of the killed one.

    It answers first and tells then: who is killed in between tells nothing.
    """
    eventually(lambda: bool(cluster.events(told_last)), f"{told_last} is told")
    pid = cluster.worker_of(0).pid
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: len(cluster.events("worker.joined")) >= 2, "the worker is back")
    return pid


def test_the_story_of_a_cluster(data_dir: Path):
    with running(data_dir, logged="info") as cluster, cluster.client() as client:
        client.create_queue("orders", max_attempts=1)
        client.pause("orders")
        client.resume("orders", fairness_key="acme")
        client.enqueue_many("orders", [Message(b"")] * 5)
        assert client.purge_queue("orders") == 5
        client.enqueue("orders", b"")
        client.resume("orders")
        client.receive("orders")[0].fail()
        assert client.redrive("orders.dlq") == 1
        client.set_config("region", CANARY)
        first = _kill_and_await(cluster, "config.set")
        client.update_queue("orders", max_attempts=2)
        second = cluster.worker_of(0).pid
        client.delete_queue("orders")
        assert cluster.stop() == 0
        assert in_order(
            ["data_dir.created", "cluster.starting", "child.started", "child.started", "cluster.ready", "child.died",
             "child.started", "cluster.stopping", "cluster.stopped"],
            names(cluster, "supervisor"),
        )  # fmt: skip
        assert in_order(
            ["shard.opened", "worker.admitted", "queue.created", "queue.paused", "queue.resumed", "queue.purged",
             "queue.resumed", "queue.redriven", "config.set", "shard.opened", "queue.updated", "queue.deleted",
             "process.stopping", "process.stopped"],
            names(cluster, "worker-0"),
        )  # fmt: skip
        assert in_order(
            ["router.listening", "worker.joined", "worker.lost", "worker.joined", "worker.left", "process.stopped"],
            names(cluster, "router"),
        )
        assert {event["pid"] for event in cluster.events() if event["process"] == "worker-0"} == {first, second}
        (died,) = cluster.events("child.died")
        assert (died["level"], died["child"], died["child_pid"]) == ("warning", "worker-0", first)
        fresh, recovered = cluster.events("shard.opened")
        assert (fresh["epoch"], fresh["queues"], fresh["pending"]) == (1, 0, 0)
        assert (recovered["epoch"], recovered["queues"], recovered["pending"]) == (2, 2, 1)
        (purged,) = cluster.events("queue.purged")
        assert (purged["queue"], purged["fairness_key"], purged["messages"]) == ("orders", None, 5)
        assert CANARY not in "\n".join(cluster.log)


def test_no_message_and_no_secret_is_ever_in_the_log(data_dir: Path):
    """Whatever is done with messages, at the lowest level."""
    with running(data_dir, "--dashboard", "127.0.0.1:0", logged="debug") as cluster, cluster.client() as client:
        client.create_queue("orders", on_enqueue=f"function on_enqueue(msg) error('{CANARY}' .. msg.headers.h) end")
        with pytest.raises(LuaCompilationError, match=CANARY):
            client.create_queue("bad", on_enqueue=f"x = 1 '{CANARY}'")
        with pytest.raises(QueueNotFoundError):
            client.enqueue("none", CANARY.encode())
        client.enqueue_many("orders", [Message(CANARY.encode(), {"h": CANARY}, dedup_id=f"{CANARY}{i}") for i in range(20)])
        nacked, failed, *acked = client.receive("orders", 10)
        client.ack(acked)
        nacked.nack(CANARY, metadata=CANARY.encode())
        failed.fail(CANARY)
        client.set_config("secret", CANARY)
        client.browse("orders.dlq")
        client.why("orders", message_id=nacked.id)
        client.redrive("orders.dlq")
        _kill_and_await(cluster, "queue.redriven")
        client.receive("orders", 1)[0].ack()
        assert cluster.stop() == 0
        told = names(cluster)
        assert {"breaker.opened", "hook.refused", "client.connected", "queue.redriven", "observer.serving"} <= set(told)
        assert CANARY not in "\n".join(cluster.log)
        assert len(told) < 100


def test_thousands_of_messages_are_no_news(data_dir: Path):
    with running(data_dir, logged="debug") as cluster, cluster.client() as client:
        client.create_queue("orders")
        client.enqueue_many("orders", [Message(b"x", fairness_key=f"k{number % 50}") for number in range(5000)])
        done = 0
        while done < 5000:
            deliveries = client.receive("orders", 500, wait=PATIENCE_S)
            client.ack(deliveries)
            done += len(deliveries)
        assert cluster.stop() == 0
        told = Counter(names(cluster))
        assert told["queue.created"] == 1
        assert max(told.values()) <= 3, told


def test_a_lost_consumer_is_logged_with_what_it_held(data_dir: Path, tmp_path: Path):
    (tmp_path / "fila.toml").write_text("[scheduler]\nconsumer_timeout_ms = 500\n")
    consumer = (
        "import os, sys; from fila_cluster import Client; client = Client(sys.argv[1]);"
        "assert len(client.receive('orders', 3)) == 3; os.kill(os.getpid(), 9)"
    )
    with running(data_dir, cwd=tmp_path) as cluster, cluster.client() as client:
        client.create_queue("orders")
        client.enqueue_many("orders", [Message(b"")] * 3)
        subprocess.run([*command()[:1], "-c", consumer, cluster.endpoint], check=False, timeout=PATIENCE_S)
        eventually(lambda: bool(cluster.events("consumer.lost")), "its loss is told")
        (lost,) = cluster.events("consumer.lost")
        assert (lost["messages"], lost["shard"]) == (3, 0)


def test_a_client_of_another_protocol_is_logged_once(data_dir: Path):
    with running(data_dir) as cluster, zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        stranger.connect(cluster.endpoint)
        for _ in range(500):
            stranger.send_multipart([b"GET / HTTP/1.1", b"", CANARY.encode()])
        eventually(lambda: bool(cluster.events("client.refused")), "the first refusals are told")
        first, *others = cluster.events("client.refused")
        assert (first["error"], first["level"], others) == ("INVALID_FRAME", "warning", [])
        assert CANARY not in "\n".join(cluster.log)


def test_the_console_is_for_people(data_dir: Path, tmp_path: Path):
    (tmp_path / "fila.toml").write_text('[telemetry]\nlog_format = "console"\n')
    with running(data_dir, cwd=tmp_path, logged="info") as cluster, cluster.client() as client:
        client.create_queue("orders")
        client.pause("orders", fairness_key="a\nb\x1b[2J")
        assert cluster.stop() == 0
    (paused,) = [line for line in cluster.log if "queue.paused" in line]
    assert paused.endswith(r" queue=orders shard=0 fairness_key=a\nb\x1b[2J")
    assert all(line[:2] == "20" and " [info     ] " in line for line in cluster.log), cluster.log


def test_a_cluster_that_cannot_start_says_so_in_a_plain_line(data_dir: Path):
    with running(data_dir) as cluster:
        result = subprocess.run(
            command("up", "--data-dir", data_dir, "--listen", "127.0.0.1:0", "--no-dashboard"),
            env=environment(FILA_TELEMETRY__LOG_FORMAT="json", FILA_TELEMETRY__LOG_LEVEL="debug"),
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert result.returncode == 1
        assert f"in use by process {cluster.supervisor.pid}" in result.stderr
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(("key", "value"), [("LOG_FORMAT", "xml"), ("LOG_LEVEL", "loud")])
def test_a_setting_that_is_none_is_refused_by_name(data_dir: Path, key: str, value: str):
    result = subprocess.run(
        command("up", "--data-dir", data_dir), env=environment(**{f"FILA_TELEMETRY__{key}": value}),
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    (line,) = result.stderr.splitlines()
    assert f"FILA_TELEMETRY__{key}={value}" in line
    assert not data_dir.exists()


def test_a_worker_whose_disk_fails_says_why_and_comes_back(data_dir: Path):
    """As a full one does: no file of the worker's may grow any more."""
    with running(data_dir) as cluster, cluster.client() as client:
        client.create_queue("orders")
        kept = client.enqueue("orders", b"kept")
        worker = psutil.Process(cluster.worker_of(0).pid)
        worker.rlimit(psutil.RLIMIT_FSIZE, (1, psutil.RLIM_INFINITY))
        with pytest.raises(ShardUnavailableError):
            client.enqueue("orders", b"too much")
        worker.rlimit(psutil.RLIMIT_FSIZE, (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY))
        (delivery,) = client.receive("orders", wait=30)
        delivery.ack()
        assert delivery.id == kept
        failed = cluster.events("storage.failed")[0]
        assert (failed["process"], failed["pid"]) == ("worker-0", worker.pid)
        assert "RocksDB refused a write" in failed["reason"]
        assert cluster.events("child.died") == []


def test_a_worker_alone_logs_in_the_same_way(tmp_path: Path):
    with subprocess.Popen(
        command("worker", "--join", f"ipc://{tmp_path}/nobody", "--shard", 0, "--shards", 1, "--data-dir", tmp_path / "data"),
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as worker:  # fmt: skip
        assert worker.stderr is not None
        opened = json.loads(worker.stderr.readline())
        worker.terminate()
        rest = [json.loads(line)["event"] for line in worker.stderr]
        assert worker.wait(PATIENCE_S) == 0
    assert (opened["event"], opened["process"], opened["pid"]) == ("shard.opened", "worker-0", worker.pid)
    assert rest == ["process.stopping", "process.stopped"]
