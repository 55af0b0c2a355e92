"""Queues that take the dead letters of others: they must exist, and they store that they may be redriven.

For a queue of the same shard this is checked at once. Another shard is asked, and the command that named the queue waits for
its answer.
"""

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from msgspec.structs import replace

from fila_proto_zmq.commands import Appoint, Appointed, CreateQueue, UpdateQueue
from fila_proto_zmq.errors import InvalidArgumentError, ShardUnavailableError
from fila_proto_zmq.names import shard_of
from fila_worker.core.due_time import DueTime
from fila_worker.core.effects import ClientCall, Post
from fila_worker.core.enqueue.insert import own_dead_letters
from fila_worker.core.model.component import Component
from fila_worker.core.model.queues import DISCARD, OWN

if TYPE_CHECKING:
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State
    from fila_worker.core.settings import Limits


class HeldCommand(NamedTuple):
    """A command that waits for another shard's answer about a dead letter queue."""

    call: ClientCall
    command: CreateQueue | UpdateQueue
    dead_letter: str


class Appointments:
    """The questions to other shards that have no answer yet."""

    def __init__(self, epoch: int, limits: "Limits") -> None:
        self._wait_ms_max = limits.appointment_wait_ms_max
        self._tickets = epoch << 32
        self.waiting: dict[int, HeldCommand] = {}
        """The commands by ticket, in the order in which they came."""
        self.confirmed: set[tuple[str, str]] = set()
        """Pairs of a queue and an existing target, while the command that waited for the answer is carried out."""
        self.timer = DueTime()

    def wait(self, held: HeldCommand) -> int:
        """Keep a command until the answer; return its ticket."""
        self._tickets += 1
        self.waiting[self._tickets] = held
        self.timer.by(held.call.now_ms + self._wait_ms_max)
        return self._tickets

    def overdue(self, now_ms: int) -> list[HeldCommand]:
        """Take out and return the commands that have waited for too long."""
        late = [ticket for ticket, held in self.waiting.items() if held.call.now_ms + self._wait_ms_max <= now_ms]
        return [self.waiting.pop(ticket) for ticket in late]

    def next_due(self) -> int | None:
        """Return when the first command will have waited for too long, Unix ms."""
        return min((held.call.now_ms + self._wait_ms_max for held in self.waiting.values()), default=None)


def appointed(state: "State", name: str, dead_letter: str | None) -> bool:
    """Return whether the target of a queue's dead letters exists; False: another shard must be asked.

    Raise :class:`InvalidArgumentError` if the target is a queue of this shard that does not exist.
    """
    if dead_letter in {None, OWN, DISCARD} or (name, dead_letter) in state.part(Appointments).confirmed:
        return True
    assert dead_letter is not None
    if shard_of(dead_letter, state.shards) != state.index:
        return False
    if dead_letter not in state.queues and state.runtime.definitions.find(dead_letter) is None:
        raise _missing(dead_letter)
    return True


def waits_for_appointment(state: "State", call: ClientCall, command: CreateQueue | UpdateQueue) -> bool:
    """Return whether a command waits until another shard has said whether the target of dead letters that it names exists.

    Raise :class:`InvalidArgumentError` if the target is a queue of this shard that does not exist.
    """
    dead_letter = command.options.dead_letter
    if dead_letter is None or appointed(state, call.queue, dead_letter):
        return False
    ticket = state.part(Appointments).wait(HeldCommand(call, command, dead_letter))
    to_shard = shard_of(dead_letter, state.shards)
    state.effects.append(Post(Appoint(to_shard, state.index, ticket, dead_letter)))
    return True


def answer_appoint(state: "State", command: Appoint, now_ms: int) -> None:
    """Answer another shard whether a queue exists here."""
    queue = state.queues.get(command.queue)
    if queue is not None:
        state.appoint(queue)
    exists = queue is not None or state.runtime.definitions.find(command.queue) is not None
    state.effects.append(Post(Appointed(command.from_shard, state.index, command.ticket, exists)))


def resume(state: "State", command: Appointed, now_ms: int) -> None:
    """Carry out or refuse a command whose question another shard has answered."""
    appointments = state.part(Appointments)
    held = appointments.waiting.pop(command.ticket, None)
    if held is None:
        return  # it has waited for too long
    if not command.exists:
        state.conclude(held.call, held.command, _missing(held.dead_letter))
        return
    appointments.confirmed.add((held.call.queue, held.dead_letter))
    state.apply(replace(held.call, now_ms=now_ms), held.command)
    appointments.confirmed.clear()


def settle_dead_letters(state: "State", queue: "Queue") -> None:
    """Create the queue's own dead letter queue, if it should have one; or appoint another queue of this shard."""
    policy = queue.options.dead_letter or OWN
    if policy == OWN:
        own_dead_letters(state, queue)
    elif policy != DISCARD and policy in state.queues:
        state.appoint(state.queues[policy])


def _missing(dead_letter: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"dead_letter={dead_letter!r}: no such queue; create it first, or use 'dlq' or 'discard'")


class DeadLetterTargets(Component):
    """The questions about dead letter queues on other shards, and their answers."""

    peer_verbs: ClassVar = {Appoint: answer_appoint, Appointed: resume}

    def __init__(self, state: "State") -> None:
        self._appointments = state.keep(Appointments(state.epoch, state.settings.limits))
        super().__init__(state, self._appointments.timer)

    def tick(self, now_ms: int) -> int | None:
        """Refuse the commands that have waited for too long."""
        for call, command, dead_letter in self._appointments.overdue(now_ms):
            error = ShardUnavailableError(
                f"the shard of the dead letter queue {dead_letter!r} does not answer: try again", details={"refused": True}
            )
            self.state.conclude(call, command, error)
        return self._appointments.next_due()
