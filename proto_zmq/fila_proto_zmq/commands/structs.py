"""The bases of all wire structs."""

from typing import ClassVar, TypeAlias

import msgspec

IntColumn: TypeAlias = int | list[int]
TextColumn: TypeAlias = str | list[str]
KeysColumn: TypeAlias = list[list[str]]


class Struct(msgspec.Struct, array_like=True, gc=False):
    """Base of all wire structs."""


class Reply(Struct):
    """Base of the answers to commands."""


class Done(Reply):
    """The command is done (and durable, if it changed anything); there is no more to answer."""


class Command(Struct):
    """Base of requests. ``opcode`` is the command's number, ``reply`` the struct of a successful answer."""

    opcode: ClassVar[int]
    reply: ClassVar[type[Reply]] = Done
