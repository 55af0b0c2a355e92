"""Where settings come from, which wins, and the errors of bad ones."""

from pathlib import Path

import pytest

from fila_cluster.run.config import loading
from fila_cluster.run.config.loading import load
from fila_cluster.run.config.settings import Address
from fila_proto_zmq.errors import InvalidConfigError


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, no system file, no settings in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loading, "SYSTEM_FILE", tmp_path / "etc" / "fila.toml")
    for name in list(loading.os.environ):
        if name.upper().startswith("FILA_"):
            monkeypatch.delenv(name)
    return tmp_path


def wrong(text: str = "", flags: loading.Flags | None = None) -> str:
    """The error for a fila.toml of ``text``; None: no file."""
    if text:
        Path("fila.toml").write_text(text)
    with pytest.raises(InvalidConfigError) as caught:
        load(flags)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_defaults_are_the_documented_ones():
    settings = load()
    assert settings.server.listen_addr == Address("127.0.0.1", 5555)
    assert settings.server.data_dir == Path("fila-data")
    assert (settings.server.workers, settings.server.shards) == (None, None)
    assert settings.scheduler.quantum == 1000
    assert settings.scheduler.visibility_timeout_ms == 30_000
    assert settings.scheduler.consumer_timeout_ms == 15_000
    assert settings.storage.durability == "os"
    assert settings.lua.default_timeout_ms == 10
    assert settings.lua.default_memory_limit_bytes == 1_048_576
    assert (settings.lua.circuit_breaker_threshold, settings.lua.circuit_breaker_cooldown_ms) == (3, 10_000)
    limits = settings.limits
    assert limits.max_payload_bytes == 16_777_216
    assert (limits.max_queue_messages, limits.max_queue_bytes, limits.max_key_messages) == (None, None, None)
    assert limits.max_keys_per_queue == 1_000_000
    assert (limits.min_free_disk_bytes, limits.dedup_window_ms) == (1_073_741_824, 300_000)
    telemetry = settings.telemetry
    assert (telemetry.otlp_endpoint, telemetry.service_name, telemetry.metrics_interval_ms) == (None, "fila", 10_000)
    assert not settings.auth.enabled
    assert settings.dashboard.enabled
    assert settings.dashboard.listen_addr == Address("127.0.0.1", 8555)


def test_file_then_environment_then_flags(monkeypatch: pytest.MonkeyPatch):
    Path("fila.toml").write_text(
        "[server]\nworkers = 1\nshards = 10\nlisten_addr = 'localhost:1'\n[scheduler]\nquantum = 7\n"
    )
    assert load().server.workers == 1
    monkeypatch.setenv("FILA_SERVER__WORKERS", "2")
    monkeypatch.setenv("FILA_STORAGE__DURABILITY", "fsync")
    assert load().server.workers == 2
    settings = load({"server": {"workers": 3, "shards": None}})
    assert (settings.server.workers, settings.server.shards) == (3, 10)
    assert settings.server.listen_addr == Address("localhost", 1)
    assert (settings.scheduler.quantum, settings.storage.durability) == (7, "fsync")


