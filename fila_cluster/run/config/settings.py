"""All settings: one class per section of ``fila.toml``, with its defaults and bounds.

An unknown section or key is an error, never ignored.
"""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from fila_cluster.run.config.address import Address, ConfiguredAddress
from fila_cluster.run.config.replication import Hosts, Replication
from fila_cluster.run.config.section import COUNT_MAX, EVERY_MS_MIN, Section, milliseconds
from fila_proto_zmq.limits import (
    DELAY_MS_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    LUA_MEMORY_LIMIT_BYTES_MAX,
    LUA_MEMORY_LIMIT_BYTES_MIN,
    LUA_TIMEOUT_MS_MAX,
    SHARDS_MAX,
)

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
    """Where clients connect, as `host:port` or `tcp://host:port`. Other than loopback only with `[auth] enabled`, or with `--insecure`."""
    data_dir: Annotated[Path, BeforeValidator(_check_data_dir)] = Path("fila-data")
    """Where everything is kept. Only one cluster at a time may use it."""
    workers: Annotated[int | None, Field(ge=1, le=SHARDS_MAX)] = None
    """Worker processes; may change from start to start. Default: CPU cores, at most `shards`."""
    shards: Annotated[int | None, Field(ge=1, le=SHARDS_MAX)] = None
    """Databases that queues are spread over; fixed at the first start. Default: as many as workers."""
    direct: bool = True
    """Whether clients may reach workers without the router, through a socket in the data directory or a free port beside `listen_addr`."""


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
    """``[telemetry]``. Metrics go to an OpenTelemetry collector if there is an ``otlp_endpoint`` (OTLP over HTTP), logs to standard error."""

    otlp_endpoint: Annotated[str | None, AfterValidator(_check_collector)] = None
    """An OpenTelemetry collector for the [metrics](metrics.md): `http://host:4318`. Default: none."""
    service_name: Annotated[str, Field(min_length=1)] = "fila"
    """The `service.name` of these metrics."""
    metrics_interval_ms: Annotated[int, Field(ge=METRICS_INTERVAL_MS_MIN, le=DELAY_MS_MAX)] = 10_000
    """How often they are sent."""
    log_format: Literal["auto", "json", "console"] = "auto"
    """How [logs](logs.md) are written. `auto`: `console`, which is for people, if standard error is a terminal, else `json`."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is written."""


class Storage(Section):
    """``[storage]``."""

    durability: Literal["os", "fsync"] = "os"
    """What a confirmed write survives: `os` the end of any process, `fsync` a loss of power, too. Flag: `up --durability`."""


class Limits(Section):
    """``[limits]``. None is no limit."""

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
    """Queues of one shard, dead letter queues included, from which on [templates](templates.md) make no more. Each takes about 3 KiB of a
    worker's memory, more with hooks."""
    min_free_disk_bytes: Annotated[int, Field(ge=0, le=COUNT_MAX)] = 1024**3
    """With less free space on the disk nothing is enqueued; 0: until the disk is full."""
    dedup_window_ms: Annotated[int, Field(ge=1, le=DELAY_MS_MAX)] = 300_000
    """How long a `dedup_id` is remembered. Keep it above the timeout of producers, which repeat a call until then."""


class Auth(Section):
    """``[auth]``."""

    enabled: bool = False
    """Whether clients need an [API key](security.md), and connections are encrypted. `fila-cluster auth init` makes the first keys."""


class Http(Section):
    """``[http]``. TLS for the dashboard, the metrics and everything else that is served over HTTP."""

    certificate: Path | None = None
    """A PEM file with the certificate and those that vouch for it. It is read again when it changes."""
    key: Path | None = None
    """A PEM file with the private key of `certificate`."""


class Dashboard(Section):
    """``[dashboard]``."""

    enabled: bool = True
    """Whether `up` serves HTTP: the [dashboard](dashboard.md), the [metrics](metrics.md) for Prometheus, `/healthz` and `/readyz`."""
    listen_addr: ConfiguredAddress = Address("127.0.0.1", 8555)
    """Where `up` serves HTTP. Other than loopback only with `[auth] enabled`, or with `--insecure`."""
    allowed_hosts: tuple[str, ...] = ()
    """Names under which a browser may open the dashboard, besides addresses, `localhost` and this machine's name. Any other name is refused, because
    a foreign page could point a name of its own here."""


class Backup(Section):
    """``[backup]``."""

    target: Annotated[str | None, Field(min_length=1)] = None
    """Where `up` makes [backups](backup.md) on schedule: a folder, or a URL like `s3://bucket/folder`. Default: none are made."""
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
    limits: Limits = Limits()
    auth: Auth = Auth()
    dashboard: Dashboard = Dashboard()
    http: Http = Http()
    backup: Backup = Backup()
    replication: Replication = Replication()
    hosts: Hosts = Hosts()
