"""Another number of partitions for a queue that has messages.

Shard 0 puts the new number into the definition (:class:`~fila_proto_zmq.partitions.PartitionMove`). Each partition follows when its shard
has that version of the config, in one turn. From then on it refuses messages of clients that are for other partitions, so these
clients learn the new number. Keys of other partitions are strays, whose messages are sent on (:mod:`core.manage.strays`). Keys that
come from other partitions deliver nothing until these have sent on what they had (:class:`~core.model.queues.QueuePartition`).

Each earlier partition reports to shard 0 when it is drained, and, if it takes in nothing any more, when it is empty. Shard 0 puts
that into the definition. Reports are repeated until they are there, so a lost one does no harm. When all are
drained, the number may change again. When all is done, the definition has the new number alone, and the empty partitions go.
"""

from typing import TYPE_CHECKING, Final

from fila_proto_zmq import runtime_config
from fila_proto_zmq.commands import Carried, ConfigChange, PutConfig, ReportMove, Transfer
from fila_proto_zmq.events import PartitionsChanged
from fila_proto_zmq.names import partition_name, shard_of, whole_queue
from fila_proto_zmq.partitions import encode_definition
from fila_worker.core.callback_groups.owned import OwnedBatches
from fila_worker.core.due_time import AT_ONCE
from fila_worker.core.effects import Post
from fila_worker.core.enqueue import insert
from fila_worker.core.enqueue.dedup import known_ids
from fila_worker.core.inspect.moving import has_messages
from fila_worker.core.manage.config import put_config
from fila_worker.core.manage.strays import FORWARD_MS, partition_in
from fila_worker.core.model.shard_transfers import OutboxEntry
from fila_worker.core.walking import portions

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from fila_proto_zmq.partitions import Definition
    from fila_worker.core.jobs import Work
    from fila_worker.core.model.fairness_keys import FairnessKey
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

CONFIG_OWNER: Final = 0
"""The shard that numbers the changes of the config."""

KEYS_AT_ONCE: Final = 100
"""Keys that are looked at in one step."""

IDS_AT_ONCE: Final = 100
"""Dedup ids that are read, and sent, in one step."""


def follow(state: "State", queue: "Queue", definition: "Definition") -> None:
    """Have a partition, and its dead letters, follow the definition of its queue. Nothing is delivered until its keys were
    looked at.
    """
    for each in (queue, queue.dead_letters):
        if each is None:
            continue
        partition = partition_in(each)
        knew, is_new = partition.version, partition.count == 0
        partition.defined = definition.created
        partition.follow(definition)
        if definition.version > knew:
            partition.version = definition.version
            if definition.move is not None:
                state.counters.sequence = max(state.counters.sequence, definition.move.first_number - 1)
                partition.first_number = state.counters.sequence + 1
            partition.draining = None
            partition.ids_of.clear()
            state.define_queue(each)
        to_be_looked_at = definition.move is not None and partition.draining is None
        if (to_be_looked_at or is_new) and not partition.is_looking:
            each.reshaping += 1
            partition.is_looking = True
            state.jobs.start_own(_look_at_keys(state, each))
        elif partition.held_back:
            state.jobs.start_own(_let_go(state, each))


def _look_at_keys(state: "State", queue: "Queue") -> "Work":
    """Find the keys of a partition whose messages are to move, and those that are to wait for messages."""
    partition = partition_in(queue)
    draining: dict[FairnessKey, None] = {}
    for keys in portions(state, queue):
        for start in range(0, len(keys), KEYS_AT_ONCE):
            for key in keys[start : start + KEYS_AT_ONCE]:
                _judge(state, key)
                if key in state.strays and has_messages(key):
                    draining[key] = None
            yield KEYS_AT_ONCE
    _send_pauses(state, queue)
    queue.reshaping -= 1
    state.mark_runnable(queue)
    state.stray_timer.by(AT_ONCE)
    yield from _send_dedup_ids(state, queue)
    partition.draining, partition.is_looking = {key: None for key in draining if key in state.strays}, False
    state.stray_timer.by(AT_ONCE)
    return None


def _let_go(state: "State", queue: "Queue") -> "Work":
    """Let keys deliver that have waited for messages of partitions that are drained now."""
    partition = partition_in(queue)
    waiting = list(partition.held_back)
    for start in range(0, len(waiting), KEYS_AT_ONCE):
        for key in waiting[start : start + KEYS_AT_ONCE]:
            if key in partition.held_back and not partition.awaits(key.name):
                _judge(state, key)
        state.mark_runnable(queue)
        yield KEYS_AT_ONCE
    return None


def _judge(state: "State", key: "FairnessKey") -> None:
    """Decide anew whether a key may deliver."""
    partition_in(key.queue).held_back.pop(key, None)
    if key.queue.keys.get(key.name) is not key:
        return
    key.paused = key.name in key.queue.paused_keys
    state.hold_if_moving(key)
    state.refresh_eligibility(key)


def _send_pauses(state: "State", queue: "Queue") -> None:
    """Have the keys that are paused here and belong to other partitions paused there."""
    partition = partition_in(queue)
    for name in [each for each in sorted(queue.paused_keys) if partition.is_stray(each)]:
        if _send(
            state, queue, state.runtime.definitions.partition_for(whole_queue(queue.name), name), Carried.PAUSE, key=name
        ):
            queue.paused_keys.discard(name)
    state.define_queue(queue)


