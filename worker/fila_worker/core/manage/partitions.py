"""Queues with several partitions: their definitions, and their partitions on this shard.

The definition of such a queue is a key of the runtime config (:mod:`fila_proto_zmq.partitions`), so each shard has it before
the client that made it is answered. A partition is a queue of its shard like any other, with the options of the definition. It
is made when it is first named, changed and removed when the definition is. The whole queue's name is no queue of any shard: who
asks for it is told the number of partitions.

A queue without partitions that gets some becomes the first one of them, under another name. It stays where it is, because a queue
and its first partition have one shard.
"""

from typing import TYPE_CHECKING, Final

import msgspec

from fila_proto_zmq import runtime_config
from fila_proto_zmq.commands import (
    CancelReceive,
    ConfigChange,
    CreateByTemplate,
    CreatePartitioned,
    CreateQueue,
    DeletePartitioned,
    DeleteSchedule,
    Extend,
    GetSchedule,
    Goodbye,
    Heartbeat,
    MakeByTemplate,
    PutSchedule,
    QueueOptions,
    Settle,
    Unsubscribe,
    UpdatePartitioned,
    UpdateQueue,
)
from fila_proto_zmq.errors import InvalidArgumentError, OverloadedError, PartitionedError, QueueExistsError
from fila_proto_zmq.events import PartitionsChanging
from fila_proto_zmq.limits import PARTITIONS_MAX
from fila_proto_zmq.names import (
    PARTITION_MARK,
    check_new_queue_name,
    is_dead_letter,
    partition_name,
    root_name,
    shard_of,
    whole_queue,
)
from fila_proto_zmq.partitions import BY_KEY, Definition, PartitionMove, encode_definition, first_number_at
from fila_worker.core.deliver.subscriptions import close_demands
from fila_worker.core.due_time import AT_ONCE
from fila_worker.core.enqueue import insert
from fila_worker.core.manage.config import make_change
from fila_worker.core.manage.dead_letter_targets import waits_for_appointment
from fila_worker.core.manage.deletion import remove
from fila_worker.core.manage.partition_moves import MoveReports, follow, is_empty
from fila_worker.core.manage.queue_commands import change_options, check_options, compiled, make_queue
from fila_worker.core.manage.strays import FORWARD_MS, Forwarder, partition_in
from fila_worker.core.model.component import Component, Steps
from fila_worker.core.model.queues import DISCARD

if TYPE_CHECKING:
    from fila_proto_zmq.commands import Command
    from fila_proto_zmq.partitions import Definitions
    from fila_worker.core.effects import ClientCall
    from fila_worker.core.jobs import Work
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

COMPILE_COST: Final = 500
FOLLOW_COST: Final = 5
"""Effort to compare a partition with its definition."""

_OF_SCHEDULES: Final = (PutSchedule, GetSchedule, DeleteSchedule)
"""Their routing key is a schedule's name."""

_OF_DELIVERIES: Final = (Settle, Extend, Heartbeat, CancelReceive, Unsubscribe, Goodbye)
"""They name messages that were delivered, or demands."""

MOVING_S: Final = 0.1
"""When to ask again for another number of partitions while messages move."""

LAST_DIGIT: Final = ":"
"""Sorts behind all names of partitions, after the mark."""


# --- definitions, on shard 0 ------------------------------------------------------------------------------------------


def create_partitioned(state: "State", command: CreatePartitioned, now_ms: int) -> ConfigChange:
    """Define a queue with several partitions."""
    move = PartitionMove(1, 1, first_number_at(now_ms)) if command.ordinary else None
    return _create(state, check_new_queue_name(command.queue), command.options, command.by, now_ms, move)


def create_by_template(state: "State", command: CreateByTemplate | MakeByTemplate, now_ms: int) -> ConfigChange:
    """Define a queue with several partitions as its template says."""
    name = check_new_queue_name(command.queue)
    template = state.runtime.templates.find(name)
    if template is None:
        raise state.queues.not_found(name)
    options = template.options
    if options.dead_letter == name:  # it takes those of the others
        options = msgspec.structs.replace(options, dead_letter=None)
    return _create(state, name, options, getattr(command, "by", ""), now_ms)


