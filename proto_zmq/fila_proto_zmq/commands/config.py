"""The runtime config."""

from fila_proto_zmq.commands.structs import Command, Reply, Struct


class ConfigChange(Reply):
    """A new version of the runtime config: what changed (None: deleted), and whether the key had a value before."""

    version: int
    changes: dict[str, str | None]
    existed: bool


class SetConfig(Command):
    """Set a key of the runtime config, or delete it (``value`` None). Answered once every live shard has it."""

    opcode, reply = 70, ConfigChange
    key: str
    value: str | None
    by: str = ""
    """The name of the API key that asks; the router sets it."""


class ConfigEdit(Struct):
    """A change that was made: one version of the runtime config. The values are as the key was spelled; None: it had none."""

    version: int
    at_ms: int
    by: str
    """The name of the API key; empty: the cluster has no authentication."""
    key: str
    old: str | None
    new: str | None


class ConfigHistory(Reply):
    """Changes, the latest first, and whether there are earlier ones."""

    edits: list[ConfigEdit]
    more: bool = False


class ListConfigHistory(Command):
    """Ask for the changes of the runtime config that are remembered: the latest thousand, fewer if their values are large."""

    opcode, reply = 77, ConfigHistory
    key: str | None = None
    """Only changes of this key; None: of all."""
    before: int = 0
    """Only versions before this one; 0: from the latest on."""
    limit: int = 100
    """1 to 100. A page may be shorter, also if more follow."""


class UndoConfig(Command):
    """Set the key of a change back to its value before, as a new version. Answered like :class:`SetConfig`."""

    opcode, reply = 78, ConfigChange
    version: int
    force: bool = False
    """Also if the key was changed since."""
    by: str = ""
    """The name of the API key that asks; the router sets it."""


class ConfigValues(Reply):
    """Keys of the runtime config with their values."""

    values: dict[str, str]


class GetConfig(Command):
    """Ask for one key (``values`` is empty if it has no value)."""

    opcode, reply = 71, ConfigValues
    key: str


class ListConfig(Command):
    """Ask for all keys that start with ``prefix``."""

    opcode, reply = 72, ConfigValues
    prefix: str = ""
