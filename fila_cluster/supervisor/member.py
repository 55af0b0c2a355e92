"""This host as one of several that serve a cluster together: its name, and where it and the others are."""

import socket
from dataclasses import dataclass

from fila_cluster.backup.target import target_at
from fila_cluster.config.address import Address
from fila_cluster.config.settings import Hosts, Settings, check_host_name
from fila_cluster.supervisor import CannotStartError
from fila_cluster.supervisor.data_dir import DataDir
from fila_proto_zmq.errors import InvalidConfigError
from fila_worker.copies.cutting import CheckpointSettings
from fila_worker.log.kafka.settings import KafkaSettings, partitions_for
from fila_worker.settings import Replication

WORKER_PORT = 5556
"""Where workers of other hosts connect, unless the settings say otherwise."""

_EVERYWHERE = {"0.0.0.0", "[::]"}


@dataclass(frozen=True, slots=True)
class Member:
    """One host of several. ``others``: where the routers of the others listen for workers; ``checkpoints``: where they are kept, if at all."""

    name: str
    address: str
    others: tuple[str, ...]
    kafka: KafkaSettings
    cutting: CheckpointSettings | None = None
    checkpoints: str | None = None

    @property
    def replication(self) -> Replication:
        """What its workers are to know of the log."""
        return Replication(kafka=self.kafka, host=self.name, address=self.address, checkpoints=self.cutting)

    def prepare_log(self) -> None:
        """Make the topic of the log, or check it. Waits for the brokers; raises :class:`CannotStartError` or ``UnfitStoreError``."""
        try:
            from fila_worker.log.kafka.topic import prepare_topic  # noqa: PLC0415  # needs the extra `hosts`
        except ImportError as error:
            raise CannotStartError(str(error)) from None
        prepare_topic(self.kafka)


def member(settings: Settings, data_dir: DataDir, shards: int) -> Member:
    """Return this host. Raise :class:`CannotStartError` if its data directory is another host's."""
    name = _name(settings.hosts, data_dir)
    address = settings.hosts.address or _address(settings.server.listen_addr, name)
    own = Address(address, worker_listen(settings).port).endpoint
    others = tuple(endpoint for endpoint in settings.hosts.join if endpoint != own)
    return Member(name, address, others, _kafka(settings.hosts, shards), *_checkpoints(settings.hosts))


def worker_listen(settings: Settings) -> Address:
    """Return where workers of other hosts connect."""
    return settings.hosts.worker_listen_addr or Address(settings.server.listen_addr.host, WORKER_PORT)


def refuse_membership(settings: Settings) -> None:
    """Raise :class:`InvalidConfigError` if the settings are those of one host of several."""
    if settings.hosts.kafka is not None:
        raise InvalidConfigError(
            "[hosts] kafka is set, so this host is one of several: start it with `fila-cluster node`, "
            "or remove [hosts] for a cluster on this host alone"
        )


def check_membership(settings: Settings) -> None:
    """Raise :class:`InvalidConfigError` if these are no settings for one host of several."""
    if settings.hosts.kafka is None:
        raise InvalidConfigError(
            "a host of several needs the brokers of their log: add --kafka HOST:PORT,HOST:PORT, or set [hosts] kafka; "
            "`fila-cluster up` runs a cluster on one host, without Kafka"
        )
    if settings.storage.durability != "os":
        raise InvalidConfigError(
            "[storage] durability is for a cluster on one host: remove it. What a node confirms is on [hosts] in_sync brokers; "
            "have them sync each record with flush.messages=1 on the topic"
        )
    if settings.backup.target is not None:
        raise InvalidConfigError("[backup] target is for a cluster on one host, a node makes no backups: remove it")


def shards_of_cluster(settings: Settings, data_dir: DataDir) -> int:
    """Return the number of shards, which all hosts share. Raise :class:`CannotStartError` if it is not known, or another one."""
    asked, fixed = settings.server.shards, data_dir.shards
    if fixed is None and asked is None:
        raise CannotStartError(
            f"{data_dir.path} is new, and does not say how many shards the cluster has: add --shards N, the same on all hosts"
        )
    if fixed is not None and asked not in {None, fixed}:
        raise CannotStartError(
            f"this host's cluster has {fixed} shards, not {asked}: leave the number out. The topic {settings.hosts.topic} fixes it; "
            "a cluster with another number needs another topic, and new data directories"
        )
    return fixed or asked or 1


def _name(hosts: Hosts, data_dir: DataDir) -> str:
    name = hosts.name or data_dir.host or socket.gethostname()
    if data_dir.host not in {None, name}:
        raise CannotStartError(
            f"{data_dir.path} is that of host {data_dir.host!r}, not {name!r}: start it with --name {data_dir.host}; "
            "a new host needs an empty --data-dir"
        )
    try:
        check_host_name(name)
    except ValueError as error:
        raise CannotStartError(f"this machine's name is {name!r}, {error}; choose one with --name") from None
    return name


def _address(listen: Address, name: str) -> str:
    return name if listen.host in _EVERYWHERE else listen.host


def _checkpoints(hosts: Hosts) -> tuple[CheckpointSettings, str] | tuple[None, None]:
    """Return when a shard's checkpoint is due, and the place where they are kept; nothing if there is none."""
    if hosts.checkpoints is None:
        return None, None
    return CheckpointSettings(bytes=hosts.checkpoint_bytes, every_ms=hosts.checkpoint_every), target_at(
        hosts.checkpoints
    ).name


def _kafka(hosts: Hosts, shards: int) -> KafkaSettings:
    assert hosts.kafka is not None
    return KafkaSettings(
        bootstrap_servers=hosts.kafka,
        topic=hosts.topic,
        partitions=partitions_for(shards),
        replicas=hosts.replicas,
        in_sync_min=hosts.in_sync,
        properties=hosts.properties,
    )
