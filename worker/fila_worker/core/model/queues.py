"""Queues: a definition, fairness keys in a ring, demands in a line, and counters."""

from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from sortedcontainers import SortedList

from fila_proto_zmq.commands import QueueInfo, QueueOptions
from fila_proto_zmq.errors import QueueNotFoundError
from fila_proto_zmq.names import PARTITION_MARK, is_dead_letter, root_name, whole_queue
from fila_proto_zmq.partitions import AT_MOST_ONCE, BY_KEY, partition_of, places_of
from fila_worker.core.measures import DeliveryRate, Meter
from fila_worker.core.model.cold_lanes import WarmLanes
from fila_worker.core.model.drr import Ring
from fila_worker.core.model.fairness_keys import KeyTable
from fila_worker.core.settings import DEFAULTS, Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fila_proto_zmq.commands import Enqueue
    from fila_proto_zmq.partitions import Definition
    from fila_worker.core.held_places import HeldKey
    from fila_worker.core.hooks import GuardedHooks
    from fila_worker.core.model.consumers import Consumer, Demand
    from fila_worker.core.model.fairness_keys import FairnessKey
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.settings import ShardSettings

USED_SAVE_MS: Final = 1000
"""How far the durable time of a queue's last use may lag behind."""

DEMANDS_SURVEYED: Final = 64
"""The demands that are read to estimate how many messages are wanted."""

NAMESPACE_MARK: Final = "/"
"""In a queue's name: the limits of a namespace may concern it."""

DISCARD: Final = "discard"
OWN: Final = "dlq"


class QueueRecord(msgspec.Struct, array_like=True):
    """The record of a queue. ``dead_letters``: the id of its dead letter queue, 0 for none."""

    name: str
    options: QueueOptions
    dead_letters: int
    paused: bool = False
    paused_keys: list[str] = []
    appointed: bool = False
    priorities: list[int] = []
    size_bytes: int = 0
    used_ms: int = 0
    strangers: bool = False
    created_ms: int = 0
    gone: bool = False
    """Whether it is deleted, and not all of it is removed yet."""
    defined: int = 0
    """Of a partition: the version of the runtime config that created its queue."""
    moved: tuple[int, int] = (0, 0)
    """Of a partition: the version in which the number of partitions last changed, and its first number since then."""
    former: str = ""
    """Of a partition: its name from before its queue had partitions."""
    ids_of: list[int] = []
    """Of a partition: the earlier partitions whose dedup ids it knows."""


encode_queue = msgspec.msgpack.Encoder().encode
decode_queue = msgspec.msgpack.Decoder(QueueRecord).decode


@dataclass(slots=True)
class RefusedLine:
    """The line of refused senders of a full queue: where it ends, and estimates of its speed. Times are Unix ms."""

    until_ms: float = 0.0
    """When the last refused sender is to come again."""
    stretch: float = 1.0
    """The factor on the time between two dates: 1 is the rate at which messages leave."""
    stretched_ms: int = 0
    """When ``stretch`` was last set."""
    kept: int = 0
    kept_in_vain: int = 0
    """The number of senders that came at their dates since then, and of those among them that were refused again."""
    looked_ms: int = 0
    left: int = 0
    rate: float = 0.0
    """The last measurement: its time, the number of messages that had left by then, and the number that leave in a ms."""


PlaceTaker: TypeAlias = "Lane | QueuePartition"
"""Who takes places: a lane those of its throttle keys, a partition those of its whole queue."""


class Siblings:
    """The partitions of one queue that are on this shard: their leased messages take places of the whole queue."""

    __slots__ = ("_touch", "count", "held", "leased", "name", "placed", "version")

    def __init__(self, name: str, touch: "Callable[[HeldKey[PlaceTaker]], None]") -> None:
        self.name = name
        """Of the places."""
        self.count = 0
        """The number of these partitions."""
        self.leased = 0
        """The sum of what they have in flight, counted also without a limit."""
        self.held: HeldKey[PlaceTaker] | None = None
        """The account of the places; None: it has none."""
        self.placed: tuple[HeldKey[PlaceTaker], ...] = ()
        """The account, if there is a limit, by the limits of ``version``."""
        self.version = -1
        self._touch = touch

    def has(self, queue: "Queue") -> bool:
        """Return whether a queue is one of them."""
        return queue.partition is not None and queue.partition.siblings is self

    def add(self, leased: int) -> None:
        """Count messages that become leased; negative: that are leased no more, so their places are free."""
        self.leased += leased
        if leased < 0 and self.held is not None:
            self.held.freed -= leased
            self._touch(self.held)