def _create(
    state: "State", name: str, options: QueueOptions, by: str, now_ms: int, move: PartitionMove | None = None
) -> ConfigChange:
    if runtime_config.PARTITIONED + name in state.runtime.values:
        raise QueueExistsError(f"queue {name!r} exists already")
    options, version = _checked(state, name, options), state.runtime.version + 1
    return _put(state, name, Definition(options, version, move=move), by, now_ms)


def update_partitioned(state: "State", command: UpdatePartitioned, now_ms: int) -> ConfigChange:
    """Change options of a queue with several partitions."""
    old = _found(state, command.queue)
    unknown = set(command.given) - set(QueueOptions.__struct_fields__)
    if unknown:
        raise InvalidArgumentError(f"unknown queue options {sorted(unknown)}: use {list(QueueOptions.__struct_fields__)}")
    given = {name: getattr(command.options, name) for name in command.given}
    options = _checked(state, command.queue, msgspec.structs.replace(old.options, **given))
    if (options.spread or BY_KEY) != old.plan.spread:
        raise InvalidArgumentError(
            f"spread={options.spread!r} for {command.queue!r}, which is spread by {old.plan.spread}: a queue with partitions keeps "
            "its spread; create another queue, and move() the messages"
        )
    if (options.partitions or 1) == old.plan.partitions:
        definition = old._replace(options=options, closing=0)
    elif old.move is None or old.move.is_drained:
        definition = old.moved_to(options, state.runtime.version + 1, now_ms)
    else:
        raise _still_moving(command.queue, old.plan.partitions, old.move)
    return _put(state, command.queue, definition, command.by, now_ms)


def _still_moving(name: str, partitions: int, move: PartitionMove) -> OverloadedError:
    left = sorted({*range(move.earlier)} - move.drained)
    return OverloadedError(
        f"messages of {name!r} are still moving from {move.earlier} to {partitions} partitions, and {len(left)} of these have not "
        f"finished, the first is {left[0]}: change the number again when that is over; `queue inspect {name}` shows how far it is",
        retry_after=MOVING_S,
        details={"refused": True, "moving": True},
    )


def delete_partitioned(state: "State", command: DeletePartitioned, now_ms: int) -> ConfigChange:
    """Delete a queue with several partitions. Each shard removes its partitions."""
    _found(state, command.queue)
    return delete_definition(state, command.queue, command.by, now_ms)


def delete_definition(state: "State", name: str, by: str, now_ms: int) -> ConfigChange:
    """Delete the definition of a queue."""
    changes = runtime_config.partitioned_changes_for(name, None, state.runtime.values)
    return make_change(state, runtime_config.PARTITIONED + name, changes, by, now_ms)


def _found(state: "State", name: str) -> Definition:
    definition = None if is_dead_letter(name) or PARTITION_MARK in name else state.runtime.definitions.find(name)
    if definition is None:
        raise state.queues.not_found(name)
    return definition


def _checked(state: "State", name: str, options: QueueOptions) -> QueueOptions:
    if options.partitions == 0:
        options = msgspec.structs.replace(options, partitions=min(state.shards, PARTITIONS_MAX))
    check_options(name, options)
    hooks = compiled(state, name, options)
    if hooks is not None:
        hooks.hooks.close()
        state.jobs.charge(COMPILE_COST)
    return options


def _put(state: "State", name: str, definition: Definition, by: str, now_ms: int) -> ConfigChange:
    changes = runtime_config.partitioned_changes_for(name, encode_definition(definition), state.runtime.values)
    if (move := definition.move) is not None and definition.version > state.runtime.version:
        state.notes.append(PartitionsChanging(name, move.earlier, definition.plan.partitions))
    return make_change(state, runtime_config.PARTITIONED + name, changes, by, now_ms)


# --- partitions of this shard -----------------------------------------------------------------------------------------


