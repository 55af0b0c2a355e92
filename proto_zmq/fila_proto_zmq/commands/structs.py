"""The bases of all wire structs, and what several topics have in common."""

from typing import ClassVar, TypeAlias

import msgspec

IntColumn: TypeAlias = int | list[int]
BoolColumn: TypeAlias = bool | list[bool]
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


class Histogram(Struct):
    """Observations by size: ``counts[i]`` were at most ``bounds[i]`` and more than the bound before it; the last one has no
    bound."""

    bounds: list[int]
    counts: list[int]
    """One more than bounds."""
    total: int
    """The sum of all observed values."""
