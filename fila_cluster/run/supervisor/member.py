"""This host as one of several that serve a cluster: its name, and the addresses of all."""

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import msgspec

from fila_cluster.run.backup.target import target_at
from fila_cluster.run.config.settings import PORT, Address, ReplicationSettings, Settings, check_host_name
from fila_cluster.run.supervisor import CannotStartError
from fila_cluster.run.supervisor.data_dir import DataDir
from fila_cluster.run.supervisor.layout import cores
from fila_proto_zmq.errors import InvalidConfigError
from fila_worker.log.kafka.settings import KafkaSettings, partitions_for, shards_in
from fila_worker.log.leadership import LeadershipLimits
from fila_worker.settings import CheckpointSettings, Replication


@dataclass(frozen=True, slots=True)
class HostMember:
    """One host of several. ``replication``: its workers' settings of the log; ``others``: endpoints for workers of other
    routers in the settings; ``checkpoints``: their target, if any."""

    replication: Replication
    others: tuple[str, ...]
    checkpoints: str | None

    @property
    def name(self) -> str:
        """The name that identifies the host in its cluster."""
        return self.replication.host

    def joining(self, data_dir: DataDir, keys: str) -> "HostMember":
        """Return this host with the log that it joins, which is made if the host is new and there is none.

        ``keys``: a fingerprint of the cluster's keys. Waits for the brokers. Raise :class:`CannotStartError` or
        ``StorageError`` if the log is another one than that of the copies in the data directory, or another cluster's.
        """
        kafka = self.replication.kafka
        with _extra_hosts():
            from fila_worker.log.kafka.partition import keys_of_log  # noqa: PLC0415
            from fila_worker.log.kafka.topic import prepare_topic  # noqa: PLC0415
        log = prepare_topic(kafka, data_dir.identity.log)
        refuse_other_keys(kafka.topic, keys, data_dir.identity.keys, keys_of_log(kafka))
        return replace(self, replication=msgspec.structs.replace(self.replication, log=log, keys=keys))

    def listening(self, worker_listen: Address) -> "HostMember":
        """Return this host with the port where its router listens for workers: port 0 was a free one."""
        router = Address(self.replication.address, worker_listen.port).endpoint
        return replace(self, replication=msgspec.structs.replace(self.replication, router=router))


def member(settings: Settings, data_dir: DataDir, shards: int) -> HostMember:
    """Return this host. Raise :class:`CannotStartError` if its data directory is another host's."""
    given, hosts = settings.replication, settings.hosts
    name = _name(settings, data_dir)
    address = hosts.address or _address(settings.server.listen_addr, name)
    own = Address(address, worker_listen(settings).port).endpoint
    cutting = CheckpointSettings(bytes=given.checkpoint_bytes, every_ms=given.checkpoint_every)
    replication = Replication(
        kafka=kafka_of(given, shards),
        host=name,
        address=address,
        router=own,
        standbys=given.standbys,
        leadership=LeadershipLimits(silence_ms=given.takeover_after_ms),
        checkpoints=None if given.checkpoint is None else cutting,
    )
    others = tuple(endpoint for endpoint in hosts.join if endpoint != own)
    return HostMember(replication, others, None if given.checkpoint is None else target_at(given.checkpoint).name)


def worker_listen(settings: Settings) -> Address:
    """Return where workers of other hosts connect. Port 0 is a free one."""
    listen = settings.server.listen_addr
    return settings.hosts.worker_listen_addr or Address(listen.host, listen.port and listen.port % 65535 + 1)


def refuse_membership(settings: Settings) -> None:
    """Raise :class:`InvalidConfigError` if the settings are those of one host of several."""
    if settings.replication.log is not None:
        raise InvalidConfigError(
            "[replication] log is set, so this host is one of several: start it with `fila-cluster node`, "
            "or remove [replication] for a cluster on this host alone"
        )