def meet(state: "State", call: "ClientCall", command: "Command") -> "ClientCall | None":
    """Make the partition that a command names, if it is defined and not there. Raise :class:`PartitionedError` for a command
    on the whole queue. Whether a partition has dead letters of its own is not known elsewhere: so each is asked, and has a
    queue for them then, wherever they go now. Return the call to carry out: what a queue without partitions has delivered is
    settled at the one that it has become. None: the command waits for another shard.
    """
    name = call.queue
    definition = None if isinstance(command, _OF_SCHEDULES) else state.runtime.definitions.find(name)
    if definition is None or (is_dead_letter(name) and not _has_dead_letters(state, name, definition)):
        return call
    if isinstance(command, CreateQueue):
        raise QueueExistsError(f"queue {name!r} exists already")
    number = name.partition(PARTITION_MARK)[2]
    if not number and isinstance(command, _OF_DELIVERIES):
        first = state.queues.get(partition_name(name, 0))
        if first is not None and first.former == name:
            return msgspec.structs.replace(call, queue=first.name)
    if not number or int(number) not in definition.plan.all:
        if (first := state.queues.get(partition_name(root_name(whole_queue(name)), 0))) is not None:
            state.touch(first, call.now_ms)
        if isinstance(command, UpdateQueue) and waits_for_appointment(state, call, command):
            return None
        raise definition.refusal(name)
    open_partition(state, name, call.now_ms)
    source = state.queues.get(root_name(name)) if is_dead_letter(name) else None
    if source is not None:
        insert.own_dead_letters(state, source)
    return call


def _has_dead_letters(state: "State", name: str, definition: Definition) -> bool:
    """Return whether a queue has a dead letter queue: it should or may have one, or it had one before its options changed."""
    return definition.options.dead_letter != DISCARD or partition_name(whole_queue(name), 0) in state.queues


def entrance(state: "State", name: str, now_ms: int) -> "Queue | None":
    """Return the queue here that takes in what the broker itself sends to a name: the partition of that name, or the first
    partition of the whole queue.
    """
    return open_partition(state, name if PARTITION_MARK in name else partition_name(name, 0), now_ms)


def open_partition(state: "State", name: str, now_ms: int) -> "Queue | None":
    """Return a partition of a queue, or of its dead letter queue, made if it is missing; None: there is no such partition."""
    definition = state.runtime.definitions.find(name)
    number = name.partition(PARTITION_MARK)[2]
    if definition is None or int(number) not in definition.plan.all:
        return None
    if shard_of(name, state.shards) != state.index:
        return None
    root = root_name(name)
    if root not in state.queues:
        queue = make_queue(state, root, definition.options, now_ms)
        follow(state, queue, definition)
    return state.queues.get(name)


def partitions_here(state: "State", name: str) -> "list[str]":
    """Return the names of the partitions of a queue that are on this shard."""
    first = name + PARTITION_MARK
    return list(state.queues.names.irange(first, first + LAST_DIGIT))


# --- following the definitions ----------------------------------------------------------------------------------------


def _adopt(state: "State", queue: "Queue") -> None:
    """Make a queue without partitions the first one of the queue that has its name now. Its clients are to ask again."""
    definition = state.runtime.definitions.find(queue.name)
    assert definition is not None
    refusal = definition.refusal(queue.name)
    for each in (queue, queue.dead_letters):
        if each is not None:
            state.queues.leave(each)
            each.rename(partition_name(each.name, 0))
            state.queues.enter(each)
            state.jobs.start_own(_part_from_clients(state, each, refusal))
            state.define_queue(each)
    queue.set_options(definition.options)


def _part_from_clients(state: "State", queue: "Queue", refusal: PartitionedError) -> "Work":
    yield from close_demands(state, queue, refusal)
    return None


def _change(state: "State", queues: "list[Queue]", now_ms: int) -> "Work":
    """Give partitions the options of their definitions."""
    for queue in queues:
        definition = state.runtime.definitions.find(queue.name)
        if definition is not None and not queue.gone:
            names = QueueOptions.__struct_fields__
            given = {name for name in names if getattr(queue.options, name) != getattr(definition.options, name)}
            outcome = change_options(state, queue, definition.options, given, now_ms)
            if not isinstance(outcome, msgspec.Struct):
                yield from outcome
        now_ms = yield FOLLOW_COST
    return None


