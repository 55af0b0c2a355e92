"""The insert of one message into a queue: enqueued, redriven, moved, or from another shard.

The hot loop of :mod:`core.enqueue.enqueue` bypasses this module for messages that are due at once and have no unusual
options.
"""

from typing import TYPE_CHECKING, Final, NamedTuple

from fila_proto_zmq.commands import Carried, QueueOptions, Transfer
from fila_proto_zmq.ids import sequence
from fila_proto_zmq.limits import PRIORITY_MIN
from fila_proto_zmq.names import dead_letter_name, is_dead_letter, root_name
from fila_proto_zmq.record import FIXED_BYTES, Extension, Record, headers_length, pack_record, unpack_record
from fila_worker.core.enqueue import policy, quotas
from fila_worker.core.enqueue.dedup import take_known
from fila_worker.core.keys import PRIORITY_BIAS, number_of, pack_place, pack_u32
from fila_worker.core.model.due_index import DueKind, delay, on_the_grid
from fila_worker.core.model.queues import Queue, QueuePartition

if TYPE_CHECKING:
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.state import State

LAST_QUEUE_ID: Final = b"last queue id"
"""The last queue id. An id is never used again, because messages on their way to other shards refer to it."""


class Incoming:
    """A message with its schedule. ``deliver_ms`` 0: at once. ``ttl_ms`` 0: the queue's time to live.

    ``number``: its sequence number, if this shard has given it one, with its id or with its place in another queue. 0: it
    gets a new one. ``came_back``: it waits for its next attempt.
    """

    __slots__ = ("came_back", "deliver_ms", "key", "number", "record", "throttle_keys", "ttl_ms", "weight")

    def __init__(
        self,
        record: Record,
        key: str,
        *,
        weight: int = 0,
        throttle_keys: tuple[str, ...] = (),
        deliver_ms: int = 0,
        ttl_ms: int = 0,
        number: int = 0,
        came_back: bool = False,
    ) -> None:
        self.record = record
        self.key = key
        self.weight = weight
        self.throttle_keys = throttle_keys
        self.deliver_ms = deliver_ms
        self.ttl_ms = ttl_ms
        self.number = number
        self.came_back = came_back

    def priority_in(self, queue: Queue) -> int:
        """Return the priority of its place. With a limit of 1 a message that came back is the first one of its key."""
        is_first = self.came_back and queue.options.max_in_flight_per_key == 1
        return PRIORITY_MIN if is_first else self.record.priority


class InsertedMessage(NamedTuple):
    """A message in its place. ``due_ms``: until when it is delayed; 0: it is in line."""

    lane: "Lane"
    key: bytes
    record: bytes
    due_ms: int


def revived(letter: Record) -> Record:
    """Return a dead letter as it was enqueued, with the metadata that earlier attempts left for the next."""
    old = letter.extension
    letter.attempts = 0
    letter.extension = Extension(
        lease_ms=old.lease_ms, metadata=old.metadata, cost_milli=old.cost_milli, max_attempts=old.max_attempts
    )
    return letter


def moved(record: Record, key: str, weight: int, throttle_keys: tuple[str, ...], due_ms: int, now_ms: int) -> Incoming:
    """Return a message that was moved here from another queue, with what is left of its delay and its time to live.

    A weight of 1 is what a key has by default: it does not replace the weight that the key has here.
    """
    expires_ms = record.extension.expires_ms
    return Incoming(
        revived(record),
        key,
        weight=weight if weight > 1 else 0,
        throttle_keys=throttle_keys,
        deliver_ms=due_ms,
        ttl_ms=0 if expires_ms is None else max(1, expires_ms - now_ms),
    )


def prepare(state: "State", transfers: list[Transfer]) -> None:
    """Commit what is written, if some of these messages keep their numbers: they are compared with the messages here."""
    if any(transfer.number for transfer in transfers):
        state.settle_writes()


