"""All settings: a class per section of ``fila.toml``, with defaults and bounds; and addresses, as people write them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from fila_cluster.figures import duration_s
from fila_proto_zmq.errors import InvalidConfigError
from fila_proto_zmq.limits import (
    DELAY_MS_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    LUA_MEMORY_LIMIT_BYTES_MAX,
    LUA_MEMORY_LIMIT_BYTES_MIN,
    LUA_TIMEOUT_MS_MAX,
    SHARDS_MAX,
)
from fila_worker.log.kafka.settings import KafkaSettings

_SHAPE = re.compile(r"(?:tcp://)?(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+):(?P<port>\d{1,5}|\*)")
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
"""Addresses that mean all addresses of a machine, and how the machine itself reaches them."""


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP address to listen on. ``port`` 0: the system picks a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: object) -> Self:
        """Read an address; :class:`ValueError` shows the form."""
        if isinstance(text, cls):
            return text
        match = _SHAPE.fullmatch(str(text))
        port = 0 if match is None or match["port"] == "*" else int(match["port"])
        if match is None or port > 65535:
            raise ValueError("not an address: write HOST:PORT or tcp://HOST:PORT, with a port up to 65535")
        return cls(match["host"].replace("*", "0.0.0.0"), port)

    @property
    def endpoint(self) -> str:
        """The address as ZeroMQ and clients write it."""
        return f"tcp://{self}"

    @property
    def reachable(self) -> Self:
        """The address to which a client on this machine connects."""
        return type(self)(_EVERYWHERE.get(self.host, self.host), self.port)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


ConfiguredAddress = Annotated[Address, BeforeValidator(Address.parse), PlainSerializer(str)]
"""An address as a configuration value."""


def checked_address(text: str, flag: str) -> Address:
    """Return the address that a flag names; :class:`InvalidConfigError` names the flag."""
    try:
        return Address.parse(text)
    except ValueError as error:
        raise InvalidConfigError(f"{flag} {text}: {error}") from None


def refuse_exposure(addresses: Iterable[Address], *, insecure: bool, auth: bool) -> None:
    """Raise :class:`InvalidConfigError` for an address that other machines can reach, without ``auth`` or ``insecure``."""
    for address in addresses:
        if not (auth or insecure or address.is_loopback):
            raise InvalidConfigError(
                f"{address} can be reached from other machines, and clients there would need no key: "
                "listen on 127.0.0.1, set [auth] enabled = true, or add --insecure if the network is trusted"
            )


def refuse_sharing(addresses: Mapping[str, Address]) -> None:
    """Raise :class:`InvalidConfigError` if two listeners have the same address. The keys are the addresses' flags."""
    for (flag, address), (other, again) in combinations(addresses.items(), 2):
        if address.port and address.reachable == again.reachable:
            raise InvalidConfigError(f"{flag} {address} and {other} {again} are the same: give each a port of its own")


COUNT_MAX = 2**63 - 1
"""Larger numbers do not fit into counters, and messages to workers."""

EVERY_MS_MIN = 1_000
"""Backups and checkpoints that follow each other faster than they are made would never end."""


class Section(BaseModel):
    """Base of the sections."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def milliseconds(value: object) -> object:
    """Return the milliseconds of a duration with a unit, as on the command line; leave the rest to the check for a number."""
    return round(1000 * duration_s(value)) if isinstance(value, str) else value


KAFKA = "kafka://"

CHECKPOINT_BYTES_MIN = 64 * 1024
"""Fewer would make checkpoints without a pause."""

TAKEOVER_MS_MIN = 5_000
"""A log's partition that loses its own leader stalls for 4 to 7 s, and hosts must notice a silence before they act."""
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
    """Return the parts of the text of a list, in a flag or a variable."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _check_join(endpoints: tuple[str, ...]) -> tuple[str, ...]:
    addresses = []
    for endpoint in endpoints:
        if not _has_port(endpoint) or (address := Address.parse(endpoint)) != address.reachable:
            raise ValueError(f"{endpoint!r} is not where another host listens for workers: write tcp://HOST:PORT")
        addresses.append(address.endpoint)
    return tuple(dict.fromkeys(addresses))


def check_host_name(name: str | None) -> str | None:
    """Return a host's name; raise :class:`ValueError` if it is not valid."""
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
    """Return the properties in lines ``name=value``, as in Kafka's own files; numbers and booleans in librdkafka's form."""
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


