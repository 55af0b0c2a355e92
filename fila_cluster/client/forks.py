"""What a fork leaves of a client in the child: nothing but a clear error.

The socket, its thread and the broker's leases are the parent's. So in the child every client that was made before refuses to be
used, gives nothing out that it had prefetched, and lets go of its socket without touching it.
"""

import os
import weakref
from typing import Protocol

from fila_proto_zmq.errors import FilaError


class Disowned(Protocol):
    """What belongs to the process that made it."""

    def disown(self, error: FilaError) -> None:
        """In the child of a fork: refuse everything from now on with ``error``."""


_all: "weakref.WeakSet[Disowned]" = weakref.WeakSet()


def leave_to_the_parent(owned: Disowned) -> None:
    """Have ``owned`` disowned in every child of a fork."""
    _all.add(owned)


def _disown_all() -> None:
    for owned in list(_all):
        owned.disown(FilaError("this client was opened before the fork: open another one in the child process"))


os.register_at_fork(after_in_child=_disown_all)
