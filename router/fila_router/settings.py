"""The settings of a router process. Its parent writes them as one line of JSON to its standard input."""

import msgspec

from fila_proto_zmq.commands import ApiKey
from fila_proto_zmq.events import LogSettings
from fila_router.key_file import Pair


class AuthSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Authentication of clients, and of workers that come over TCP."""

    directory: str
    """Where the API keys are stored, relative to the working directory."""
    server: Pair
    workers_server: Pair
    """The server's pair for workers, which pin its public key."""
    workers_public_key: str
    internal: list[ApiKey]
    """Keys of the cluster's own processes, which end with it."""


class RouterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings. ``shards_total`` is fixed when a cluster is created."""

    listen: str
    """Where clients connect: a ZeroMQ endpoint, ``tcp://host:port``."""
    worker_listen: str
    """Where workers connect: ``tcp://host:port`` or ``ipc://path``, relative to the working directory."""
    shards_total: int
    consumer_timeout_ms: int
    max_payload_bytes: int
    several: bool = False
    """Whether the cluster has several routers, and its shards stand on a replicated log.

    Then a router holds the token bank only while the leader of shard 0 lends it, and the log has all that the router keeps.
    """
    auth: AuthSettings | None = None
    log: LogSettings = LogSettings()