class ReplicationSettings(Section):
    """``[replication]``. The log that the hosts of a cluster share; the same on all of them. Used only with ``log``."""

    log: Annotated[str | None, AfterValidator(_check_log)] = None
    """The Kafka that keeps the log, by some of its brokers: `kafka://HOST:PORT,HOST:PORT`. This host is then started with
    [`fila-cluster node`](hosts.md). Default: none, the shards are on this host's disk alone."""
    cluster: Annotated[str, AfterValidator(_check_cluster)] = "main"
    """The name of this cluster among those that share a Kafka, for example of an environment. The topic of the log is
    `fila.CLUSTER`; the first host makes it, with a partition for each shard and one more."""
    standbys: Annotated[int, Field(ge=0, le=HOSTS_MAX - 1)] = 1
    """How many hosts should be ready to take each shard over, besides the one that leads it. With fewer, `status --hosts` and
    the dashboard say so."""
    takeover_after_ms: Annotated[int, Field(ge=TAKEOVER_MS_MIN, le=TAKEOVER_MS_MAX), BeforeValidator(milliseconds)] = 6_000
    """Milliseconds without a sign of life of a shard's leader before another host takes over, or a duration with a unit."""
    replicas: Annotated[int, Field(ge=1, le=REPLICAS_MAX)] = 3
    """How many brokers keep each record. With 1, a lost broker is a lost log."""
    in_sync: Annotated[int | None, Field(ge=1, le=REPLICAS_MAX)] = None
    """How many brokers must have a record before it is confirmed. Default: more than half of `replicas`."""
    properties: Annotated[dict[str, str], BeforeValidator(_table_of), AfterValidator(_check_properties)] = Field(
        default_factory=dict, repr=False
    )
    """Properties of librdkafka for TLS, SASL, sockets and compression, a table like `{"security.protocol" = "SASL_SSL"}`; in
    the variable a line `NAME=VALUE` for each. Paths of files are absolute."""
    checkpoint: Annotated[str | None, Field(min_length=1)] = None
    """Where [checkpoints](checkpoints.md) of the shards are kept, the same for all hosts: a folder that they share, or a URL
    like `s3://bucket/folder`. Default: none are made, and the topic is kept whole."""
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
    """``[hosts]``. One host's own place among those that share a log. Used only with ``[replication] log``."""

    name: Annotated[str | None, AfterValidator(check_host_name)] = None
    """The name of this host in the cluster; fixed at the first start. Default: the name of this machine, with the port
    of `listen_addr` if that is not 5555."""
    address: Annotated[str | None, AfterValidator(_check_host_address)] = None
    """Where clients and other hosts reach this one: a name or an IP address. Default: the host of `listen_addr`, or the name
    of this machine if that means all addresses."""
    worker_listen_addr: ConfiguredAddress | None = None
    """Where the workers of other hosts connect. Other than loopback only with `[auth] enabled`, or with `--insecure`.
    Default: the port behind that of `listen_addr`."""
    join: Annotated[tuple[str, ...], Field(max_length=HOSTS_MAX), BeforeValidator(_listed), AfterValidator(_check_join)] = ()
    """Where the routers of the other hosts listen for workers, `HOST:PORT` each; this host's own is skipped. Default: hosts
    find each other through the log. If it is set, workers join these and no others."""


ENV_PREFIX = "FILA_"
ENV_DELIMITER = "__"

CONSUMER_TIMEOUT_MS_MIN = 100
"""A client's heartbeat interval is a third of it; a shorter one is only noise."""

METRICS_INTERVAL_MS_MIN = 100
"""Numbers are collected once a second; a shorter interval would export the same numbers again and again."""

PAYLOAD_BYTES_MAX = 1 << 30
"""A payload is held in memory several times on its way; larger ones belong in an object store."""


PORT = 5555
"""Where clients find the only router of a machine."""

