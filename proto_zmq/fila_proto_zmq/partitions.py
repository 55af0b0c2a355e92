"""Queues with several partitions: how their options are kept in the runtime config, and which partition a message is in.

Such a queue is a key of the runtime config: ``fila:partitioned:`` and its name. Its value has its options as JSON, and the
version of the config that created it. So the options have an owner, copies on every shard, and a history like any other key.
Only :class:`~fila_proto_zmq.commands.CreatePartitioned` and its like set such keys, and lists of the config leave them out.

With ``spread="key"`` the partition of a message is a hash of its fairness key: jump consistent hashing (Lamping and Veach,
"A Fast, Minimal Memory, Consistent Hash Algorithm", 2014). Another number of partitions moves as few keys as possible.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgspec

from fila_proto_zmq.commands import QueueOptions
from fila_proto_zmq.errors import PartitionedError
from fila_proto_zmq.names import PARTITION_MARK, partition_name, root_name, whole_queue
from fila_proto_zmq.runtime_config import PARTITIONED
from fila_proto_zmq.templates import Fields

BY_KEY: Final = "key"
BY_MESSAGE: Final = "message"

_STEP: Final = 2862933555777941757
_MASK: Final = (1 << 64) - 1


class Plan(NamedTuple):
    """How a queue is spread over its partitions."""

    partitions: int
    spread: str

    def names(self, queue: str) -> list[str]:
        """Return the names of the partitions of a queue, or of its dead letter queue."""
        return [partition_name(queue, each) for each in range(self.partitions)]


@lru_cache(maxsize=1 << 16)
def partition_of(key: str, partitions: int) -> int:
    """Return the partition, ``0 <= partition < partitions``, of a fairness key, or of a dedup id."""
    state = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")
    partition, following = 0, 0
    while following < partitions:
        partition = following
        state = (state * _STEP + 1) & _MASK
        following = int((partition + 1) * ((1 << 31) / ((state >> 33) + 1)))
    return partition


class Definition(NamedTuple):
    """A queue with several partitions. ``created``: the version of the config that created it."""

    options: QueueOptions
    created: int

    @property
    def plan(self) -> Plan:
        """How it is spread."""
        return Plan(self.options.partitions or 1, self.options.spread or BY_KEY)

    def refusal(self, name: str) -> PartitionedError:
        """Return the error for a command on the whole queue, or on a partition that it has no longer."""
        partitions, spread = self.plan
        return PartitionedError(
            f"queue {whole_queue(name)!r} has {partitions} partitions, which this client does not know: upgrade it",
            details={"partitions": partitions, "spread": spread},
        )


_Stored = msgspec.defstruct("_Stored", [("created", int), ("options", Fields)])
_encode = msgspec.json.Encoder().encode
_decode: Callable[[str], Any] = msgspec.json.Decoder(_Stored).decode


def encode_definition(definition: Definition) -> str:
    """Return a definition as the value of a key."""
    options = Fields(**msgspec.structs.asdict(definition.options))
    return _encode(_Stored(created=definition.created, options=options)).decode()


def decode_definition(value: str) -> Definition | None:
    """Return the definition in a value; None if a later version wrote it so that this one can't read it."""
    try:
        stored = _decode(value)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return Definition(QueueOptions(**msgspec.structs.asdict(stored.options)), stored.created)


class Definitions:
    """The queues with several partitions of a runtime config, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Definition] = {}
        self._unreadable: set[str] = set()
        self.changed: set[str] = set()
        """The queues whose definitions have changed since the owner of the shard last emptied the set."""

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def change(self, changes: Mapping[str, str | None]) -> None:
        """Follow a change of the config."""
        for key, value in changes.items():
            if key.startswith(PARTITIONED):
                name = key[len(PARTITIONED) :]
                self.changed.add(name)
                definition = None if value is None else decode_definition(value)
                if definition is None:
                    self._by_name.pop(name, None)
                else:
                    self._by_name[name] = definition
                if value is not None and definition is None:
                    self._unreadable.add(name)
                else:
                    self._unreadable.discard(name)

    def find(self, name: str) -> Definition | None:
        """Return the definition of a queue, of its dead letter queue, or of a partition of one of them."""
        return self._by_name.get(root_name(name).partition(PARTITION_MARK)[0]) if self._by_name else None

    def is_unreadable(self, name: str) -> bool:
        """Return whether a later version wrote the definition of a queue so that this one can't read it."""
        return root_name(name).partition(PARTITION_MARK)[0] in self._unreadable

    def partition_for(self, name: str, fairness_key: str) -> str:
        """Return the queue that takes a message in: its partition, or the queue itself if it has no partitions."""
        definition = self.find(name)
        if definition is None:
            return name
        plan, (name, mark, number) = definition.plan, name.partition(PARTITION_MARK)
        if mark and int(number) < plan.partitions:
            return name + mark + number
        return partition_name(name, partition_of(fairness_key, plan.partitions) if plan.spread == BY_KEY else 0)
