"""The runtime config."""

from typing import ClassVar

from fila_proto_zmq.commands.structs import Command, Reply


class ConfigChange(Reply):
    """A new version of the runtime config: what changed (None: deleted), and whether the key had a value before."""

    version: int
    changes: dict[str, str | None]
    existed: bool


class SetConfig(Command):
    """Set a key of the runtime config, or delete it (``value`` None). Answered once every live shard has it."""

    opcode: ClassVar[int] = 70
    reply: ClassVar[type[Reply]] = ConfigChange
    key: str
    value: str | None


class ConfigValues(Reply):
    """Keys of the runtime config with their values."""

    values: dict[str, str]


class GetConfig(Command):
    """Ask for one key (``values`` is empty if it has no value)."""

    opcode: ClassVar[int] = 71
    reply: ClassVar[type[Reply]] = ConfigValues
    key: str


class ListConfig(Command):
    """Ask for all keys that start with ``prefix``."""

    opcode: ClassVar[int] = 72
    reply: ClassVar[type[Reply]] = ConfigValues
    prefix: str = ""