def check_membership(settings: Settings) -> None:
    """Raise :class:`InvalidConfigError` unless these are settings for one host of several."""
    if settings.replication.log is None:
        raise InvalidConfigError(
            "a host of several needs their log: add --log kafka://HOST:PORT,HOST:PORT, or set [replication] log; "
            "`fila-cluster up` runs a cluster on one host, without Kafka"
        )
    if settings.storage.durability != "os":
        raise InvalidConfigError(
            "[storage] durability is for a cluster on one host: remove it. What a node confirms is on [replication] in_sync "
            "brokers; have them sync each record with flush.messages=1 on the topic"
        )
    if settings.backup.target is not None:
        raise InvalidConfigError("[backup] target is for a cluster on one host, a node makes no backups: remove it")


def refuse_other_keys(topic: str, own: str, before: str, found: str) -> None:
    """Raise :class:`CannotStartError` for a log of hosts with other keys than ``before``, when this host was last in it. New
    keys are taken from a host that had those of the log: its operator has changed them, on all hosts."""
    if found not in {"", own, before}:
        raise CannotStartError(
            f"the topic {topic} is the log of a cluster with other keys: give this cluster a name of its own in "
            "[replication] cluster; or if this is a host of that one, copy DATA_DIR/auth from another host, and set [auth] "
            "enabled as it is there"
        )


def shards_of_cluster(settings: Settings, data_dir: DataDir) -> int:
    """Return the number of shards of all hosts: as fixed here or asked, else the log's (its brokers are waited for), else one
    for each worker. Raise :class:`CannotStartError` or ``UnfitStoreError``."""
    asked, fixed = settings.server.shards, data_dir.shards
    if fixed is not None and asked not in {None, fixed}:
        raise CannotStartError(
            f"this host's cluster has {fixed} shards, not {asked}: leave the number out. The topic "
            f"{settings.replication.topic} fixes it; a cluster with another number needs another [replication] cluster, and "
            "new data directories"
        )
    if (shards := fixed or asked) is not None:
        return shards
    with _extra_hosts():
        from fila_worker.log.kafka.topic import find_partitions  # noqa: PLC0415
    found = find_partitions(kafka_of(settings.replication, 1))
    return (settings.server.workers or cores()) if found is None else shards_in(found)


@contextmanager
def _extra_hosts() -> Iterator[None]:
    """Report a missing extra ``hosts`` as a reason not to start."""
    try:
        yield
    except ImportError as error:
        raise CannotStartError(str(error)) from None


def _name(settings: Settings, data_dir: DataDir) -> str:
    fixed = data_dir.identity.host
    name = settings.hosts.name or fixed or _machine(settings.server.listen_addr.port)
    if fixed not in {None, name}:
        raise CannotStartError(
            f"{data_dir.path} is that of host {fixed!r}, not {name!r}: start it with --name {fixed}; "
            "a new host needs an empty --data-dir"
        )
    try:
        check_host_name(name)
    except ValueError as error:
        raise CannotStartError(f"this machine's name is {name!r}, {error}; choose one with --name") from None
    return name


def _machine(port: int) -> str:
    """Return the name of this machine, with the port if that is not the usual one: it may have several hosts."""
    own = {PORT: "", 0: f"-{secrets.token_hex(3)}"}.get(port, f"-{port}")
    return f"{socket.gethostname()}{own}"


def _address(listen: Address, name: str) -> str:
    """Return the address of this host for others: its own, or by its name, which may be the machine's with a port."""
    if listen.reachable == listen:
        return listen.host
    machine = socket.gethostname()
    return machine if name.startswith(f"{machine}-") else name


def kafka_of(replication: ReplicationSettings, shards: int) -> KafkaSettings:
    """Return the address and the required settings of the log of a cluster with so many shards."""
    return KafkaSettings(
        bootstrap_servers=replication.brokers,
        topic=replication.topic,
        partitions=partitions_for(shards),
        replicas=replication.replicas,
        in_sync_min=replication.in_sync,
        properties=replication.properties,
    )
