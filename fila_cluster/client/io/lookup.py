"""Names of hosts become addresses, in a thread of its own for each: a name server may take many seconds, and no call waits
for it.

libzmq would ask in its I/O thread, take the first address only, and hold up the closing of its context meanwhile.
"""

import socket
from _thread import start_new_thread
from contextlib import suppress

from fila_cluster.client.requests.endpoints import Endpoint


class Lookup:
    """One question for the addresses of a name. ``descriptor`` is readable when there is an answer."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._socket, done = socket.socketpair()
        self._socket.setblocking(False)
        self.descriptor = self._socket.fileno()
        self._found: list[str] = []
        try:
            start_new_thread(_look_up, (endpoint, self._found, done))
        except RuntimeError:  # the system has no more threads, or the interpreter is about to end
            done.close()

    def take(self) -> list[str] | None:
        """Return the addresses, as endpoints: an empty list if the name has no address now. None: there is no answer yet."""
        try:
            self._socket.recv(1)
        except BlockingIOError:
            return None
        return self._found

    def close(self) -> None:
        """Wait for the answer no longer. The thread ends by itself."""
        self._socket.close()


def _look_up(endpoint: Endpoint, found: list[str], done: socket.socket) -> None:
    try:
        with suppress(OSError, UnicodeError):  # UnicodeError: the text is not a name
            found += _addresses(endpoint)
    finally:
        with suppress(OSError):  # the client is closed
            done.shutdown(socket.SHUT_WR)  # a fork may have copied the descriptor: its end alone would not be seen
        done.close()


def _addresses(endpoint: Endpoint) -> list[str]:
    """Return the addresses of version 4, and only if there are none, those of version 6: routers seldom listen on both."""
    infos = socket.getaddrinfo(endpoint.name, endpoint.port, type=socket.SOCK_STREAM)
    hosts = [str(address[0]) for family, _, _, _, address in infos if family == socket.AF_INET]
    hosts = hosts or [f"[{address[0]}]" for family, _, _, _, address in infos if family == socket.AF_INET6]
    return [f"tcp://{host}:{endpoint.port}" for host in dict.fromkeys(hosts)]
