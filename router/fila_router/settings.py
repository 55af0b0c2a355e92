"""What a router has to be told at its start. Its parent writes this as one line of JSON to its standard input."""

import msgspec

from fila_proto_zmq.events import LogSettings


class RouterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``shards_total`` is fixed at the birth of a cluster."""

    listen: str
    """Where clients connect: a ZeroMQ endpoint, ``tcp://host:port``."""
    worker_listen: str
    """Where workers connect: ``tcp://host:port`` or ``ipc://path``, relative to the working directory."""
    shards_total: int
    consumer_timeout_ms: int
    max_payload_bytes: int
    log: LogSettings = LogSettings()
