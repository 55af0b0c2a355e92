"""The bases of all wire structs, and what several topics have in common."""

from collections.abc import Iterable
from typing import ClassVar, Protocol, TypeAlias, TypeVar

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
    """Observations by size: ``counts[i]`` were at most ``bounds[i]``, and more than the bound before. The last has none."""

    bounds: list[int]
    counts: list[int]
    """One more than bounds."""
    total: int
    """The sum of all observed values."""


def names_queue(needs: str, use: str) -> msgspec.Meta:
    """Mark a field that names a queue beside the routing key's.

    ``needs``: the kind of permission on it, ``produce``, ``consume`` or ``admin``; ``use``: what for, with ``{}`` for the
    routing key.
    """
    return msgspec.Meta(extra={"needs": needs, "use": use})


class Named(Protocol):
    """An item of a list that is sorted by name."""

    @property
    def name(self) -> str:
        """The name of a queue, or of a schedule."""


_N = TypeVar("_N", bound=Named)


def join_pages(pages: Iterable[tuple[list[_N], bool]], count_max: int) -> tuple[list[_N], bool]:
    """Join pages of a list, each with whether more follows, up to the first name after which one may lack something."""
    pages = list(pages)
    found = sorted((each for page, _ in pages for each in page), key=lambda each: each.name)
    end = min((page[-1].name for page, more in pages if more and page), default=None)
    shown = [each for each in found if end is None or each.name <= end][:count_max]
    return shown, len(shown) < len(found) or end is not None
