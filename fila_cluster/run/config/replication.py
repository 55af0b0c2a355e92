"""The settings of a cluster on several hosts: the log that they share, and one host's own place."""

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from fila_cluster.run.config.address import Address, ConfiguredAddress
from fila_cluster.run.config.section import COUNT_MAX, EVERY_MS_MIN, Section, milliseconds
from fila_proto_zmq.limits import DELAY_MS_MAX
from fila_worker.log.kafka.settings import KafkaSettings

KAFKA = "kafka://"

CHECKPOINT_BYTES_MIN = 64 * 1024
"""Fewer would be a checkpoint for each moment."""

TAKEOVER_MS_MIN = 5_000
"""A log's partition that loses its own leader stalls for 4 to 7 s, and hosts must know each other's silence before they act on it."""
TAKEOVER_MS_MAX = 3_600_000

HOSTS_MAX = 64
"""Each worker has a connection to the router of each host."""

REPLICAS_MAX = 64


def _check_log(text: str | None) -> str | None:
    if text is None:
        return None
    servers = [server.strip() for server in text.removeprefix(KAFKA).split(",")]
    if not text.startswith(KAFKA) or any("//" in server or not _has_port(server) for server in servers):
        raise ValueError(f"not a log that fila-cluster can use: write {KAFKA}HOST:PORT,HOST:PORT")
    return KAFKA + ",".join(servers)


def _has_port(text: str) -> bool:
    try:
        return Address.parse(text).port > 0
    except ValueError:
        return False


def _listed(value: object) -> object:
    """Return the parts of a text, as a flag or a variable holds a list."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _check_join(endpoints: tuple[str, ...]) -> tuple[str, ...]:
    addresses = []
    for endpoint in endpoints:
        if not _has_port(endpoint) or (address := Address.parse(endpoint)) != address.reachable:
            raise ValueError(f"{endpoint!r} is not where another host listens for workers: write tcp://HOST:PORT")
        addresses.append(address.endpoint)
    return tuple(dict.fromkeys(addresses))


def check_host_name(name: str | None) -> str | None:
    """Return the name of a host; raise :class:`ValueError` if it is none."""
    if name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name):
        raise ValueError("not the name of a host: use up to 63 letters, digits, dots, hyphens and underscores")
    return name


def _check_host_address(text: str | None) -> str | None:
    if text is None:
        return None
    bracketed = f"[{text}]" if text.count(":") > 1 and not text.startswith("[") else text
    if not _has_port(f"{bracketed}:1") or bracketed != Address.parse(f"{bracketed}:1").reachable.host:
        raise ValueError("not an address that other hosts can reach: write a name or an IP address, without a port")
    return bracketed


def _check_cluster(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", name):
        raise ValueError("not the name of a cluster: use up to 200 letters, digits, dots, hyphens and underscores")
    return name


def _table_of(value: object) -> object:
    """Return the properties in a text of lines ``name=value``, as in Kafka's own files; numbers and booleans as librdkafka writes them."""
    if isinstance(value, str):
        lines = [line.strip() for line in value.splitlines()]
        pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
        if any(not equals for _, equals, _ in pairs):
            raise ValueError("not properties: write a line NAME=VALUE for each")
        return {name.strip(): text.strip() for name, _, text in pairs}
    if isinstance(value, dict):
        return {name: str(each).lower() if isinstance(each, (bool, int)) else each for name, each in value.items()}
    return value


def _check_properties(table: dict[str, str]) -> dict[str, str]:
    KafkaSettings(bootstrap_servers="", topic="", partitions=1, properties=table)  # it has the rule, and its errors no values
    return table


