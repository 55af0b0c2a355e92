"""The settings of an observer process. Its parent writes them as one line of JSON to its standard input."""

import re

import msgspec

from fila_proto_zmq.events import LogSettings


class ObserverSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``host`` None: no HTTP; ``otlp_endpoint`` None: no export."""

    endpoint: str
    """The router's endpoint, or several with commas between."""
    api_key: str | None = None
    """With authentication: the key of the cluster's own processes, which may do everything."""
    server_key: str | None = None
    host: str | None
    port: int
    otlp_endpoint: str | None
    service_name: str
    metrics_interval_ms: int
    allowed_hosts: tuple[str, ...] = ()
    """Host names of the dashboard, besides its own."""
    certificate: str | None = None
    """A PEM file: HTTP is served over TLS; None: in the clear."""
    private_key: str | None = None
    log: LogSettings = LogSettings()


def without_password(endpoint: str) -> str:
    """Return a collector's address without its password, for logs."""
    return re.sub("//.*@", "//", endpoint)
