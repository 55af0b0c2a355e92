"""What operators see of a running cluster: who did what and who is connected. With authentication and without."""

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fila_cluster import AuditEntry, Client, ConnectionInfo
from fila_cluster.client.calls import cluster as calls
from fila_cluster.errors import (
    FilaError,
    InvalidArgumentError,
    InvalidConfigError,
    LeaseExpiredError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from tests.integration.cluster.test_auth import WITH_AUTH, Guarded, initialized
from tests.support.cluster.cluster import PATIENCE_S, Cluster, command, environment, eventually, running

pytestmark = pytest.mark.whole

CANARY = "canary-4711"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    data_dir = tmp_path_factory.mktemp("guarded") / "data"
    keys = initialized(data_dir)
    with running(data_dir, workers=2, logged="info", env=WITH_AUTH) as cluster:
        yield Guarded(cluster, keys["api_key"], keys["server_key"])


@pytest.fixture(scope="module")
def unguarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("open") / "data", workers=2, logged="info") as cluster:
        yield cluster


def change_everything(client: Client, queue: str) -> None:
    """Do one of each administrative act that concerns a queue or the config."""
    client.create_queue(queue, on_enqueue=f"function on_enqueue(m) return {{}} end -- {CANARY}")
    client.enqueue(queue, CANARY.encode(), {CANARY: CANARY})
    client.update_queue(queue, max_attempts=2)
    client.pause(queue)
    client.resume(queue)
    sent = client.enqueue(queue, b"")
    client.cancel(queue, sent)
    client.purge_queue(queue)
    client.redrive(f"{queue}.dlq")
    client.set_config(f"{queue}:token", CANARY)
    client.delete_config(f"{queue}:token")
    client.delete_queue(queue)


ALL = [
    "queue.create", "queue.update", "queue.pause", "queue.resume", "message.cancel", "queue.purge", "queue.redrive",
    "config.set", "config.delete", "queue.delete",
]  # fmt: skip


def acts_of(client: Client, queue: str) -> list[AuditEntry]:
    """The acts that concern a queue. Those of a worker's own door come with its next pulse."""
    eventually(lambda: any((act.verb, act.target) == ("queue.delete", queue) for act in client.audit(1000)), "the last act")
    return [act for act in client.audit(1000) if act.target.startswith(queue)]


def logged(cluster: Cluster, queue: str) -> list[str]:
    return sorted(event["verb"] for event in cluster.events("admin.acted") if event["target"].startswith(queue))


@pytest.mark.parametrize("direct", [True, False], ids=["the worker's door", "the router's door"])
def test_each_act_is_one_line_and_one_entry(guarded: Guarded, direct: bool) -> None:
    queue = f"acts-{direct}"
    with guarded.client(guarded.key(f"ops-{direct}", "admin:*", "produce:*", "consume:*"), direct=direct) as client:
        change_everything(client, queue)
        acts = acts_of(client, queue)
    assert sorted(act.verb for act in acts) == sorted(ALL)
    assert {(act.by, act.result, act.times) for act in acts} == {(f"ops-{direct}", "ok", 1)}
    assert direct or {act.address for act in acts} == {"127.0.0.1"}
    eventually(lambda: logged(guarded.cluster, queue) == sorted(ALL), "a line for each")
    assert not any(CANARY in line for line in guarded.cluster.log)
    assert CANARY not in str(acts)


@pytest.mark.parametrize("direct", [True, False], ids=["the worker's door", "the router's door"])
def test_so_it_is_without_authentication(unguarded: Cluster, direct: bool) -> None:
    queue = f"acts-{direct}"
    with Client(unguarded.endpoint, timeout=PATIENCE_S, direct=direct) as client:
        change_everything(client, queue)
        acts = acts_of(client, queue)
        (name,) = {act.client for act in acts}
    assert sorted(act.verb for act in acts) == sorted(ALL)
    assert {(act.by, act.result) for act in acts} == {("", "ok")}
    assert len(name) == 8
    eventually(lambda: logged(unguarded, queue) == sorted(ALL), "a line for each")
    assert not any(CANARY in line for line in unguarded.log)


