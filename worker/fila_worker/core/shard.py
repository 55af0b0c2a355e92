"""A shard: whole queues, one scheduler, one transaction a turn.

The owner of a shard calls, each turn::

    shard.apply(call, command)            # for each frame that came in
    shard.advance(now_ms)                 # what is due: expired leases, delayed messages, lost consumers
    shard.deliver(now_ms)                 # messages to whoever wants them
    effects = shard.commit()              # one batch; then, and only then, send the effects

Nothing here reads a clock, a socket or a disk: time is an argument, storage a port. A command either does all that it says
or raises a :class:`FilaError` before it changed anything. A failed commit leaves memory ahead of the disk, so the owner must
drop the shard and recover a new one; there is no other rollback.

Reads see only what is committed. A verb that has to read therefore calls :meth:`State.settle_writes` first, which commits
what the turn has written so far, at a point where what was written is whole.
"""

from collections.abc import Callable
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
from fila_proto_zmq.errors import FilaError, InvalidFrameError
from fila_worker.core import (
    administration,
    attempts,
    consuming,
    dead_letters,
    delays,
    delivery,
    enqueueing,
    graveyard,
    settlement,
)
from fila_worker.core.effects import Call, Effect, answer
from fila_worker.core.state import State

Verb: TypeAlias = Callable[[State, Call, Any], Reply | None]
"""Carries out one kind of command. Returns None if the answer comes later, or never."""


class Shard(State):
    """A state and what may be done with it."""

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

    def advance(self, now_ms: int) -> None:
        """Do what is due at ``now_ms``, in bounded steps: :meth:`next_due` tells if more is.

        It comes after the frames that were waiting, so that a heartbeat that was read late still counts.
        """
        attempts.expire_leases(self, now_ms)
        delays.release_due(self, now_ms)
        consuming.drop_lost(self, now_ms)

    def deliver(self, now_ms: int) -> None:
        """Lease messages to whoever wants them, then answer the receives whose time is up."""
        delivery.deliver(self, now_ms)
        consuming.answer_waiters(self, now_ms)

    def commit(self) -> list[Effect]:
        """End the turn: make its changes durable and return what may now be sent."""
        if self.ledger.fold_due:
            graveyard.purge(self)  # a lane is idle once its dead are gone
            self.fold()
        self.settle_writes()
        effects, self.effects = self.effects, []
        return effects

    def next_due(self, now_ms: int) -> int | None:
        """Milliseconds until :meth:`advance` or :meth:`deliver` has something to do; None: not before a command comes."""
        if self.wanted:
            return 0
        times = (self.leases.next_expiry(), self.schedule.next_due_ms, self.consumers.next_deadline())
        due = min((time for time in times if time is not None), default=None)
        return None if due is None else max(0, due - now_ms)


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
