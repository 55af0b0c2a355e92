"""Redrive: move dead letters back to their source queues: all, those of a fairness key, or those with given ids.

A named message is found like any message by its id (:mod:`core.inspect.backlog`), or at once if it was browsed lately, as
when a person picks it. A search may take look-ups in many places. So a command makes a bounded number of them, and its answer
contains how many ids it has handled.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING, ClassVar

from fila_proto_zmq.commands import Redrive, Redriven
from fila_proto_zmq.errors import InvalidArgumentError, NotADeadLetterQueueError
from fila_proto_zmq.events import QueueRedriven
from fila_proto_zmq.names import dead_letter_name, shard_of
from fila_worker.core.enqueue import insert
from fila_worker.core.inspect.backlog import PENDING, find_browsed, locate
from fila_worker.core.keys import own_place
from fila_worker.core.manage.backlog_walk import MOVE_COST, BacklogWalk
from fila_worker.core.model.component import Component
from fila_worker.core.model.lanes import unpack_stored
from fila_worker.core.settle import transfers
from fila_worker.core.settle.dead_letters import transfer_of

if TYPE_CHECKING:
    from fila_worker.core.effects import ClientCall
    from fila_worker.core.jobs import Work
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.state import State


def redrive(state: "State", call: "ClientCall", command: Redrive) -> "Work":
    """Move pending dead letters back to the queues they came from; their attempts are set to 0."""
    dead = state.queues.find(call.queue)
    if not (dead.is_dead_letter or dead.appointed):
        raise NotADeadLetterQueueError(
            f"{dead.name!r} is not a dead letter queue: redrive {dead_letter_name(dead.name)!r} instead"
        )
    redriving = _Redriving(state, dead, call.now_ms)
    if command.ids is None:
        if command.count < 0:
            raise InvalidArgumentError(f"redrive of {command.count} messages: use a count above 0, or 0 for all")
        most = state.settings.limits.redrive_messages_max
        yield from redriving.first_ones(min(command.count or most, most), command.fairness_key)
    else:
        yield from redriving.picked(command, command.ids)
    dead.meter.redriven += redriving.moved
    if redriving.moved:
        state.notes.append(QueueRedriven(dead.name, state.index, command.fairness_key, redriving.moved, dead.pending))
    return Redriven(redriving.moved, dead.pending, redriving.looked_at)


class _Redriving(BacklogWalk):
    """One command, and how many of its ids it has handled."""

    looked_at = 0

    def may_go(self, record: bytes) -> bool:
        """Return whether a message is a dead letter whose source queue exists here, or may exist on another shard."""
        source, state = unpack_stored(record).extension.source_queue, self._state
        if source is None:
            return False
        if state.runtime.definitions.find(source) is not None:
            return True  # its partitions are made when they are named
        return source in state.queues or shard_of(source, state.shards) != state.index

    def take_pending(self, lane: "Lane", message_key: bytes, record: bytes) -> None:
        """Send a dead letter back."""
        self._state.buffers.remove(lane, {message_key})
        _send_back(self._state, lane, message_key, record, self._now_ms)
        self.moved += 1

    def picked(self, command: Redrive, ids: list[tuple[int, int]]) -> "Generator[int, int, None]":
        """Send the named messages back, if they are pending here."""
        if command.count or command.fairness_key is not None:
            raise InvalidArgumentError("ids do not go together with a count or a fairness key: give one or the other")
        most = self._limits.redrive_messages_max
        if len(ids) > most:
            raise InvalidArgumentError(f"redrive of {len(ids)} ids: name at most {most} at a time")
        left, effort, seen = self._limits.redrive_places_max, 0, set[tuple[int, int]]()
        for high, low in ids:
            if left <= 0:
                break
            self.looked_at += 1
            if (high, low) in seen:
                continue
            seen.add((high, low))
            if effort == 0:
                self._state.settle_writes()
            found = find_browsed(self._state, self._queue, high, low)
            if found is None:
                search = locate(self._state, self._queue, high, low)
                while found is None:
                    try:
                        cost = next(search)
                    except StopIteration as end:
                        found = end.value
                        break
                    left -= cost
                    self._now_ms = yield cost
            if found is not None and found.state == PENDING and self.may_go(found.record):
                self.take_pending(found.lane, found.key, found.record)
                self._state.thin_out(found.lane)
            effort += 2 * MOVE_COST
            if effort >= self._step or self._state.jobs.full:
                self._now_ms = yield effort
                effort = 0


def _send_back(state: "State", lane: "Lane", message_key: bytes, record: bytes, now_ms: int) -> None:
    """Move one message that may go."""
    letter = unpack_stored(record)
    source = letter.extension.source_queue
    assert source is not None, f"{lane.key.queue.name!r} has a message that is not a dead letter, and may go"
    state.delete_pending(lane, message_key, len(record))
    source = state.runtime.definitions.partition_for(source, lane.key.name)
    target = state.entrance(source, now_ms)
    if target is None:
        place = own_place(message_key, letter.priority)
        transfers.send(state, lane, place, transfer_of(source, lane, letter, redriven=True))
    else:
        number = insert.kept_number(state, message_key, lane.key.queue, target)
        message = insert.Incoming(insert.revived(letter), lane.key.name, throttle_keys=lane.throttle_keys, number=number)
        insert.take_in(state, target, message, now_ms)


class Redrives(Component):
    """The command that redrives dead letters."""

    verbs: ClassVar = {Redrive: redrive}
