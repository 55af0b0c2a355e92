"""Queues that take the dead letters of others: they must exist, and they remember that they may be redriven.

A queue of the same shard is looked at; one of another shard is asked for, and the command that named it waits for the answer.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from fila_proto_zmq.commands import Appoint, Appointed, CreateQueue, UpdateQueue
from fila_proto_zmq.errors import FilaError, InvalidArgumentError, ShardUnavailableError
from fila_proto_zmq.names import shard_of
from fila_worker.core.effects import Call, Post, answer
from fila_worker.core.enqueue.insert import own_dead_letters
from fila_worker.core.model.queues import DISCARD, OWN

if TYPE_CHECKING:
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.shard import Shard
    from fila_worker.core.state import State


def appointed(state: "State", name: str, dead_letter: str | None) -> bool:
    """Whether the place for a queue's dead letters is there; False: another shard must be asked.

    :class:`InvalidArgumentError` if it is a queue of this shard that does not exist.
    """
    if dead_letter in {None, OWN, DISCARD} or (name, dead_letter) in state.confirmed_appointments:
        return True
    assert dead_letter is not None
    if shard_of(dead_letter, state.shards) != state.index:
        return False
    if dead_letter not in state.queues:
        raise _missing(dead_letter)
    return True


def ask_for_appointment(state: "State", call: Call, command: CreateQueue | UpdateQueue, dead_letter: str | None) -> None:
    """Ask another shard for a queue; the command goes on with its answer."""
    assert dead_letter is not None
    state.tickets += 1
    state.waiting_for_appointment[state.tickets] = (call, command, dead_letter)
    to_shard = shard_of(dead_letter, state.shards)
    state.effects.append(Post(Appoint(to_shard, state.index, state.tickets, dead_letter)))


def answer_appoint(state: "State", command: Appoint) -> None:
    """Tell another shard whether a queue exists here."""
    queue = state.queues.get(command.queue)
    if queue is not None:
        state.appoint(queue)
    state.effects.append(Post(Appointed(command.from_shard, state.index, command.ticket, queue is not None)))


def resume(shard: "Shard", command: Appointed, now_ms: int) -> None:
    """Another shard's word: carry out the command that waited for it, or refuse it."""
    waiting = shard.waiting_for_appointment.pop(command.ticket, None)
    if waiting is None:
        return  # it has waited for too long
    call, held, dead_letter = waiting
    if not command.exists:
        shard.effects.append(answer(call, held, _missing(dead_letter)))
        return
    shard.confirmed_appointments.add((call.queue, dead_letter))
    shard.apply(replace(call, now_ms=now_ms), held)
    shard.confirmed_appointments.clear()


def time_out(state: "State", now_ms: int) -> None:
    """Refuse the commands that have waited for too long."""
    wait_ms_max = state.settings.limits.appointment_wait_ms_max
    for ticket, (call, held, dead_letter) in list(state.waiting_for_appointment.items()):
        if call.now_ms + wait_ms_max <= now_ms:
            del state.waiting_for_appointment[ticket]
            error: FilaError = ShardUnavailableError(
                f"the shard of queue {dead_letter!r}, which is to take dead letters, does not answer: try again",
                details={"refused": True},
            )
            state.effects.append(answer(call, held, error))


def next_due(state: "State") -> int | None:
    """When the first command has waited for too long, Unix ms."""
    since_ms = min((call.now_ms for call, _, _ in state.waiting_for_appointment.values()), default=None)
    return None if since_ms is None else since_ms + state.settings.limits.appointment_wait_ms_max


def settle_dead_letters(state: "State", queue: "Queue") -> None:
    """Make the queue's own dead letter queue, if it is to have one; or let another of this shard know that it is the one."""
    policy = queue.options.dead_letter or OWN
    if policy == OWN:
        own_dead_letters(state, queue)
    elif policy != DISCARD and policy in state.queues:
        state.appoint(state.queues[policy])


def _missing(dead_letter: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"dead_letter={dead_letter!r}: no such queue; create it first, or use 'dlq' or 'discard'")