class Replication(Section):
    """``[replication]``. The log that hosts of one cluster share; the same on all of them. Without ``log`` nothing of it is used."""

    log: Annotated[str | None, AfterValidator(_check_log)] = None
    """The Kafka that keeps the log, by some of its brokers: `kafka://HOST:PORT,HOST:PORT`. This host is then started with
    [`fila-cluster node`](hosts.md). Default: none, the shards are on this host's disk alone."""
    cluster: Annotated[str, AfterValidator(_check_cluster)] = "main"
    """By which clusters that share a Kafka are told apart: one name for each environment. The topic of the log is `fila.CLUSTER`; the first host makes it,
    with a partition for each shard and one more."""
    standbys: Annotated[int, Field(ge=0, le=HOSTS_MAX - 1)] = 1
    """How many hosts should be ready to take each shard over, besides the one that leads it. With fewer, `status --hosts` and the dashboard say so."""
    takeover_after_ms: Annotated[int, Field(ge=TAKEOVER_MS_MIN, le=TAKEOVER_MS_MAX), BeforeValidator(milliseconds)] = 6_000
    """Milliseconds without a sign of life of a shard's leader before another host takes over, or a duration with a unit."""
    replicas: Annotated[int, Field(ge=1, le=REPLICAS_MAX)] = 3
    """How many brokers keep each record. With 1, a lost broker is a lost log."""
    in_sync: Annotated[int | None, Field(ge=1, le=REPLICAS_MAX)] = None
    """How many brokers must have a record before it is confirmed. Default: more than half of `replicas`."""
    properties: Annotated[dict[str, str], BeforeValidator(_table_of), AfterValidator(_check_properties)] = Field(
        default_factory=dict, repr=False
    )
    """Properties of librdkafka for TLS, SASL, sockets and compression, a table like `{"security.protocol" = "SASL_SSL"}`; in the variable a line
    `NAME=VALUE` for each. Paths of files are absolute."""
    checkpoint: Annotated[str | None, Field(min_length=1)] = None
    """Where [checkpoints](checkpoints.md) of the shards are kept, the same for all hosts: a folder that they share, or a URL like `s3://bucket/folder`.
    Default: none are made, and the topic is kept whole."""
    checkpoint_bytes: Annotated[int, Field(ge=CHECKPOINT_BYTES_MIN, le=COUNT_MAX)] = 1024**3
    """A shard's checkpoint is due after so many bytes of changes."""
    checkpoint_every: Annotated[int, Field(ge=EVERY_MS_MIN, le=DELAY_MS_MAX), BeforeValidator(milliseconds)] = 900_000
    """It is due after so many milliseconds, too, if anything has changed; or a duration with a unit: `15m`."""

    @property
    def brokers(self) -> str:
        """Some of the log's brokers, ``HOST:PORT,HOST:PORT``."""
        return (self.log or "").removeprefix(KAFKA)

    @property
    def topic(self) -> str:
        """The topic of the log."""
        return f"fila.{self.cluster}"

    @field_validator("in_sync")
    @classmethod
    def _check_in_sync(cls, in_sync: int | None, info: ValidationInfo) -> int | None:
        replicas = info.data.get("replicas", REPLICAS_MAX)
        if in_sync is not None and in_sync > replicas:
            raise ValueError(f"more than there are: replicas is {replicas}")
        return in_sync


class Hosts(Section):
    """``[hosts]``. One host's own place among those that share a log. Nothing of it is used without ``[replication] log``."""

    name: Annotated[str | None, AfterValidator(check_host_name)] = None
    """By which the cluster tells its hosts apart; fixed at the first start. Default: the name of this machine, with the port of `listen_addr` if that is
    not 5555."""
    address: Annotated[str | None, AfterValidator(_check_host_address)] = None
    """Where clients and other hosts reach this one: a name or an IP address. Default: the host of `listen_addr`, or the name of this machine if that means
    all addresses."""
    worker_listen_addr: ConfiguredAddress | None = None
    """Where the workers of other hosts connect. Other than loopback only with `[auth] enabled`, or with `--insecure`. Default: the port behind that of
    `listen_addr`."""
    join: Annotated[tuple[str, ...], Field(max_length=HOSTS_MAX), BeforeValidator(_listed), AfterValidator(_check_join)] = ()
    """Where the routers of the other hosts listen for workers, `HOST:PORT` each; this host's own is skipped. Default: hosts find each other through
    the log. If it is set, workers join these and no others."""
