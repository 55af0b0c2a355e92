"""Move: take pending and delayed messages of a queue, or of one of its keys, to the line of another queue of any shard.

A message takes the normal enqueue path there, like a redriven one: the hook runs again and its attempts are 0. It keeps its
id, its headers, and what is left of its delay and its time to live. The limits of the other queue hold. A move to another
shard is a transfer, so each message is in one queue whatever is killed; a message that the other shard refuses goes back to
its place. One command moves a bounded number of messages, and waits until they have arrived. So its answer counts the
messages that are there, and few of them are on their way at any time.

Some messages stay: leased ones, those whose time is up, and members of a batch, because it counts them in its queue.
"""

from typing import TYPE_CHECKING, ClassVar, Final

from fila_proto_zmq.codec import from_fault
from fila_proto_zmq.commands import Fault, Moved, MoveMessages, Transfer
from fila_proto_zmq.errors import FilaError, InvalidArgumentError, ShardUnavailableError
from fila_proto_zmq.events import QueueMoved
from fila_proto_zmq.names import check_queue_name, is_dead_letter, shard_of, whole_queue
from fila_proto_zmq.record import BATCHED
from fila_worker.core.enqueue import insert, quotas
from fila_worker.core.enqueue.enqueue import queue_for_own
from fila_worker.core.jobs import REST
from fila_worker.core.keys import own_place
from fila_worker.core.manage.backlog_walk import BacklogWalk
from fila_worker.core.manage.purge import remaining
from fila_worker.core.model.component import Component
from fila_worker.core.model.due_index import lift, too_old
from fila_worker.core.model.lanes import unpack_stored
from fila_worker.core.settle import transfers

if TYPE_CHECKING:
    from collections.abc import Generator

    from fila_worker.core.effects import ClientCall
    from fila_worker.core.jobs import Work
    from fila_worker.core.model.due_index import Delayed
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

ARRIVAL_MS_MAX: Final = 4000
"""How long a command waits for its messages to arrive: just below the usual timeout of a client."""


def move(state: "State", call: "ClientCall", command: MoveMessages) -> "Work":
    """Move the first messages of a queue, or of one of its keys, to another queue."""
    queue = state.queues.find(call.queue)
    _check(queue, command)
    if state.disk_is_full:
        raise quotas.disk_full(state)
    most = state.settings.limits.redrive_messages_max
    walk = _Move(state, queue, command.target, call.now_ms)
    state.outbox.watchers.add(walk.came_back)
    try:
        yield from walk.first_ones(min(command.count or most, most), command.fairness_key)
        yield from walk.arrivals()
    finally:
        state.outbox.watchers.discard(walk.came_back)
    left = 0 if queue.gone else remaining(queue, command.fairness_key)
    if walk.moved:
        state.notes.append(QueueMoved(queue.name, state.index, command.target, command.fairness_key, walk.moved, left))
    elif walk.error is not None:
        raise walk.error
    return Moved(walk.moved, left)


def _check(queue: "Queue", command: MoveMessages) -> None:
    check_queue_name(command.target)
    if command.target == whole_queue(queue.name):
        raise InvalidArgumentError(f"a move from {command.target!r} to itself: name another queue")
    if is_dead_letter(command.target):
        raise InvalidArgumentError(f"{command.target!r} is a dead letter queue: only the broker puts messages there")
    if command.count < 0:
        raise InvalidArgumentError(f"move of {command.count} messages: use a count above 0, or 0 for all")


class _Move(BacklogWalk):
    """One command."""

    takes_delayed = True

    def __init__(self, state: "State", queue: "Queue", target: str, now_ms: int) -> None:
        super().__init__(state, queue, now_ms)
        self._target = target
        self.error: FilaError | None = None
        """Why a message could not go."""
        self._sent: set[tuple[int, int]] = set()
        """Its transfers: to which shards, and their numbers."""

    def may_go(self, record: bytes) -> bool:
        """Return whether a message is no member of a batch, and not too old."""
        return not record[1] & BATCHED and not too_old(record, self._now_ms)

    def take_pending(self, lane: "Lane", message_key: bytes, record: bytes) -> None:
        """Move a message to the line of the other queue."""
        if self._goes(lane, message_key, record, 0):
            self._state.buffers.remove(lane, {message_key})
            self._state.delete_pending(lane, message_key, len(record))

    def take_delayed(self, lane: "Lane", message_key: bytes, delayed: "Delayed") -> None:
        """Move a delayed message to the delayed ones of the other queue."""
        if self._goes(lane, message_key, delayed.record, delayed.due_ms):
            lift(self._state, lane, message_key, delayed)
            if delayed.retrying:
                self._state.release_slot(lane.key)

    def _goes(self, lane: "Lane", message_key: bytes, stored: bytes, due_ms: int) -> bool:
        """Put a message into the other queue, or on its way. If that refuses it, end the walk and return False."""
        state, key, record = self._state, lane.key, unpack_stored(stored)
        target_name = state.runtime.definitions.partition_for(self._target, key.name)
        shard = shard_of(target_name, state.shards)
        if shard != state.index:
            place = own_place(message_key, record.priority)
            transfer = Transfer(target_name, key.name, key.weight, list(lane.throttle_keys), True, stored, due_ms=due_ms)
            transfers.send(state, lane, place, transfer)
            self._sent.add((shard, state.outbox.last_number(shard)))
        else:
            try:
                target = queue_for_own(state, target_name, self._now_ms)
                number = insert.kept_number(state, message_key, key.queue, target)
                message = insert.moved(record, key.name, key.weight, lane.throttle_keys, due_ms, self._now_ms)
                message.number = number
                insert.take_in(state, target, message, self._now_ms, limited=True)
            except FilaError as error:
                self.error, self.over = error, True
                return False
            state.mark_runnable(target)
        self.moved += 1
        return True

    def arrivals(self) -> "Generator[int, int, None]":
        """Wait until all messages that were sent to another shard are there, or came back."""
        outbox, began_ms = self._state.outbox, self._now_ms
        last = dict(sorted(self._sent))  # the last number for each shard
        while late := [shard for shard, number in last.items() if not outbox.has_arrived(shard, number)]:
            if self._now_ms - began_ms >= ARRIVAL_MS_MAX:
                raise ShardUnavailableError(
                    f"{self.moved} messages of {self._queue.name!r} are on their way to shard {late[0]}, which has not "
                    f"confirmed them in {ARRIVAL_MS_MAX / 1000:g} s: they arrive, or come back, when it serves"
                )
            self._now_ms = yield REST

    def came_back(self, shard: int, number: int, fault: Fault | None) -> None:
        """Count a message off that the other shard has refused."""
        if (shard, number) in self._sent:
            self.moved -= 1
            self.error = self.error if fault is None else from_fault(fault)


class BacklogMoves(Component):
    """The command that moves messages to another queue."""

    verbs: ClassVar = {MoveMessages: move}
