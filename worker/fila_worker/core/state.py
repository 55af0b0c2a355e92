"""What a shard knows, and the few moves that all its verbs are made of.

The verbs live in the modules beside this one, a file each, and take the state as their first argument. A message is always
in one place: in line (``put_in_line``, ``line_up``), leased, delayed (:mod:`core.delays`) or gone (``take_out``).
"""

from collections.abc import Sequence

from fila_proto_zmq.errors import QueueNotFoundError
from fila_worker.core.consumers import Consumers
from fila_worker.core.effects import Effect
from fila_worker.core.fairness import FairnessKey
from fila_worker.core.graveyard import Graveyard
from fila_worker.core.lanes import ENTRY_BYTES, SPILL_AT, Lane, held_bytes
from fila_worker.core.leases import LeaseBook
from fila_worker.core.ledger import Counters, Ledger
from fila_worker.core.queues import IDLE_KEYS_MAX, Queue
from fila_worker.core.schedule import Schedule
from fila_worker.core.settings import ShardSettings
from fila_worker.core.store import Store


class State:
    """The state of one shard. Its invariants are checked by :func:`fila_worker.core.invariants.check`."""

    def __init__(self, store: Store, settings: ShardSettings, *, index: int, epoch: int) -> None:
        self.store = store
        self.settings = settings
        self.index = index
        self.epoch = epoch
        self.batch = store.new_batch()
        self.effects: list[Effect] = []
        self.counters = Counters()
        self.ledger = Ledger(store.families, self.counters)
        self.leases = LeaseBook(store.families.leases, epoch)
        self.graveyard = Graveyard()
        self.consumers = Consumers(settings.consumer_timeout_ms)
        self.schedule = Schedule(store)
        self.queues: dict[str, Queue] = {}
        self.last_queue_id = 0
        self.lanes: dict[int, Lane] = {}
        self.buffered_bytes = 0
        """Record bytes held by lanes."""
        self.wanted: dict[int, Queue] = {}
        """Queues that have both demands and, perhaps, something to deliver."""

    def settle_writes(self) -> None:
        """Commit what was written so far, so that reads see it."""
        if self.ledger.changed:
            self.ledger.write_entry(self.batch)
        if len(self.batch):
            batch, self.batch = self.batch, self.store.new_batch()
            self.store.commit(batch)

    def queue(self, name: str) -> Queue:
        """The queue called ``name``."""
        queue = self.queues.get(name)
        if queue is None:
            raise QueueNotFoundError(f"no queue {name!r}: create it with `queue create {name}` or create_queue()")
        return queue

    def open_key(self, queue: Queue, name: str) -> FairnessKey:
        """A new fairness key of ``queue`` with its lane."""
        self.counters.lane += 1
        key = queue.keys[name] = FairnessKey(name, queue, self.counters.lane)
        self.lanes[key.lane.id] = key.lane
        return key

    def put_in_line(self, queue: Queue, key_name: str, place: bytes, record: bytes) -> None:
        """A message, not counted anywhere, comes to its place in a queue."""
        lane = (queue.keys.get(key_name) or self.open_key(queue, key_name)).lane
        message_key = lane.prefix + place
        self.batch.put(message_key, record, self.store.families.messages)
        lane.stored += 1
        queue.pending += 1
        self.ledger.touch(lane)
        self.line_up(lane, message_key, record)

    def take_out(self, lane: Lane, message_key: bytes) -> None:
        """A pending message, popped from its line, leaves its queue."""
        self.batch.delete(message_key, self.store.families.messages)
        lane.stored -= 1
        lane.key.queue.pending -= 1
        self.ledger.touch(lane)
        if lane.key.active and not lane.pending:
            lane.key.queue.ring.leave(lane.key)

    def line_up(self, lane: Lane, message_key: bytes, record: bytes | None) -> None:
        """A message of ``lane``, counted and stored, is pending now: put it in line and its fairness key in the ring."""
        keep = record is not None and self.buffered_bytes < self.settings.buffer_bytes
        if lane.add(message_key, record if keep else None) and record is not None and keep:
            self.buffered_bytes += len(record) + ENTRY_BYTES
        if len(lane.returned) > SPILL_AT:
            self.buffered_bytes -= held_bytes(lane.spill())
        key = lane.key
        if not key.active:
            key.queue.ring.join(key)
        if key.queue.demands:
            self.wanted[key.queue.id] = key.queue

    def read(self, keys: Sequence[bytes]) -> list[bytes]:
        """The records of messages that are known to exist."""
        self.settle_writes()
        records = self.store.get_many(keys, self.store.families.messages)
        found = [record for record in records if record is not None]
        assert len(found) == len(keys), f"shard {self.index}: messages vanished from disk"
        return found

    def fold(self) -> None:
        """Fold the ledger, and forget idle fairness keys of queues that remember too many."""
        for lane in self.ledger.fold(self.batch):
            queue = lane.key.queue
            if len(queue.keys) > IDLE_KEYS_MAX and lane.idle:
                del queue.keys[lane.key.name]
                del self.lanes[lane.id]
