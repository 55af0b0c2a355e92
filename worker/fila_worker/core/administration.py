"""Queues come, go and are asked how they are."""

from collections import Counter
from typing import TYPE_CHECKING

from fila_proto_zmq.commands import (
    CreateQueue,
    DeleteQueue,
    Done,
    GetQueueStats,
    KeyStats,
    ListQueues,
    QueueList,
    QueueOptions,
    QueueStats,
)
from fila_proto_zmq.errors import DeadLetterQueueNotEmptyError, InvalidArgumentError, QueueExistsError
from fila_proto_zmq.ids import enqueued_ms
from fila_proto_zmq.limits import LEASE_MS_MAX, LEASE_MS_MIN
from fila_proto_zmq.names import check_new_queue_name, dead_letter_name
from fila_proto_zmq.record import record_id
from fila_worker.core.consuming import close_demands
from fila_worker.core.delivery import refill
from fila_worker.core.graveyard import purge
from fila_worker.core.keys import pack_u32, pack_u64
from fila_worker.core.lanes import held_bytes
from fila_worker.core.queues import Queue

if TYPE_CHECKING:
    from fila_worker.core.effects import Call
    from fila_worker.core.fairness import FairnessKey
    from fila_worker.core.state import State


def create_queue(shard: "State", call: "Call", command: CreateQueue) -> Done:
    """Create a queue and its dead letter queue."""
    name = check_new_queue_name(call.queue)
    _check_options(command.options)
    if name in shard.queues:
        raise QueueExistsError(f"queue {name!r} exists already")
    dead_letters = _add(shard, dead_letter_name(name), QueueOptions())
    queue = _add(shard, name, command.options)
    bind_dead_letters(queue, dead_letters)
    for each in (dead_letters, queue):
        shard.batch.put(pack_u32(each.id), each.to_bytes(), shard.store.families.queues)
    return Done()


def _add(shard: "State", name: str, options: QueueOptions) -> Queue:
    shard.last_queue_id += 1
    queue = shard.queues[name] = Queue(shard.last_queue_id, name, options)
    return queue


def bind_dead_letters(queue: Queue, dead_letters: Queue) -> None:
    """Let the dead letters of ``queue`` go to ``dead_letters``."""
    queue.dead_letters = dead_letters
    dead_letters.source = queue


def _check_options(options: QueueOptions) -> None:
    timeout_ms, attempts = options.visibility_timeout_ms, options.max_attempts
    if timeout_ms is not None and not LEASE_MS_MIN <= timeout_ms <= LEASE_MS_MAX:
        raise InvalidArgumentError(f"visibility timeout of {timeout_ms} ms: use {LEASE_MS_MIN} to {LEASE_MS_MAX}")
    if attempts is not None and attempts < 1:
        raise InvalidArgumentError(f"max_attempts of {attempts}: use 1 or more, or leave it out for no limit")


def delete_queue(shard: "State", call: "Call", command: DeleteQueue) -> Done:
    """Delete a queue with its dead letter queue and all that is in them; its open leases just end."""
    queue = shard.queue(call.queue)
    if queue.source is not None:
        raise InvalidArgumentError(f"{queue.name!r} goes with its queue: delete {queue.source.name!r}")
    dead_letters = queue.dead_letters
    held = dead_letters.pending + dead_letters.in_flight + dead_letters.delayed if dead_letters else 0
    if dead_letters and held and not command.force:
        raise DeadLetterQueueNotEmptyError(
            f"{dead_letters.name!r} holds {held} messages: redrive them, or delete with force",
            details={"messages": held},
        )
    for doomed in filter(None, (queue, dead_letters)):
        _remove(shard, doomed)
    return Done()


def _remove(shard: "State", queue: Queue) -> None:
    purge(shard)
    close_demands(shard, queue)
    for lease in [lease for lease in shard.leases.leases.values() if lease.queue is queue]:
        shard.leases.drop(lease, shard.batch)
    for key in queue.keys.values():
        lane = key.lane
        shard.buffered_bytes -= held_bytes(lane.clear())
        shard.batch.delete_range(lane.prefix, pack_u64(lane.id + 1), shard.store.families.messages)
        del shard.lanes[lane.id]
    shard.ledger.forget([key.lane for key in queue.keys.values()], shard.batch)
    shard.batch.delete(pack_u32(queue.id), shard.store.families.queues)
    shard.wanted.pop(queue.id, None)
    del shard.queues[queue.name]


def list_queues(shard: "State", call: "Call", command: ListQueues) -> QueueList:
    """The shard's queues whose names start with the prefix, by name."""
    names = sorted(name for name in shard.queues if name.startswith(command.prefix))
    return QueueList([shard.queues[name].info(shard.index) for name in names])


def queue_stats(shard: "State", call: "Call", command: GetQueueStats) -> QueueStats:
    """One queue's counters and keys."""
    queue = shard.queue(call.queue)
    dead = shard.graveyard.count_by_lane()
    return QueueStats(
        queue.info(shard.index), _oldest_pending_ms(shard, queue, call.now_ms), shard.settings.quantum, queue.enqueued,
        queue.delivered, queue.acked, queue.nacked, queue.expired, queue.dead_lettered,
        [_key_stats(key, shard.settings.quantum, dead) for key in queue.keys.values()],
    )  # fmt: skip


def _key_stats(key: "FairnessKey", quantum: int, dead: Counter[int]) -> KeyStats:
    lane = key.lane
    return KeyStats(
        key.name,
        key.weight,
        lane.pending,
        len(lane.leased) - dead[lane.id],
        lane.delayed,
        key.deficit(quantum),
        key.delivered,
        False,
    )


def _oldest_pending_ms(shard: "State", queue: Queue, now_ms: int) -> int:
    """Age of the oldest message at the head of a line; reads the heads that are not in memory."""
    oldest = now_ms
    for key in queue.ring.active_keys():
        if key.lane.peek() is None:
            refill(shard, key.lane)
        head = key.lane.peek()
        if head is not None:
            record = head[1] or shard.read([head[0]])[0]
            oldest = min(oldest, enqueued_ms(record_id(record)[0]))
    return now_ms - oldest
