"""Whether a router may listen on a socket on the disk, asked before anything is touched.

ZeroMQ replaces whatever is at its path: somebody's file, or the socket that another cluster's workers are just about to join.
"""

import os
import socket
from pathlib import Path

from fila_cluster.supervisor.failure import CannotStartError

PATH_BYTES_MAX = 107
"""What a socket's address has room for."""

_CONNECT_S_MAX = 1.0


def is_too_long(path: Path) -> bool:
    """Whether no socket can be there."""
    return len(os.fsencode(path)) > PATH_BYTES_MAX


def check_socket_path(path: Path, flag: str, data_dir: Path | None = None) -> None:
    """Raise :class:`CannotStartError` if a router can't or mustn't listen at ``path``; ``data_dir`` is about to be made."""
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
    """Whether somebody listens there: sockets outlive who made them."""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(_CONNECT_S_MAX)
        try:
            caller.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except TimeoutError:  # somebody busy
            return True
    return True
