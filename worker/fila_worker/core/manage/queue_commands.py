"""The commands that create, change, pause, delete, list and measure queues."""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from fila_proto_zmq.commands import (
    QUEUE_OPTIONS,
    CreateQueue,
    DeleteQueue,
    Done,
    GetQueueStats,
    KeyStats,
    ListQueues,
    Option,
    Pause,
    QueueList,
    QueueOptions,
    QueueStats,
    UpdateQueue,
)
from fila_proto_zmq.errors import (
    DeadLetterQueueNotEmptyError,
    InvalidArgumentError,
    LuaCompilationError,
    OverloadedError,
    PartitionedError,
    QueueExistsError,
)
from fila_proto_zmq.events import HookRefused, QueueCreated, QueuePaused, QueueResumed, QueueUpdated
from fila_proto_zmq.limits import LIST_QUEUES_MAX, SCRIPT_BYTES_MAX
from fila_proto_zmq.names import PARTITION_MARK, check_new_queue_name, matches, whole_queue
from fila_proto_zmq.partitions import BY_MESSAGE
from fila_proto_zmq.templates import encode_options
from fila_worker.core.enqueue.insert import add_queue
from fila_worker.core.enqueue.policy import compile_hooks
from fila_worker.core.explain.text import counted
from fila_worker.core.inspect.moving import move_of
from fila_worker.core.manage import deletion
from fila_worker.core.manage.dead_letter_targets import settle_dead_letters, waits_for_appointment
from fila_worker.core.manage.deletion import clear, remove
from fila_worker.core.manage.throttles import throttle_stats
from fila_worker.core.metrics.oldest_message import waiting_since_ms
from fila_worker.core.model.component import Component, Steps
from fila_worker.core.model.queues import DISCARD, OWN, Queue
from fila_worker.core.walking import keys_from, pieces

if TYPE_CHECKING:
    from fila_worker.core.effects import ClientCall
    from fila_worker.core.hooks import GuardedHooks
    from fila_worker.core.jobs import Work
    from fila_worker.core.model.fairness_keys import FairnessKey
    from fila_worker.core.model.state import State


def check_options(name: str, options: QueueOptions) -> None:
    """Raise :class:`InvalidArgumentError` for options that can never work for a queue called ``name``."""
    for option in QUEUE_OPTIONS.values():
        value = getattr(options, option.field)
        if value is not None:
            _check(option, value)
    if options.spread == BY_MESSAGE and options.partitions not in {None, 1} and options.max_in_flight_per_key is not None:
        raise InvalidArgumentError(
            f"max_in_flight_per_key={options.max_in_flight_per_key} with spread='message': a fairness key's messages are in "
            "all partitions; use spread='key', or leave the limit out"
        )
    _check_dead_letter(name, options.dead_letter)


def _check(option: Option, value: Any) -> None:
    if option.kind == "script" and len(value.encode()) > SCRIPT_BYTES_MAX:
        raise InvalidArgumentError(f"a script of {len(value.encode())} bytes: use at most {SCRIPT_BYTES_MAX}")
    if option.kind == "choice" and value not in option.choices:
        raise InvalidArgumentError(f"{option.name}={value!r}: use {' or '.join(map(repr, option.choices))}")
    if (
        option.bounds is not None
        and not (value == 0 and option.choices)
        and not option.bounds[0] <= value <= option.bounds[1]
    ):
        name = option.name if option.kind == "count" else option.name.replace("_", " ")
        least, most = option.bounds
        raise InvalidArgumentError(f"{name} of {value} {option.unit}: use {least} to {most}, or leave it out for the default")


def _check_dead_letter(name: str, dead_letter: str | None) -> None:
    if dead_letter in {None, OWN, DISCARD}:
        return
    if dead_letter == name:
        raise InvalidArgumentError(
            f"dead_letter={name!r}: a queue can't take its own dead letters; leave it out for {name}.dlq"
        )
    try:
        check_new_queue_name(dead_letter or "")
    except InvalidArgumentError as cause:
        raise InvalidArgumentError(
            f"dead_letter={dead_letter!r}: use 'dlq', 'discard' or the name of a queue ({cause})"
        ) from None


def create_queue(state: "State", call: "ClientCall", command: CreateQueue) -> Done | None:
    """Create a queue and its dead letter queue, unless its dead letters go elsewhere."""
    name = check_new_queue_name(call.queue)
    check_options(name, command.options)
    if command.options.partitions not in {None, 1}:
        raise InvalidArgumentError(f"partitions={command.options.partitions} for {name!r}: this client is too old for that")
    if name in state.queues:
        raise QueueExistsError(f"queue {name!r} exists already")
    if waits_for_appointment(state, call, command):
        return None
    make_queue(state, name, command.options, call.now_ms)
    return Done()


