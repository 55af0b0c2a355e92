"""The tour shows what the broker promises, and leaves nothing behind."""

import json

import pytest
from click.testing import CliRunner

from fila_cluster.cli.root import root
from fila_cluster.embedded import Broker
from fila_cluster.run.demo import LIMITED_S, DemoFailure, Tour, tour
from fila_cluster.testing import broker


def check(seen: Tour) -> None:
    assert [(each.tenant, each.by_arrival, each.here) for each in seen.tenants] == [
        ("busy", 1000, 1020), ("ana", 1010, 29), ("rui", 1020, 30),
    ]  # fmt: skip
    assert 0 < seen.limit.delivered <= seen.limit.allowed
    assert seen.limit.seconds >= LIMITED_S
    assert "20/s" in seen.limit.why
    assert seen.failure == DemoFailure(2, "max_attempts", "the provider refused it", 0)


def test_the_tour_in_memory() -> None:
    with broker() as fila:
        check(tour(fila))
        assert (fila.list_queues(), fila.list_config()) == ([], {})


def test_a_failure_on_the_way_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    with broker() as fila:
        monkeypatch.setattr(fila, "why", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tour(fila)
        assert (fila.list_queues(), fila.list_config()) == ([], {})


def test_the_command_needs_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FILA_ENDPOINT", raising=False)
    done = CliRunner().invoke(root, ["--json", "demo"])
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout)["failure"]["reason"] == "max_attempts"


def test_the_command_uses_the_broker_that_is_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Broker(tmp_path_factory.mktemp("data"), min_free_disk_bytes=0) as named, named.client() as client:
        done = CliRunner().invoke(root, ["--endpoint", named.endpoint, "demo"])
        assert (done.exit_code, done.stderr) == (0, "")
        assert done.stdout.startswith("Fair: ")
        assert "after 2 attempts a message is a dead letter" in done.stdout
        assert client.list_queues() == []
        assert client.list_config() == {}
