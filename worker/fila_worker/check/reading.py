"""The state of a check: the store, and the results of the parts so far."""

from collections import Counter
from collections.abc import Callable, Iterator
from struct import error as StructError  # noqa: N812  # it is a class
from typing import Final, TypeVar

import msgspec

from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.names import shard_of
from fila_worker.core.callback_group_parts import PartPlace, PartRecord
from fila_worker.core.keys import FIRST, LAST
from fila_worker.core.model.ledger import Generation, LaneCounts
from fila_worker.core.model.queues import QueueRecord
from fila_worker.core.store import Families, Store

T = TypeVar("T")

UNREADABLE: Final = (msgspec.MsgspecError, StructError, InvalidFrameError, ValueError, IndexError)
"""The errors of decoders of stored records."""

_REPORT_EVERY: Final = 20_000


class CheckReading:
    """One check of one shard. ``incomplete``: the parts that could not be read to their end, so nothing follows from them."""

    def __init__(self, store: Store, index: int, shards: int, progress: Callable[[str, int], None] | None = None) -> None:
        self.store = store
        self.index = index
        self.shards = shards
        self.part = ""
        self.incomplete: set[str] = set()
        self._progress = progress
        self.queues: dict[int, QueueRecord] = {}
        self.counts: dict[int, LaneCounts] = {}
        """The counts of lanes that changed since the ledger's last fold."""
        self.counters = (0, 0)
        """The shard's sequence counters as stored: of messages, and of lanes."""
        self.leased: dict[bytes, int] = {}
        """The messages that are leased, each with its lease."""
        self.acked: set[bytes] = set()
        """The messages that are acked and not removed yet."""
        self.sizes: Counter[int] = Counter()
        """The bytes of each queue's messages, by queue id."""
        self.batch_parts: dict[PartPlace, PartRecord] = {}
        """The stored records of parts of batches."""
        self.members: Counter[PartPlace] = Counter()
        """The messages that are members of these parts, and not acked."""
        self.highest = (0, 0)
        """The highest sequence number of a message, and the highest lane id."""
        self.priorities: dict[int, set[int]] = {}
        self.earlier: list[Generation] = []
        """The earlier numbers of shards, the oldest first."""
        self._homes: dict[int, list[tuple[int, int]]] = {}
        self.strangers: set[int] = set()
        """The queues that have messages of other shards: of other ones than held the queue when the message got its id."""

    @property
    def families(self) -> Families:
        """The families of the store."""
        return self.store.families

    def scan(self, family: str, begin: bytes = FIRST, end: bytes = LAST) -> Iterator[tuple[bytes, bytes]]:
        """Yield the items of a family, and report how many were read."""
        number = 0
        for number, item in enumerate(self.store.scan(begin, end, getattr(self.families, family)), 1):
            if self._progress is not None and number % _REPORT_EVERY == 0:
                self._progress(family, number)
            yield item
        if self._progress is not None:
            self._progress(family, number)

    def name_of(self, queue_id: int) -> str:
        """Return how a queue is shown."""
        record = self.queues.get(queue_id)
        return f"queue number {queue_id}" if record is None else f"queue {record.name!r}"

    def home_of(self, queue_id: int, number: int) -> int:
        """Return the shard that held a queue when a sequence number was given out, as :meth:`State.is_own` has it."""
        if not self.earlier:
            return self.index
        homes = self._homes.get(queue_id)
        if homes is None:  # the hash of a name takes a microsecond a shard
            name = self.queue_name(queue_id) or ""
            homes = self._homes[queue_id] = [(last, shard_of(name, shards)) for last, shards in self.earlier]
        return next((shard for last, shard in homes if number <= last), self.index)

    def queue_name(self, queue_id: int) -> str | None:
        """Return a queue's name, None if it is not known."""
        record = self.queues.get(queue_id)
        return None if record is None else record.name


def decoded(decode: Callable[[bytes], T], data: bytes) -> T | None:
    """Return the decoded record; None if it can't be read."""
    try:
        return decode(data)
    except UNREADABLE:
        return None
