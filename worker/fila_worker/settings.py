"""The settings of a worker process, from the process that starts it."""

from typing import Literal

import msgspec

from fila_proto_zmq.events import LogSettings
from fila_worker.core.settings import ShardSettings
from fila_worker.log.kafka.settings import KafkaSettings
from fila_worker.log.leadership import LeadershipLimits
from fila_worker.log.placement import PlacementLimits


class CheckpointSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a leader makes a checkpoint, if the cluster has a target for them."""

    bytes: int = 1024 * 1024 * 1024
    """After so many bytes of changes."""
    every_ms: int = 900_000
    """After that time, if anything has changed."""
    idle_records: int = 50_000
    """After that time, too, if the log has so many more records: half a day of beats."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} is {value}; it must be 1 or more")


class JoinKeys(msgspec.Struct, forbid_unknown_fields=True):
    """The CurveZMQ keys for a router that is reached over TCP and has authentication. Each is 40 characters of Z85."""

    server_key: str
    public_key: str
    secret_key: str


class Replication(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A replicated log under the shards of a cluster. ``host``: the name of this host in the cluster."""

    kafka: KafkaSettings
    host: str
    log: str = ""
    """The name of the log that the host's copies are of; empty: it is a new host."""
    keys: str = ""
    """A fingerprint of the cluster's keys, to detect a host of another cluster."""
    address: str = ""
    """The address of this host for clients of other hosts, a name or an IP address; empty: where they reach the router."""
    router: str = ""
    """The endpoint of this host's router for workers of other hosts, ``tcp://HOST:PORT``. Empty: not reachable."""
    standbys: int = 1
    """How many other hosts should be ready to take over each shard."""
    leadership: LeadershipLimits = LeadershipLimits()
    checkpoints: CheckpointSettings | None = None
    """When checkpoints are made, which shorten the log. None: without a process that keeps them, the log keeps everything."""
    placement: PlacementLimits = PlacementLimits()


class WorkerSettings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``router``: the endpoint of this host's router; ``shards``: the shards to host; ``shard``: their settings."""

    name: str
    router: str
    other_routers: list[str] = []
    """The known endpoints of further routers of the same cluster. All routers are alike; clients may be at any of them."""
    data_dir: str
    keys: JoinKeys | None = None
    shards: list[int]
    shards_total: int
    doors: list[str] = []
    """The endpoints of the client socket: ``ipc://PATH``, ``tcp://HOST:PORT``; port 0 is a free one."""
    auth: bool = False
    """Whether clients need an API key. The router sends the keys to this worker."""
    durability: Literal["os", "fsync"] = "os"
    replication: Replication | None = None
    """The log under the shards, of which others have copies, too; None: each shard is on this host's disk alone."""
    shard: ShardSettings = ShardSettings()
    log: LogSettings = LogSettings()
