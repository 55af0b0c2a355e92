"""Queues with several partitions: how their options are kept in the runtime config, and which partition a message is in.

Such a queue is a key of the runtime config: ``fila:partitioned:`` and its name. Its value has its options as JSON, and the
version of the config that created it. So the options have an owner, copies on every shard, and a history like any other key.
Only :class:`~fila_proto_zmq.commands.CreatePartitioned` and its like set such keys, and lists of the config leave them out.

With ``spread="key"`` the partition of a message is a hash of its fairness key: jump consistent hashing (Lamping and Veach,
"A Fast, Minimal Memory, Consistent Hash Algorithm", 2014). Another number of partitions moves as few keys as possible.

While messages move to another number of partitions, the definition has the earlier number, and how far each earlier partition
has come: *drained*, it has sent on all messages that it had before the change; *empty*, it has no message at all.
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
AT_MOST_ONCE: Final = "at_most_once"

_PLACES: Final = "\0queue:"
"""No throttle key of a message, and no key of the config, begins so."""

_NUMBER_BITS: Final = 20
_STEP: Final = 2862933555777941757
_MASK: Final = (1 << 64) - 1


class Plan(NamedTuple):
    """How a queue is spread over its partitions. ``earlier``: how many it had, while messages move from these; 0: none move.

    ``held``: how many partitions may have messages, which are more than ``partitions`` for a while when these become fewer.
    ``version``: that of the config in which the number last changed.
    """

    partitions: int
    spread: str
    earlier: int = 0
    held: int = 0
    version: int = 0

    @property
    def all(self) -> range:
        """The partitions that may have messages."""
        return range(max(self.partitions, self.held))

    def names(self, queue: str) -> list[str]:
        """Return the names of the partitions of a queue, or of its dead letter queue, that may have messages."""
        return [partition_name(queue, each) for each in self.all]

    def names_for(self, queue: str, key: str) -> list[str]:
        """Return the names of the partitions that may have messages of a fairness key, the one that takes them in first."""
        if self.spread != BY_KEY:
            return self.names(queue)
        places = dict.fromkeys(partition_of(key, count) for count in (self.partitions, self.earlier) if count)
        return [partition_name(queue, each) for each in places]


def places_of(queue: str) -> str:
    """Return the name of the places of a whole queue. To the place bank it is one more throttle key."""
    return _PLACES + queue


def queue_with_places(name: str) -> str | None:
    """Return the queue whose places have this name; None: it is a throttle key."""
    return name[len(_PLACES) :] if name.startswith(_PLACES) else None


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


class PartitionMove(NamedTuple):
    """The messages of a queue on their way to another number of partitions. ``earlier``: the number before. ``held``: how many
    may have messages; partitions from that number on have none, and there are more than ``earlier`` if the number fell before.

    ``first_number``: messages that come after the change have sequence numbers from this one on, and those before it have not.
    ``drained`` and ``empty``: the earlier partitions that are. ``paused``: whether one of them was.
    """

    earlier: int
    held: int
    first_number: int
    drained: frozenset[int] = frozenset()
    empty: frozenset[int] = frozenset()
    paused: bool = False

    def is_over(self, partitions: int) -> bool:
        """Return whether nothing is left to move, and in partitions that are no more."""
        return not self.waits_for(partitions)

    def waits_for(self, partitions: int) -> list[int]:
        """Return the earlier partitions that are not drained, and those that are to go and are not empty."""
        return sorted({*range(self.earlier)} - self.drained | {*range(partitions, self.held)} - self.empty)

    @property
    def is_drained(self) -> bool:
        """Whether nothing is left to move, but perhaps what is leased."""
        return len(self.drained) == self.earlier

    @property
    def since_ms(self) -> int:
        """When the number changed, Unix ms."""
        return self.first_number >> _NUMBER_BITS


def first_number_at(now_ms: int) -> int:
    """Return a sequence number that no shard has given out before a time, Unix ms, and each can begin with then.

    A shard's numbers grow from 1, and by less than 2**20 in a millisecond. So the next change has a higher one, on any shard.
    """
    return now_ms << _NUMBER_BITS


class Definition(NamedTuple):
    """A queue with several partitions.

    ``created``: the version of the config that created it. ``changed``: the one in which its number of partitions last changed;
    0: it is as it was created. ``move``: its messages move since then. ``closing``: the version by which it is to be deleted,
    because it is idle; 0: it stays.
    """

    options: QueueOptions
    created: int
    changed: int = 0
    move: PartitionMove | None = None
    closing: int = 0

    @property
    def version(self) -> int:
        """The version of the config since which it has this number of partitions."""
        return self.changed or self.created

    @property
    def plan(self) -> Plan:
        """How it is spread."""
        earlier, held = (0, 0) if self.move is None else (self.move.earlier, self.move.held)
        return Plan(self.options.partitions or 1, self.options.spread or BY_KEY, earlier, held, self.version)

    def moved_to(self, options: QueueOptions, version: int, now_ms: int) -> "Definition":
        """Return it with another number of partitions."""
        plan = self.plan
        return Definition(
            options, self.created, version, PartitionMove(plan.partitions, len(plan.all), first_number_at(now_ms))
        )

    @property
    def was_ordinary(self) -> bool:
        """Whether it was a queue without partitions until the move in progress. That queue is its first partition now."""
        return self.move is not None and not self.changed

    @property
    def places(self) -> int | None:
        """How many of its messages may be leased at a time; None: any number. Those delivered at most once do not count."""
        return None if self.options.delivery == AT_MOST_ONCE else self.options.max_in_flight

    def refusal(self, name: str) -> PartitionedError:
        """Return the error for a command on the whole queue, or on a partition that it has no longer."""
        plan = self.plan
        return PartitionedError(
            f"queue {whole_queue(name)!r} has {plan.partitions} partitions, which this client does not know: upgrade it",
            details=plan._asdict(),
        )


_Stored = msgspec.defstruct(
    "_Stored",
    [
        ("created", int),
        ("options", Fields),
        ("changed", int, 0),
        ("earlier", int, 0),
        ("held", int, 0),
        ("first_number", int, 0),
        ("drained", list[int], msgspec.field(default_factory=list)),
        ("empty", list[int], msgspec.field(default_factory=list)),
        ("paused", bool, False),
        ("closing", int, 0),
    ],
    omit_defaults=True,
)
_encode = msgspec.json.Encoder().encode
_decode: Callable[[str], Any] = msgspec.json.Decoder(_Stored).decode


def encode_definition(definition: Definition) -> str:
    """Return a definition as the value of a key."""
    options = Fields(**msgspec.structs.asdict(definition.options))
    stored: dict[str, Any] = {"created": definition.created, "options": options, "changed": definition.changed}
    stored["closing"] = definition.closing
    if (move := definition.move) is not None:
        stored |= {"earlier": move.earlier, "held": move.held, "first_number": move.first_number, "paused": move.paused}
        stored |= {"drained": sorted(move.drained), "empty": sorted(move.empty)}
    return _encode(_Stored(**stored)).decode()


def decode_definition(value: str) -> Definition | None:
    """Return the definition in a value; None if a later version wrote it so that this one can't read it."""
    try:
        stored = _decode(value)
    except (msgspec.MsgspecError, RecursionError):
        return None
    move = None
    if stored.earlier:
        move = PartitionMove(
            stored.earlier,
            stored.held,
            stored.first_number,
            frozenset(stored.drained),
            frozenset(stored.empty),
            stored.paused,
        )
    options = QueueOptions(**msgspec.structs.asdict(stored.options))
    return Definition(options, stored.created, stored.changed, move, stored.closing)


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

    @property
    def have_places(self) -> bool:
        """Whether any of the queues has a ``max_in_flight``."""
        return any(definition.places is not None for definition in self._by_name.values())

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
