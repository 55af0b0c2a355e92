"""The queues that commands name in their bodies, besides the routing key's: found by the types of their fields.

A field of a command, or of a struct in it, that names a queue has the type ``QueueName`` or ``ProducedQueue``. No list of commands is kept.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import inspect

from fila_proto_zmq.commands import BY_OPCODE

NOT_QUEUES: Final = frozenset({"dlq", "discard"})
"""What a dead letter target can be besides a queue."""

Names: TypeAlias = Callable[[Any], Iterator[str]]
"""Yield the queues that a value names."""


class Named(NamedTuple):
    """A field that names queues. ``kind``: the permission that it needs; empty: that of the request."""

    name: str
    kind: str
    names: Names


def _itself(value: Any) -> Iterator[str]:
    if value is not None and value not in NOT_QUEUES:
        yield value


def _of_each(inner: Names) -> Names:
    return lambda values: (name for value in values or () for name in inner(value))


def _of_field(field: str, inner: Names) -> Names:
    return lambda struct: inner(getattr(struct, field)) if struct is not None else iter(())


def fields_of(kind: inspect.Type) -> Iterator[Named]:
    """Yield the fields of a type that name queues. A type in which they can't be found is an error: of a dict, say."""
    if isinstance(kind, inspect.Metadata):
        if kind.extra is not None and "queue" in kind.extra:
            yield Named("", kind.extra["queue"], _itself)
        else:
            yield from fields_of(kind.type)
    elif isinstance(kind, inspect.UnionType):
        found = [each for member in kind.types for each in fields_of(member)]
        if found and len([each for each in kind.types if not isinstance(each, inspect.NoneType)]) > 1:
            raise TypeError(f"{kind}: a field that names a queue is of one type, or None")
        yield from found
    elif isinstance(kind, inspect.StructType):
        for field in kind.fields:
            for each in fields_of(field.type):
                yield Named(each.name or field.name, each.kind, _of_field(field.name, each.names))
    elif isinstance(kind, inspect.CollectionType) and not isinstance(kind.item_type, inspect.AnyType):
        for each in fields_of(kind.item_type):
            yield Named(each.name, each.kind, _of_each(each.names))
    elif isinstance(kind, (inspect.TupleType, inspect.DictType)):
        members = kind.item_types if isinstance(kind, inspect.TupleType) else (kind.key_type, kind.value_type)
        if any(True for member in members for _ in fields_of(member)):
            raise TypeError(f"{kind}: put the queue's name into a field of its own")


NAMED: Final = {
    opcode: fields for opcode, command in BY_OPCODE.items() if (fields := list(fields_of(inspect.type_info(command))))
}
"""By opcode."""