def make_queue(state: "State", name: str, options: QueueOptions, now_ms: int, template: str | None = None) -> Queue:
    """Make a queue with checked options. ``template``: the pattern of the template that they are from."""
    hooks = compiled(state, name, options)
    queue = add_queue(state, name, options, now_ms)
    queue.hooks = hooks
    queue.judge()
    settle_dead_letters(state, queue)
    _start_idling(state, queue, now_ms)
    state.notes.append(QueueCreated(name, state.index, template))
    return queue


def compiled(state: "State", name: str, options: QueueOptions) -> "GuardedHooks | None":
    """Return the hooks of a queue; None without scripts. Raise :class:`LuaCompilationError` for a script with an error."""
    try:
        return compile_hooks(state, name, options)
    except LuaCompilationError:
        state.notes.append(HookRefused(name, state.index))
        raise


def update_queue(state: "State", call: "ClientCall", command: UpdateQueue) -> "Done | Work | None":
    """Change some of a queue's options; the change applies to later events."""
    queue = _whole(state.queues.find(call.queue))
    if queue.is_dead_letter:
        raise InvalidArgumentError(f"{queue.name!r} is a dead letter queue: update its source queue")
    unknown = set(command.given) - set(QueueOptions.__struct_fields__)
    if unknown:
        raise InvalidArgumentError(f"unknown queue options {sorted(unknown)}: use {list(QueueOptions.__struct_fields__)}")
    given = {name: getattr(command.options, name) for name in command.given}
    options = msgspec.structs.replace(queue.options, **given)
    check_options(queue.name, options)
    if "dead_letter" in given and waits_for_appointment(state, call, command):
        return None
    if options.partitions not in {None, 1}:
        raise PartitionedError(
            f"queue {queue.name!r} is to have {options.partitions} partitions: this client is too old for that",
            details={"ordinary": encode_options(options)},
        )
    return change_options(state, queue, options, given.keys(), call.now_ms)


def _whole(queue: Queue) -> Queue:
    if PARTITION_MARK in queue.name:
        raise InvalidArgumentError(f"{queue.name!r} is a partition: change, or delete, {whole_queue(queue.name)!r}")
    return queue


def change_options(
    state: "State", queue: Queue, options: QueueOptions, given: "Collection[str]", now_ms: int
) -> "Done | Work":
    """Give a queue other options, which are checked. ``given``: the fields that may differ."""
    hooks = compiled(state, queue.name, options) if _OF_HOOKS.intersection(given) else queue.hooks
    if queue.hooks is not None and hooks is not queue.hooks:
        queue.hooks.hooks.close()
    queue.set_options(options)
    queue.hooks = hooks
    queue.judge()
    settle_dead_letters(state, queue)
    state.define_queue(queue)
    if "idle_expiry_ms" in given:
        _start_idling(state, queue, now_ms)
    state.mark_runnable(queue)
    state.notes.append(QueueUpdated(queue.name, state.index, sorted(given)))
    return reshape(state, queue) if "max_in_flight_per_key" in given else Done()


def _start_idling(state: "State", queue: Queue, now_ms: int) -> None:
    queue.saved_ms = 0
    state.touch(queue, now_ms)
    deletion.watch(state, queue, now_ms)


HEADS_READ_MAX: Final = 500
"""First messages of lanes that are read from disk for a queue's statistics, so that no turn is long."""

_OF_HOOKS: Final = {option.field for option in QUEUE_OPTIONS.values() if option.of_hooks}


KEY_STATS_COST: Final = 3
"""Effort to show the statistics of a key."""

NAMES_AT_ONCE: Final = 16
"""Names of queues that are skipped for one unit of effort."""

KEY_COST: Final = 2
"""Effort to count what a key has in flight."""


