"""The settings of a worker process, from the process that starts it."""

from typing import Literal

import msgspec

from fila_proto_zmq.events import LogSettings
from fila_worker.core.settings import ShardSettings
from fila_worker.log.kafka.settings import KafkaSettings
from fila_worker.log.leadership import LeadershipLimits
from fila_worker.log.placement import PlacementLimits
from fila_worker.replication.log_checkpoints.cutting import CheckpointSettings


class JoinKeys(msgspec.Struct, forbid_unknown_fields=True):
    """The CurveZMQ keys for a router that is reached over TCP and has authentication. Each is 40 characters of Z85."""

    server_key: str
    public_key: str
    secret_key: str


class Replication(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A replicated log under the shards of a cluster. ``host``: by which the cluster tells its hosts apart."""

    kafka: KafkaSettings
    host: str
    log: str = ""
    """The name of the log that the host's copies are of; empty: it is a new host."""
    keys: str = ""
    """A fingerprint of the cluster's keys, by which a host of another cluster is told apart."""
    address: str = ""
    """Where clients of other hosts reach this one, a name or an IP address; empty: where they reach the router."""
    router: str = ""
    """Where workers of other hosts reach this host's router, ``tcp://HOST:PORT``: they hear of it through the log. Empty: they don't."""
    standbys: int = 1
    """How many other hosts should be ready to take over each shard."""
    leadership: LeadershipLimits = LeadershipLimits()
    checkpoints: CheckpointSettings | None = None
    """When checkpoints are made, which shorten the log. None: no process beside the worker keeps them, so the log has to keep everything."""
    placement: PlacementLimits = PlacementLimits()


class WorkerSettings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``router``: the endpoint to join, of the own host if there are several; ``shards``: the shards to host; ``shard``: the settings of each of them."""

    name: str
    router: str
    other_routers: list[str] = []
    """The endpoints of further routers of the same cluster, as far as they are known. All routers are alike; clients may be at any of them."""
    data_dir: str
    keys: JoinKeys | None = None
    shards: list[int]
    shards_total: int
    doors: list[str] = []
    """Where clients may reach this worker without the router: ``ipc://PATH``, ``tcp://HOST:PORT``; port 0 is a free one."""
    auth: bool = False
    """Whether clients need an API key. The router sends the keys to this worker."""
    durability: Literal["os", "fsync"] = "os"
    replication: Replication | None = None
    """The log under the shards, of which others have copies too; None: each shard is on this host's disk alone."""
    shard: ShardSettings = ShardSettings()
    log: LogSettings = LogSettings()
