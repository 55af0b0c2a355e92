"""The settings of the processes that make backups on schedule, and keep checkpoints.

Their parent writes them as one line of JSON to their standard input.
"""

import msgspec

from fila_proto_zmq.events import LogSettings


class ScheduleSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A backup to ``target`` every so often, of which the last ``keep`` stay."""

    endpoint: str
    """The router's endpoint."""
    api_key: str | None = None
    """With authentication: the key of the cluster's own processes."""
    server_key: str | None = None
    target: str
    every_ms: int
    keep: int
    log: LogSettings = LogSettings()


class KeeperSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Checkpoints of the replicated shards of a host, to ``target`` and back."""

    data_dir: str
    """Of the host's workers."""
    target: str
    """A folder or a URL that all hosts of the cluster reach."""
    log: LogSettings = LogSettings()