def _send_dedup_ids(state: "State", queue: "Queue") -> "Generator[int, int, None]":
    """Send the dedup ids of a partition to all that may get messages from it: which of them get those is not known of an id."""
    partition, definition = partition_in(queue), state.runtime.definitions.find(queue.name)
    move = None if definition is None else definition.move
    if definition is None or move is None or partition.number >= move.earlier or queue.is_dead_letter:
        return
    numbers = range(definition.plan.partitions) if partition.is_retired else range(move.earlier, definition.plan.partitions)
    targets = [partition_name(whole_queue(queue.name), number) for number in numbers]
    state.settle_writes()
    after: bytes | None = b""
    now_ms = yield 1
    while after is not None and not queue.gone:
        ids, after = known_ids(state, queue, after, IDS_AT_ONCE, now_ms)
        for target in targets:
            _send(
                state,
                queue,
                target,
                Carried.LAST_DEDUP_IDS if after is None else Carried.DEDUP_IDS,
                record=ids,
                now_ms=now_ms,
            )
        now_ms = yield IDS_AT_ONCE * (1 + len(targets))


def _send(
    state: "State", queue: "Queue", target: str, what: Carried, *, key: str = "", record: bytes = b"", now_ms: int = 0
) -> bool:
    """Send something that is no message to another partition. Return False if that is not there."""
    partition = partition_in(queue)
    transfer = Transfer(
        target,
        key,
        0,
        [],
        True,
        record,
        forwarded=partition.defined,
        version=partition.version,
        number=partition.number,
        what=what,
    )
    to_shard = shard_of(target, state.shards)
    if to_shard == state.index:
        return insert.forwarded(state, transfer, now_ms)
    state.outbox.add(to_shard, OutboxEntry(queue.id, b"", transfer), state.batch)
    return True


# --- reports ----------------------------------------------------------------------------------------------------------


class MoveReports:
    """What was reported last of each partition, and when: the same is repeated after a while."""

    def __init__(self) -> None:
        self._sent: dict[Queue, tuple[object, int]] = {}

    def send(self, state: "State", queues: "Iterable[Queue]", now_ms: int) -> None:
        """Report how far the partitions here have come that move messages, as far as shard 0 does not have it."""
        before, self._sent = self._sent, {}
        for queue in queues:
            definition, partition = state.runtime.definitions.find(queue.name), partition_in(queue)
            move = None if definition is None else definition.move
            if definition is None or move is None or partition.number >= move.held or not _is_drained(state, queue):
                continue
            empty = partition.is_retired and is_empty(state, queue)
            drained = partition.number >= move.earlier or partition.number in move.drained
            known = drained and (not empty or partition.number in move.empty)
            news = (move, empty, queue.paused)
            last, sent_ms = before.get(queue, (None, 0))
            if known and not move.is_over(definition.plan.partitions):
                continue
            if last == news and now_ms < sent_ms + FORWARD_MS:
                self._sent[queue] = last, sent_ms
                continue
            self._sent[queue] = news, now_ms
            name, number = whole_queue(queue.name), partition.number
            state.effects.append(
                Post(ReportMove(CONFIG_OWNER, state.index, name, definition.version, number, empty, queue.paused))
            )


def _is_drained(state: "State", queue: "Queue") -> bool:
    """Return whether a partition has sent on all messages that it had before the change, and all of them have arrived."""
    family = [each for each in (queue, queue.dead_letters) if each is not None]
    return not any(partition_in(each).draining is None or partition_in(each).draining for each in family) and not any(
        state.outbox.carries_from(each.id) for each in family
    )


def is_empty(state: "State", queue: "Queue") -> bool:
    """Return whether a partition has no messages, also none that may come back."""
    family = [each for each in (queue, queue.dead_letters) if each is not None]
    if state.part(OwnedBatches).has_any(queue.counted_as):
        return False
    return not any(each.depth or state.outbox.carries_from(each.id) for each in family)


def take_report(state: "State", command: ReportMove, now_ms: int) -> ConfigChange:
    """Put into the definition, on shard 0, how far a partition has come; or that the move is over."""
    definition = state.runtime.definitions.find(command.queue)
    move = None if definition is None or definition.version != command.version else definition.move
    if definition is None or move is None or not 0 <= command.number < move.held:
        return ConfigChange(state.runtime.version, {}, True)
    news = move._replace(
        drained=move.drained | ({command.number} if command.number < move.earlier else frozenset()),
        empty=move.empty | ({command.number} if command.empty else frozenset()),
        paused=move.paused or command.paused,
    )
    if news == move and not move.is_over(definition.plan.partitions):
        return ConfigChange(state.runtime.version, {}, True)
    change = put_definition(state, command.queue, definition._replace(move=None if news == move else news), now_ms)
    if news == move:
        took_ms = now_ms - move.since_ms
        state.notes.append(PartitionsChanged(command.queue, move.earlier, definition.plan.partitions, took_ms))
    return change


def put_definition(state: "State", name: str, definition: "Definition", now_ms: int) -> ConfigChange:
    """Change a definition. The history of the config, which is for operators, does not have it."""
    changes = runtime_config.partitioned_changes_for(name, encode_definition(definition), state.runtime.values)
    put_config(state, PutConfig(state.runtime.version + 1, changes), now_ms)
    return ConfigChange(state.runtime.version, changes, True)