def reshape(state: "State", queue: Queue) -> "Work":
    """Count what each key has in flight, for a new cap. Until all are counted the queue delivers nothing."""
    queue.reshaping += 1
    step = max(1, state.settings.limits.step_effort // KEY_COST)
    for views in pieces(state, queue, step):
        recount_held(state, dict.fromkeys(view.key for view in views))
        yield KEY_COST * len(views)
    queue.reshaping -= 1
    state.mark_runnable(queue)
    return Done()


def recount_held(state: "State", keys: "Iterable[FairnessKey]") -> None:
    """Count what some keys have in flight, for a new or recovered cap."""
    for key in keys:
        key.held = sum(len(lane.leased) + lane.retrying for lane in key.views)
        key.blocked_head = b""
        key.settle_shape()
        state.refresh_eligibility(key)


def pause(state: "State", call: "ClientCall", command: Pause) -> Done:
    """Stop or resume the deliveries of a queue, or of one of its keys; the key need not exist yet."""
    queue = state.queues.find(call.queue)
    if command.fairness_key is None:
        queue.paused = command.paused
    else:
        if command.paused and len(queue.paused_keys) >= state.settings.limits.paused_keys_max:
            raise OverloadedError(
                f"{len(queue.paused_keys)} fairness keys of {queue.name!r} are paused: resume some, or pause the queue"
            )
        (queue.paused_keys.add if command.paused else queue.paused_keys.discard)(command.fairness_key)
        key = queue.keys.get(command.fairness_key)
        if key is not None:
            key.paused = command.paused
            state.hold_if_moving(key)
            state.refresh_eligibility(key)
    state.define_queue(queue)
    state.mark_runnable(queue)
    kind = QueuePaused if command.paused else QueueResumed
    state.notes.append(kind(queue.name, state.index, command.fairness_key))
    return Done()


def delete_queue(state: "State", call: "ClientCall", command: DeleteQueue) -> Done:
    """Delete a queue with its dead letter queue and all their messages; its open leases end without notice."""
    queue = _whole(state.queues.find(call.queue))
    if queue.source is not None:
        raise InvalidArgumentError(f"{queue.name!r} is deleted with its source queue: delete {queue.source.name!r}")
    dead_letters = queue.dead_letters
    if dead_letters and dead_letters.depth and not command.force:
        raise DeadLetterQueueNotEmptyError(
            f"{dead_letters.name!r} holds {counted(dead_letters.depth, 'message')}: redrive them, or delete with force",
            details={"messages": dead_letters.depth},
        )
    remove(state, queue)
    return Done()


def list_queues(state: "State", call: "ClientCall", command: ListQueues) -> QueueList:
    """Return a page of the shard's queues in the order of their names: those after a given name, with the prefix, and which
    the asking client may see.
    """
    prefix, after, within = command.prefix, command.after, command.within
    found: list[Queue] = []
    looks = 0
    for name in state.queues.names.irange(max(prefix, after)):
        if not name.startswith(prefix) or len(found) > LIST_QUEUES_MAX:
            break
        looks += 1
        if within is not None and not any(matches(pattern, whole_queue(name)) for pattern in within):
            continue
        queue = state.queues[name]
        if name > after and (queue.depth or not command.active):
            found.append(queue)
    shown = found[:LIST_QUEUES_MAX]
    state.jobs.charge(looks // NAMES_AT_ONCE + len(shown))
    return QueueList([queue.info(state.index) for queue in shown], len(shown) < len(found), [state.index])


def queue_stats(state: "State", call: "ClientCall", command: GetQueueStats) -> QueueStats:
    """Return one queue's counters, and a page of its keys with their token buckets."""
    queue = state.queues.find(call.queue)
    keys, end = keys_from(state, queue, command.start, state.settings.limits.stats_keys_max)
    lanes = [lane for key in keys if key.cold is None for lane in key.lanes.values()]
    used = state.runtime.limited(each for lane in lanes for each in lane.throttle_keys)
    state.jobs.charge(KEY_STATS_COST * len(keys) + len(lanes))
    return QueueStats(
        queue.info(state.index),
        _oldest_pending_ms(state, keys, call.now_ms),
        state.settings.quantum,
        queue.enqueued,
        queue.delivered,
        queue.acked,
        queue.nacked,
        queue.expired,
        queue.dead_lettered,
        [_key_stats(key, state.settings.quantum) for key in keys],
        throttle_stats(state, used, call.now_ms),
        end if len(keys) == state.settings.limits.stats_keys_max else 0,
        queue.options.max_in_flight,
        move_of(state, queue),
    )


def _key_stats(key: "FairnessKey", quantum: int) -> KeyStats:
    lanes = key.views
    return KeyStats(
        key.name,
        key.weight,
        key.pending,
        sum(len(lane.leased) for lane in lanes),
        sum(lane.delayed for lane in lanes),
        key.deficit(quantum),
        key.delivered,
        key.name in key.queue.paused_keys,
    )


def _oldest_pending_ms(state: "State", keys: "list[FairnessKey]", now_ms: int) -> int:
    """Return the age of the oldest pending message; only a bounded number of those on disk is read."""
    since_ms = waiting_since_ms(state, keys, HEADS_READ_MAX)
    return 0 if since_ms is None else max(0, now_ms - since_ms)


class QueueCommands(Component):
    """The commands for whole queues."""

    verbs: ClassVar = {
        CreateQueue: create_queue,
        UpdateQueue: update_queue,
        DeleteQueue: delete_queue,
        Pause: pause,
        GetQueueStats: queue_stats,
        ListQueues: list_queues,
    }

    def recover(self, now_ms: int) -> Steps:
        """Resume the removal of queues that are gone."""
        for queue in self.state.queues.by_id.values():
            if queue.gone:
                self.state.jobs.start_own(clear(self.state, queue))
        yield