def forwarded(state: "State", transfer: Transfer, now_ms: int) -> bool:
    """Take in a message that was in another partition of its queue, as it is. Drop it if that queue was deleted meanwhile.
    Return False if its partition is not here.
    """
    queue = _partition_for(state, transfer.queue, now_ms)
    if queue is None or queue.partition is None or queue.partition.defined < transfer.forwarded:
        return False
    if queue.partition.defined > transfer.forwarded:
        return True  # another queue has its name now
    if transfer.what:
        _take_other(state, queue, queue.partition, transfer, now_ms)
        return True
    record = unpack_record(transfer.record)
    expires_ms = record.extension.expires_ms
    message = Incoming(
        record,
        transfer.fairness_key,
        weight=transfer.weight if transfer.weight > 1 else 0,
        throttle_keys=tuple(transfer.throttle_keys),
        deliver_ms=transfer.due_ms or 0,
        ttl_ms=0 if expires_ms is None else max(1, expires_ms - now_ms),
        number=transfer.number if transfer.version == queue.partition.version else 0,
        came_back=transfer.came_back,
    )
    if message.number and _is_taken(state, queue, message):
        message.number = 0
    store(state, queue, message, now_ms)
    state.mark_runnable(queue)
    return True


def _is_taken(state: "State", queue: Queue, message: Incoming) -> bool:
    """Return whether there is a committed message in the place of another one: another shard gave its number out, too."""
    key = queue.keys.get(message.key)
    lane = None if key is None else key.lanes.get(message.throttle_keys)
    if lane is None:
        return False
    message_key = lane.prefix + pack_place(message.priority_in(queue) + PRIORITY_BIAS, message.number)
    families = state.store.families
    return any(state.store.get(message_key, family) is not None for family in (families.messages, families.delayed))


def _partition_for(state: "State", name: str, now_ms: int) -> Queue | None:
    queue = state.entrance(name, now_ms)
    if queue is None and is_dead_letter(name):
        source = state.entrance(root_name(name), now_ms)
        queue = None if source is None else own_dead_letters(state, source)
    return queue


def _take_other(state: "State", queue: Queue, partition: QueuePartition, transfer: Transfer, now_ms: int) -> None:
    """Take in what goes with the messages of another partition."""
    if transfer.what == Carried.PAUSE:
        queue.paused_keys.add(transfer.fairness_key)
        state.define_queue(queue)
        key = queue.keys.get(transfer.fairness_key)
        if key is not None:
            key.paused = True
            state.refresh_eligibility(key)
        return
    take_known(state, queue, transfer.record, now_ms)
    if transfer.what == Carried.LAST_DEDUP_IDS and transfer.version == partition.version:
        partition.ids_of.add(transfer.number)
        state.define_queue(queue)


def store(state: "State", queue: Queue, message: Incoming, now_ms: int) -> InsertedMessage:
    """Put a message in line, or with the delayed ones."""
    record = message.record
    ttl_ms = message.ttl_ms or queue.options.default_ttl_ms
    if ttl_ms:
        record.extension.expires_ms = now_ms + ttl_ms
    lane = state.lane(queue, message.key, message.throttle_keys)
    if message.weight:
        state.set_weight(lane.key, message.weight)
    if not message.number:
        state.counters.sequence = message.number = state.counters.sequence + 1
    priority = message.priority_in(queue)
    remember(state, queue, record, message.number, {record.priority, priority})
    place = pack_place(priority + PRIORITY_BIAS, message.number)
    packed = pack_record(record)
    if ttl_ms:
        state.due_index.add(on_the_grid(now_ms + ttl_ms), DueKind.EXPIRE, lane.prefix + place, state.batch)
    if message.deliver_ms > now_ms:
        put_off(state, lane, lane.prefix + place, packed, message.deliver_ms, came_back=message.came_back)
    else:
        state.put_in_line(lane, place, packed)
    queue.enqueued += 1
    return InsertedMessage(lane, lane.prefix + place, packed, message.deliver_ms if message.deliver_ms > now_ms else 0)


