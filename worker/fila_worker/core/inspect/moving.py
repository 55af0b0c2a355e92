"""How far a partition has come while its queue changes its number of partitions, for people who look at it."""

from itertools import islice
from typing import TYPE_CHECKING, Final

from fila_proto_zmq.commands import PartitionLeft, QueueMove

if TYPE_CHECKING:
    from fila_worker.core.model.fairness_keys import FairnessKey
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

KEYS_LOOKED_AT_MAX: Final = 1000
"""Fairness keys whose messages are added up for one answer, about a microsecond each."""


def has_messages(key: "FairnessKey") -> bool:
    """Return whether a key has messages to send on, or some that may be in the way of later ones."""
    return count_in(key) > 0 or leased_before(key) > 0


def count_in(key: "FairnessKey") -> int:
    """Return the number of pending and delayed messages of a key."""
    return key.pending + sum(view.delayed for view in key.views)


def leased_before(key: "FairnessKey") -> int:
    """Return how many leased messages of a key keep those behind them from being delivered, wherever these are."""
    if key.queue.options.max_in_flight_per_key is None:
        return 0
    return sum(len(view.leased) for view in key.views)


def left_in(state: "State", queue: "Queue", keys_max: int = KEYS_LOOKED_AT_MAX) -> PartitionLeft:
    """Return what a partition has to send on, and which leased messages it waits for; of so many fairness keys."""
    partition = queue.partition
    assert partition is not None, f"{queue.name!r} is no partition"
    family = [each for each in (queue, queue.dead_letters) if each is not None]
    more = False
    if partition.is_retired:
        messages, leased = sum(each.pending + each.delayed for each in family), sum(each.in_flight for each in family)
    else:
        strays = partition.draining or (key for key in islice(state.strays, keys_max) if key.queue is queue)
        keys = list(islice(strays, keys_max))
        state.jobs.charge(len(keys))
        messages, leased = sum(map(count_in, keys)), sum(map(leased_before, keys))
        more = len(keys) < max(partition.strays, len(partition.draining or ())) or partition.is_looking
    sent_to = {shard for each in family for shard in state.outbox.carriers_of(each.id)}
    return PartitionLeft(partition.number, state.index, messages, leased, more, sorted(sent_to))


def move_of(state: "State", queue: "Queue", keys_max: int = KEYS_LOOKED_AT_MAX) -> QueueMove | None:
    """Return how far the change of the number of partitions of a queue has come, as far as this partition knows."""
    partition = queue.partition
    if partition is None or queue.is_dead_letter or (definition := state.runtime.definitions.find(queue.name)) is None:
        return None
    move, partitions = definition.move, definition.plan.partitions
    if move is None:
        return None
    waits_for = move.waits_for(partitions)
    left = [left_in(state, queue, keys_max)] if partition.number in waits_for else []
    return QueueMove(move.earlier, partitions, move.since_ms, sorted(move.drained), waits_for, left)