def test_a_variable_holds_an_address_as_it_is_written_elsewhere(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FILA_SERVER__LISTEN_ADDR", "tcp://127.0.0.1:7")
    monkeypatch.setenv("FILA_DASHBOARD__LISTEN_ADDR", "localhost:8")
    monkeypatch.setenv("FILA_DASHBOARD__ENABLED", "false")
    settings = load()
    assert settings.server.listen_addr == Address("127.0.0.1", 7)
    assert (settings.dashboard.listen_addr, settings.dashboard.enabled) == (Address("localhost", 8), False)
    monkeypatch.setenv("FILA_SERVER__LISTEN_ADDR", "nowhere")
    assert wrong().startswith("FILA_SERVER__LISTEN_ADDR=nowhere: not an address")


def test_the_working_directory_s_file_hides_the_system_s():
    loading.SYSTEM_FILE.parent.mkdir()
    loading.SYSTEM_FILE.write_text("[server]\nworkers = 5\nshards = 5\n")
    assert load().server.workers == 5
    Path("fila.toml").write_text("[server]\nworkers = 6\n")
    assert (load().server.workers, load().server.shards) == (6, None)


def test_a_file_that_is_named_hides_both():
    Path("fila.toml").write_text("[server]\nworkers = 6\n")
    Path("other.toml").write_text("[server]\nshards = 8\n")
    settings = load(file=Path("other.toml"))
    assert (settings.server.workers, settings.server.shards) == (None, 8)


def test_the_clients_variables_are_not_the_server_s(monkeypatch: pytest.MonkeyPatch):
    for name in ("FILA_ENDPOINT", "FILA_API_KEY", "FILA_SERVER_KEY"):
        monkeypatch.setenv(name, "x")
    assert load().server.workers is None


def test_variables_may_be_lower_case(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("fila_server__workers", "4")
    assert load().server.workers == 4


def test_an_unknown_key_of_the_file_is_named_with_the_nearest_known_one():
    assert wrong("[server]\nwrokers = 1\n") == "fila.toml: there is no 'wrokers' in [server]; did you mean 'workers'?"


def test_an_unknown_section_of_the_file_is_named():
    assert wrong("[sever]\nworkers = 1\n") == "fila.toml: there is no section [sever]; did you mean 'server'?"


@pytest.mark.parametrize(
    "name", ["FILA_SERVER__WROKERS", "FILA_SEVER__WORKERS", "FILA_SERVER__WORKERS__X", "FILA_LUA__TIMEOUT"]
)
def test_an_unknown_variable_is_named(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(name, "1")
    assert wrong().startswith(f"{name}: there is no ")


def test_a_whole_section_as_a_variable_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FILA_SERVER", '{"workers": 1}')
    assert wrong() == "FILA_SERVER: set the section's keys one by one, as FILA_SERVER__KEY"


def test_a_bad_value_is_an_error_with_its_file():
    assert wrong("[server]\nworkers = 0\n") == "fila.toml: [server] workers = 0: should be greater than or equal to 1"


def test_a_limit_out_of_bounds_is_an_error_in_full():
    assert wrong("[lua]\ndefault_timeout_ms = 5000\n") == (
        "fila.toml: [lua] default_timeout_ms = 5000: should be less than or equal to 1000"
    )
    assert wrong("[limits]\nmax_queue_messages = 'many'\n").startswith(
        "fila.toml: [limits] max_queue_messages = 'many': should be a valid integer"
    )
    assert "did you mean 'max_queue_messages'?" in wrong("[limits]\nmax_queue_message = 5\n")


def test_a_bad_value_is_an_error_with_its_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FILA_SERVER__WORKERS", "many")
    assert wrong("[server]\nworkers = 1\n").startswith("FILA_SERVER__WORKERS=many: should be a valid integer")


@pytest.mark.parametrize(
    ("flags", "start"),
    [
        ({"server": {"workers": 0}}, "--workers 0: should be greater"),
        ({"server": {"shards": 5000}}, "--shards 5000: should be less than or equal to 4096"),
        ({"server": {"listen_addr": "5555"}}, "--listen 5555: not an address: write HOST:PORT"),
        ({"dashboard": {"listen_addr": "x"}}, "--dashboard x: not an address"),
    ],
)
def test_a_bad_value_is_an_error_with_its_flag(flags: loading.Flags, start: str):
    assert wrong("[server]\nworkers = 1\n", flags).startswith(start)


@pytest.mark.parametrize(
    "text",
    [
        "[storage]\ndurability = 'disk'\n",
        "[scheduler]\nquantum = 0\n",
        "[scheduler]\nvisibility_timeout_ms = 0\n",
        "[scheduler]\nconsumer_timeout_ms = 1\n",
        "[limits]\nmax_payload_bytes = -1\n",
        "[limits]\nmax_queue_messages = 0\n",
        "[limits]\nmax_queue_bytes = 'much'\n",
        "[limits]\nmax_key_messages = 9223372036854775808\n",
        "[limits]\nmin_free_disk_bytes = -1\n",
        "[limits]\ndedup_window_ms = 0\n",
        "[lua]\ndefault_timeout_ms = 0\n",
        "[lua]\ndefault_timeout_ms = 1001\n",
        "[lua]\ndefault_memory_limit_bytes = 1024\n",
        "[lua]\ncircuit_breaker_threshold = 0\n",
        "[lua]\ncircuit_breaker_cooldown_ms = -5\n",
        "[server]\nlisten_addr = 5555\n",
        "[server]\ndata_dir = ''\n",
        "[[server]]\nworkers = 1\n",
        "[server]\nlisten_addr = 'tcp://127.0.0.1:99999'\n",
        "server = 3\n",
        "[server\n",
        "workers = 1\n",
    ],
)
def test_what_cannot_be_is_refused_with_the_file_s_name(text: str):
    assert wrong(text).startswith("fila.toml")


def test_a_section_that_is_none_is_refused_even_if_flags_say_the_same():
    assert wrong("server = 3\n", {"server": {"workers": 1}}) == (
        "fila.toml: server = 3: this is the name of a section; write [server] and keys below it"
    )


@pytest.mark.parametrize("name", ["missing.toml", "."])
def test_a_file_that_cannot_be_read_is_named(name: str):
    with pytest.raises(InvalidConfigError, match="cannot read"):
        load(file=Path(name))


def test_a_file_that_is_no_text_is_named():
    Path("fila.toml").write_bytes(b"\xff\xfe")
    assert wrong().startswith("fila.toml is not valid TOML")


@pytest.mark.parametrize("endpoint", ["http://collector:4318", "https://c.example/v1/metrics", "http://127.0.0.1:4318/"])
def test_a_collector_is_named_by_its_url(endpoint: str):
    assert load({"telemetry": {"otlp_endpoint": endpoint}}).telemetry.otlp_endpoint == endpoint


@pytest.mark.parametrize("endpoint", ["collector:4318", "tcp://collector:4317", "http://", "http://a b"])
def test_what_names_no_collector_is_refused(endpoint: str):
    text = wrong(f"[telemetry]\notlp_endpoint = '{endpoint}'\n")
    assert text == (
        f"fila.toml: [telemetry] otlp_endpoint = '{endpoint}': not the address of a collector: "
        "write http://HOST:PORT, usually with port 4318"
    )


def test_metrics_are_not_sent_more_often_than_makes_sense():
    assert "metrics_interval_ms = 99" in wrong("[telemetry]\nmetrics_interval_ms = 99\n")


# --- hosts ------------------------------------------------------------------------------------------------------------


def test_a_host_of_several_has_its_brokers_its_name_and_the_others(monkeypatch: pytest.MonkeyPatch):
    Path("fila.toml").write_text(
        "[hosts]\njoin = ['tcp://b:5556', 'c:5556', 'b:5556']\naddress = '::1'\n"
        "[replication]\nlog = 'kafka://k1:9092, k2:9092'\ncheckpoint = 's3://bucket'\ntakeover_after_ms = '10s'\n"
        "[replication.properties]\n'security.protocol' = 'SASL_SSL'\n'enable.ssl.certificate.verification' = true\n"
    )
    settings = load({"hosts": {"name": "a", "worker_listen_addr": "*:1"}})
    hosts, replication = settings.hosts, settings.replication
    assert (replication.log, replication.brokers) == ("kafka://k1:9092,k2:9092", "k1:9092,k2:9092")
    assert (replication.checkpoint, replication.takeover_after_ms, replication.standbys) == ("s3://bucket", 10_000, 1)
    assert hosts.join == ("tcp://b:5556", "tcp://c:5556")
    assert (hosts.name, hosts.address, hosts.worker_listen_addr) == ("a", "[::1]", Address("0.0.0.0", 1))
    assert replication.properties == {"security.protocol": "SASL_SSL", "enable.ssl.certificate.verification": "true"}
    assert (replication.cluster, replication.topic, replication.replicas, replication.in_sync) == (
        "main",
        "fila.main",
        3,
        None,
    )
    monkeypatch.setenv("FILA_HOSTS__JOIN", "d:1,tcp://e:2")
    monkeypatch.setenv("FILA_REPLICATION__PROPERTIES", "# of Kafka\nsasl.username=fila\n\nsasl.password=a=b\n")
    settings = load()
    assert settings.hosts.join == ("tcp://d:1", "tcp://e:2")
    assert settings.replication.properties == {"sasl.username": "fila", "sasl.password": "a=b"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("name = 'a/b'", "not the name of a host"),
        ("name = ''", "not the name of a host"),
        ("address = 'a:5555'", "not an address that other hosts can reach"),
        ("address = '0.0.0.0'", "not an address that other hosts can reach"),
        ("address = '*'", "not an address that other hosts can reach"),
        ("join = ['b']", "'b' is not where another host listens for workers"),
        ("join = ['0.0.0.0:5556']", "'0.0.0.0:5556' is not where another host listens for workers"),
        ("join = ['b:0']", "'b:0' is not where another host listens for workers"),
        ("worker_listen_addr = 'b'", "not an address"),
    ],
)
def test_a_host_that_could_not_join_is_refused(line: str, expected: str):
    error = wrong(f"[hosts]\n{line}")
    assert error.startswith(f"fila.toml: [hosts] {line.partition(' ')[0]} = ")
    assert expected in error


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("log = 'k1:9092'", "write kafka://HOST:PORT,HOST:PORT"),
        ("log = 'kafka://k1'", "not a log"),
        ("log = ''", "not a log"),
        ("log = 'http://k1:9092'", "not a log"),
        ("log = 'kafka://k1:9092,kafka://k2:9092'", "not a log"),
        ("log = 'kafka://k1:0'", "not a log"),
        ("cluster = 'my cluster'", "not the name of a cluster"),
        ("cluster = ''", "not the name of a cluster"),
        ("standbys = -1", "greater than or equal to 0"),
        ("takeover_after_ms = 4999", "greater than or equal to 5000"),
        ("in_sync = 4", "more than there are: replicas is 3"),
        ("replicas = 0", "greater than or equal to 1"),
    ],
)
def test_a_log_that_could_not_be_used_is_refused(line: str, expected: str):
    error = wrong(f"[replication]\n{line}")
    assert error.startswith(f"fila.toml: [replication] {line.partition(' ')[0]} = ")
    assert expected in error


@pytest.mark.parametrize(
    "text",
    [
        "[replication.properties]\n'acks' = 'hidden'\n'sasl.password' = 'hidden'",
        "[replication.properties]\n'sasl.password' = ['hidden']",
        "[replication]\nproperties = 'hidden'",
        "[replication]\nproperties = ['hidden']",
    ],
)
def test_the_values_of_properties_are_in_no_error(text: str, monkeypatch: pytest.MonkeyPatch):
    error = wrong(text)
    assert error.startswith("fila.toml: [replication] properties: ")
    assert "hidden" not in error
    Path("fila.toml").unlink()
    monkeypatch.setenv("FILA_REPLICATION__PROPERTIES", "sasl.password hidden")
    assert wrong() == "FILA_REPLICATION__PROPERTIES: not properties: write a line NAME=VALUE for each"


def test_the_values_of_properties_are_in_no_text_of_the_settings():
    Path("fila.toml").write_text("[replication.properties]\n'sasl.password' = 'hidden'")
    settings = load()
    assert settings.replication.properties == {"sasl.password": "hidden"}
    assert "hidden" not in repr(settings)
    assert "hidden" not in str(settings)
