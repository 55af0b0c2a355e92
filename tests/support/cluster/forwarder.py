"""A TCP forwarder in front of a router: another endpoint of it, to be killed, or to fall silent as a host that vanishes."""

import selectors
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class Forwarder:
    """Forwards connections to ``endpoint`` in a thread, until :meth:`kill` or :meth:`freeze`. :meth:`cut` ends those of now."""

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        self._to = parts.hostname, parts.port
        self.listening = socket.create_server(("127.0.0.1", 0))
        self._orders, self._ordered = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.listening, selectors.EVENT_READ)
        self._selector.register(self._ordered, selectors.EVENT_READ)
        self._other: dict[socket.socket, socket.socket] = {}
        self.accepted = 0
        """Connections so far."""
        self.endpoint = f"tcp://127.0.0.1:{self.listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, name="forwarder")
        self._thread.start()

    @property
    def connections(self) -> int:
        """Connections that it forwards now."""
        return len(self._other) // 2

    def kill(self) -> None:
        """Close everything at once, as the system does with a killed process."""
        self._stop()
        for each in [self.listening, *self._other]:
            each.close()
        self._other.clear()

    def freeze(self) -> None:
        """Forward nothing any more, and close nothing: the system still takes connections and bytes, as for a paused process."""
        self._stop()

    def cut(self) -> None:
        """Close the connections of now, and go on: a load balancer whose patience with idle connections is over."""
        if self._thread.is_alive():
            self._orders.send(b"c")
            assert self._orders.recv(1) == b"c", "they are closed when this returns"

    def _stop(self) -> None:
        if self._thread.is_alive():
            self._orders.send(b"!")
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        self._selector.close()
        self._orders.close()
        self._ordered.close()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._ordered:
                    if self._ordered.recv(1) == b"!":
                        return
                    self._close_all()
                    break  # what else was ready is closed
                if key.fileobj is self.listening:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._other:
                    self._forward(key.fileobj)

    def _accept(self) -> None:
        client, _ = self.listening.accept()
        try:
            router = socket.create_connection(self._to)
        except OSError:  # it is not there now
            client.close()
            return
        for one, other in ((client, router), (router, client)):
            self._other[one] = other
            self._selector.register(one, selectors.EVENT_READ)
        self.accepted += 1

    def _forward(self, one: socket.socket) -> None:
        other = self._other[one]
        with suppress(OSError):
            data = one.recv(65536)
            if data:
                other.sendall(data)
                return
        self._close(one, other)

    def _close(self, *sockets: socket.socket) -> None:
        for each in sockets:
            self._selector.unregister(each)
            del self._other[each]
            each.close()

    def _close_all(self) -> None:
        self._close(*self._other)
        self._ordered.send(b"c")