class QueuePartition:
    """What a partition has beside other queues: its part of the keys, and how far a move of messages has come.

    When the number of partitions changes, the messages of some keys move, and their newer ones go to the new place at once. There
    the order of a key must hold. So a shard goes on with a higher sequence number when a partition of it first follows the change
    (:attr:`~fila_proto_zmq.partitions.PartitionMove.first_number`). A message from before keeps its number when it moves, and so its place before
    all messages from after the change. And a key delivers nothing at its new place until its earlier partition has sent on what it
    had.

    A partition waits for places of its whole queue as a lane does for those of throttle keys, and is its own fairness key there.
    ``siblings``: with which it takes places; None: its messages take none.
    """

    __slots__ = (
        "_drained", "_earlier", "_is_dead_letter", "came", "count", "defined", "draining", "first_number", "has_all_keys", "held_back",
        "hooked", "ids_of", "is_looking", "number", "owner", "sent", "settled", "siblings", "strays", "version",
    )  # fmt: skip

    def __init__(self, owner: "Queue", name: str) -> None:
        self.owner = owner
        self.number = int(name.partition(PARTITION_MARK)[2])
        self.defined = 0
        """The version of the config that created its queue."""
        self.version = self.first_number = 0
        """The version of the config in which the number of partitions last changed, as this partition knows, and the first
        sequence number of messages that came after that change."""
        self.count = 0
        """The number of partitions that take in messages; 0: not known."""
        self.hooked = False
        """Whether a hook may decide the keys."""
        self.settled: set[str] = set()
        """Keys of other partitions whose messages are delivered here, because they can't go."""
        self.strays = self.came = 0
        """How many keys have messages here that are to go to other partitions, and how often such messages came."""
        self.sent: dict[int, int] = {}
        """By shard, the number of the last transfer of one."""
        self.held_back: dict[FairnessKey, None] = {}
        """Keys that deliver nothing until their earlier partition has sent on what it had."""
        self.draining: dict[FairnessKey, None] | None = None
        """Keys of other partitions with messages from before the change. None: not all keys were looked at since."""
        self.ids_of: set[int] = set()
        """The earlier partitions whose dedup ids have come."""
        self.is_looking = False
        """Whether the keys are looked at now."""
        self._earlier = 0
        self._drained: frozenset[int] = frozenset()
        self._is_dead_letter = is_dead_letter(name)
        self.has_all_keys = True
        """Whether each partition takes in messages of all keys."""
        self.siblings: Siblings | None = None
        self.blocked = False

    def follow(self, definition: "Definition") -> None:
        """Note how its queue is spread, and how far a move has come."""
        plan, move = definition.plan, definition.move
        self.count = plan.partitions
        self.hooked = definition.options.on_enqueue is not None
        self.has_all_keys = self._is_dead_letter or plan.spread != BY_KEY
        self._earlier, self._drained = (0, frozenset()) if move is None else (move.earlier, move.drained)

    def join(self, source: "QueuePartition") -> None:
        """Follow a partition whose dead letters this one is to take."""
        self.defined, self.version, self.first_number = source.defined, source.version, source.first_number
        self.count, self._earlier, self._drained = source.count, source._earlier, source._drained
        self.draining = {}

    @property
    def is_retired(self) -> bool:
        """Whether it takes in no messages any more."""
        return 0 < self.count <= self.number

    @property
    def has_changed(self) -> bool:
        """Whether the number of partitions has changed since its queue was created."""
        return self.version != self.defined

    @property
    def key(self) -> "QueuePartition":
        """Itself."""
        return self

    @property
    def queue(self) -> "QueuePartition":
        """Itself: the places that it has do not count as those of its queue's lanes."""
        return self

    @property
    def weight(self) -> int:
        """The sum of the weights of the keys that may deliver."""
        return max(1, self.owner.ring.weight)

    @property
    def pending(self) -> int:
        """The messages that could be delivered soon."""
        return min(self.owner.pending, self.owner.appetite())

    @property
    def blocked(self) -> bool:
        """Whether it waits for a place."""
        return not self.owner.max_in_flight

    @blocked.setter
    def blocked(self, blocked: bool) -> None:
        self.owner.max_in_flight = 0 if blocked else inf

    def awaits_ids(self, command: "Enqueue") -> bool:
        """Return whether some of these messages have dedup ids that an earlier partition may know, whose ids have not come."""
        if not self._earlier or command.dedup_id == "" or self.ids_of.issuperset(range(self._earlier)):
            return False
        names = command.dedup_id if self.has_all_keys else command.fairness_key
        places = {partition_of(name, self._earlier) for name in ({*names} if isinstance(names, list) else {names})}
        return bool(places - self.ids_of - {self.number})

    def add_leased(self, count: int) -> None:
        """Count messages of the partition that become leased; negative: that are leased no more."""
        if self.siblings is not None:
            self.siblings.add(count)

    def is_entrance_for(self, name: str) -> bool:
        """Return whether clients send messages here that have a fairness key; or, if each partition has all keys, a dedup id."""
        if self.is_retired:
            return False
        return (self.has_all_keys and not name) or partition_of(name, self.count) == self.number

    def is_stray(self, key: str) -> bool:
        """Return whether the messages of a fairness key are to be sent on to another partition."""
        if not self.is_retired and (self.has_all_keys or partition_of(key, self.count) == self.number):
            return False
        return key not in self.settled

    def holds(self, key: "FairnessKey", strays: "dict[FairnessKey, None]") -> bool:
        """Note a key that may deliver nothing now, with the other ``strays`` or those held back. Return whether it is one."""
        if self.is_stray(key.name):
            self.came += 1
            self.strays += key not in strays
            strays[key] = None
            return True
        if self.awaits(key.name):
            self.held_back[key] = None
            return True
        return False

    def awaits(self, key: str) -> bool:
        """Return whether earlier messages of a key of this partition may still come from another one."""
        return bool(self.awaited(key))

    def awaited(self, key: str) -> list[int]:
        """Return the earlier partitions from which messages of a key of this one may still come."""
        if not self._earlier or self._is_dead_letter:
            return []
        earlier: Iterable[int] = range(self._earlier)
        if self.has_all_keys:  # a new partition learns with the last earlier one whether the queue is paused
            earlier = earlier if self.number >= self._earlier else ()
        elif (former := partition_of(key, self._earlier)) == self.number:
            return []
        elif not self.hooked:
            earlier = (former,)
        return [each for each in earlier if each not in self._drained]


