"""The settings of a router process. Its parent writes them as one line of JSON to its standard input."""

import msgspec

from fila_proto_zmq.events import LogSettings


class RouterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``shards_total`` is fixed when a cluster is created."""

    listen: str
    """Where clients connect: a ZeroMQ endpoint, ``tcp://host:port``."""
    worker_listen: str
    """Where workers connect: ``tcp://host:port`` or ``ipc://path``, relative to the working directory."""
    shards_total: int
    consumer_timeout_ms: int
    max_payload_bytes: int
    log: LogSettings = LogSettings()
