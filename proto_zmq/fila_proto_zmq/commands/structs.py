"""What all wire structs are made of."""

from typing import ClassVar, TypeAlias

import msgspec

IntColumn: TypeAlias = int | list[int]
TextColumn: TypeAlias = str | list[str]
KeysColumn: TypeAlias = list[list[str]]


class Struct(msgspec.Struct, array_like=True, gc=False):
    """Base of all wire structs."""


class Reply(Struct):
    """Base of what answers a command."""


class Done(Reply):
    """It is done (and durable, where it changed anything); there is nothing more to say."""


class Command(Struct):
    """Base of what a peer asks. ``opcode`` is its number, ``reply`` the struct of a successful answer."""

    opcode: ClassVar[int]
    reply: ClassVar[type[Reply]] = Done