class Queue:
    """A queue, or a dead letter queue (``source`` is then the queue it belongs to).

    Invariants: ``pending``, ``in_flight`` and ``delayed`` are the sums over its lanes. Every key in ``keys`` has a lane. A
    demand with credit is in ``demands``.
    """

    __slots__ = (
        "_limits",
        "acked",
        "appointed",
        "created_ms",
        "dead_lettered",
        "dead_letters",
        "delayed",
        "delivered",
        "delivery_rate",
        "demands",
        "enqueued",
        "expired",
        "forgotten_keys",
        "former",
        "gone",
        "hooks",
        "id",
        "in_flight",
        "keys",
        "lanes",
        "look_ms",
        "max_in_flight",
        "meter",
        "nacked",
        "name",
        "options",
        "partition",
        "paused",
        "paused_keys",
        "pending",
        "priorities",
        "refused",
        "reshaping",
        "resting",
        "ring",
        "saved_ms",
        "searched_ms",
        "served",
        "served_ms",
        "size_bytes",
        "source",
        "strangers",
        "subscribers",
        "unanswered",
        "used_ms",
        "usual",
        "warm",
    )

    def __init__(
        self, queue_id: int, name: str, options: QueueOptions, limits: Limits = DEFAULTS, warm: WarmLanes | None = None
    ) -> None:
        partition = QueuePartition(self, name) if PARTITION_MARK in name else None
        self.id, self.name, self.former, self.partition = queue_id, name, "", partition
        self.set_options(options)
        self.dead_letters: Queue | None = None
        self.source: Queue | None = None
        self.hooks: GuardedHooks | None = None
        self.keys = KeyTable(limits.key_table_part_max)
        self.lanes = self.forgotten_keys = 0
        """The number of lanes; and the number of keys forgotten so far, for walks over the others (:mod:`core.walking`)."""
        self.warm = WarmLanes() if warm is None else warm
        """The warm lanes of its shard, its own among them."""
        self.resting: dict[int, Lane] = {}
        """Lanes that were idle when the ledger was folded, by id. They may have messages again."""
        self.searched_ms = 0
        """When its lanes were last searched for idle ones."""
        self.ring = Ring(limits)
        self.demands: OrderedDict[Demand, None] = OrderedDict()
        """The demands with credit, in line."""
        self.subscribers: dict[Consumer, int] = {}
        """The number of subscriptions and waiters of each consumer here."""
        self.paused_keys: set[str] = set()
        self.paused = self.appointed = False
        """``appointed``: whether it collects dead letters of other queues."""
        self.served = self.served_ms = 0
        """The number of messages that its consumers took last, and when they last asked."""
        self.meter, self.delivery_rate = Meter(), DeliveryRate()
        self.unanswered = 0
        """The number of throttles for which the bank was asked for this queue and has not answered."""
        self.priorities: set[int] | None = {0}
        """The priorities that its messages ever had; None: too many to remember."""
        self._limits = limits
        self.strangers = False
        """Whether it has, or has had, messages that another shard than the queue's accepted."""
        self.size_bytes = 0
        """The size of its records: pending, leased and delayed."""
        self.gone = False
        """Whether it is deleted: it is not found by its name, and its messages are removed in steps."""
        self.reshaping = 0
        """The number of walks over its keys in progress, after a change for all keys. It delivers nothing meanwhile."""
        self.created_ms = 0
        """When it was created; 0: unknown. A dead letter queue has the time of its queue."""
        self.used_ms = self.saved_ms = 0
        """When it was last used, and the durable copy of that time. Kept only with an idle expiry."""
        self.look_ms = 0
        """When the idle expiry is checked next; 0 after a restart: whenever the due index has an entry for it."""
        self.pending = self.in_flight = self.delayed = 0
        self.enqueued = self.delivered = self.acked = self.nacked = self.expired = self.dead_lettered = 0
        self.refused: RefusedLine | None = None
        """The line of senders that it refused because it was full, if there are any."""
        self.judge()

    @property
    def is_dead_letter(self) -> bool:
        """Whether this is the dead letter queue of another."""
        return self.source is not None

    def judge(self) -> None:
        """Note whether nothing about the queue concerns usual requests (``usual``): enqueues with default columns, and acks of
        one lease. Call it after a change of the options, the hooks, ``gone`` or ``source``."""
        hooked = self.hooks is not None and self.hooks.hooks.has_on_enqueue
        timed = self.options.default_ttl_ms or self.options.idle_expiry_ms is not None
        concerned = hooked or timed or self.gone or self.source is not None or NAMESPACE_MARK in self.name
        self.usual = self._limits.usual and not concerned

    @property
    def counted_as(self) -> str:
        """The name under which batches count its messages: the first one that it had."""
        return self.former or self.name

    def rename(self, name: str) -> None:
        """Give it another name, which is that of a partition."""
        self.former, self.name, self.partition = self.counted_as, name, QueuePartition(self, name)

    @property
    def open(self) -> bool:
        """Whether it may deliver: nothing blocks the whole queue."""
        return not (self.paused or self.gone or self.reshaping) and self.in_flight < self.max_in_flight

    @property
    def full(self) -> bool:
        """Whether as many of its messages are leased as may be."""
        return self.in_flight >= self.max_in_flight

    @property
    def at_most_once(self) -> bool:
        """Whether a message is gone with its delivery."""
        return self.options.delivery == AT_MOST_ONCE

    @property
    def depth(self) -> int:
        """The number of all its messages."""
        return self.pending + self.in_flight + self.delayed

    def set_options(self, options: QueueOptions) -> None:
        """Treat messages by these options from now on. What is delivered at most once does not count as in flight."""
        self.options = options
        if self.partition is None:
            most = options.max_in_flight
            self.max_in_flight: float = inf if self.at_most_once or most is None else most
            """The most messages that may be leased. A partition has no limit of its own: 0 while it waits for a place."""

    def visibility_timeout_ms(self, settings: "ShardSettings") -> int:
        """Return how long a delivery is leased."""
        chosen = self.options.visibility_timeout_ms
        return settings.visibility_timeout_ms if chosen is None else chosen

    def note_priorities(self, priorities: set[int]) -> bool:
        """Remember the priorities of new messages. Return whether any is new, and to be made durable."""
        if self.priorities is None or priorities <= self.priorities:
            return False
        known = self.priorities | priorities
        self.priorities = known if len(known) <= self._limits.priorities_max else None
        return True

    def grow(self, size_bytes: int) -> None:
        """Count the bytes of a record that came to the queue."""
        self.size_bytes += size_bytes

    def shrink(self, size_bytes: int) -> None:
        """Count the bytes of records off. More than the queue holds would be a bug, which must not become durable."""
        left = self.size_bytes - size_bytes
        assert left >= 0, f"queue {self.name!r} holds {self.size_bytes} bytes and is to lose {size_bytes}"
        self.size_bytes = left

    def count_enqueued(self, count: int, size_bytes: int) -> None:
        """Count messages that are enqueued and become pending."""
        self.pending += count
        self.enqueued += count
        self.grow(size_bytes)

    def count_leased(self, count: int) -> None:
        """Count pending messages that become leased."""
        self.pending -= count
        self.in_flight += count
        if self.partition is not None:
            self.partition.add_leased(count)

    def count_acked(self, count: int, size_bytes: int) -> None:
        """Count leased messages that become acked."""
        self.in_flight -= count
        self.acked += count
        self.shrink(size_bytes)
        if self.partition is not None:
            self.partition.add_leased(-count)

    def count_lane(self, stored: int, delayed: int) -> None:
        """Count the messages of a recovered lane. Negative numbers: of a removed lane."""
        self.pending += stored
        self.delayed += delayed

    def info(self, shard: int) -> QueueInfo:
        """Return the queue's row in a list."""
        return QueueInfo(
            self.name,
            self.pending,
            self.in_flight,
            self.delayed,
            len(self.subscribers),
            self.paused,
            self.is_dead_letter,
            shard,
        )

    def to_bytes(self) -> bytes:
        """Return the queue's record."""
        priorities = sorted(self.priorities) if self.priorities is not None else []
        dead_letters = self.dead_letters.id if self.dead_letters else 0
        record = QueueRecord(
            self.name, self.options, dead_letters, self.paused, sorted(self.paused_keys), self.appointed, priorities,
            self.size_bytes, self.used_ms, self.strangers, self.created_ms, self.gone,
        )  # fmt: skip
        if self.partition is not None:
            record.defined, record.former = self.partition.defined, self.former
            record.moved = self.partition.version, self.partition.first_number
            record.ids_of = sorted(self.partition.ids_of)
        return encode_queue(record)

    def recover(self, record: QueueRecord) -> None:
        """Take up the fields of a record, except the names and the options."""
        self.paused, self.paused_keys, self.appointed = record.paused, set(record.paused_keys), record.appointed
        self.priorities, self.strangers = set(record.priorities) or None, record.strangers
        self.gone = record.gone
        if self.partition is not None:
            self.partition.defined, self.former = record.defined, record.former
            self.partition.version, self.partition.first_number = record.moved
            self.partition.ids_of = set(record.ids_of)
        self.size_bytes, self.used_ms, self.created_ms = record.size_bytes, record.used_ms, record.created_ms

    @property
    def weight(self) -> int:
        """The sum of the weights of the keys that may deliver now."""
        return self.ring.weight if self.open else 0

    def appetite(self) -> int:
        """Return the number of messages that its consumers would take: at once, or when they have credit again."""
        return self.credit or self.served

    @property
    def credit(self) -> int:
        """The number of messages that its consumers would take at once."""
        return sum(demand.credit for demand in islice(self.demands, DEMANDS_SURVEYED))

    def forget_key(self, key: "FairnessKey") -> None:
        """Drop a key that has no lanes."""
        self.keys.remove(key)
        self.forgotten_keys += 1
        if self.partition is not None:
            self.partition.settled.discard(key.name)
            self.partition.held_back.pop(key, None)

    def want(self, demand: "Demand") -> None:
        """Put a demand with credit in line."""
        if not demand.queued and demand.credit > 0:
            demand.queued = True
            self.demands[demand] = None

    def next_demand(self) -> "Demand":
        """Take the first demand out of line, and return it."""
        demand, _ = self.demands.popitem(last=False)
        demand.queued = False
        return demand

    def unwant(self, demand: "Demand") -> None:
        """Take a demand that is over out of line."""
        if demand.queued:
            demand.queued = False
            del self.demands[demand]

    def enter(self, consumer: "Consumer") -> None:
        """Count one more subscription or waiter of a consumer."""
        self.subscribers[consumer] = self.subscribers.get(consumer, 0) + 1

    def exit(self, consumer: "Consumer") -> None:
        """Count one subscription or waiter of a consumer less."""
        left = self.subscribers[consumer] - 1
        if left:
            self.subscribers[consumer] = left
        else:
            del self.subscribers[consumer]