def put_off(state: "State", lane: "Lane", message_key: bytes, record: bytes, due_ms: int, *, came_back: bool) -> None:
    """Delay a message that is counted nowhere. ``came_back``: until its next attempt, and its key counts it meanwhile."""
    delay(state, lane, message_key, record, due_ms, retrying=came_back)
    if came_back:
        state.release_slot(lane.key, -1)


def kept_number(state: "State", message_key: bytes, source: Queue, target: Queue) -> int:
    """Return the number that a message keeps on its way to another queue of this shard; 0: it needs a new one.

    Numbers from before a reshard are unique among the queues with one root name only, because those had one shard.
    """
    number, earlier = number_of(message_key), state.counters.earlier
    if source.partition is not None and number < source.partition.first_number:
        return 0  # another shard may have given it out
    if earlier and number <= earlier[-1].last and root_name(source.name) != root_name(target.name):
        return 0
    return number


def remember(state: "State", queue: Queue, record: Record, number: int, priorities: "set[int] | None" = None) -> None:
    """Note the key parts by which a message of the queue is found by its id. ``number``: the one in its place."""
    news = queue.note_priorities(priorities or {record.priority})
    if not queue.strangers and (number != sequence(record.id_low) or not state.is_own(queue, record.id_high, record.id_low)):
        queue.strangers = news = True
    if news:
        state.save_queue(queue)


def take_in(state: "State", queue: Queue, message: Incoming, now_ms: int, *, limited: bool = False) -> None:
    """Take in a message that was accepted before, by the normal enqueue path. The queue's hook decides again.

    ``limited``: raise :class:`OverloadedError`, and take nothing in, beyond a limit of the queue.
    """
    envelope = message.record.envelope
    length = headers_length(envelope)
    decision = policy.decide_one(state, queue, envelope[4 : 4 + length], len(envelope) - 4 - length, now_ms)
    if decision.fairness_key is not None:
        message.key = decision.fairness_key
    if decision.throttle_keys is not None:
        message.throttle_keys = policy.canonical(decision.throttle_keys)
    if decision.weight is not None:
        message.weight = decision.weight
    if decision.priority is not None:
        message.record.priority = decision.priority
    if decision.cost_milli is not None:
        message.record.extension.cost_milli = decision.cost_milli
    if decision.delay_ms:
        message.deliver_ms = now_ms + decision.delay_ms
    if limited:
        quotas.check_room(state, queue, message.key, FIXED_BYTES + len(envelope), now_ms)
    store(state, queue, message, now_ms)


def add_queue(state: "State", name: str, options: QueueOptions, created_ms: int = 0) -> Queue:
    """Add and return a new queue, durable with the turn."""
    state.queues.last_id += 1
    state.batch.put(LAST_QUEUE_ID, pack_u32(state.queues.last_id), state.store.families.state)
    queue = Queue(state.queues.last_id, name, options, state.settings.limits, state.lanes)
    queue.created_ms = created_ms
    state.queues.by_id[queue.id] = queue
    state.queues.enter(queue)
    state.define_queue(queue)
    return queue


def own_dead_letters(state: "State", queue: Queue) -> Queue:
    """Return the ``.dlq`` of a queue, made if it has none."""
    if queue.dead_letters is not None:
        return queue.dead_letters
    dead_letters = add_queue(state, dead_letter_name(queue.name), QueueOptions())
    if queue.partition is not None and dead_letters.partition is not None:
        dead_letters.partition.join(queue.partition)
    bind_dead_letters(queue, dead_letters)
    state.define_queue(queue)
    return dead_letters


def bind_dead_letters(queue: Queue, dead_letters: Queue) -> None:
    """Send the dead letters of ``queue`` to ``dead_letters``."""
    queue.dead_letters = dead_letters
    dead_letters.source = queue
    dead_letters.judge()