@pytest.mark.parametrize("direct", [True, False], ids=["the worker's door", "the router's door"])
def test_refusals_are_noted_and_a_thousand_of_them_are_a_line(guarded: Guarded, direct: bool) -> None:
    who = f"nosy-{direct}"
    with guarded.client(guarded.key(who, "consume:orders"), direct=direct) as nosy, guarded.client() as admin:
        for number in range(300):
            with pytest.raises(PermissionDeniedError):
                nosy.delete_queue(f"q{number}")
        with pytest.raises(PermissionDeniedError):
            nosy.audit()
        eventually(lambda: sum(act.times for act in admin.audit() if act.by == who) == 300, "all are counted")
        acts = [act for act in admin.audit() if act.by == who]
    assert {(act.verb, act.result) for act in acts} == {("queue.delete", "PERMISSION_DENIED")}
    shards = 2
    assert len([event for event in guarded.cluster.events("admin.acted") if event["by"] == who]) <= 2 * shards


def test_keys_are_acts_and_their_secrets_are_not(guarded: Guarded) -> None:
    with guarded.client() as admin:
        made = admin.request(calls.create_key("temporary", ["consume:orders"], None))
        admin.request(calls.grant_key("temporary", ["produce:orders"]))
        admin.request(calls.revoke_key("temporary"))
        with pytest.raises(FilaError):
            admin.request(calls.revoke_key("temporary"))
        acts = [(act.by, act.verb, act.details, act.result) for act in admin.audit() if act.target == "temporary"]
    assert acts == [
        ("admin", "key.revoke", "", "INVALID_ARGUMENT"),
        ("admin", "key.revoke", "", "ok"),
        ("admin", "key.grant", "produce:orders", "ok"),
        ("admin", "key.create", "consume:orders", "ok"),
    ]
    assert not any(made.secret in line for line in guarded.cluster.log)


def test_the_command_line_shows_acts(guarded: Guarded) -> None:
    assert guarded.run("config", "set", "shown", CANARY).returncode == 0
    act = json.loads(guarded.run("--json", "audit", "--limit", "1").stdout)[0]
    assert (act["by"], act["verb"], act["target"], act["result"]) == ("admin", "config.set", "shown", "ok")
    shown = guarded.run("audit").stdout
    assert "config.set" in shown
    assert CANARY not in shown


# --- connections --------------------------------------------------------------------------------------------------------


def connection_of(admin: Client, key: str) -> ConnectionInfo | None:
    """The connection with an API key of this name."""
    return next((each for each in admin.connections() if each.key == key), None)


@pytest.mark.parametrize("direct", [True, False], ids=["the worker's door", "the router's door"])
def test_a_consumer_is_listed_closed_and_comes_anew_unless_its_key_is_revoked(guarded: Guarded, direct: bool) -> None:
    queue, who = f"watched-{direct}", f"watcher-{direct}"
    secret = guarded.key(who, f"consume:{queue}")
    with guarded.client() as admin:
        admin.create_queue(queue)
        admin.enqueue(queue, b"1")
        with guarded.client(secret, direct=direct) as consumer, consumer.consume(queue, prefetch=5) as deliveries:
            held = next(iter(deliveries))

            def shown() -> bool:
                seen = connection_of(admin, who)
                return seen is not None and (seen.consumes, seen.subscriptions, seen.unsettled) == ([queue], 1, 1)

            eventually(shown, "all of it is listed")
            seen = connection_of(admin, who)
            assert seen is not None
            assert (seen.address, seen.version) == ("127.0.0.1", f"python/{admin.cluster_status().version}")
            assert seen.since <= seen.heard_at <= datetime.now(UTC) + timedelta(seconds=2)
            admin.close_connection(seen.client)
            with pytest.raises(LeaseExpiredError):
                held.ack()
            again = next(iter(deliveries))  # it has come anew, and what it held came back, without a failed attempt
            assert (again.id, again.attempts) == (held.id, 0)
            again.ack()
            guarded.revoke(who)
            eventually(lambda: connection_of(admin, who) is None, "the end of its connection")
            with pytest.raises(UnauthenticatedError):
                next(iter(deliveries))


def test_without_authentication_and_who_has_left_is_not_listed(unguarded: Cluster) -> None:
    with unguarded.client() as admin:
        other = unguarded.client()
        other.list_queues()
        assert len(admin.connections()) == 2
        assert len(admin.connections(limit=1)) == 1
        other.close()
        eventually(lambda: len(admin.connections()) == 1, "who has left is not listed")
        (own,) = admin.connections()
        assert (own.key, own.consumes) == ("", [])
        with pytest.raises(InvalidArgumentError, match="end its program"):
            admin.close_connection(own.client)


