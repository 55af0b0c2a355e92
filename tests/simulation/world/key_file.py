"""The file of a router's API keys: it is on the disk before a change is confirmed, so a power cut does not undo it.

Of several routers each has its own, which begin with the same first key.
"""

from copy import copy

from fila_admission.keys import ALGORITHM, digest_of
from fila_proto_zmq.commands import ApiKey
from fila_router.key_file import Pair
from fila_router.settings import AuthSettings
from tests.simulation.world.world import World

ADMIN = "fila_admin"
"""The first API key, which may do everything."""

_PAIR = Pair("p" * 40, "s" * 40)
AUTH = AuthSettings("/auth", _PAIR, _PAIR, "w" * 40, [])
"""Nothing is encrypted here: the sockets that stand in for ZeroMQ's take the options, and do nothing with them."""


class KeyFile:
    """What is on the disk."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._keys = [ApiKey("admin", ALGORITHM, digest_of(ADMIN), ["admin:*", "consume:*", "produce:*"], 1)]

        self.version = 0
        """Of the keys in the log of shard 0; 0: they are not from there."""

    def load(self) -> list[ApiKey]:
        """Read it."""
        return [copy(key) for key in self._keys]

    def save(self, keys: list[ApiKey], version: int) -> None:
        """Write it whole, or die before or after it."""
        process = self._world.current
        process.touch("keys are stored")
        self._keys, self.version = [copy(key) for key in keys], version
        process.touch("keys were stored")
