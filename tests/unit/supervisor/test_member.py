"""One host of several: what it is called, where it is, and settings with which it does not start."""

import re
import sys
from pathlib import Path

import pytest

from fila_cluster.run.config.settings import Address, Backup, Hosts, ReplicationSettings, Server, Settings, Storage
from fila_cluster.run.supervisor import CannotStartError
from fila_cluster.run.supervisor import member as module
from fila_cluster.run.supervisor.auth import fingerprint_of, init_auth, open_auth, prepare_server_key, switch_server_key
from fila_cluster.run.supervisor.data_dir import DataDir
from fila_cluster.run.supervisor.member import (
    check_membership,
    member,
    refuse_membership,
    refuse_other_keys,
    shards_of_cluster,
)
from fila_proto_zmq.errors import InvalidConfigError
from fila_worker.log.kafka.settings import KafkaSettings


def settings(listen: str = "127.0.0.1:5555", shards: int | None = None, **options: object) -> Settings:
    server = Server(listen_addr=Address.parse(listen), shards=shards)
    hosts = {name: value for name, value in options.items() if name in Hosts.model_fields}
    replication = {name: value for name, value in options.items() if name not in Hosts.model_fields}
    return Settings(
        server=server,
        hosts=Hosts.model_validate(hosts),
        replication=ReplicationSettings.model_validate({"log": "kafka://k:9092"} | replication),
    )


@pytest.fixture
def fresh(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path / "new", of_host=True)


@pytest.fixture
def berlin(tmp_path: Path) -> DataDir:
    """The data directory of a host that was started before."""
    directory = DataDir(tmp_path / "berlin", of_host=True)
    directory.claim(4, member(settings(name="berlin"), directory, 4).replication)
    return directory


def test_a_name_is_that_of_the_machine_until_one_is_fixed(fresh: DataDir, berlin: DataDir, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module.socket, "gethostname", lambda: "paris")
    assert member(settings(), fresh, 4).name == "paris"
    assert member(settings("127.0.0.1:7001"), fresh, 4).name == "paris-7001", "there may be others on this machine"
    assert re.fullmatch("paris-[0-9a-f]{6}", member(settings("127.0.0.1:0"), fresh, 4).name)
    assert member(settings(name="rome"), fresh, 4).name == "rome"
    assert member(settings(), berlin, 4).name == "berlin"
    assert member(settings(name="berlin"), berlin, 4).name == "berlin"
    with pytest.raises(CannotStartError, match="that of host 'berlin', not 'rome': start it with --name berlin"):
        member(settings(name="rome"), berlin, 4)
    monkeypatch.setattr(module.socket, "gethostname", lambda: "a b")
    with pytest.raises(
        CannotStartError, match=r"this machine's name is 'a b', not the name of a host: .*; choose one with --name"
    ):
        member(settings(), fresh, 4)


@pytest.mark.parametrize(
    ("listen", "address", "expected"),
    [
        ("10.0.0.1:5555", None, "10.0.0.1"),
        ("*:5555", None, "rome"),
        ("[::]:5555", None, "rome"),
        ("*:5555", "rome.example.org", "rome.example.org"),
        ("10.0.0.1:5555", "rome.example.org", "rome.example.org"),
    ],
)
def test_others_reach_it_where_it_listens_or_as_said(fresh: DataDir, listen: str, address: str | None, expected: str):
    made = member(settings(listen, name="rome", address=address), fresh, 4)
    assert (made.replication.address, made.replication.host) == (expected, "rome")


def test_one_of_several_on_a_machine_is_reached_by_the_name_of_the_machine(fresh: DataDir, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module.socket, "gethostname", lambda: "paris")
    made = member(settings("*:7001"), fresh, 4)
    assert (made.name, made.replication.address, made.replication.router) == ("paris-7001", "paris", "tcp://paris:7002")


def test_its_own_place_may_be_among_those_to_join(fresh: DataDir):
    everyone = ["a:5556", "b:5556", "c:5557"]
    assert member(settings(address="a", join=everyone), fresh, 4).others == ("tcp://b:5556", "tcp://c:5557")
    assert member(settings("10.0.0.1:7001"), fresh, 4).replication.router == "tcp://10.0.0.1:7002", (
        "the port behind that for clients"
    )
    at_another_port = settings(address="a", join=everyone, worker_listen_addr=Address("0.0.0.0", 5557))
    assert member(at_another_port, fresh, 4).others == ("tcp://a:5556", "tcp://b:5556", "tcp://c:5557")


def test_a_log_has_a_partition_for_each_shard_and_one_more(fresh: DataDir):
    kafka = member(settings(cluster="t", replicas=5, properties={"client.id": "x"}), fresh, 4).replication.kafka
    assert (kafka.bootstrap_servers, kafka.topic, kafka.partitions, kafka.replicas, kafka.in_sync) == (
        "k:9092",
        "fila.t",
        5,
        5,
        3,
    )
    assert kafka.properties == {"client.id": "x"}
    assert member(settings(in_sync=1), fresh, 4).replication.kafka.in_sync == 1


