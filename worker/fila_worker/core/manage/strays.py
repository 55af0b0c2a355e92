"""Messages that are in a wrong partition.

With ``spread="key"`` a fairness key has one partition. Its messages may come to another one: a hook decides the key, the number
of partitions has changed, or another queue moves them here. Such a *stray* key delivers nothing. Its messages are transferred to
the key's partition, each once, in their order, like messages that a command moves; no hook runs again.
"""

from typing import TYPE_CHECKING, Final

from fila_proto_zmq.commands import Transfer
from fila_proto_zmq.names import partition_name, shard_of, whole_queue
from fila_proto_zmq.partitions import BY_KEY
from fila_proto_zmq.record import BATCHED
from fila_worker.core.due_time import AT_ONCE
from fila_worker.core.enqueue import insert
from fila_worker.core.inspect.moving import has_messages
from fila_worker.core.jobs import REST
from fila_worker.core.keys import first_of_all, number_of, place_of
from fila_worker.core.manage.backlog_walk import BacklogWalk
from fila_worker.core.model.due_index import lift
from fila_worker.core.settle import transfers

if TYPE_CHECKING:
    from collections.abc import Generator

    from fila_proto_zmq.commands import Fault
    from fila_worker.core.jobs import Work
    from fila_worker.core.model.due_index import Delayed
    from fila_worker.core.model.fairness_keys import FairnessKey
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.queues import Queue, QueuePartition
    from fila_worker.core.model.state import State

FORWARD_MS: Final = 1000
"""How long to wait for another shard, and before strays that could not go are tried again."""


def partition_in(queue: "Queue") -> "QueuePartition":
    """Return the partition that a queue is."""
    assert queue.partition is not None, f"{queue.name!r} is no partition"
    return queue.partition


class Forwarder:
    """Sends the messages of stray keys on. A shard that has not answered yet gets a bounded number."""

    def __init__(self, state: "State") -> None:
        self._state = state
        self.running = False
        self._last: dict[int, int] = {}
        """The numbers of the last transfers, by shard."""
        self._under_way: dict[int, int] = {}
        """How many were sent since all had arrived, by shard."""
        self._turn = 0
        self._refused: set[int] = set()
        self._rests: dict[int, int] = {}
        """Until when shards get nothing because they have sent something back, Unix ms."""
        state.outbox.watchers.add(self._came_back)

    def _came_back(self, shard: int, number: int, fault: "Fault | None") -> None:
        self._refused.add(shard)

    def run(self, now_ms: int) -> "Work":
        """Send the messages of all stray keys on, a bounded number at a time."""
        state = self._state
        late: set[FairnessKey] = set()
        """Those that have to wait."""
        self._rests |= dict.fromkeys(self._refused, now_ms + FORWARD_MS)
        self._refused.clear()
        try:
            for key in list(state.strays):
                is_over = key.queue.gone or not key.paused or key.queue.keys.get(key.name) is not key
                is_over = is_over or not partition_in(key.queue).is_stray(key.name)  # there are other partitions by now
                target = None if is_over else self._target_of(key)
                if target is None:
                    self._is_done(key)
                elif self._takes(shard_of(target, state.shards), now_ms):
                    now_ms = yield from self._forward(key, target, now_ms)
                if key in state.strays:
                    late.add(key)
                now_ms = yield 1
        finally:
            self.running = False
        if not state.strays.keys() <= late:
            state.stray_timer.by(AT_ONCE)  # more came meanwhile
        return None

    def _takes(self, to_shard: int, now_ms: int) -> bool:
        """Return whether a shard may get messages now."""
        return self._rests.get(to_shard, 0) <= now_ms and self._room(to_shard) > 0

    def _target_of(self, key: "FairnessKey") -> str | None:
        """Return the partition that the messages of a key go to; None: the queue has none any more."""
        name, definitions = whole_queue(key.queue.name), self._state.runtime.definitions
        definition = definitions.find(name)
        if definition is None:
            return None
        if definition.plan.spread == BY_KEY:
            return definitions.partition_for(name, key.name)
        self._turn += 1  # of a partition that is no more: the others share its messages
        return partition_name(name, self._turn % definition.plan.partitions)

    def _forward(self, key: "FairnessKey", target: str, now_ms: int) -> "Generator[int, int, int]":
        """Send the messages of a stray key on, as long as the other shard takes them in soon. Return the time."""
        state, to_shard = self._state, shard_of(target, self._state.shards)
        while True:
            room = self._room(to_shard)
            walk = _Forwarding(state, key, target, now_ms)
            yield from walk.first_ones(room, key.name)
            if walk.last:
                self._last[to_shard] = walk.last
                self._under_way[to_shard] = self._under_way.get(to_shard, 0) + walk.moved
            if walk.moved < room:
                break
            until_ms = now_ms + FORWARD_MS
            while self._room(to_shard) <= 0:
                if now_ms >= until_ms:
                    return now_ms
                now_ms = yield REST
        if walk.stays:
            partition_in(key.queue).settled.add(key.name)
            key.paused = key.name in key.queue.paused_keys
            state.refresh_eligibility(key)
        if walk.stays or not has_messages(key):
            self._is_done(key)
        return now_ms

    def _room(self, to_shard: int) -> int:
        """Return how many messages may be sent to a shard before it answers."""
        if to_shard not in self._last or self._state.outbox.has_arrived(to_shard, self._last[to_shard]):
            self._under_way.pop(to_shard, None)
        return self._state.settings.limits.redrive_messages_max - self._under_way.get(to_shard, 0)

    def _is_done(self, key: "FairnessKey") -> None:
        partition = partition_in(key.queue)
        if key in self._state.strays:
            del self._state.strays[key]
            partition.strays -= 1
        if partition.draining is not None:
            partition.draining.pop(key, None)


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
        if self._sent(lane, message_key, record, 0, came_back=message_key == first_of_all(message_key)):
            self._state.buffers.remove(lane, {message_key})
            self._state.delete_pending(lane, message_key, len(record))

    def take_delayed(self, lane: "Lane", message_key: bytes, delayed: "Delayed") -> None:
        """Send a delayed message on."""
        if self._sent(lane, message_key, delayed.record, delayed.due_ms, came_back=delayed.retrying):
            lift(self._state, lane, message_key, delayed)
            if delayed.retrying:
                self._state.release_slot(lane.key)

    def _sent(self, lane: "Lane", message_key: bytes, stored: bytes, due_ms: int, *, came_back: bool) -> bool:
        """Put a message into its partition, or on its way. If there is none, end the walk and return False."""
        state, key, partition = self._state, lane.key, partition_in(self._queue)
        number = number_of(message_key)
        transfer = Transfer(
            self._target,
            key.name,
            key.weight,
            list(lane.throttle_keys),
            True,
            stored,
            due_ms=due_ms,
            forwarded=partition.defined,
            version=partition.version,
            number=number if number < partition.first_number and not partition.has_all_keys else 0,
            came_back=came_back,
        )
        if self._shard != state.index:
            transfers.send(state, lane, place_of(message_key), transfer)
            self.last = partition.sent[self._shard] = state.outbox.last_number(self._shard)
        elif not insert.forwarded(state, transfer, self._now_ms):
            self.over = True
            return False
        self.moved += 1
        return True