Limit = Annotated[int | None, Field(ge=1, le=COUNT_MAX)]


def _check_data_dir(path: object) -> object:
    if path == "":  # of an empty variable, for example; as a path it would be the working directory
        raise ValueError("names no directory: leave it out for ./fila-data, or write . for the working directory")
    return path


class Server(Section):
    """``[server]``. ``workers`` and ``shards``: None means that the data directory or the machine decides."""

    listen_addr: ConfiguredAddress = Address("127.0.0.1", PORT)
    """Where clients connect, as `host:port` or `tcp://host:port`. Other than loopback only with `[auth] enabled`, or with
    `--insecure`."""
    data_dir: Annotated[Path, BeforeValidator(_check_data_dir)] = Path("fila-data")
    """Where everything is kept. Only one cluster at a time may use it."""
    workers: Annotated[int | None, Field(ge=1, le=SHARDS_MAX)] = None
    """Worker processes; may change from start to start. Default: CPU cores, at most `shards`."""
    shards: Annotated[int | None, Field(ge=1, le=SHARDS_MAX)] = None
    """Databases that queues are spread over; fixed at the first start. Default: as many as workers."""
    direct: bool = True
    """Whether clients may reach workers without the router, through a socket in the data directory or a free port beside
    `listen_addr`."""


class Scheduler(Section):
    """``[scheduler]``."""

    quantum: Annotated[int, Field(ge=1, le=COUNT_MAX)] = 1000
    """The cost that a key of weight 1 may spend in a round; `deficit` shows what is left of it."""
    visibility_timeout_ms: Annotated[int, Field(ge=LEASE_MS_MIN, le=LEASE_MS_MAX)] = 30_000
    """How long a delivery is leased, unless its queue or message says otherwise."""
    consumer_timeout_ms: Annotated[int, Field(ge=CONSUMER_TIMEOUT_MS_MIN, le=LEASE_MS_MAX)] = 15_000
    """A client that is silent for longer loses its leases."""


class Lua(Section):
    """``[lua]``. Limits of hooks whose queue sets none, and when failing hooks are bypassed."""

    default_timeout_ms: Annotated[int, Field(ge=1, le=LUA_TIMEOUT_MS_MAX)] = 10
    """How long one run of a hook may take, unless its queue says otherwise."""
    default_memory_limit_bytes: Annotated[int, Field(ge=LUA_MEMORY_LIMIT_BYTES_MIN, le=LUA_MEMORY_LIMIT_BYTES_MAX)] = (
        1024 * 1024
    )
    """Memory of a queue's hooks, unless the queue says otherwise."""
    circuit_breaker_threshold: Annotated[int, Field(ge=1, le=COUNT_MAX)] = 3
    """After so many failures in a row a queue's hooks are bypassed."""
    circuit_breaker_cooldown_ms: Annotated[int, Field(ge=1, le=DELAY_MS_MAX)] = 10_000
    """How long they are bypassed before they are tried again."""


def _check_collector(endpoint: str | None) -> str | None:
    if endpoint is not None and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", endpoint):
        raise ValueError("not the address of a collector: write http://HOST:PORT, usually with port 4318")
    return endpoint


class Telemetry(Section):
    """``[telemetry]``. Logs go to standard error, metrics to the OpenTelemetry collector at ``otlp_endpoint``."""

    otlp_endpoint: Annotated[str | None, AfterValidator(_check_collector)] = None
    """An OpenTelemetry collector for the [metrics](metrics.md): `http://host:4318`. Default: none."""
    service_name: Annotated[str, Field(min_length=1)] = "fila"
    """The `service.name` of these metrics."""
    metrics_interval_ms: Annotated[int, Field(ge=METRICS_INTERVAL_MS_MIN, le=DELAY_MS_MAX)] = 10_000
    """How often they are sent."""
    log_format: Literal["auto", "json", "console"] = "auto"
    """How [logs](logs.md) are written. `auto`: `console`, which is for people, if standard error is a terminal, else
    `json`."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is written."""


class Storage(Section):
    """``[storage]``."""

    durability: Literal["os", "fsync"] = "os"
    """What a confirmed write survives: `os` the end of any process, `fsync` a loss of power, too. Flag: `up --durability`."""


