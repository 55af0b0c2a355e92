"""The queues of the option ``queue``: names and patterns, and the queues that match them now."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Self

from fila_cluster.client import Client, QueueInfo, checks
from fila_proto_zmq.errors import InvalidArgumentError, QueueNotFoundError

_WILD: Final = "*?["
DEAD_LETTERS: Final = ".dlq"


@dataclass(frozen=True, slots=True)
class Selection:
    """Names of queues, and patterns as in a shell. Goes to the executors with their tasks."""

    names: tuple[str, ...]
    patterns: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str | None) -> Self:
        """Read it from the option's text."""
        words = [word.strip() for word in (text or "").split(",") if word.strip()]
        if not words:
            raise InvalidArgumentError(
                'option queue: name the queue to read, .option("queue", "orders"); patterns: "orders*"'
            )
        patterns = tuple(word for word in words if set(word) & set(_WILD))
        return cls(tuple(checks.queue_name(word) for word in words if word not in patterns), patterns)

    def __contains__(self, name: str) -> bool:
        return name in self.names or any(fnmatchcase(name, pattern) for pattern in self.patterns)

    def is_drained(self, name: str) -> bool:
        """Like ``in``, for readers that take messages out: dead letter queues must be named as such."""
        if name in self.names:
            return True
        wanted = [pattern for pattern in self.patterns if fnmatchcase(name, pattern)]
        return any(pattern.endswith(DEAD_LETTERS) for pattern in wanted) if name.endswith(DEAD_LETTERS) else bool(wanted)

    @property
    def prefix(self) -> str:
        """The common beginning of all names that it may mean."""
        heads = [pattern[: min(pattern.index(mark) for mark in _WILD if mark in pattern)] for pattern in self.patterns]
        words = [*self.names, *heads]
        first, last = min(words), max(words)
        return first[
            : next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
        ]


def meant(client: Client, selection: Selection, *, to_drain: bool) -> list[QueueInfo]:
    """Return the selected queues, in the order of their names; ``to_drain``: for a reader that takes messages out of them.

    Raises :class:`QueueNotFoundError` if a named one does not exist; a pattern may match none.
    """
    is_meant = selection.is_drained if to_drain else selection.__contains__
    infos = [info for info in client.list_queues(selection.prefix) if is_meant(info.name)]
    missing = set(selection.names) - {info.name for info in infos}
    if missing:
        name = min(missing)
        raise QueueNotFoundError(
            f"no queue {name!r}: create it with `fila-cluster queue create {name}` or create_queue()", details={"queue": name}
        )
    return infos
