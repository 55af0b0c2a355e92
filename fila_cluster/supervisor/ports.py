"""The ports of one cluster: checked before anything is touched, and kept for it as long as it runs.

A port that is free now may be somebody's a second later, when a child listens on it, or when it comes back after a crash: the system
gives free ports to whoever asks for any. So a socket stays bound to each that never listens. Children can listen there nevertheless,
because they set ``SO_REUSEADDR`` as it does. Only Linux allows that: elsewhere a port is let go of once it was checked.

This keeps the system from giving a port away, not another local user from taking it: whoever sets ``SO_REUSEADDR`` may listen there while no
child does, half a second after a crash. ``SO_REUSEPORT`` asks for the same user, but libzmq does not set it on the sockets that it makes.
"""

import errno
import socket
import sys
from contextlib import ExitStack
from typing import Final

from fila_cluster.config.address import Address
from fila_cluster.supervisor.failure import CannotStartError

_KEEPS: Final = sys.platform == "linux"

_REASONS = {
    errno.EADDRINUSE: "address already in use; stop the other process or choose another",
    errno.EADDRNOTAVAIL: "this machine has no such address; correct",
    errno.EACCES: "permission denied; choose a port above 1023 in",
}


class Ports(ExitStack):
    """A context that keeps what was reserved in it."""

    def reserve(self, address: Address, flag: str) -> Address:
        """Check that ``address`` can be listened on, and replace port 0 by a free one. ``flag`` is what the user would change.

        Raises :class:`CannotStartError`.
        """
        try:
            family, *_, target = socket.getaddrinfo(address.host.strip("[]"), address.port, type=socket.SOCK_STREAM)[0]
            kept = self.enter_context(_bound(family, target))
            port = kept.getsockname()[1]
            if not _KEEPS:
                kept.close()
            with _bound(family, (target[0], port, *target[2:])) as probe:
                probe.listen()  # one that has listened could not be the one that stays
        except OSError as error:
            reason = _REASONS.get(error.errno or 0, f"{error.strerror or error}; correct")
            raise CannotStartError(f"cannot listen on {address.endpoint}: {reason} {flag}") from None
        return Address(address.host, port)


def _bound(family: socket.AddressFamily, target: tuple[object, ...]) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(target)
    except OSError:
        bound.close()
        raise
    return bound
