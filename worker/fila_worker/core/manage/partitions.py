"""Queues with several partitions: their definitions, their partitions on this shard, and messages that are in a wrong one.

The definition of such a queue is a key of the runtime config (:mod:`fila_proto_zmq.partitions`), so each shard has it before
the client that made it is answered. A partition is a queue of its shard like any other, with the options of the definition. It
is made when it is first named, changed and removed when the definition is. The whole queue's name is no queue of any shard: who
asks for it is told the number of partitions.

With ``spread="key"`` a fairness key has one partition. Its messages may come to another one: a hook decides the key, a client
has an older number of partitions, or another queue moves them here. Such a *stray* key delivers nothing. Its messages are
transferred to the key's partition, each once, in their order, like messages that a command moves; no hook runs again.
"""

from typing import TYPE_CHECKING, Final

import msgspec

from fila_proto_zmq import runtime_config
from fila_proto_zmq.commands import (
    ConfigChange,
    CreateByTemplate,
    CreatePartitioned,
    CreateQueue,
    DeletePartitioned,
    DeleteSchedule,
    GetSchedule,
    PutSchedule,
    QueueOptions,
    Transfer,
    UpdatePartitioned,
)
from fila_proto_zmq.errors import (
    InvalidArgumentError,
    QueueExistsError,
)
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
from fila_proto_zmq.partitions import Definition, encode_definition
from fila_proto_zmq.record import BATCHED
from fila_worker.core.enqueue import insert
from fila_worker.core.jobs import REST
from fila_worker.core.keys import own_place
from fila_worker.core.manage.backlog_walk import BacklogWalk
from fila_worker.core.manage.config import make_change
from fila_worker.core.manage.deletion import remove
from fila_worker.core.manage.queue_commands import change_options, check_options, compiled, make_queue
from fila_worker.core.model.component import Component, Steps
from fila_worker.core.model.due_index import lift
from fila_worker.core.model.lanes import unpack_stored
from fila_worker.core.model.queues import DISCARD
from fila_worker.core.settle import transfers

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from fila_proto_zmq.commands import Command
    from fila_proto_zmq.partitions import Definitions
    from fila_worker.core.effects import ClientCall
    from fila_worker.core.jobs import Work
    from fila_worker.core.model.due_index import Delayed
    from fila_worker.core.model.fairness_keys import FairnessKey
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.queues import Queue, QueuePartition
    from fila_worker.core.model.state import State

COMPILE_COST: Final = 500
FOLLOW_COST: Final = 5
"""Effort to compare a partition with its definition."""

_OF_SCHEDULES: Final = (PutSchedule, GetSchedule, DeleteSchedule)
"""Their routing key is a schedule's name."""

FORWARD_MS: Final = 1000
"""How long to wait for another shard, and before strays that could not go are tried again."""

LAST_DIGIT: Final = ":"
"""Sorts behind all names of partitions, after the mark."""


# --- definitions, on shard 0 ------------------------------------------------------------------------------------------


def create_partitioned(state: "State", command: CreatePartitioned, now_ms: int) -> ConfigChange:
    """Define a queue with several partitions."""
    return _create(state, check_new_queue_name(command.queue), command.options, command.by, now_ms)


def create_by_template(state: "State", command: CreateByTemplate, now_ms: int) -> ConfigChange:
    """Define a queue with several partitions as its template says."""
    name = check_new_queue_name(command.queue)
    template = state.runtime.templates.find(name)
    if template is None:
        raise state.queues.not_found(name)
    options = template.options
    if options.dead_letter == name:  # it takes those of the others
        options = msgspec.structs.replace(options, dead_letter=None)
    return _create(state, name, options, command.by, now_ms)


def _create(state: "State", name: str, options: QueueOptions, by: str, now_ms: int) -> ConfigChange:
    if runtime_config.PARTITIONED + name in state.runtime.values:
        raise QueueExistsError(f"queue {name!r} exists already")
    options = _checked(state, name, options)
    return _put(state, name, Definition(options, state.runtime.version + 1), by, now_ms)


def update_partitioned(state: "State", command: UpdatePartitioned, now_ms: int) -> ConfigChange:
    """Change options of a queue with several partitions."""
    old = _found(state, command.queue)
    unknown = set(command.given) - set(QueueOptions.__struct_fields__)
    if unknown:
        raise InvalidArgumentError(f"unknown queue options {sorted(unknown)}: use {list(QueueOptions.__struct_fields__)}")
    given = {name: getattr(command.options, name) for name in command.given}
    options = _checked(state, command.queue, msgspec.structs.replace(old.options, **given))
    if (options.partitions, options.spread) != (old.options.partitions, old.options.spread):
        raise InvalidArgumentError(
            f"partitions={options.partitions}, spread={options.spread!r} for {command.queue!r}, which has "
            f"{old.options.partitions} partitions: a queue keeps its number of partitions and its spread; create another queue, and "
            "move() the messages"
        )
    return _put(state, command.queue, Definition(options, old.created), command.by, now_ms)


