"""The queues that a request names beside its routing key's: in the fields that are marked by :func:`names_queue`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from msgspec import inspect

from fila_proto_zmq.codec import decode_body
from fila_proto_zmq.commands import COMMANDS, Command
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import VIEW_QUEUES_MAX

NO_NAMES: Final = frozenset({"dlq", "discard"})
"""Words of the protocol that may stand in place of a queue's name."""


@dataclass(frozen=True, slots=True)
class Naming:
    """A field that names queues: the fields that lead to it, and which kind of permission on them is needed for what."""

    path: tuple[str, ...]
    needs: str
    use: str


def namings(command: type[Command]) -> list[Naming]:
    """Return the fields of a command that name queues."""
    return list(_walk(inspect.type_info(command), ()))


def _walk(found: inspect.Type, path: tuple[str, ...]) -> Iterator[Naming]:
    if isinstance(found, inspect.Metadata):
        if found.extra and "needs" in found.extra:
            yield Naming(path, found.extra["needs"], found.extra["use"])
        yield from _walk(found.type, path)
    elif isinstance(found, inspect.StructType):
        for field in found.fields:
            yield from _walk(field.type, (*path, field.name))
    elif isinstance(found, inspect.UnionType):
        for each in found.types:
            yield from _walk(each, path)
    elif isinstance(found, inspect.ListType):
        yield from _walk(found.item_type, path)


NAMING: Final[dict[int, tuple[type[Command], list[Naming]]]] = {
    command.opcode: (command, found) for command in COMMANDS if (found := namings(command))
}
"""The commands that name queues, by opcode."""


def named_queues(opcode: int, body: bytes) -> Iterator[tuple[Naming, str]]:
    """Yield the queues that a request names, each with the field. Raise :class:`InvalidArgumentError` if it names too
    many."""
    kind, fields = NAMING[opcode]
    command = decode_body(kind, body)
    for naming in fields:
        names: Any = command
        for name in naming.path:
            names = None if names is None else getattr(names, name)
        listed = names if isinstance(names, list) else [names]
        if len(listed) > VIEW_QUEUES_MAX:
            raise InvalidArgumentError(f"{len(listed)} queues in one request: use at most {VIEW_QUEUES_MAX}")
        for each in listed:
            if each is not None and each not in NO_NAMES:
                yield naming, each
