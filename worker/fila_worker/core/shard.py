"""A shard: whole queues, one scheduler, one transaction a turn.

The owner of a shard calls, each turn::

    shard.apply(call, command)            # for each frame that came in
    shard.advance(now_ms)                 # what is due: expired leases, delayed messages, lost consumers
    shard.deliver(now_ms)                 # messages to whoever wants them
    effects = shard.commit()              # one batch; then, and only then, send the effects

Nothing here reads a clock, a socket or a disk: time is an argument, storage a port. A command either does all that it says
or raises a :class:`FilaError` before it changed anything. A failed commit leaves memory ahead of the disk, so the owner must
drop the shard and recover a new one; there is no other rollback.

Reads see only what is committed. A verb that has to read therefore calls :meth:`Shard.settle_writes` first, which commits
what the turn has written so far, at a point where what was written is whole.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from fila_proto_zmq.commands import (
    Command,
    CreateQueue,
    DeleteQueue,
    Enqueue,
    Extend,
    GetQueueStats,
    Goodbye,
    Heartbeat,
    ListQueues,
    Receive,
    Redrive,
    Reply,
    Settle,
    Subscribe,
    Unsubscribe,
)
from fila_proto_zmq.errors import FilaError, InvalidFrameError, QueueNotFoundError
from fila_worker.core import administration, attempts, consuming, dead_letters, delivery, enqueueing, schedule, settlement
from fila_worker.core.consumers import Consumers
from fila_worker.core.effects import Answer, Call, Effect, answer
from fila_worker.core.fairness import FairnessKey
from fila_worker.core.lanes import ENTRY_BYTES, SPILL_AT, Lane, held_bytes
from fila_worker.core.leases import LeaseBook
from fila_worker.core.ledger import Counters, Ledger
from fila_worker.core.queues import IDLE_KEYS_MAX, Queue
from fila_worker.core.settings import ShardSettings
from fila_worker.core.store import Store

Verb: TypeAlias = Callable[["Shard", Call, Any], Reply | None]
"""Carries out one kind of command. Returns None if the answer comes later, or never."""


class Shard:
    """The state of one shard. The verbs that change it live in the modules beside this one.

    Invariants are checked by :func:`fila_worker.core.invariants.check`.
    """

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
        self.consumers = Consumers(settings.consumer_timeout_ms)
        self.schedule = schedule.Schedule(store)
        self.queues: dict[str, Queue] = {}
        self.last_queue_id = 0
        self.lanes: dict[int, Lane] = {}
        self.buffered_bytes = 0
        """Record bytes held by lanes."""
        self.wanted: dict[int, Queue] = {}
        """Queues that have both demands and, perhaps, something to deliver."""

    # --- a turn -------------------------------------------------------------------------------------------------------

    def apply(self, call: Call, command: Command) -> None:
        """Carry out a command. Its answer, or the error that refuses it, joins the turn's effects."""
        verb = _VERBS.get(type(command))
        self.consumers.touch(call.client, call.now_ms)
        try:
            if verb is None:
                raise InvalidFrameError(f"{type(command).__name__} is not for a shard")
            reply = verb(self, call, command)
        except FilaError as error:
            self.effects.append(answer(call, command, error))
        else:
            if reply is not None:
                self.effects.append(answer(call, command, reply))

    def refuse(self, call: Call, opcode: int, error: FilaError) -> None:
        """Answer a frame that is no command."""
        self.effects.append(Answer(call, opcode, error))

    def advance(self, now_ms: int) -> None:
        """Do what is due at ``now_ms``, in bounded steps: :meth:`next_due` tells if more is.

        It comes after the frames that were waiting, so that a heartbeat that was read late still counts.
        """
        attempts.expire_leases(self, now_ms)
        schedule.release_due(self, now_ms)
        consuming.drop_lost(self, now_ms)

    def deliver(self, now_ms: int) -> None:
        """Lease messages to whoever wants them, then answer the receives whose time is up."""
        delivery.deliver(self, now_ms)
        consuming.answer_waiters(self, now_ms)

    def commit(self) -> list[Effect]:
        """End the turn: make its changes durable and return what may now be sent."""
        if self.ledger.fold_due:
            self._retire(self.ledger.fold(self.batch))
        self.settle_writes()
        effects, self.effects = self.effects, []
        return effects

    def settle_writes(self) -> None:
        """Commit what was written so far, so that reads see it."""
        if self.ledger.changed:
            self.ledger.write_entry(self.batch)
        if len(self.batch):
            batch, self.batch = self.batch, self.store.new_batch()
            self.store.commit(batch)

    def next_due(self, now_ms: int) -> int | None:
        """Milliseconds until :meth:`advance` or :meth:`deliver` has something to do; None: not before a command comes."""
        if self.wanted:
            return 0
        times = (self.leases.next_expiry(), self.schedule.next_due_ms, self.consumers.next_deadline())
        due = min((time for time in times if time is not None), default=None)
        return None if due is None else max(0, due - now_ms)

    # --- what the verbs share -----------------------------------------------------------------------------------------

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

    def _retire(self, idle: list[Lane]) -> None:
        """Forget idle fairness keys of queues that remember too many."""
        for lane in idle:
            queue = lane.key.queue
            if len(queue.keys) > IDLE_KEYS_MAX and lane.idle:
                del queue.keys[lane.key.name]
                del self.lanes[lane.id]


_VERBS: dict[type[Command], Verb] = {
    CreateQueue: administration.create_queue,
    DeleteQueue: administration.delete_queue,
    GetQueueStats: administration.queue_stats,
    ListQueues: administration.list_queues,
    Enqueue: enqueueing.enqueue,
    Receive: consuming.receive,
    Subscribe: consuming.subscribe,
    Unsubscribe: consuming.unsubscribe,
    Heartbeat: consuming.heartbeat,
    Goodbye: consuming.goodbye,
    Settle: settlement.settle,
    Extend: settlement.extend,
    Redrive: dead_letters.redrive,
}
