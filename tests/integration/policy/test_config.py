"""The runtime config and the static limits, through a real cluster."""

from pathlib import Path

import pytest

from fila_cluster import Client, Message
from fila_cluster.errors import BatchError, InvalidConfigError, OverloadedError, RateLimitedError
from tests.support.cluster.cluster import running


@pytest.fixture
def key(client: Client, queue: str):
    """A config key of this test's own."""
    yield f"app:{queue}"
    client.delete_config(f"app:{queue}")


# --- keys and values --------------------------------------------------------------------------------------------------


def test_a_key_is_set_read_listed_and_deleted(client: Client, key: str):
    assert client.get_config(key) is None
    client.set_config(key, "wärm\n")
    assert client.get_config(key) == "wärm\n"
    assert client.list_config(key) == {key: "wärm\n"}
    client.set_config(key, "")
    assert client.get_config(key) == ""
    assert client.delete_config(key) is True
    assert client.delete_config(key) is False
    assert client.list_config(key) == {}


def test_once_set_every_hook_sees_it(client: Client, queue: str, key: str):
    queues = [f"{queue}-{number}" for number in range(4)]
    for name in queues:
        client.create_queue(name, on_enqueue=f'function on_enqueue(msg) return {{ fairness_key = fila.get("{key}") }} end')
    assert {client.queue_stats(name).shard for name in queues} == {0, 1}
    for value in ("one", "two"):
        client.set_config(key, value)
        for name in queues:
            client.enqueue(name, value.encode())
    for name in queues:
        got = client.receive(name, 2)
        assert {delivery.payload: delivery.fairness_key for delivery in got} == {b"one": "one", b"two": "two"}
        client.ack(got)


def test_both_spellings_of_a_throttle_are_one(client: Client, queue: str):
    try:
        client.set_config(f"throttle.{queue}", "5,10")
        assert client.get_config(f"throttle:{queue}:rate") == "5"
        assert client.get_config(f"throttle:{queue}:burst") == "10"
        client.set_config(f"throttle:{queue}:rate", "7")
        assert client.get_config(f"throttle.{queue}") == "7,10"
    finally:
        client.delete_config(f"throttle.{queue}")
    assert client.get_config(f"throttle:{queue}:rate") is None


@pytest.mark.parametrize("value", ["", "x", "-1", "nan", "inf", "1e999", "1,2,3"])
def test_a_bad_rate_is_refused_and_the_old_one_stays(client: Client, queue: str, value: str):
    client.set_config(f"throttle:{queue}:rate", "5")
    try:
        with pytest.raises(InvalidConfigError):
            client.set_config(f"throttle:{queue}:rate", value)
        with pytest.raises(InvalidConfigError):
            client.set_config(f"throttle.{queue}", f"{value},5" if value else "")
        assert client.get_config(f"throttle:{queue}:rate") == "5"
    finally:
        client.delete_config(f"throttle:{queue}:rate")


def test_it_survives_the_death_of_everything(tmp_path: Path):
    with running(tmp_path / "data", "--shards", 2, workers=2) as cluster, cluster.client() as client:
        client.set_config("k", "v")
        client.set_config("gone", "x")
        client.delete_config("gone")
        cluster.kill_all()
    with running(tmp_path / "data", workers=2) as cluster, cluster.client() as client:
        assert client.list_config() == {"k": "v"}


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_namespace_s_quota_says_when_it_is_over(client: Client, queue: str):
    namespace = queue.replace("/", "-")[:60]
    name = f"{namespace}/q"
    client.create_queue(name)
    setting = f"namespace:{namespace}:max_enqueues_per_minute"
    client.set_config(setting, "5")
    try:
        for _ in range(5):
            client.enqueue(name, b"x")
        with pytest.raises(RateLimitedError) as caught:
            client.enqueue(name, b"x")
        assert caught.value.retryable
        assert caught.value.retry_after is not None
        assert 0 < caught.value.retry_after <= 60
        got = client.receive(name, 10)
        assert len(got) == 5
        client.ack(got)
    finally:
        client.delete_config(setting)


def test_queues_and_keys_have_limits_and_acks_always_work(tmp_path: Path):
    config = tmp_path / "fila.toml"
    config.write_text("[limits]\nmax_queue_messages = 6\nmax_key_messages = 4\n")
    with running(tmp_path / "data", "--config", config) as cluster, cluster.client() as client:
        client.create_queue("q")
        with pytest.raises(BatchError) as caught:
            client.enqueue_many("q", [Message(b"x", fairness_key="a")] * 5)
        assert [isinstance(result, OverloadedError) for result in caught.value.results] == [False] * 4 + [True]
        client.enqueue_many("q", [Message(b"x", fairness_key="b")] * 2)
        with pytest.raises(OverloadedError, match="q"):
            client.enqueue("q", b"x", fairness_key="c")
        held = client.receive("q", 3)
        with pytest.raises(OverloadedError):
            client.enqueue("q", b"x", fairness_key="c")
        client.ack(held)
        client.enqueue("q", b"x", fairness_key="c")


def test_a_queue_s_bytes_have_a_limit(tmp_path: Path):
    config = tmp_path / "fila.toml"
    config.write_text("[limits]\nmax_queue_bytes = 10000\n")
    with running(tmp_path / "data", "--config", config) as cluster, cluster.client() as client:
        client.create_queue("q")
        client.enqueue("q", bytes(6000))
        with pytest.raises(OverloadedError):
            client.enqueue("q", bytes(6000))
        client.enqueue("q", bytes(1000))


def test_a_hook_s_default_limits_are_configured(tmp_path: Path):
    config = tmp_path / "fila.toml"
    config.write_text("[lua]\ndefault_timeout_ms = 5\ncircuit_breaker_threshold = 1\ncircuit_breaker_cooldown_ms = 3600000\n")
    script = 'function on_enqueue(msg) if msg.headers.loop then while true do end end return { fairness_key = "hook" } end'
    with running(tmp_path / "data", "--config", config) as cluster, cluster.client() as client:
        client.create_queue("q", on_enqueue=script)
        for headers in ({}, {"loop": "yes"}, {}):
            client.enqueue("q", b"x", headers)
        assert {key.fairness_key: key.pending for key in client.queue_stats("q").keys} == {"hook": 1, "default": 2}