class QueueTable(dict[str, Queue]):
    """The queues of a shard, by name."""

    def __init__(self, touch: "Callable[[HeldKey[PlaceTaker]], None]") -> None:
        """``touch``: is called with the places of a whole queue when some become free."""
        super().__init__()
        self._touch = touch
        self._siblings: dict[str, Siblings] = {}
        """By the name of their places."""
        self.names: SortedList[str] = SortedList()
        """The names of the queues, in order."""
        self.by_id: dict[int, Queue] = {}
        """The queues by id, with deleted ones that are not removed yet."""
        self.last_id = 0

    def find(self, name: str) -> Queue:
        """Return the queue with this name. Raise :class:`QueueNotFoundError` for an unknown one."""
        queue = self.get(name)
        if queue is None:
            raise self.not_found(name)
        return queue

    @staticmethod
    def not_found(name: str) -> QueueNotFoundError:
        """Return the error for a queue that does not exist."""
        name = whole_queue(name)
        return QueueNotFoundError(f"no queue {name!r}: {_how_to_get(name)}")

    def enter(self, queue: Queue) -> None:
        """Add a queue under its name."""
        self[queue.name] = queue
        self.names.add(queue.name)
        if queue.partition is not None and not is_dead_letter(queue.name):
            siblings = queue.partition.siblings = self.siblings(places_of(whole_queue(queue.name)))
            siblings.count += 1
            siblings.add(queue.in_flight)

    def leave(self, queue: Queue) -> None:
        """Free the name of a deleted queue."""
        del self[queue.name]
        self.names.remove(queue.name)
        if queue.partition is not None and (siblings := queue.partition.siblings) is not None:
            queue.partition.siblings = None
            siblings.count -= 1
            siblings.add(-queue.in_flight)
            self.forget_siblings(siblings.name)

    def siblings(self, name: str) -> Siblings:
        """Return the partitions here that take the places of this name."""
        siblings = self._siblings.get(name)
        if siblings is None:
            siblings = self._siblings[name] = Siblings(name, self._touch)
        return siblings

    def forget_siblings(self, name: str) -> None:
        """Forget the count of a queue that has no partitions here, unless there is an account that uses it."""
        siblings = self._siblings.get(name)
        if siblings is not None and not siblings.count and siblings.held is None:
            del self._siblings[name]


def _how_to_get(name: str) -> str:
    if is_dead_letter(name):
        return f"it comes with {root_name(name)!r}, unless that discards its dead letters or names another queue for them"
    return f"create it with `queue create {name}` or create_queue()"
