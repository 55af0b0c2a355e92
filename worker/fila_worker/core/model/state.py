"""The state of a shard, and the basic changes of it that all commands use.

The functions that carry out commands are in the folders beside this module, and take the state as their first argument. A
message is always in one place: in line (``put_in_line``, ``line_up``), leased, delayed (:mod:`core.model.due_index`) or gone
(``take_out``).

A lane with pending messages is *active*. An active lane makes its fairness key *deliverable*, unless the lane is *blocked*
because it waits for tokens. A deliverable key is in its queue's ring. ``activate``, ``deactivate``, ``unblock`` and
``refresh_eligibility`` keep this invariant.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from fila_proto_zmq.commands import Command, Park, Reply
from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.events import Event
from fila_proto_zmq.ids import sequence, shard_of_id
from fila_proto_zmq.names import shard_of
from fila_worker.core.calendar import Calendar, NoCalendar
from fila_worker.core.callback_group_parts import BatchParts, MemberOutcome
from fila_worker.core.due_time import AT_ONCE, DueTime
from fila_worker.core.effects import ClientCall, Effect, Post
from fila_worker.core.held_places import Places
from fila_worker.core.hooks import HookCompiler
from fila_worker.core.jobs import Jobs
from fila_worker.core.keys import FIRST_PLACE, pack_u32, pack_u64
from fila_worker.core.model.acked_messages import AckedMessages
from fila_worker.core.model.cold_lanes import WarmLanes, unpacked, warm_up
from fila_worker.core.model.consumers import Consumers
from fila_worker.core.model.due_index import DueIndex
from fila_worker.core.model.fairness_keys import FairnessKey
from fila_worker.core.model.lane_tokens import LaneTokens
from fila_worker.core.model.lanes import HeadBuffers, Lane
from fila_worker.core.model.leases import Lease, LeaseBook, first_lease
from fila_worker.core.model.ledger import Counters, Ledger, decode_lane
from fila_worker.core.model.queues import USED_SAVE_MS, PlaceTaker, Queue, QueuePartition, QueueTable
from fila_worker.core.model.runtime_config import RuntimeConfig
from fila_worker.core.model.shard_transfers import ShardTransfers, stream_of
from fila_worker.core.model.token_client import TokenClient
from fila_worker.core.settings import ShardSettings
from fila_worker.core.store import DamageError, Store

if TYPE_CHECKING:
    from fila_worker.core.jobs import Work

_Kept = TypeVar("_Kept")

WOKEN_AT_ONCE: Final = 100
"""The most throttles whose lanes may try again at once. The lanes of the others try again when the turn is settled."""


class Opening(NamedTuple):
    """One opening of the store of shard ``shard`` of ``shards``. ``epoch`` and ``entropy`` distinguish it from all others."""

    shard: int
    shards: int
    epoch: int
    entropy: int


class State:
    """The state of one shard. Its invariants are checked by :meth:`~fila_worker.core.shard.Shard.check`."""

    def __init__(self, store: Store, settings: ShardSettings, compile_hooks: HookCompiler, opening: Opening) -> None:
        self.store, self.settings, self.compile_hooks = store, settings, compile_hooks
        self.index, self.shards, self.epoch, entropy = opening
        limits = settings.limits
        self._disorder_max = limits.lane_disorder_messages_max
        self.batch = store.new_batch()
        self.calendar: Calendar = NoCalendar()
        """Dates for schedules, given by the owner of the shard before its recovery."""
        self.wrote = False
        """Whether anything was committed since the owner last pushed the log; the owner resets this."""
        self.to_be_synced = False
        """Whether the batch has a change that a power cut must not undo, whatever the durability."""
        self.effects: list[Effect] = []
        self.notes: list[Event] = []
        """Events for the operator, sent once the turn is committed."""
        self.counters = Counters()
        self.ledger = Ledger(store.families, self.counters, limits)
        self.leases = LeaseBook(store.families.leases, first_lease(self.epoch, entropy), limits)
        self.acked = AckedMessages(limits)
        self.consumers = Consumers(settings.consumer_timeout_ms)
        self.due_index = DueIndex(store, limits)
        self.token_client = TokenClient(self.epoch << 20, self.shards)
        self.runtime = RuntimeConfig(store.families, settings.limits)
        self.places: Places[PlaceTaker] = Places(self.runtime.concurrency)
        self.outbox = ShardTransfers(self.index, stream_of(self.epoch, entropy), store.families, limits)
        self.batch_parts = BatchParts(store.families, self.epoch, limits)
        self.jobs = Jobs(limits, self.conclude)
        self.has_queue_limits = any(
            limit is not None for limit in (settings.max_queue_messages, settings.max_queue_bytes, settings.max_key_messages)
        )
        """Whether the messages or bytes of a queue or a key are limited."""
        self.disk_is_full = False
        """Whether the disk has less room than must stay free."""
        self.free_disk_bytes = None
        self.behind = False
        """Whether earlier frames may be unread, because the shard's owner was away. No lease ends meanwhile."""
        self.queues = QueueTable(self.places.touch)
        self.lanes = WarmLanes()
        """The lanes that are in memory; see :meth:`find_lane`."""
        self.buffers = HeadBuffers(settings.buffer_bytes)
        self.runnable: dict[int, Queue] = {}
        """Queues that have demands and may have messages to deliver."""
        self.strays: dict[FairnessKey, None] = {}
        """Keys that have messages here and belong to other partitions of their queues."""
        self.stray_timer = DueTime()
        """When there may be some to send on."""
        self.closing: dict[str, int] = {}
        """Idle queues with partitions for which this shard takes nothing in (:mod:`core.manage.idle_partitions`)."""
        self.delivery = DueTime()
        """When there may be messages to deliver."""
        self.to_be_registered = False
        """Whether the router's data about this shard is out of date. Then the shard's host registers it again."""
        self._kept: dict[type, object] = {}

    def keep(self, kept: _Kept) -> _Kept:
        """Keep the state of a component, for :meth:`part`, and return it."""
        self._kept[type(kept)] = kept
        return kept

    def part(self, kind: type[_Kept]) -> _Kept:
        """Return the state of a component, by its type."""
        return self._kept[kind]  # type: ignore[return-value]  # keep() puts each under its own type

    def apply(self, call: ClientCall, command: Command) -> None:
        """Carry out a command; see :class:`~fila_worker.core.shard.Shard`."""
        raise NotImplementedError

    def queue_by_template(self, name: str, now_ms: int) -> Queue:
        """Make a missing queue for an enqueue; see :mod:`~fila_worker.core.manage.templates`."""
        raise NotImplementedError

    def entrance(self, name: str, now_ms: int) -> Queue | None:
        """Return the queue that takes in what is sent to a name; see :mod:`~fila_worker.core.manage.partitions`."""
        raise NotImplementedError

    def pursue(self, call: ClientCall, command: Command, outcome: "Reply | Work | None") -> None:
        """Answer with the outcome of a command, or begin its work; see :class:`~fila_worker.core.shard.Shard`."""
        raise NotImplementedError

    def conclude(self, call: ClientCall, command: Command, outcome: Reply | FilaError | None) -> None:
        """Answer a command; see :class:`~fila_worker.core.shard.Shard`."""
        raise NotImplementedError

    @property
    def free_disk_bytes(self) -> int | None:
        """As measured by the owner of the shard; None: not measured."""
        return self._free_disk_bytes

    @free_disk_bytes.setter
    def free_disk_bytes(self, size_bytes: int | None) -> None:
        self._free_disk_bytes = size_bytes
        self.disk_is_full = size_bytes is not None and size_bytes < self.settings.min_free_disk_bytes

    def settle_writes(self) -> None:
        """Commit the writes so far, so that reads see them."""
        ledger = self.ledger
        if ledger.changed or ledger.entry_due:
            ledger.write_entry(self.batch)
        if len(self.batch):
            batch, self.batch = self.batch, self.store.new_batch()
            sync, self.to_be_synced = self.to_be_synced, False
            self.wrote = True
            self.store.commit(batch, sync=sync)

    # --- lanes --------------------------------------------------------------------------------------------------------

    def lane(self, queue: Queue, key_name: str, throttle_keys: tuple[str, ...] = ()) -> Lane:
        """Return the lane of a fairness key for these throttle keys (sorted, distinct), a new one if need be."""
        key = queue.keys.get(key_name)
        lane = key.lanes.get(throttle_keys) if key else None
        if lane is not None:
            return lane
        self.counters.lane += 1
        return self.open_lane(queue, key_name, throttle_keys, self.counters.lane)

    def open_lane(self, queue: Queue, key_name: str, throttle_keys: tuple[str, ...], lane_id: int) -> Lane:
        """Add and return a lane that is new, or recovered."""
        key = queue.keys.get(key_name)
        if key is None:
            key = self.open_key(queue, key_name)
        lane = Lane(lane_id, key, throttle_keys)
        if throttle_keys and not queue.is_dead_letter:  # a reader of dead letters does not call the throttled service
            self.token_client.enter(lane)
        key.add(lane)
        self.lanes.enter(lane)
        queue.lanes += 1
        return lane

    def open_key(self, queue: Queue, name: str) -> FairnessKey:
        """Add and return a fairness key without lanes."""
        key = FairnessKey(name, queue)
        queue.keys.add(key)
        key.paused = name in queue.paused_keys
        self.hold_if_moving(key)
        return key

    def hold_if_moving(self, key: FairnessKey) -> None:
        """Let a key deliver nothing if its messages are to go to another partition of its queue, or earlier ones are to come."""
        partition = key.queue.partition
        if partition is not None and partition.holds(key, self.strays):
            key.paused = True
            self.stray_timer.by(AT_ONCE)

    def find_lane(self, lane_id: int) -> Lane | None:
        """Return the lane with this id, warmed up if it is cold; None if it is gone. Cold lanes are found as committed."""
        lane = self.lanes.get(lane_id)
        if lane is not None:
            return lane
        data = self.store.get(pack_u64(lane_id), self.store.families.lanes)
        record = decode_lane(data) if data is not None else None
        queue = self.queues.by_id.get(record.queue) if record else None
        key = queue.keys.get(record.fairness_key) if record and queue else None
        if key is None or key.cold is None or unpacked(key).id != lane_id:
            return None
        return warm_up(key)

    def known_lane(self, lane_id: int) -> Lane:
        """Return the lane with this id, as :meth:`find_lane`, for a lane that must exist."""
        lane = self.find_lane(lane_id)
        assert lane is not None, f"shard {self.index}: lane {lane_id} is unknown"
        return lane

    def forget_lane(self, lane: Lane) -> None:
        """Drop a lane without messages, and its key with its last lane."""
        key, queue = lane.key, lane.key.queue
        self.places.leave(lane)
        self.token_client.leave(lane)
        queue.resting.pop(lane.id, None)
        key.drop(lane)
        del self.lanes[lane.id]
        queue.lanes -= 1
        if key.only is None and key.several is None:
            queue.forget_key(key)

    # --- a message's places -------------------------------------------------------------------------------------------

    def is_own(self, queue: Queue, id_high: int, id_low: int) -> bool:
        """Return whether an id was given out by the shard that held the queue at that time.

        Then no other message of queues with this root name has its sequence number.
        """
        number = sequence(id_low)
        for generation in self.counters.earlier:
            if number <= generation.last:
                return shard_of(queue.name, generation.shards) == shard_of_id(id_high)
        return shard_of_id(id_high) == self.index

    def put_in_line(self, lane: Lane, place: bytes, record: bytes) -> None:
        """Put a message that is counted nowhere in line, at its place."""
        message_key = lane.prefix + place
        self.batch.put(message_key, record, self.store.families.messages)
        self.enter(lane, len(record))
        self.line_up(lane, message_key, record)

    def enter(self, lane: Lane, size_bytes: int) -> None:
        """Count a message that is stored and becomes pending."""
        self.ledger.touch(lane)
        lane.store(size_bytes)
        self.ledger.touch_queue(lane.key.queue)

    def take_out(self, lane: Lane, message_key: bytes, size_bytes: int) -> None:
        """Remove a pending message, popped from its line, from its queue."""
        self.delete_pending(lane, message_key, size_bytes)
        self.thin_out(lane)

    def thin_out(self, lane: Lane) -> None:
        """Correct the activity of a lane and its key, after pending messages have left the lane."""
        if lane.active and not lane.pending:
            self.deactivate(lane)
        elif lane.key.blocked_head:
            lane.key.blocked_head = b""  # the message that it waited for may be gone
            self.refresh_eligibility(lane.key)

    def delete_pending(self, lane: Lane, message_key: bytes, size_bytes: int) -> None:
        """Do as :meth:`take_out`, for a caller that corrects the activity of the lane and its key itself."""
        self.ledger.touch(lane, message_key)
        self.batch.delete(message_key, self.store.families.messages)
        lane.discard(size_bytes)
        self.ledger.touch_queue(lane.key.queue)

    def line_up(self, lane: Lane, message_key: bytes, record: bytes | None) -> None:
        """Put a counted and stored message of ``lane`` in line, and its fairness key in the ring."""
        kept = record if self.buffers.room_bytes > 0 else None
        if lane.add(message_key, kept) and kept is not None:
            self.buffers.hold(kept)
        if len(lane.returned) > self._disorder_max:
            self.buffers.spill(lane, self._disorder_max // 2)
        self.activate(lane, message_key)

    # --- activity -----------------------------------------------------------------------------------------------------

    def activate(self, lane: Lane, message_key: bytes) -> None:
        """Make a lane active that has a pending message with this key."""
        key = lane.key
        if key.paused:
            self.hold_if_moving(key)  # more came after its first ones were sent on
        if not lane.active:
            lane.active = True
            key.ready += 1
        if key.only_lane is None and not lane.blocked:
            key.note_head(lane, message_key)
        if key.blocked_head and not lane.blocked and message_key[8:] < key.blocked_head:
            key.blocked_head = b""  # the new message is before the one that all others wait for
        if not key.active and key.deliverable:
            key.queue.ring.join(key)
        self.mark_runnable(key.queue)

    def rouse(self, lane: Lane, message_key: bytes) -> None:
        """Activate a lane that is not active, faster for the usual key. The caller marks the queue runnable at the end."""
        key = lane.key
        if key.only_lane is None or key.paused:
            self.activate(lane, message_key)
        else:
            lane.active = True
            key.ready += 1
            key.queue.ring.join(key)

    def deactivate(self, lane: Lane) -> None:
        """Make a lane inactive that has no pending messages."""
        key = lane.key
        lane.active = False
        if lane.blocked:
            key.blocked -= 1
            key.blocked_head = b""
        else:
            key.ready -= 1
        self.places.leave(lane)
        self.token_client.rest(lane)
        self.refresh_eligibility(key)

    def unblock(self, takers: Iterable[PlaceTaker]) -> None:
        """Let lanes go on that have got tokens or places, or need none, and partitions that have got places."""
        for lane in takers:
            if isinstance(lane, QueuePartition):
                self.mark_runnable(lane.owner)
                continue
            key = lane.key
            key.ready += 1
            key.blocked -= 1
            key.blocked_head = b""
            if key.only_lane is None:
                key.note_head(lane, lane.prefix + FIRST_PLACE)
            self.refresh_eligibility(key)
            self.mark_runnable(key.queue)

    def refresh_eligibility(self, key: FairnessKey) -> None:
        """Put a key into the ring or take it out, after a change to what decides whether it may deliver."""
        ring = key.queue.ring
        if key.deliverable:
            if not key.active:
                ring.rejoin(key)
                self.mark_runnable(key.queue)
        elif key.active:
            ring.leave(key)

    def release_slot(self, key: FairnessKey, count: int = 1) -> None:
        """Count ``count`` messages of a key off those in flight or waiting for a retry."""
        if key.queue.options.max_in_flight_per_key is not None:
            key.held -= count
            self.refresh_eligibility(key)

    def count_leased(self, lease: Lease, indexes: Iterable[int], each: int) -> None:
        """Count members of a lease as leased messages of their throttle keys, or, with -1, off again."""
        if lease.at_most_once:
            return
        members = map(lease.members.__getitem__, indexes)
        throttles = Counter(member[1].throttle for member in members if not isinstance(member, bool))
        for throttle, count in throttles.items():
            for traffic in () if throttle is None else throttle.traffic:
                traffic.leased += each * count
                if traffic.held is not None and each < 0:
                    traffic.held.freed -= each * count
                    self.places.touch(traffic.held)

    def mark_runnable(self, queue: Queue) -> None:
        """Note that a queue may have messages to deliver."""
        if self.places.postponed:
            self.places.look_again(queue)
        if queue.demands and queue.open and len(queue.ring):
            self.runnable[queue.id] = queue
            self.delivery.by(AT_ONCE)

    def end_members(self, queue: Queue, tokens: Iterable[bytes], outcome: MemberOutcome) -> None:
        """Count messages of a queue that are done in their batches, which have these tokens."""
        if not queue.gone:  # else all its members count as removed already
            self.batch_parts.end(queue.counted_as, tokens, outcome, self.batch)

    def set_weight(self, key: FairnessKey, weight: int) -> None:
        """Set the weight of a key. The latest weight counts for all its messages."""
        weight = max(1, weight)
        if weight != key.weight:
            for lane in key.lanes.values():
                self.ledger.touch(lane)
            if key.active:
                key.queue.ring.weight += weight - key.weight
            key.weight = weight

    # --- other changes ------------------------------------------------------------------------------------------------

    def read(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return the records of messages that must exist."""
        self.settle_writes()
        records = self.store.get_many(keys, self.store.families.messages)
        found = [record for record in records if record is not None]
        if len(found) != len(keys):
            raise DamageError(
                f"shard {self.index}: {len(keys) - len(found)} of {len(keys)} messages that it counts are not stored"
            )
        return found

    def define_queue(self, queue: Queue) -> None:
        """Make a queue's definition durable with the turn, also against a power cut."""
        self.save_queue(queue)
        self.to_be_synced = True

    def save_queue(self, queue: Queue) -> None:
        """Make a queue's record durable with the turn."""
        self.batch.put(pack_u32(queue.id), queue.to_bytes(), self.store.families.queues)

    def appoint(self, queue: Queue) -> None:
        """Make a queue collect dead letters of others, so that it may be redriven."""
        if not queue.appointed:
            queue.appointed = True
            self.save_queue(queue)

    def touch(self, queue: Queue, now_ms: int) -> None:
        """Note a use of a queue, or of its dead letter queue. An idle expiry starts again."""
        owner = queue.source or queue
        if owner.options.idle_expiry_ms is None:
            return
        owner.used_ms = max(owner.used_ms, now_ms)
        if now_ms - owner.saved_ms >= USED_SAVE_MS:
            owner.saved_ms = now_ms
            self.save_queue(owner)

    def park(self, parks: Mapping[str, int], now_ms: int) -> None:
        """Park throttle keys until a time (Unix ms), also over a restart."""
        for key, until_ms in self.token_client.park(parks, now_ms).items():
            self.runtime.save_park(key, until_ms, self.batch)

    def unpark(self, now_ms: int) -> None:
        """End the parks whose time is up."""
        ended, free = self.token_client.unpark(now_ms)
        for key in ended:
            self.runtime.forget_park(key, self.batch)
        self.wake(free, now_ms)

    def park_everywhere(self, parks: Mapping[str, int], now_ms: int) -> None:
        """Park throttle keys on all shards."""
        if parks:
            self.park(parks, now_ms)
            self.effects.append(Post(Park(dict(parks))))

    def wake(self, throttles: Iterable[LaneTokens], now_ms: int) -> None:
        """Unblock the lanes of some throttles; with many throttles, at the end of this turn and of later ones."""
        for throttle in islice(throttles, WOKEN_AT_ONCE):
            self.unblock(self.token_client.wake(throttle, now_ms))
