"""What a client is opened with."""

import os
from typing import Any

from fila_cluster.client import checks
from fila_cluster.client.io.link import ENDPOINT_DEFAULT
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.version import VERSION

TIMEOUT_MS_MAX = 24 * 3600 * 1000


CLIENT_VERSION = f"python/{VERSION}"


def endpoint_or_default(endpoint: Any) -> str:
    """The argument, else ``FILA_ENDPOINT``, else this machine."""
    if endpoint is None:
        return os.environ.get("FILA_ENDPOINT") or ENDPOINT_DEFAULT
    if not isinstance(endpoint, str):
        raise InvalidArgumentError(f"endpoint={endpoint!r}: pass a str, for example {ENDPOINT_DEFAULT}")
    return endpoint


def refuse_keys(**keys: Any) -> None:
    """A key that would go unused must not look as if it protected anything."""
    for name, key in keys.items():
        if key:
            raise InvalidArgumentError(f"{name}: this version has no authentication, leave it out")


def timeout_seconds(timeout: Any) -> float:
    """How long a call may take."""
    return checks.positive_milliseconds("timeout", timeout, TIMEOUT_MS_MAX) / 1000
