"""The command line against a running cluster."""

import base64
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from fila_cluster import Client, Message
from fila_cluster.cli.root import root
from fila_cluster.cli.shared.invocation import Invocation
from fila_proto_zmq.partitions import partition_of
from tests.support.cluster.cluster import PATIENCE_S, Cluster, command, environment, eventually, running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster") / "data", "--shards", 2) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with cluster.client() as client:
        yield client


@pytest.fixture
def queue(client: Client) -> str:
    name = f"cli/{uuid4().hex[:8]}"
    client.create_queue(name)
    return name


class Shell:
    """Runs commands in this process."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def run(self, *arguments: object, stdin: bytes | str = b"") -> Result:
        return CliRunner().invoke(root, ["--endpoint", self.endpoint, *map(str, arguments)], input=stdin)

    def out(self, *arguments: object, stdin: bytes | str = b"") -> str:
        """The output of a command that works."""
        result = self.run(*arguments, stdin=stdin)
        assert (result.exit_code, result.stderr) == (0, ""), result.output
        return result.stdout

    def json(self, *arguments: object) -> Any:
        """The one JSON line of a command that works."""
        (line,) = self.out("--json", *arguments).splitlines()
        return json.loads(line)

    def error(self, *arguments: object, stdin: bytes | str = b"") -> str:
        """The one line of a command that fails."""
        result = self.run(*arguments, stdin=stdin)
        assert (result.exit_code, result.stdout) == (1, ""), result.output
        (line,) = result.stderr.splitlines()
        return line

    def misused(self, *arguments: object) -> str:
        result = self.run(*arguments)
        assert result.exit_code == 2
        return result.stderr


@pytest.fixture
def shell(cluster: Cluster) -> Shell:
    return Shell(cluster.endpoint)


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_doctor_of_a_cluster_that_runs(shell: Shell, cluster: Cluster) -> None:
    found = shell.json("doctor", "--listen", cluster.endpoint, "--data-dir", cluster.data_dir, "--no-dashboard")
    seen = {each["check"]: (each["level"], each["found"]) for each in found["findings"]}
    assert found["ok"] is True
    assert seen["broker"] == ("ok", f"{cluster.endpoint} answers, 1 worker")
    assert seen["clock"] == ("ok", f"agrees with {cluster.endpoint}")
    assert seen["version"][0] == "ok"
    assert seen["port of clients"][1].endswith("is that of the cluster that runs")
    assert seen["data directory"] == ("ok", f"{cluster.data_dir} is writable")


# --- looking ----------------------------------------------------------------------------------------------------------


def test_status(shell: Shell):
    text = shell.out("status")
    assert "2 shards" in text
    assert "worker-0  up" in text
    assert text.rstrip().endswith("0–1")
    status = shell.json("status")
    assert status["shards"] == 2
    (worker,) = status["workers"]
    assert worker.keys() == {"name", "pid", "state", "shards", "rss_bytes", "queues"}
    assert (worker["name"], worker["state"], worker["shards"]) == ("worker-0", "up", [0, 1])


@pytest.mark.parametrize(("flags", "partitions"), [(["4", "--spread", "message"], 4), (["auto"], 2)])
def test_a_queue_with_partitions_is_one(shell: Shell, client: Client, flags: list[str], partitions: int):
    name = f"life/{uuid4().hex[:8]}"
    assert shell.out("queue", "create", name, "--partitions", *flags) == f"created {name}\n"
    client.enqueue_many(name, [Message(b"%d" % number, fairness_key=f"k{number}") for number in range(20)])
    listed = shell.json("queue", "list", "--prefix", name)
    assert [(queue["name"], queue["pending"]) for queue in listed] == [(name, 20), (f"{name}.dlq", 0)]
    assert f"{name}, {partitions} partitions" in shell.out("queue", "inspect", name)
    told = shell.json("queue", "inspect", name)
    assert [each["name"] for each in told["partitions"]] == [f"{name}@{number}" for number in range(partitions)]
    assert sum(each["pending"] for each in told["partitions"]) == told["pending"] == 20
    assert len(shell.out("queue", "browse", name).splitlines()) > 20
    with client.consume(name, prefetch=5) as consumer:
        next(consumer).ack()
        (row,) = [each for each in shell.json("connections", "list") if each["consumes"]]
        assert row["consumes"] == [name]
    assert shell.out("queue", "update", name, "--partitions", 3, "--max-attempts", 7) == f"updated {name}\n"
    eventually(
        lambda: (told := shell.json("queue", "inspect", name))["move"] is None and len(told["partitions"]) == 3,
        "all messages are in their new places, and partitions that are no more have gone",
    )
    told = shell.json("queue", "inspect", name)
    assert told["pending"] == 19
    assert [each["name"] for each in told["partitions"]] == [f"{name}@{number}" for number in range(3)]
    shell.out("queue", "delete", name)
    assert shell.json("queue", "list", "--prefix", name) == []


def test_a_queue_gets_partitions_and_one_change_ends_before_the_next(
    shell: Shell, client: Client, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    name = f"life/{uuid4().hex[:8]}"
    shell.out("queue", "create", name, "--max-in-flight-per-key", 1)
    key = next(key for number in range(100) if partition_of(key := f"k{number}", 2) == 1)
    client.enqueue_many(name, [Message(b"x", fairness_key=key) for _ in range(3)])
    (leased,) = client.receive(name, wait=PATIENCE_S)
    assert shell.out("queue", "update", name, "--partitions", 2) == f"updated {name}\n"
    eventually(
        lambda: shell.json("queue", "inspect", name)["move"]["left"][0]["messages"] == 0, "all but the leased one moved"
    )
    text = shell.out("queue", "inspect", name)
    assert text.startswith(f"{name} goes from 1 to 2 partitions: 0 of 1 drained, 0 messages left\n")
    assert "leased: 1" in text
    assert [each["name"] for each in shell.json("queue", "list", "--prefix", name)] == [name, f"{name}.dlq"]
    eventually(lambda: "moving" in shell.out("why", name, "--key", key), "the others have arrived")
    told = shell.out("why", name, "--key", key)
    assert told.index("moving") < told.index("leaving")
    assert "leased: 1" in told
    monkeypatch.setattr(Invocation, "connect", lambda _: cluster.client(timeout=1))
    assert "still moving from 1 to 2 partitions" in shell.error("queue", "update", name, "--partitions", 3)
    leased.ack()
    eventually(lambda: shell.json("queue", "inspect", name)["move"] is None, "all messages are in their new places")
    shell.out("queue", "update", name, "--partitions", 3)


def test_queues_are_created_listed_inspected_and_deleted(shell: Shell):
    name = f"life/{uuid4().hex[:8]}"
    assert shell.out("queue", "create", name, "--visibility-timeout", "5m", "--max-attempts", 3) == f"created {name}\n"
    assert [queue["name"] for queue in shell.json("queue", "list", "--prefix", name)] == [name, f"{name}.dlq"]
    shell.out("enqueue", name, "x", "--key", "[bold]tenant[/]")
    table = shell.out("queue", "list", "--prefix", name)
    assert table.splitlines()[1].split()[:2] == [name, "1"]
    assert "[bold]tenant[/]" in shell.out("queue", "inspect", name)
    stats = shell.json("queue", "inspect", name)
    assert (stats["name"], stats["pending"], stats["depth"], stats["enqueued"]) == (name, 1, 1, 1)
    assert [(key["fairness_key"], key["pending"]) for key in stats["keys"]] == [("[bold]tenant[/]", 1)]
    assert shell.out("queue", "delete", name) == f"deleted {name}\n"
    assert shell.json("queue", "list", "--prefix", name) == []
    assert shell.out("queue", "list", "--prefix", name) == "no queues\n"


def test_the_longest_keys_are_shown_first_and_not_all(shell: Shell, client: Client, queue: str):
    client.enqueue_many(queue, [Message(b"", fairness_key=f"key-{n}") for n in range(100) for _ in range(1 + (n == 77))])
    text = shell.out("queue", "inspect", queue)
    first, *_ = (line for line in text.splitlines() if line.startswith("key-"))
    assert first.split() == ["key-77", "1", "2", "0", "0", "0", "1000"]
    assert text.endswith("… and 70 more keys; --json shows all\n")


def test_tables_fit_a_terminal_of_80_columns(shell: Shell, queue: str):
    shell.out("enqueue", queue, "x")
    for arguments in (("status",), ("queue", "list", "--prefix", queue), ("queue", "inspect", queue)):
        assert max(map(len, shell.out(*arguments).splitlines())) <= 80


def test_a_schedule(shell: Shell, client: Client, queue: str):
    said = shell.out(
        "schedule", "put", queue, queue, "hä", "--cron", "0 3 * * *", "--timezone", "Europe/Lisbon", "--catch-up", "all"
    )
    assert said.startswith(f"{queue}: the next message for {queue} is due 20")
    assert "0 3 * * * Europe/Lisbon" in shell.out("schedule", "list", "--prefix", queue)
    shown = shell.json("schedule", "get", queue)
    assert (shown["cron"], shown["catch_up"], shown["message"]["payload"], shown["error"]) == ("0 3 * * *", "all", "hä", None)
    assert "payload" in shell.out("schedule", "get", queue)
    assert shell.json("schedule", "put", queue, queue, "--every", "30s", "--header", "a=b")["every"] == 30.0
    assert shell.out("schedule", "delete", queue) == f"deleted {queue}\n"
    assert shell.out("schedule", "delete", queue) == f"there was no schedule {queue}\n"
    assert shell.json("schedule", "list", "--prefix", queue) == []
    missing = shell.run("schedule", "get", queue)
    assert (missing.exit_code, missing.stderr) == (1, f"Error: there is no schedule {queue}\n")
    assert shell.run("schedule", "put", queue, queue).exit_code == 2


# --- enqueueing -------------------------------------------------------------------------------------------------------


def test_enqueue_prints_the_id(shell: Shell, client: Client, queue: str):
    first = shell.out("enqueue", queue, "hä", "--header", "a=b=c", "--header", "d=", "--key", "k", "--priority", -2).strip()
    (delivery,) = client.receive(queue)
    assert (delivery.id, delivery.text(), delivery.headers) == (first, "hä", {"a": "b=c", "d": ""})
    assert (delivery.fairness_key, delivery.priority) == ("k", -2)
    delivery.ack()
    assert shell.json("enqueue", queue, "x").keys() == {"id"}


def test_a_dash_is_standard_input_as_one_payload(shell: Shell, client: Client, queue: str):
    shell.out("enqueue", queue, "-", stdin=b"one\ntwo\n\xff")
    (delivery,) = client.receive(queue)
    assert delivery.payload == b"one\ntwo\n\xff"
    delivery.ack()


def test_a_delay(shell: Shell, queue: str):
    shell.out("enqueue", queue, "later", "--delay", "2h")
    assert shell.json("queue", "inspect", queue)["delayed"] == 1


def test_a_file_of_messages(shell: Shell, client: Client, queue: str, tmp_path: Path):
    file = tmp_path / "messages.jsonl"
    file.write_text(
        '{"payload": "a", "fairness_key": "x", "headers": {"h": "1"}}\n'
        "\n"
        '{"payload_base64": "/w==", "priority": 5}\n'
        '{"payload": "c"}'
    )
    assert shell.out("enqueue", queue, "--file", file) == "enqueued: 3\n"
    deliveries = client.receive(queue, 10)
    assert sorted(delivery.payload for delivery in deliveries) == [b"a", b"c", b"\xff"]
    client.ack(deliveries)


def test_a_long_file_goes_in_batches(shell: Shell, client: Client, queue: str, tmp_path: Path):
    file = tmp_path / "messages.jsonl"
    file.write_text("".join(f'{{"payload": "{number}"}}\n' for number in range(2500)))
    assert shell.json("enqueue", queue, "--file", file) == {"enqueued": 2500}
    assert client.queue_stats(queue).pending == 2500


def test_a_stream_of_messages(shell: Shell, client: Client, queue: str):
    assert shell.out("enqueue", queue, "--file", "-", stdin='{"payload": "a"}\n{"payload": "b"}\n') == "enqueued: 2\n"
    assert client.queue_stats(queue).pending == 2


def test_a_bad_line_is_named_and_what_stands_before_it_is_in(shell: Shell, client: Client, queue: str, tmp_path: Path):
    file = tmp_path / "messages.jsonl"
    file.write_text('{"payload": "a"}\n{"payload": "b"}\n{"payload": 3}\n{"payload": "d"}\n')
    error = shell.error("enqueue", queue, "--file", file)
    assert error.startswith(f"Error: {file} line 3: the payload is a string")
    assert error.endswith("before it 2 messages went in")
    assert client.queue_stats(queue).pending == 2


def test_a_message_that_the_broker_refuses_is_named_by_its_line(shell: Shell, client: Client, queue: str):
    error = shell.error("enqueue", queue, "--file", "-", stdin='{"payload": "a"}\n\n{"payload": "b", "delay": -1}\n')
    assert error.startswith("Error: standard input line 3: ")
    assert "-1" in error
    assert client.queue_stats(queue).pending == 1


def test_a_file_that_is_not_there_or_a_queue_that_is_not_there(shell: Shell, queue: str, tmp_path: Path):
    assert "cannot read" in shell.error("enqueue", queue, "--file", tmp_path / "missing")
    assert "no-such-queue" in shell.error("enqueue", "no-such-queue", "--file", "-", stdin='{"payload": "a"}\n')


# --- templates --------------------------------------------------------------------------------------------------------


def test_a_template_is_put_shown_used_and_deleted(shell: Shell, client: Client, queue: str):
    pattern = f"{queue}-*"
    assert shell.out("template", "put", pattern, "--max-attempts", 2, "--idle-expiry", "5m") == f"put {pattern}\n"
    assert json.loads(shell.out("--json", "template", "get", pattern)) == {
        "pattern": pattern, "options": {"max_attempts": 2, "idle_expiry": 300.0},
    }  # fmt: skip
    assert "300s" in shell.out("template", "get", pattern)
    assert f"{pattern}" in shell.out("template", "list", "--prefix", queue)
    shell.out("enqueue", f"{queue}-1", "x", "--max-attempts", 7, "--dedup-id", "a", "--dedup-mode", "last")
    assert [view.max_attempts for view in client.browse(f"{queue}-1")] == [7]
    assert "0 of 7" in shell.out("queue", "browse", f"{queue}-1")
    client.delete_queue(f"{queue}-1")
    assert shell.out("template", "delete", pattern) == f"deleted {pattern}\n"
    assert shell.out("template", "delete", pattern) == f"there was no template of {pattern}\n"
    assert "no template" in shell.error("template", "get", pattern)
    assert shell.out("template", "list", "--prefix", queue) == "no templates\n"


# --- consuming --------------------------------------------------------------------------------------------------------


def test_consume_prints_one_object_a_line_and_acks(shell: Shell, client: Client, queue: str):
    ids = [client.enqueue(queue, payload, {"n": "1"}) for payload in ("hä\n".encode(), b"\xff")]
    text, binary = lines(shell.out("consume", queue, "--count", 2))
    assert [text["id"], binary["id"]] == ids
    assert (text["payload"], binary["payload_base64"]) == ("hä\n", base64.b64encode(b"\xff").decode())
    assert (text["queue"], text["headers"], text["attempts"]) == (queue, {"n": "1"}, 0)
    assert text["enqueued_at"].endswith("+00:00")
    assert client.queue_stats(queue).depth == 0


def test_consume_stops_when_nothing_comes(shell: Shell, client: Client, queue: str):
    assert shell.out("consume", queue, "--wait", 0) == ""
    client.enqueue_many(queue, [])
    for number in range(250):
        client.enqueue(queue, b"%d" % number)
    assert len(lines(shell.out("consume", queue, "--wait", "100ms"))) == 250
    assert client.queue_stats(queue).depth == 0


def test_consume_takes_no_more_than_it_is_asked_for(shell: Shell, client: Client, queue: str):
    for _ in range(5):
        client.enqueue(queue, b"")
    assert len(lines(shell.out("consume", queue, "--count", 3))) == 3
    assert client.queue_stats(queue).pending == 2


def test_looking_gives_everything_back_uncounted(shell: Shell, client: Client, queue: str):
    for _ in range(150):
        client.enqueue(queue, b"")
    assert len(lines(shell.out("consume", queue, "--wait", 0, "--no-ack"))) == 150
    (delivery,) = client.receive(queue, wait=PATIENCE_S)
    assert delivery.attempts == 0
    delivery.ack()
    assert client.queue_stats(queue).pending == 149


def test_dead_letters_say_where_they_come_from_and_go_back(shell: Shell, client: Client, queue: str):
    for key in ("a", "b", "b"):
        client.enqueue(queue, b"", fairness_key=key)
    for delivery in client.receive(queue, 3):
        delivery.fail("broken")
    (dead,) = lines(shell.out("consume", f"{queue}.dlq", "--count", 1, "--no-ack"))
    assert (dead["reason"], dead["source_queue"], dead["error"], dead["attempts"]) == ("failed", queue, "broken", 1)
    assert dead["dead_lettered_at"]
    assert shell.json("redrive", f"{queue}.dlq", "--key", "b", "--count", 1) == {"redriven": 1}
    assert shell.out("redrive", f"{queue}.dlq") == "redriven: 2\n"
    assert client.queue_stats(queue).pending == 3


def start(cluster: Cluster, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("--endpoint", cluster.endpoint, *arguments),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_consume_runs_until_it_is_stopped(cluster: Cluster, client: Client, queue: str, number: signal.Signals):
    with start(cluster, "consume", queue) as consumer:
        client.enqueue(queue, b"x")
        assert json.loads(consumer.stdout.readline())["payload"] == "x"
        consumer.send_signal(number)
        assert consumer.wait(PATIENCE_S) == 0
        assert consumer.stderr.read() == ""
    assert client.queue_stats(queue).depth == 0


def test_output_that_is_not_read_is_not_acked(cluster: Cluster, client: Client, queue: str):
    with start(cluster, "consume", queue) as consumer:
        consumer.stdout.close()
        client.enqueue(queue, b"x")
        assert consumer.wait(PATIENCE_S) != 0
        assert "Traceback" not in consumer.stderr.read()
        (delivery,) = client.receive(queue, wait=PATIENCE_S)
        assert (delivery.payload, delivery.attempts) == (b"x", 0)
        delivery.ack()


# --- policy -----------------------------------------------------------------------------------------------------------


def test_a_queue_s_hook_comes_from_a_file_and_is_updated_from_the_command_line(shell: Shell, client: Client, tmp_path: Path):
    name, file = f"hooks/{uuid4().hex[:8]}", tmp_path / "hook.lua"
    file.write_text("function on_enqueue(msg) return { fairness_key = msg.headers.tenant } end")
    shell.out("queue", "create", name, "--on-enqueue", file, "--max-in-flight-per-key", 1)
    shell.out("enqueue", name, "x", "--header", "tenant=acme")
    shell.out("queue", "update", name, "--on-enqueue", 'function on_enqueue(msg) return { fairness_key = "fixed" } end')
    shell.out("enqueue", name, "x", "--header", "tenant=acme")
    shell.out("queue", "update", name, "--reset", "on-enqueue", "--reset", "max-in-flight-per-key")
    shell.out("enqueue", name, "x", "--key", "given")
    assert [view["fairness_key"] for view in shell.json("queue", "browse", name)] == ["acme", "fixed", "given"]
    file.write_text("function on_enqueue(")
    assert "on_enqueue" in shell.error("queue", "create", f"{name}-2", "--on-enqueue", file)
    assert shell.json("queue", "list", "--prefix", f"{name}-2") == []


def test_a_backlog_is_browsed_cancelled_paused_and_purged(shell: Shell, client: Client, queue: str):
    flags = ["--key", "k", "--priority", 3, "--cost", 2.5, "--throttle-key", "t", "--ttl", "2h"]
    first = shell.out("enqueue", queue, "first", "--header", "a=b", *flags).strip()
    second = shell.out("enqueue", queue, "second", "--delay", "1h").strip()
    browsed = {view["id"]: view for view in shell.json("queue", "browse", queue)}
    assert browsed.keys() == {first, second}
    assert (browsed[first]["payload"], browsed[first]["headers"], browsed[first]["state"]) == ("first", {"a": "b"}, "pending")
    assert [browsed[first][name] for name in ("fairness_key", "priority", "cost", "throttle_keys")] == ["k", 3, 2.5, ["t"]]
    assert (browsed[second]["state"], browsed[second]["lease_expires_at"]) == ("delayed", None)
    assert first in shell.out("queue", "browse", queue, "--key", "k", "--state", "pending")
    assert shell.out("queue", "browse", queue, "--state", "leased") == "no messages\n"
    assert [view["id"] for view in shell.json("queue", "browse", queue, "--limit", 1)] in ([first], [second])

    assert shell.out("message", "cancel", queue, second) == f"cancelled {second}\n"
    assert second in shell.error("message", "cancel", queue, second)
    (held,) = client.receive(queue)
    assert "is leased" in shell.error("message", "cancel", queue, first)
    held.retry()

    shell.out("queue", "pause", queue)
    assert shell.json("queue", "inspect", queue)["paused"] is True
    assert shell.out("queue", "inspect", queue).startswith(f"{queue} is paused")
    assert shell.out("consume", queue, "--wait", 0) == ""
    shell.out("queue", "resume", queue)
    shell.out("queue", "pause", queue, "--key", "k")
    assert shell.out("consume", queue, "--wait", 0) == ""
    assert shell.json("queue", "purge", queue, "--key", "other") == {"purged": 0}
    assert shell.out("queue", "purge", queue) == "purged: 1\n"
    assert shell.json("queue", "list", "--active", "--prefix", queue) == []


def test_a_message_with_a_dedup_id_is_stored_once(shell: Shell, client: Client, queue: str):
    first = shell.out("enqueue", queue, "x", "--dedup-id", "d")
    assert shell.out("enqueue", queue, "x", "--dedup-id", "d") == first
    line = '{"payload": "x", "dedup_id": "d", "throttle_keys": ["t"], "cost": 0.5, "ttl": 60}\n'
    shell.out("enqueue", queue, "--file", "-", stdin=line)
    assert client.queue_stats(queue).pending == 1


def test_the_runtime_config(shell: Shell):
    key = f"throttle:cli-{uuid4().hex[:8]}:rate"
    assert "has no value" in shell.error("config", "get", key)
    assert shell.out("config", "set", key, "2.5") == f"{key} = 2.5\n"
    assert shell.out("config", "get", key) == "2.5\n"
    assert shell.json("config", "list", "--prefix", key) == {key: "2.5"}
    assert "-3" in shell.error("config", "set", key, "-3")
    assert shell.json("config", "get", key) == {"key": key, "value": "2.5"}
    assert shell.out("config", "delete", key) == f"deleted {key}\n"
    assert shell.json("config", "delete", key) == {"key": key, "deleted": False}
    assert shell.out("config", "list", "--prefix", key) == "no keys\n"


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_failures_are_one_line(shell: Shell):
    assert "no-such-queue" in shell.error("queue", "inspect", "no-such-queue")
    assert "bad queue name" in shell.error("queue", "create", "no such name")
    assert ".dlq" in shell.error("queue", "create", "orders.dlq")
    assert "no-such-queue" in shell.error("redrive", "no-such-queue.dlq")
    assert shell.error("--json", "queue", "delete", "no-such-queue").startswith("Error: ")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("nonsense",), "No such command"),
        (("queue", "nonsense"), "No such command"),
        (("queue", "create"), "Missing argument"),
        (("queue", "create", "q", "--visibility-timeout", "soon"), "500ms, 30s, 5m, 2h"),
        (("enqueue", "q"), "give a PAYLOAD"),
        (("enqueue", "q", "x", "--file", "y"), "give a PAYLOAD"),
        (("enqueue", "q", "--file", "y", "--key", "k"), "leave out --key"),
        (("enqueue", "q", "x", "--header", "novalue"), "name=value"),
        (("consume", "q", "--count", "0"), "--count"),
        (("up", "--workers", "many"), "--workers"),
    ],
)
def test_misuse_is_exit_code_2(shell: Shell, arguments: tuple[str, ...], reason: str):
    assert reason in shell.misused(*arguments)


@pytest.mark.whole
def test_a_broker_that_is_not_there_is_a_failure_in_time(tmp_path: Path):
    result = subprocess.run(
        command("status"),
        env=environment(FILA_ENDPOINT=f"ipc://{tmp_path}/nobody"),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert "nobody" in line


def test_output_that_cannot_be_written_is_a_failure_and_nothing_is_acked(cluster: Cluster, client: Client, queue: str):
    client.enqueue(queue, b"kept")
    for arguments in (("status",), ("--json", "queue", "list"), ("consume", queue, "--count", 1)):
        with Path("/dev/full").open("wb") as full:
            result = subprocess.run(
                command("--endpoint", cluster.endpoint, *arguments),
                env=environment(PYTHONUNBUFFERED=""),
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
        assert (result.returncode, result.stderr) == (
            1,
            "Error: cannot read the input or write the output: No space left on device\n",
        )
    (delivery,) = client.receive(queue, wait=PATIENCE_S)
    assert (delivery.payload, delivery.attempts) == (b"kept", 0)
    delivery.ack()


def test_help_needs_no_cluster_and_imports_no_command():
    script = "import sys; from fila_cluster.cli.root import root; root(['--help'], standalone_mode=False); print([m for m in ('pydantic', 'rich', 'rocksdict') if m in sys.modules])"
    result = subprocess.run([*command()[:2], script], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
    for name in root.list_commands(None):
        assert f"  {name} " in result.stdout