class LimitSettings(Section):
    """``[limits]``. None means without a limit."""

    max_payload_bytes: Annotated[int, Field(ge=1, le=PAYLOAD_BYTES_MAX)] = 16 * 1024 * 1024
    """The largest payload that is accepted."""
    max_queue_messages: Limit = None
    """Messages of one queue: pending, delayed and leased. Default: no limit."""
    max_queue_bytes: Limit = None
    """Bytes of one queue's messages. Default: no limit."""
    max_key_messages: Limit = None
    """Messages of one fairness key of a queue. Default: no limit."""
    max_keys_per_queue: Annotated[int, Field(ge=1, le=COUNT_MAX)] = 1_000_000
    """Fairness keys of one queue that have messages. Each takes about 0.5 KiB of a worker's memory."""
    max_queues_per_shard: Annotated[int, Field(ge=1, le=COUNT_MAX)] = 20_000
    """Queues of one shard, dead letter queues included, from which on [templates](templates.md) make no more. Each takes
    about 3 KiB of a worker's memory, more with hooks."""
    min_free_disk_bytes: Annotated[int, Field(ge=0, le=COUNT_MAX)] = 1024**3
    """With less free space on the disk nothing is enqueued; 0: until the disk is full."""
    dedup_window_ms: Annotated[int, Field(ge=1, le=DELAY_MS_MAX)] = 300_000
    """How long a `dedup_id` is remembered. Keep it above the timeout of producers, which repeat a call until then."""


class Auth(Section):
    """``[auth]``."""

    enabled: bool = False
    """Whether clients need an [API key](security.md), and connections are encrypted. `fila-cluster auth init` makes the first
    keys."""


class Http(Section):
    """``[http]``. TLS for the dashboard, the metrics and everything else that is served over HTTP."""

    certificate: Path | None = None
    """A PEM file with the certificate and those that vouch for it. It is read again when it changes."""
    key: Path | None = None
    """A PEM file with the private key of `certificate`."""


class Dashboard(Section):
    """``[dashboard]``."""

    enabled: bool = True
    """Whether `up` serves HTTP: the [dashboard](dashboard.md), the [metrics](metrics.md) for Prometheus, `/healthz` and
    `/readyz`."""
    listen_addr: ConfiguredAddress = Address("127.0.0.1", 8555)
    """Where `up` serves HTTP. Other than loopback only with `[auth] enabled`, or with `--insecure`."""
    allowed_hosts: tuple[str, ...] = ()
    """Names under which a browser may open the dashboard, besides addresses, `localhost` and this machine's name. Any other
    name is refused, because a foreign page could point a name of its own here."""


class Backup(Section):
    """``[backup]``."""

    target: Annotated[str | None, Field(min_length=1)] = None
    """Where `up` makes [backups](backup.md) on schedule: a folder, or a URL like `s3://bucket/folder`. Default: none are
    made."""
    every: Annotated[int, Field(ge=EVERY_MS_MIN, le=DELAY_MS_MAX), BeforeValidator(milliseconds)] = 86_400_000
    """Milliseconds between two backups, or a duration with a unit: `30m`, `24h`."""
    keep: Annotated[int, Field(ge=1, le=COUNT_MAX)] = 7
    """How many backups stay at the target. Older ones are removed after each scheduled one."""


class Settings(BaseSettings):
    """All sections. Load them with :func:`fila_cluster.run.config.loading.load`, which explains errors."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=ENV_DELIMITER,
        enable_decoding=False,  # variables hold plain values, no JSON: an address is text
        extra="forbid",
        frozen=True,
    )

    server: Server = Server()
    scheduler: Scheduler = Scheduler()
    lua: Lua = Lua()
    telemetry: Telemetry = Telemetry()
    storage: Storage = Storage()
    limits: LimitSettings = LimitSettings()
    auth: Auth = Auth()
    dashboard: Dashboard = Dashboard()
    http: Http = Http()
    backup: Backup = Backup()
    replication: ReplicationSettings = ReplicationSettings()
    hosts: Hosts = Hosts()
