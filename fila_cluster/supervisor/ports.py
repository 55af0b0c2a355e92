"""Whether an address is free, asked before anything is touched."""

import errno
import socket

from fila_cluster.config.address import Address
from fila_cluster.supervisor.failure import CannotStartError

_REASONS = {
    errno.EADDRINUSE: "address already in use; stop the other process or choose another",
    errno.EADDRNOTAVAIL: "this machine has no such address; correct",
    errno.EACCES: "permission denied; choose a port above 1023 in",
}


def reserve(address: Address, flag: str) -> Address:
    """Check that ``address`` can be listened on, and replace port 0 by a free one.

    ``flag`` is what the user would change. The port is let go of again: a router binds it a moment later.
    """
    try:
        family, *_, target = socket.getaddrinfo(address.host.strip("[]"), address.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
            probe.listen()
            return Address(address.host, probe.getsockname()[1])
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, f"{error.strerror or error}; correct")
        raise CannotStartError(f"cannot listen on {address.endpoint}: {reason} {flag}") from None
