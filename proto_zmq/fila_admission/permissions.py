"""Permissions of API keys, those that a request needs, and the queues that it names beside its routing key's.

A permission is ``KIND:PATTERN``. ``produce`` puts messages into queues, ``consume`` takes them out and reads them, ``admin``
changes queues and makes keys. A pattern is a queue's name, or the beginning of names and ``*``. No kind implies another one.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, Self

from msgspec import inspect

from fila_proto_zmq import commands as wire
from fila_proto_zmq.codec import decode_body
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import QUEUE_NAME_BYTES_MAX, VIEW_QUEUES_MAX
from fila_proto_zmq.names import matches, whole_queue

PRODUCE: Final = "produce"
CONSUME: Final = "consume"
ADMIN: Final = "admin"
KINDS: Final = (PRODUCE, CONSUME, ADMIN)

EVERYTHING: Final = "*"
"""The pattern of what concerns the whole cluster."""

PERMISSIONS_MAX: Final = 32
"""Permissions of one key."""

_PATTERN: Final = re.compile(r"(?:[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]*)?)?\*?", re.ASCII)


class Permission(NamedTuple):
    """One kind of work on some queues."""

    kind: str
    pattern: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``KIND:PATTERN``. Raise :class:`InvalidArgumentError` for anything else."""
        kind, colon, pattern = text.partition(":")
        if kind not in KINDS or not colon:
            raise InvalidArgumentError(f"bad permission {text!r}: use produce:PATTERN, consume:PATTERN or admin:PATTERN")
        if not pattern or len(pattern) > QUEUE_NAME_BYTES_MAX or not _PATTERN.fullmatch(pattern):
            raise InvalidArgumentError(
                f"bad pattern {pattern!r} in permission {text!r}: use a queue's name, "
                "or the beginning of names and * at its end"
            )
        return cls(kind, pattern)

    def allows(self, queue: str) -> bool:
        """Return whether the pattern matches the name of a queue, also of one of its partitions."""
        return matches(self.pattern, whole_queue(queue))

    def covers(self, other: str) -> bool:
        """Return whether all names that match the pattern ``other`` match this one, too."""
        return other == self.pattern or (self.pattern.endswith("*") and matches(self.pattern, other.removesuffix("*")))

    def __str__(self) -> str:
        return f"{self.kind}:{self.pattern}"


class Permissions:
    """The permissions of one key. They do not change."""

    def __init__(self, allow: Iterable[str]) -> None:
        """Raise :class:`InvalidArgumentError` for what are no permissions, or too many of them."""
        self._of_kind: dict[str, list[Permission]] = {kind: [] for kind in KINDS}
        self.texts = sorted(set(allow))
        if len(self.texts) > PERMISSIONS_MAX:
            raise InvalidArgumentError(f"{len(self.texts)} permissions: a key has at most {PERMISSIONS_MAX}, use patterns")
        for permission in map(Permission.parse, self.texts):
            self._of_kind[permission.kind].append(permission)

    def allow(self, kind: str, queue: str) -> bool:
        """Return whether one of them allows this kind of work on a queue."""
        return any(permission.allows(queue) for permission in self._of_kind[kind])

    def allow_some(self, kind: str) -> bool:
        """Return whether they allow this kind of work on any queues at all."""
        return bool(self._of_kind[kind])

    def know(self, queue: str) -> bool:
        """Return whether any kind of work on a queue is allowed, so that it may be seen to exist."""
        return any(self.allow(kind, queue) for kind in KINDS)

    @property
    def patterns(self) -> list[str]:
        """All patterns, of any kind."""
        return sorted({permission.pattern for permissions in self._of_kind.values() for permission in permissions})

    def know_all(self) -> bool:
        """Return whether every queue may be seen to exist."""
        return EVERYTHING in self.patterns

    def govern(self, pattern: str) -> bool:
        """Return whether ``admin`` is allowed on every queue that a pattern may match."""
        return any(permission.covers(pattern) for permission in self._of_kind[ADMIN])

    def govern_all(self, allow: Iterable[str]) -> bool:
        """Return whether they govern all queues of some permissions."""
        return all(self.govern(Permission.parse(text).pattern) for text in allow)


