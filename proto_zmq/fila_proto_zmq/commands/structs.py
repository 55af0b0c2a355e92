"""The bases of all wire structs, and what several topics have in common."""

from collections.abc import Iterable
from typing import Annotated, ClassVar, Protocol, TypeAlias, TypeVar

import msgspec

IntColumn: TypeAlias = int | list[int]
BoolColumn: TypeAlias = bool | list[bool]
TextColumn: TypeAlias = str | list[str]
KeysColumn: TypeAlias = list[list[str]]

QueueName: TypeAlias = Annotated[str, msgspec.Meta(extra={"queue": ""})]
"""A queue that a command names in its body. Its API key needs the permission on it that it needs on the routing key's queue."""
ProducedQueue: TypeAlias = Annotated[str, msgspec.Meta(extra={"queue": "produce"})]
"""A queue that gets messages because of a command, whatever permission the command needs on its routing key."""


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


class Named(Protocol):
    """What lists are sorted by."""

    @property
    def name(self) -> str:
        """The name of a queue, or of a schedule."""


_N = TypeVar("_N", bound=Named)


def join_pages(pages: Iterable[tuple[list[_N], bool]], count_max: int) -> tuple[list[_N], bool]:
    """Join pages of a list, each with whether more follows, into one: up to the first name after which one of them may lack something."""
    pages = list(pages)
    found = sorted((each for page, _ in pages for each in page), key=lambda each: each.name)
    end = min((page[-1].name for page, more in pages if more and page), default=None)
    shown = [each for each in found if end is None or each.name <= end][:count_max]
    return shown, len(shown) < len(found) or end is not None