def delete_partitioned(state: "State", command: DeletePartitioned, now_ms: int) -> ConfigChange:
    """Delete a queue with several partitions. Each shard removes its partitions."""
    _found(state, command.queue)
    changes = runtime_config.partitioned_changes_for(command.queue, None, state.runtime.values)
    return make_change(state, runtime_config.PARTITIONED + command.queue, changes, command.by, now_ms)


def _found(state: "State", name: str) -> Definition:
    definition = None if is_dead_letter(name) or PARTITION_MARK in name else state.runtime.definitions.find(name)
    if definition is None:
        raise state.queues.not_found(name)
    return definition


def _checked(state: "State", name: str, options: QueueOptions) -> QueueOptions:
    if options.partitions == 0:
        options = msgspec.structs.replace(options, partitions=min(state.shards, PARTITIONS_MAX))
    check_options(name, options)
    if options.max_in_flight is not None and options.max_in_flight < (options.partitions or 1):
        raise InvalidArgumentError(
            f"max_in_flight={options.max_in_flight} with {options.partitions} partitions: each has a part of it, so use at "
            f"least {options.partitions}"
        )
    hooks = compiled(state, name, options)
    if hooks is not None:
        hooks.hooks.close()
        state.jobs.charge(COMPILE_COST)
    return options


def _put(state: "State", name: str, definition: Definition, by: str, now_ms: int) -> ConfigChange:
    changes = runtime_config.partitioned_changes_for(name, encode_definition(definition), state.runtime.values)
    return make_change(state, runtime_config.PARTITIONED + name, changes, by, now_ms)


# --- partitions of this shard -----------------------------------------------------------------------------------------


def meet(state: "State", call: "ClientCall", command: "Command") -> None:
    """Make the partition that a command names, if it is defined and not there. Raise :class:`PartitionedError` for a command
    on the whole queue. Whether a partition has dead letters of its own is not known elsewhere: so each is asked, and has a
    queue for them then, wherever they go now.
    """
    name = call.queue
    definition = None if isinstance(command, _OF_SCHEDULES) else state.runtime.definitions.find(name)
    if definition is None or (is_dead_letter(name) and not _has_dead_letters(state, name, definition)):
        return
    if isinstance(command, CreateQueue):
        raise QueueExistsError(f"queue {name!r} exists already")
    number = name.partition(PARTITION_MARK)[2]
    if not number or int(number) >= definition.plan.partitions:
        raise definition.refusal(name)
    open_partition(state, name, call.now_ms)
    source = state.queues.get(root_name(name)) if is_dead_letter(name) else None
    if source is not None:
        insert.own_dead_letters(state, source)


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
    if definition is None or int(number) >= definition.plan.partitions:
        return None
    if shard_of(name, state.shards) != state.index:
        return None
    root = root_name(name)
    if root not in state.queues:
        queue = make_queue(state, root, definition.options, now_ms)
        _partition(queue).defined = definition.created
        state.define_queue(queue)
    return state.queues.get(name)


def _partition(queue: "Queue") -> "QueuePartition":
    assert queue.partition is not None, f"{queue.name!r} is no partition"
    return queue.partition


def _is_current(state: "State", queue: "Queue") -> bool:
    """Return whether a partition belongs to the queue that has its name now."""
    definition, partition = state.runtime.definitions.find(queue.name), _partition(queue)
    return definition is not None and (
        definition.created == partition.defined and partition.number < definition.plan.partitions
    )


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


# --- messages that are in a wrong partition ---------------------------------------------------------------------------