class NeededPermission(Enum):
    """The permission that a request needs."""

    PRODUCE = PRODUCE
    CONSUME = CONSUME
    ADMIN = ADMIN
    KNOW = "any permission on the queue"
    NOTHING = "no permission"
    KNOW_ALL = "a permission on all queues (*)"
    """The answer names queues, whatever the request asks for."""
    GOVERN_SOME = "some admin permission"
    """It is about API keys. Which ones is checked when it is carried out."""
    GOVERN_ALL = f"{ADMIN}:{EVERYTHING}"


_NEEDS: Final = {
    command.opcode: need
    for need, commands in {
        NeededPermission.PRODUCE: (wire.Enqueue, wire.OpenBatch, wire.SealBatch, wire.AbandonBatch, wire.CreateByTemplate),
        NeededPermission.CONSUME: (
            wire.Receive, wire.Subscribe, wire.Unsubscribe, wire.Heartbeat, wire.Goodbye, wire.CancelReceive, wire.Settle,
            wire.Extend, wire.Browse, wire.OpenView, wire.BrowseView, wire.Reserve, wire.FetchReserved,
            wire.RenewReservation, wire.EndReservation,
        ),
        NeededPermission.ADMIN: (
            wire.CreateQueue, wire.DeleteQueue, wire.UpdateQueue, wire.PurgeQueue, wire.Pause, wire.Cancel, wire.Redrive, wire.MoveMessages,
            wire.PutSchedule, wire.GetSchedule, wire.DeleteSchedule, wire.PutTemplate, wire.DeleteTemplate,
            wire.CreatePartitioned, wire.UpdatePartitioned, wire.DeletePartitioned,
        ),
        NeededPermission.KNOW: (wire.GetQueueStats, wire.DescribeQueue, wire.Explain, wire.GetTemplate),
        NeededPermission.NOTHING: (
            wire.GetPlacement, wire.GetClusterStatus, wire.GetHosts, wire.GetOwnKey, wire.ListQueues, wire.ListSchedules,
        ),
        NeededPermission.KNOW_ALL: (wire.GetMetrics,),
        NeededPermission.GOVERN_SOME: (wire.CreateKey, wire.ListKeys, wire.RevokeKey, wire.GrantKey),
    }.items()
    for command in commands
}  # fmt: skip


def need_of(opcode: int) -> NeededPermission:
    """Return what a request needs. One that is not listed here concerns the whole cluster."""
    return _NEEDS.get(opcode, NeededPermission.GOVERN_ALL)


def pattern_of(command: wire.Command) -> str:
    """Return the pattern of queues that a request without a queue is about, empty for none. It is checked like a name."""
    if isinstance(command, wire.ChangesPartitioned):
        return command.queue
    return command.pattern if isinstance(command, (wire.PutTemplate, wire.GetTemplate, wire.DeleteTemplate)) else ""


def kind_of(opcode: int) -> str | None:
    """Return the kind of permission on its queue that a request needs; None: another need."""
    need = need_of(opcode)
    return need.value if need.value in KINDS else None


NO_NAMES: Final = frozenset({"dlq", "discard"})
"""Words of the protocol that may stand in place of a queue's name."""


@dataclass(frozen=True, slots=True)
class Naming:
    """A field that names queues: the fields that lead to it, and which kind of permission on them is needed for what."""

    path: tuple[str, ...]
    needs: str
    use: str


def namings(command: type[wire.Command]) -> list[Naming]:
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


NAMING: Final[dict[int, tuple[type[wire.Command], list[Naming]]]] = {
    command.opcode: (command, found) for command in wire.COMMANDS if (found := namings(command))
}
"""The commands that name queues, by opcode."""


def named_queues(opcode: int, body: bytes) -> Iterator[tuple[Naming, str]]:
    """Yield the queues that a request names, each with the field. Raise :class:`InvalidArgumentError` for too many."""
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
