"""How many connections a process may have."""

import resource
from typing import Final

SOCKET_PATH_BYTES_MAX: Final = 107
"""The longest path in a Unix socket's address."""


def allow_many_connections() -> None:
    """Raise the limit of descriptors: every client is one, and the usual soft limit is 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connections_allowed(reserved: int) -> int:
    """Return how many connections there is room for beside ``reserved`` other descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(0, soft - reserved)
