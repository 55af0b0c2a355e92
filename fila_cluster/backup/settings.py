"""The settings of the process that makes backups on schedule. Its parent writes them as one line of JSON to its standard input."""

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
