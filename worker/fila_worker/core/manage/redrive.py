"""Redrive: move dead letters back to their source queues: all, those of a fairness key, or those with given ids.

A named message is found like any message by its id (:mod:`core.inspect.backlog`), or at once if it was browsed lately, as
when a person picks it. A search may take look-ups in many places. So a command makes a bounded number of them, and its answer
contains how many ids it has handled.
"""

from collections.abc import Generator
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final

from fila_proto_zmq.commands import Redrive, Redriven
from fila_proto_zmq.errors import InvalidArgumentError, NotADeadLetterQueueError
from fila_proto_zmq.events import QueueRedriven
from fila_proto_zmq.names import shard_of
from fila_proto_zmq.record import Record
from fila_worker.core.enqueue import insert
from fila_worker.core.inspect.backlog import PENDING, find_browsed, locate
from fila_worker.core.keys import after, own_place
from fila_worker.core.model.component import Component
from fila_worker.core.model.lanes import unpack_stored
from fila_worker.core.model.queues import Queue
from fila_worker.core.settle import transfers
from fila_worker.core.settle.dead_letters import transfer_of
from fila_worker.core.walking import VIEWS_AT_ONCE, again, pieces

if TYPE_CHECKING:
    from fila_worker.core.effects import ClientCall
    from fila_worker.core.jobs import Work
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.state import State

READ_MESSAGES: Final = 50
"""Messages that are read at once."""

MOVE_COST: Final = 5
"""Cost of moving a message, without its queue's hook."""

READ_COST: Final = 3
"""Cost of starting a read somewhere."""


def redrive(state: "State", call: "ClientCall", command: Redrive) -> "Work":
    """Move pending dead letters back to the queues they came from; their attempts are set to 0."""
    dead = state.queues.find(call.queue)
    if not (dead.is_dead_letter or dead.appointed):
        raise NotADeadLetterQueueError(f"{dead.name!r} is not a dead letter queue: redrive {dead.name + '.dlq'!r} instead")
    redriving = _Redriving(state, dead, call.now_ms)
    if command.ids is None:
        yield from redriving.first_ones(command)
    else:
        yield from redriving.picked(command, command.ids)
    dead.meter.redriven += redriving.moved
    if redriving.moved:
        state.notes.append(QueueRedriven(dead.name, state.index, command.fairness_key, redriving.moved, dead.pending))
    return Redriven(redriving.moved, dead.pending, redriving.looked_at)


class _Redriving:
    """One command: how many messages it has moved, and how many of its ids it has handled."""

    def __init__(self, state: "State", dead: Queue, now_ms: int) -> None:
        self.moved = self.looked_at = 0
        self._state, self._dead, self._now_ms = state, dead, now_ms
        self._limits = state.settings.limits
        self._step = self._limits.step_effort

    # --- the first ones -----------------------------------------------------------------------------------------------

    def first_ones(self, command: Redrive) -> "Generator[int, int, None]":
        """Redrive the first dead letters, lane by lane."""
        if command.count < 0:
            raise InvalidArgumentError(f"redrive of {command.count} messages: use a count above 0, or 0 for all")
        most, effort = self._limits.redrive_messages_max, 0
        count = min(command.count or most, most)
        for views in pieces(self._state, self._dead, self._step, command.fairness_key):
            for each in views:
                view, cursor, looks_left = again(self._state, each), b"", self._limits.redrive_look_messages_max
                while view is not None and view.active and looks_left > 0 and self.moved < count:
                    lane = view.warm()
                    if effort == 0:
                        self._state.settle_writes()  # a message that moves meanwhile is not read again
                    before = self.moved
                    following, read = self._empty(lane, cursor, min(count - before, READ_MESSAGES))
                    looks_left -= read - (self.moved - before)
                    effort += READ_COST + read + MOVE_COST * (self.moved - before)
                    if effort >= self._step or self._state.jobs.full:
                        self._now_ms = yield effort
                        effort = 0
                        view = again(self._state, each)
                    if following is None:
                        break
                    cursor = following
            if self.moved >= count:
                return
            self._now_ms = yield effort + 1 + len(views) // VIEWS_AT_ONCE
            effort = 0

    def _empty(self, lane: "Lane", cursor: bytes, count: int) -> tuple[bytes | None, int]:
        """Redrive up to ``count`` messages of a lane; return where to continue (None: at the end), and how many were read."""
        state = self._state
        begin = max(cursor, _first_pending(lane))
        found = list(islice(state.store.scan(begin, lane.end, state.store.families.messages), count))
        claimed = lane.claimed
        for read, (message_key, record) in enumerate(found):
            if state.jobs.full and read:
                break  # the hooks took the rest of the turn
            cursor = after(message_key)
            if message_key not in claimed and _may_go(state, unpack_stored(record)):
                self._move(lane, message_key, record)
        else:
            return (cursor if len(found) == count else None), len(found)
        return cursor, read

    # --- picked ones --------------------------------------------------------------------------------------------------

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
            found = find_browsed(self._state, self._dead, high, low)
            if found is None:
                search = locate(self._state, self._dead, high, low)
                while found is None:
                    try:
                        cost = next(search)
                    except StopIteration as end:
                        found = end.value
                        break
                    left -= cost
                    self._now_ms = yield cost
            if found is not None and found.state == PENDING and _may_go(self._state, unpack_stored(found.record)):
                self._move(found.lane, found.key, found.record)
            effort += 2 * MOVE_COST
            if effort >= self._step or self._state.jobs.full:
                self._now_ms = yield effort
                effort = 0

    def _move(self, lane: "Lane", message_key: bytes, record: bytes) -> None:
        state = self._state
        state.buffers.remove(lane, {message_key})
        _send_back(state, lane, message_key, record, self._now_ms)
        state.thin_out(lane)
        self.moved += 1


def _first_pending(lane: "Lane") -> bytes:
    """Return a key from which a scan meets no tombstones of messages that were consumed."""
    head = lane.peek()
    return min(each for each in (head[0] if head else None, lane.tail, lane.end) if each is not None)


# --- either -----------------------------------------------------------------------------------------------------------


def _send_back(state: "State", lane: "Lane", message_key: bytes, record: bytes, now_ms: int) -> None:
    """Move one message that may go."""
    letter = unpack_stored(record)
    source = letter.extension.source_queue
    assert source is not None, f"{lane.key.queue.name!r} has a message that is not a dead letter, and may go"
    state.delete_pending(lane, message_key, len(record))
    target = state.queues.get(source)
    if target is None:
        place = own_place(message_key, letter.priority)
        transfers.send(state, lane, place, transfer_of(source, lane, letter, redriven=True))
    else:
        number = insert.kept_number(state, message_key, lane.key.queue, target)
        message = insert.Incoming(insert.revived(letter), lane.key.name, throttle_keys=lane.throttle_keys, number=number)
        insert.take_in(state, target, message, now_ms)


def _may_go(state: "State", letter: Record) -> bool:
    """Return whether a message is a dead letter whose source queue exists here, or may exist on another shard."""
    source = letter.extension.source_queue
    return source is not None and (source in state.queues or shard_of(source, state.shards) != state.index)


class Redrives(Component):
    """The command that redrives dead letters."""

    verbs: ClassVar = {Redrive: redrive}
