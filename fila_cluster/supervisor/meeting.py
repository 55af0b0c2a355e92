"""Where a router and its workers meet: a socket in the data directory, unless somebody says otherwise."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fila_cluster.config.address import Address
from fila_cluster.supervisor.ports import Ports
from fila_cluster.supervisor.socket_path import check_socket_path, is_too_long
from fila_proto_zmq.errors import InvalidConfigError

_IPC = "ipc://"


@dataclass(frozen=True, slots=True)
class Meeting:
    """An endpoint for the router to listen on and for workers to join. ``address`` is None for a socket on the disk."""

    endpoint: str
    address: Address | None = None

    @classmethod
    def parse(cls, text: str, flag: str) -> Self:
        """Read ``tcp://host:port``, ``host:port`` or ``ipc://path``; :class:`InvalidConfigError` names the flag."""
        if text.startswith(_IPC) and text != _IPC:
            path = Path(text.removeprefix(_IPC)).absolute()  # children live in another directory
            if is_too_long(path):
                raise InvalidConfigError(f"{flag} {text}: as {path} that is too long for a socket, use a shorter path")
            return cls(f"{_IPC}{path}")
        try:
            address = Address.parse(text)
        except ValueError:
            raise InvalidConfigError(f"{flag} {text}: write tcp://HOST:PORT or ipc://PATH") from None
        return cls(address.endpoint, address)

    def reserve(self, ports: Ports, flag: str) -> Self:
        """Check that it can be listened on, and choose a port if that was left open."""
        if self.address is None:
            return self
        address = ports.reserve(self.address, flag)
        return type(self)(address.endpoint, address)

    def check_path(self, flag: str, data_dir: Path | None = None) -> None:
        """For a socket on the disk: check that it can be made. ``data_dir`` is a directory that will be there by then."""
        if self.address is None and self != IN_DATA_DIR:
            check_socket_path(Path(self.endpoint.removeprefix(_IPC)), flag, data_dir)

    @property
    def join(self) -> str:
        """The endpoint as a worker on this machine reaches it."""
        return self.address.reachable.endpoint if self.address else self.endpoint


IN_DATA_DIR = Meeting("ipc://router.ipc")
"""Relative to the children's working directory, since a socket's path has room for 107 bytes only."""
