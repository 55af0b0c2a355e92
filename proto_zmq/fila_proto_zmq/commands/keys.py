"""API keys: who may do what."""

from fila_proto_zmq.commands.structs import Command, Reply, Struct


class KeyView(Struct):
    """A key as people see it. ``allow``: its permissions, ``produce|consume|admin:PATTERN`` each. Times are 0 for never."""

    name: str
    allow: list[str]
    created_ms: int
    expires_ms: int
    used_ms: int
    """When it was last used for a greeting, to the minute."""


class KeyMade(Reply):
    """A new key, whose secret is shown only here."""

    secret: str
    key: KeyView


class CreateKey(Command):
    """Make an API key. Its maker must have every permission of it, as ``admin``. ``expires_ms``: Unix ms; 0: never."""

    opcode, reply = 73, KeyMade
    name: str
    allow: list[str]
    expires_ms: int = 0


class KeyList(Reply):
    """Keys by name, and whether more follow the last one."""

    keys: list[KeyView]
    more: bool = False


class ListKeys(Command):
    """Ask for the keys that the asking key may manage: the one named, or those after a name."""

    opcode, reply = 74, KeyList
    name: str | None = None
    after: str = ""


class RevokeKey(Command):
    """End a key: what it may do ends within a second, on open connections, too."""

    opcode = 75
    name: str


class GrantKey(Command):
    """Add permissions to a key."""

    opcode = 76
    name: str
    allow: list[str]


class OwnKey(Reply):
    """The asking key; None without authentication."""

    key: KeyView | None


class GetOwnKey(Command):
    """Ask who the asking key is, and what it may do. Any valid key may ask."""

    opcode, reply = 79, OwnKey


class ApiKey(Struct):
    """A key as the broker's processes have it: a hash of its secret, which has 256 random bits."""

    name: str
    algorithm: str
    """The hash: ``sha256``."""
    digest: bytes
    allow: list[str]
    created_ms: int
    expires_ms: int = 0
    used_ms: int = 0


class PutKeys(Command):
    """Send all keys to a worker, whose own door admits clients by them. Not answered: its next Pulse has the version."""

    opcode = 87
    keys: list[ApiKey]
    version: int = 0
    """Which keys these are; a random number for each change."""
    own: list[ApiKey] = []
    """Those of the cluster's own processes on the router's host."""
    stored: int = 0
    """The version of ``keys`` in the log of shard 0, which several routers share: the latest counts. 0: not from there."""


class StoreKeys(Command):
    """Keep the API keys in the log of shard 0, for several routers. Refused unless ``version`` is the next one."""

    opcode = 98
    version: int
    keys: list[ApiKey]


class StoredKeys(Reply):
    """The API keys in the log of shard 0. ``version`` 0: there are no keys."""

    version: int = 0
    keys: list[ApiKey] = []


class FetchKeys(Command):
    """Ask the leader of shard 0 for the API keys."""

    opcode, reply = 99, StoredKeys
