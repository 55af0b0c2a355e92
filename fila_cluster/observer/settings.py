"""What an observer has to be told at its start. Its parent writes this as one line of JSON to its standard input."""

import re

import msgspec

from fila_proto_zmq.events import LogSettings


class ObserverSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``host`` None: no HTTP; ``otlp_endpoint`` None: no export."""

    endpoint: str
    """Of the router."""
    host: str | None
    port: int
    otlp_endpoint: str | None
    service_name: str
    metrics_interval_ms: int
    allowed_hosts: tuple[str, ...] = ()
    """Names under which the dashboard is served, besides the ones that it has by itself."""
    log: LogSettings = LogSettings()


def without_password(endpoint: str) -> str:
    """Return a collector's address as it may be told to anybody."""
    return re.sub("//.*@", "//", endpoint)
