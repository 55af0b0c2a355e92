"""The ports of a cluster, and the socket of its router for workers."""

import errno
import os
import socket
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from fila_cluster.run.config.settings import Address
from fila_cluster.run.supervisor import CannotStartError
from fila_process.files import SOCKET_PATH_BYTES_MAX
from fila_proto_zmq.errors import InvalidConfigError

_KEEPS: Final = sys.platform == "linux"

_REASONS = {
    errno.EADDRINUSE: "address already in use; stop the other process or choose another",
    errno.EADDRNOTAVAIL: "this machine has no such address; correct",
    errno.EACCES: "permission denied; choose a port above 1023 in",
}


class Ports(ExitStack):
    """A context that keeps the ports that were reserved in it."""

    def reserve(self, address: Address, flag: str) -> Address:
        """Check that ``address``, set by ``flag``, is free, and replace port 0. Raises :class:`CannotStartError`."""
        try:
            family, *_, target = socket.getaddrinfo(address.host.strip("[]"), address.port, type=socket.SOCK_STREAM)[0]
            kept = self.enter_context(_bound(family, target))
            port = kept.getsockname()[1]
            if not _KEEPS:
                kept.close()
            with _bound(family, (target[0], port, *target[2:])) as probe:
                probe.listen()  # a socket that has listened can't be the one that stays
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


_CONNECT_S_MAX = 1.0


def check_socket_path(path: Path, flag: str, data_dir: Path | None = None) -> None:
    """Raise :class:`CannotStartError` if a router can't or must not listen at ``path``; ``data_dir`` is about to be made."""
    try:
        reason = _obstacle(path, data_dir)
    except OSError as error:
        reason = f"{error.strerror or error}; correct"
    if reason:
        raise CannotStartError(f"cannot listen on ipc://{path}: {reason} {flag}")


def _obstacle(path: Path, data_dir: Path | None) -> str:
    if path.parent != data_dir and not path.parent.is_dir():
        return f"there is no directory {path.parent}; make it, or correct"
    if not path.is_socket():
        return "something else is there, and would be overwritten; choose another" if path.exists() else ""
    return "address already in use; stop the other process or choose another" if _answers(path) else ""


def _answers(path: Path) -> bool:
    """Return whether a process listens there: a socket's file stays after its process."""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(_CONNECT_S_MAX)
        try:
            caller.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except TimeoutError:  # a process that is busy
            return True
    return True


_IPC = "ipc://"


@dataclass(frozen=True, slots=True)
class WorkerEndpoint:
    """An endpoint for the router to listen on and for workers to join. ``address`` is None for a socket on the disk."""

    endpoint: str
    address: Address | None = None

    @classmethod
    def parse(cls, text: str, flag: str) -> Self:
        """Read ``tcp://host:port``, ``host:port`` or ``ipc://path``; :class:`InvalidConfigError` names the flag."""
        if text.startswith(_IPC) and text != _IPC:
            path = Path(text.removeprefix(_IPC)).absolute()  # children have another working directory
            if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
                raise InvalidConfigError(f"{flag} {text}: as {path} that is too long for a socket, use a shorter path")
            return cls(f"{_IPC}{path}")
        try:
            address = Address.parse(text)
        except ValueError:
            raise InvalidConfigError(f"{flag} {text}: write tcp://HOST:PORT or ipc://PATH") from None
        return cls(address.endpoint, address)

    def reserve(self, ports: Ports, flag: str) -> Self:
        """Check that it can be listened on, and choose a port if none was given."""
        if self.address is None:
            return self
        address = ports.reserve(self.address, flag)
        return type(self)(address.endpoint, address)

    def check_path(self, flag: str, data_dir: Path | None = None) -> None:
        """Check that a socket on the disk can be made. ``data_dir`` is a directory that will be there by then."""
        if self.address is None and self != IN_DATA_DIR:
            check_socket_path(Path(self.endpoint.removeprefix(_IPC)), flag, data_dir)

    @property
    def join(self) -> str:
        """The endpoint for a worker on this machine."""
        return self.address.reachable.endpoint if self.address else self.endpoint


IN_DATA_DIR = WorkerEndpoint("ipc://router.ipc")
"""Relative to the children's working directory, since a socket's path has room for 107 bytes only."""