def test_the_number_of_shards_is_said_once(fresh: DataDir, berlin: DataDir):
    assert shards_of_cluster(settings(shards=3), fresh) == 3
    assert shards_of_cluster(settings(), berlin) == 4
    assert shards_of_cluster(settings(shards=4), berlin) == 4
    with pytest.raises(CannotStartError, match=r"this host's cluster has 4 shards, not 3: .*The topic fila\.main fixes it"):
        shards_of_cluster(settings(shards=3), berlin)


@pytest.mark.parametrize(("partitions", "workers", "shards"), [(None, 3, 3), (5, None, 4), (5, 3, 4)])
def test_a_new_host_that_is_told_no_number_takes_that_of_the_log(
    fresh: DataDir, monkeypatch: pytest.MonkeyPatch, partitions: int | None, workers: int | None, shards: int
):
    monkeypatch.setattr("fila_worker.log.kafka.topic.find_partitions", lambda kafka: partitions)
    asked = settings().model_copy(update={"server": Server(workers=workers)})
    assert shards_of_cluster(asked, fresh) == shards


def test_what_is_for_one_host_alone_is_refused():
    check_membership(settings())
    with pytest.raises(InvalidConfigError, match="add --log"):
        check_membership(settings(log=None))
    with pytest.raises(InvalidConfigError, match=r"flush\.messages=1"):
        check_membership(settings().model_copy(update={"storage": Storage(durability="fsync")}))
    with pytest.raises(InvalidConfigError, match="a node makes no backups"):
        check_membership(settings().model_copy(update={"backup": Backup(target="backups")}))


def test_without_the_library_it_says_what_to_install(fresh: DataDir, monkeypatch: pytest.MonkeyPatch):
    for name in [
        name for name in sys.modules if name.startswith("fila_worker.log.kafka.") and not name.endswith(".settings")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(CannotStartError, match=r"pip install 'fila-cluster\[hosts\]'"):
        member(settings(), fresh, 4).joining(fresh, "none")


class Log:
    """Stands in for the modules that ask the log. ``keys``: of the hosts that use it."""

    def __init__(self, name: str, keys: str) -> None:
        self.name, self.keys = name, keys
        self.wanted: list[str] = []

    def prepare_topic(self, kafka: KafkaSettings, log: str) -> str:
        self.wanted.append(log)
        return self.name

    def keys_of_log(self, kafka: KafkaSettings) -> str:
        return self.keys


def test_a_host_belongs_to_the_log_that_it_has_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = Log("fila.main-1", "")
    monkeypatch.setattr("fila_worker.log.kafka.topic.prepare_topic", log.prepare_topic)
    monkeypatch.setattr("fila_worker.log.kafka.partition.keys_of_log", log.keys_of_log)
    for expected in ("", "fila.main-1"):
        directory = DataDir(tmp_path, of_host=True)
        host = member(settings(name="a"), directory, 4).joining(directory, "k1")
        assert (log.wanted[-1], host.replication.log, host.replication.keys) == (expected, "fila.main-1", "k1")
        directory.claim(4, host.replication)
        directory.release()


@pytest.mark.parametrize(
    ("own", "before", "found", "fits"),
    [
        ("k1", "", "", True),  # a new log
        ("k1", "", "k1", True),  # a new host
        ("k1", "", "k2", False),  # of another cluster
        ("none", "", "k2", False),
        ("k1", "", "none", False),
        ("k2", "k1", "k1", True),  # new keys on all hosts, and this is the first to start
        ("k2", "k1", "k2", True),
        ("k1", "k1", "k2", False),  # it was left out
    ],
)
def test_a_log_has_hosts_with_the_same_keys(own: str, before: str, found: str, fits: bool):
    if fits:
        refuse_other_keys("fila.main", own, before, found)
        return
    with pytest.raises(CannotStartError, match=r"fila\.main .* other keys: .* name of its own in \[replication\] cluster"):
        refuse_other_keys("fila.main", own, before, found)


def test_the_fingerprint_stays_when_the_server_has_new_keys(tmp_path: Path):
    for name in ("a", "b"):
        init_auth(tmp_path / name)
    before = fingerprint_of(open_auth(tmp_path / "a", of_several=True))
    assert fingerprint_of(open_auth(tmp_path / "b", of_several=True)) != before != fingerprint_of(None)
    prepare_server_key(tmp_path / "a")
    switch_server_key(tmp_path / "a")
    assert fingerprint_of(open_auth(tmp_path / "a", of_several=True)) == before


def test_a_cluster_on_one_host_has_no_brokers():
    refuse_membership(Settings())
    with pytest.raises(InvalidConfigError, match="start it with `fila-cluster node`"):
        refuse_membership(settings())


def test_hosts_with_the_same_keys_have_one_key_for_their_own_processes(tmp_path: Path):
    for name in ("a", "b"):
        init_auth(tmp_path / name)
    one, again = (open_auth(tmp_path / "a", of_several=True) for _ in range(2))
    assert one == again
    assert one.api_key != open_auth(tmp_path / "b", of_several=True).api_key
    assert one.api_key != open_auth(tmp_path / "a").api_key
    assert open_auth(tmp_path / "a").api_key != open_auth(tmp_path / "a").api_key