class _Forwarding(BacklogWalk):
    """Transfers the messages of a stray key to its partition."""

    takes_delayed = True

    def __init__(self, state: "State", key: "FairnessKey", target: str, now_ms: int) -> None:
        super().__init__(state, key.queue, now_ms)
        self._target, self._shard = target, shard_of(target, state.shards)
        self.last = 0
        """The number of its last transfer; 0: it has none."""
        self.stays = False
        """Whether a message can't go: its batch counts it here."""

    def may_go(self, record: bytes) -> bool:
        """Return whether a message is no member of a batch, and its queue still exists."""
        self.over = self.over or self._queue.gone
        batched = bool(record[1] & BATCHED)
        self.stays = self.stays or batched
        return not (batched or self.over)

    def take_pending(self, lane: "Lane", message_key: bytes, record: bytes) -> None:
        """Send a message on."""
        if self._sent(lane, message_key, record, 0):
            self._state.buffers.remove(lane, {message_key})
            self._state.delete_pending(lane, message_key, len(record))

    def take_delayed(self, lane: "Lane", message_key: bytes, delayed: "Delayed") -> None:
        """Send a delayed message on."""
        if self._sent(lane, message_key, delayed.record, delayed.due_ms):
            lift(self._state, lane, message_key, delayed)
            if delayed.retrying:
                self._state.release_slot(lane.key)

    def _sent(self, lane: "Lane", message_key: bytes, stored: bytes, due_ms: int) -> bool:
        """Put a message into its partition, or on its way. If there is none, end the walk and return False."""
        state, key = self._state, lane.key
        keys, defined = list(lane.throttle_keys), _partition(self._queue).defined
        transfer = Transfer(self._target, key.name, key.weight, keys, True, stored, due_ms=due_ms, forwarded=defined)
        if self._shard != state.index:
            transfers.send(state, lane, own_place(message_key, unpack_stored(stored).priority), transfer)
            self.last = state.outbox.last_number(self._shard)
        elif not insert.forwarded(state, transfer, self._now_ms):
            self.over = True
            return False
        self.moved += 1
        return True


def _forward(state: "State", strays: "Strays", now_ms: int) -> "Work":
    """Send the messages of all stray keys on, a bounded number at a time. A shard that has not answered yet gets no more."""
    try:
        for key in list(state.strays):
            target = state.runtime.definitions.partition_for(whole_queue(key.queue.name), key.name)
            is_over = key.queue.gone or not key.paused or key.queue.keys.get(key.name) is not key
            if is_over or PARTITION_MARK not in target:
                state.strays.pop(key, None)
            elif strays.have_arrived(shard_of(target, state.shards)):
                now_ms = yield from _forward_key(state, strays, key, target, now_ms)
            now_ms = yield 1
    finally:
        strays.running = False
    return None


def _forward_key(
    state: "State", strays: "Strays", key: "FairnessKey", target: str, now_ms: int
) -> "Generator[int, int, int]":
    """Send the messages of a stray key on, as long as the other shard takes them in soon. Return the time."""
    to_shard, left = shard_of(target, state.shards), _left(key)
    most = state.settings.limits.redrive_messages_max
    while True:
        walk, until_ms = _Forwarding(state, key, target, now_ms), now_ms + FORWARD_MS
        yield from walk.first_ones(most, key.name)
        if walk.last:
            strays.last[to_shard] = walk.last
        while not strays.have_arrived(to_shard):
            if now_ms >= until_ms:
                return now_ms
            now_ms = yield REST
        before, left = left, _left(key)
        if walk.moved < most or left >= before:
            break  # all have gone, or the other shard sends them back
    if walk.stays:
        _partition(key.queue).settled.add(key.name)
        key.paused = key.name in key.queue.paused_keys
        state.refresh_eligibility(key)
    if walk.stays or not left:
        state.strays.pop(key, None)
    return now_ms


def _left(key: "FairnessKey") -> int:
    return key.pending + sum(view.delayed for view in key.views)


class Strays(Component):
    """The partitions on this shard, and the messages that belong to other partitions."""

    def __init__(self, state: "State") -> None:
        super().__init__(state, state.stray_timer)
        self._followed: Definitions | None = None
        self.running = False
        self.last: dict[int, int] = {}
        """The numbers of the last transfers, by shard."""

    def have_arrived(self, to_shard: int) -> bool:
        """Return whether all strays that were sent to a shard are there, or came back."""
        return to_shard not in self.last or self.state.outbox.has_arrived(to_shard, self.last[to_shard])

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
            names = [name for name in state.queues if PARTITION_MARK in name]
        else:
            names = [name for each in definitions.changed for name in self._partitions_of(each)]
        definitions.changed.clear()
        changed: list[Queue] = []
        for queue in [state.queues[name] for name in names]:
            if queue.source is not None or definitions.is_unreadable(queue.name):
                continue
            state.jobs.charge(FOLLOW_COST)
            definition = state.runtime.definitions.find(queue.name)
            if definition is None or not _is_current(state, queue):
                remove(state, queue)
            elif definition.options != queue.options:
                changed.append(queue)
        if changed:
            state.jobs.start_own(_change(state, changed, now_ms))

    def _partitions_of(self, name: str) -> "Iterable[str]":
        first = name + PARTITION_MARK
        return self.state.queues.names.irange(first, first + LAST_DIGIT)

    def tick(self, now_ms: int) -> int | None:
        """Send the messages of stray keys on."""
        if not self.state.strays:
            return None
        if not self.running:
            self.running = True
            self.state.jobs.start_own(_forward(self.state, self, now_ms))
        return now_ms + FORWARD_MS
