"""How many workers and shards, and who gets which."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from fila_cluster.ops.observer.settings import ObserverSettings
from fila_cluster.run.config.settings import Address, Dashboard, LimitSettings, Lua, Settings, Telemetry
from fila_cluster.run.supervisor import CannotStartError, layout
from fila_cluster.run.supervisor.layout import (
    Layout,
    lay_out,
    log_settings,
    observer_settings,
    one_line,
    router_settings,
    worker_settings,
)
from fila_proto_zmq.events import LogSettings
from fila_worker.core.settings import ShardSettings
from fila_worker.settings import WorkerSettings


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "cores", lambda: 8)


@pytest.mark.parametrize(
    ("workers", "shards", "fixed", "expected"),
    [
        (None, None, None, (8, 8)),
        (3, None, None, (3, 3)),
        (None, 4, None, (4, 4)),
        (None, 32, None, (8, 32)),
        (2, 6, None, (2, 6)),
        (None, None, 4, (4, 4)),
        (None, None, 32, (8, 32)),
        (1, None, 4, (1, 4)),
        (4, 4, 4, (4, 4)),
    ],
)
def test_what_is_not_said_is_chosen(workers, shards, fixed, expected):
    assert lay_out(workers, shards, fixed) == Layout(*expected)


@pytest.mark.parametrize(("workers", "shards", "fixed"), [(5, 4, None), (5, None, 4)])
def test_a_worker_without_a_shard_makes_no_sense(workers, shards, fixed):
    with pytest.raises(CannotStartError, match="use --workers 4 or fewer"):
        lay_out(workers, shards, fixed)


def test_the_number_of_shards_is_fixed():
    with pytest.raises(CannotStartError, match=r"has 4 shards, not 8: .*reshard"):
        lay_out(None, 8, 4)


@pytest.mark.parametrize(("workers", "shards"), [(1, 1), (1, 5), (2, 5), (3, 5), (5, 5)])
def test_every_shard_has_one_worker_and_no_worker_has_two_more_than_another(workers: int, shards: int):
    hands = [Layout(workers, shards).shards_of(worker) for worker in range(workers)]
    assert sorted(shard for hand in hands for shard in hand) == list(range(shards))
    assert max(map(len, hands)) - min(map(len, hands)) <= 1


def test_this_machine_has_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    assert layout.cores() >= 1


# --- what a worker is told --------------------------------------------------------------------------------------------


def told(settings: Settings) -> ShardSettings:
    """What a shard knows after its worker has read its settings."""
    line = one_line(worker_settings(settings, "worker-0", "ipc://router", Path("data"), [0], 1, None))
    return msgspec.json.decode(line, type=WorkerSettings).shard


def test_limits_and_hooks_reach_the_shards():
    limits = LimitSettings(
        max_payload_bytes=1,
        max_queue_messages=2,
        max_queue_bytes=3,
        max_key_messages=4,
        max_keys_per_queue=10,
        min_free_disk_bytes=5,
        dedup_window_ms=6,
    )
    lua = Lua(
        default_timeout_ms=7,
        default_memory_limit_bytes=65_536,
        circuit_breaker_threshold=8,
        circuit_breaker_cooldown_ms=9,
    )
    shard = told(Settings(limits=limits, lua=lua))
    assert (shard.max_payload_bytes, shard.max_queue_messages, shard.max_queue_bytes) == (1, 2, 3)
    assert shard.max_keys_per_queue == 10
    assert (shard.max_key_messages, shard.min_free_disk_bytes, shard.dedup_window_ms) == (4, 5, 6)
    assert (shard.lua_timeout_ms, shard.lua_memory_limit_bytes) == (7, 65_536)
    assert (shard.lua_breaker_threshold, shard.lua_breaker_cooldown_ms) == (8, 9)


def test_a_worker_s_defaults_are_those_of_the_shard_and_of_the_configuration():
    """But for the disk space to be left free: that is the configuration's alone, for a core has no disk."""
    shard = told(Settings())
    assert shard == replace(ShardSettings(), min_free_disk_bytes=1024**3)


# --- what an observer is told -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dashboard", [Address("127.0.0.1", 8555), None])
def test_an_observer_knows_whom_to_ask_and_where_to_tell(dashboard: Address | None):
    telemetry = Telemetry(otlp_endpoint="http://collector:4318", service_name="shop", metrics_interval_ms=500)
    line = one_line(
        observer_settings(
            Settings(telemetry=telemetry, dashboard=Dashboard(allowed_hosts=("fila.example.com",))),
            "tcp://127.0.0.1:5555",
            dashboard,
            None,
        )
    )
    assert msgspec.json.decode(line, type=ObserverSettings) == ObserverSettings(
        endpoint="tcp://127.0.0.1:5555",
        host="127.0.0.1" if dashboard else None,
        port=8555 if dashboard else 0,
        otlp_endpoint="http://collector:4318",
        service_name="shop",
        metrics_interval_ms=500,
        allowed_hosts=("fila.example.com",),
    )


# --- what everybody is told -------------------------------------------------------------------------------------------


def test_all_processes_write_the_same_kind_of_log():
    settings = Settings(telemetry=Telemetry(log_format="console", log_level="debug"))
    everybody = [
        router_settings(settings, "tcp://127.0.0.1:5555", "ipc://router", 1, None),
        worker_settings(settings, "worker-0", "ipc://router", Path("data"), [0], 1, None),
        observer_settings(settings, "tcp://127.0.0.1:5555", None, None),
    ]
    assert [told.log for told in everybody] == [LogSettings("console", "debug")] * 3
    assert log_settings(Settings()) == LogSettings()