class Partitions(Component):
    """The partitions on this shard, and the messages that belong to other partitions."""

    def __init__(self, state: "State") -> None:
        super().__init__(state, state.stray_timer)
        self._followed: Definitions | None = None
        self._forwarder = Forwarder(state)
        self._reports = MoveReports()
        self._moving: dict[Queue, None] = {}
        """Partitions whose queues change their number of partitions."""

    def recover(self, now_ms: int) -> Steps:
        """Follow what has changed in the config since the partitions here were last written."""
        self.on_config(now_ms)
        yield

    def on_config(self, now_ms: int) -> None:
        """Follow a change of the definitions.

        Partitions of a deleted queue go at once: from now on clients may put messages into another queue of its name.
        """
        state, definitions = self.state, self.state.runtime.definitions
        if definitions is not self._followed:
            self._followed = definitions
            roots, names = list(definitions), [name for name in state.queues if PARTITION_MARK in name]
        else:
            roots = list(definitions.changed)
            names = [name for each in roots for name in partitions_here(state, each)]
        definitions.changed.clear()
        for name in roots:
            definition, ordinary = definitions.find(name), state.queues.get(name)
            if definition is not None and definition.was_ordinary and ordinary is not None:
                _adopt(state, ordinary)
                names.append(ordinary.name)
        changed: list[Queue] = []
        for queue in [state.queues[name] for name in names]:
            if queue.source is None and not definitions.is_unreadable(queue.name):
                self._follow(queue, changed)
        for name in roots:
            self._open_moving(name, now_ms)
        if changed:
            state.jobs.start_own(_change(state, changed, now_ms))
        for name in [each for each in state.closing if definitions.find(each) is None]:
            del state.closing[name]

    def _follow(self, queue: "Queue", changed: "list[Queue]") -> None:
        state, partition = self.state, partition_in(queue)
        state.jobs.charge(FOLLOW_COST)
        definition = state.runtime.definitions.find(queue.name)
        if definition is None or partition.defined not in {definition.created, 0}:
            remove(state, queue, idle=whole_queue(queue.name) in state.closing)
            return
        follow(state, queue, definition)
        if definition.options != queue.options:
            changed.append(queue)
        if definition.move is not None or partition.is_retired:
            self._note_moving(queue)

    def _open_moving(self, name: str, now_ms: int) -> None:
        """Make the missing partitions here of a queue whose messages move: the earlier ones, because each has to report; and
        the new ones if the queue is paused.
        """
        state, definition = self.state, self.state.runtime.definitions.find(name)
        move = None if definition is None else definition.move
        if definition is None or move is None:
            return
        plan = definition.plan
        for number in (
            plan.all if move.paused else (*range(move.earlier), *range(max(plan.partitions, move.earlier), move.held))
        ):
            queue = open_partition(state, partition_name(name, number), now_ms)
            if queue is None:
                continue
            self._note_moving(queue)
            if move.paused and number >= move.earlier and not queue.paused:
                queue.paused = True
                state.define_queue(queue)

    def _note_moving(self, queue: "Queue") -> None:
        self._moving[queue] = None
        self.timer.by(AT_ONCE)

    def tick(self, now_ms: int) -> int | None:
        """Send the messages of stray keys on, and report how far that has come. Remove what is empty and not needed."""
        state = self.state
        for queue in list(self._moving):
            if queue.gone:
                del self._moving[queue]
            elif (definition := state.runtime.definitions.find(queue.name)) is not None and definition.move is None:
                if not partition_in(queue).is_retired:
                    del self._moving[queue]
                elif is_empty(state, queue):
                    remove(state, queue)
        self._reports.send(state, self._moving, now_ms)
        if state.strays and not self._forwarder.running:
            self._forwarder.running = True
            state.jobs.start_own(self._forwarder.run(now_ms))
        return now_ms + FORWARD_MS if state.strays or self._moving else None