def test_a_receive_that_waits_goes_on_after_its_connection_was_closed(unguarded: Cluster) -> None:
    with unguarded.client() as admin, unguarded.client() as consumer, ThreadPoolExecutor(1) as pool:
        admin.create_queue("waited")
        waiting = pool.submit(consumer.receive, "waited", 1, wait=PATIENCE_S)
        eventually(lambda: any(each.consumes == ["waited"] for each in admin.connections()), "it waits")
        (name,) = [each.client for each in admin.connections() if each.consumes]
        admin.close_connection(name)
        admin.enqueue("waited", b"x")
        (delivery,) = waiting.result(PATIENCE_S)
        delivery.ack()


def test_the_command_line_lists_and_closes(guarded: Guarded) -> None:
    with guarded.client(guarded.key("talker", "consume:orders")) as talker:
        talker.list_queues()
        rows = json.loads(guarded.run("--json", "connections", "list").stdout)
        (name,) = [row["client"] for row in rows if row["key"] == "talker"]
        assert "talker" in guarded.run("connections", "list").stdout
        closed = guarded.run("connections", "close", name)
        assert (closed.returncode, "may connect anew" in closed.stdout) == (0, True)
        assert talker.list_queues() == []
    assert guarded.run("connections", "close", "00000000").returncode == 1
    with guarded.client() as admin:
        assert ("connection.close", name) in {(act.verb, act.target) for act in admin.audit()}


# --- the config's history -----------------------------------------------------------------------------------------------


def test_a_change_is_shown_and_taken_back_and_outlives_kills(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    keys = initialized(data_dir)
    with running(data_dir, workers=2, env=WITH_AUTH) as cluster:
        guarded = Guarded(cluster, keys["api_key"], keys["server_key"])
        with guarded.client(guarded.key("ops", "admin:*")) as ops:
            ops.set_config("color", "red")
            ops.set_config("color", "blue")
            ops.set_config("throttle.api", "5,10")
            with pytest.raises(InvalidConfigError, match="changed again"):
                ops.undo_config(1)
            ops.undo_config(2)
            assert ops.get_config("color") == "red"
        cluster.kill_all()
    with running(data_dir, workers=1, env=WITH_AUTH) as cluster:
        guarded = Guarded(cluster, keys["api_key"], keys["server_key"])
        with guarded.client() as admin:
            edits = admin.config_history()
            assert [(edit.version, edit.by, edit.key, edit.old, edit.new) for edit in edits] == [
                (4, "ops", "color", "blue", "red"),
                (3, "ops", "throttle.api", None, "5,10"),
                (2, "ops", "color", "red", "blue"),
                (1, "ops", "color", None, "red"),
            ]
            assert edits[-1].at <= edits[0].at <= datetime.now(UTC)
            assert [edit.version for edit in admin.config_history("color", limit=2, before=4)] == [2, 1]
            admin.undo_config(1, force=True)
            assert admin.get_config("color") is None
        shown = json.loads(guarded.run("--json", "config", "history", "color", "--limit", "1").stdout)
        assert [(row["version"], row["by"], row["old"], row["new"]) for row in shown] == [(5, "admin", "red", None)]
        assert guarded.run("config", "undo", "5").returncode == 0
        assert guarded.run("config", "get", "color").stdout == "red\n"
        refused = guarded.run("config", "undo", "2")
        assert (refused.returncode, "changed again after version 2" in refused.stderr) == (1, True)
        assert "red" in guarded.run("config", "history").stdout
        assert cluster.stop() == 0
    checked = subprocess.run(
        command("check", "--data-dir", data_dir), capture_output=True, text=True, env=environment(), check=False
    )
    assert (checked.returncode, checked.stdout) == (0, checked.stdout), checked.stdout


def test_the_history_without_authentication_has_no_names(unguarded: Cluster) -> None:
    with unguarded.client() as client:
        client.set_config("plain", "1")
        assert [(edit.by, edit.new) for edit in client.config_history("plain")] == [("", "1")]
        client.undo_config(client.config_history("plain")[0].version)
        assert client.get_config("plain") is None
