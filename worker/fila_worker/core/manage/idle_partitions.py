"""The idle expiry of queues with several partitions: the whole queue is deleted when all its partitions are idle.

Partitions are on several shards, and each may get a message at any time. So shard 0 deletes the queue in two steps, both of
them changes of the runtime config::

    a partition ── PartitionIdle ──▶ shard 0          "I was idle for that long"
    shard 0 ── the definition is closing ──▶ all
    each shard ── PartitionsClosed ──▶ shard 0        "I take nothing in until the definition changes", or "some are used"
    shard 0 ── the definition is gone, or open again ──▶ all

A shard that has promised to take nothing in keeps to it (:mod:`core.enqueue.closing`), also after a restart: the closing
definition is in its config. Whoever needs the queue meanwhile is refused for a moment, and the queue stays. So nothing that
was confirmed is lost, whatever is killed and whichever frame is. A promise holds for one closing only. Shard 0 has the
promises in memory: after a restart it opens all queues again that are closing.

Each partition tells once that it is idle, and again after twice the time if nothing has come of it. A partition that is used
is waited for: it tells when it is idle.
"""

from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from fila_proto_zmq.commands import ConfigChange, PartitionIdle, PartitionsClosed
from fila_proto_zmq.errors import LuaCompilationError
from fila_proto_zmq.names import PARTITION_MARK, partition_name, shard_of
from fila_proto_zmq.partitions import Definition
from fila_worker.core.due_time import AT_ONCE
from fila_worker.core.effects import Post
from fila_worker.core.enqueue.closing import ALWAYS_THERE
from fila_worker.core.manage.deletion import is_idle, watch
from fila_worker.core.manage.partition_moves import put_definition
from fila_worker.core.manage.partitions import delete_definition, open_partition, partitions_here
from fila_worker.core.model.component import Component, Steps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fila_proto_zmq.partitions import Definitions
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

OPENED_AT_ONCE = 100
"""Queues that shard 0 opens again in a turn, after a restart."""


class Closing(Struct):
    """The closing of a queue under way, on shard 0. ``number``: the version of the config with it."""

    number: int
    began_ms: int
    promised: set[int] = set()
    """The shards that take nothing in for the queue."""


class Closings:
    """What shard 0 remembers, by queue."""

    def __init__(self) -> None:
        self.open: dict[str, Closing] = {}
        self.used: dict[str, set[int]] = {}
        """Partitions that were not idle at the last closing, and have not said since that they are."""


# --- on shard 0 -------------------------------------------------------------------------------------------------------


def note_idle(state: "State", command: PartitionIdle, now_ms: int) -> ConfigChange:
    """Begin to close a queue, unless another partition is known to be used."""
    closings, name = state.part(Closings), command.queue
    definition = state.runtime.definitions.find(name)
    if definition is None or definition.created != command.created or definition.options.idle_expiry_ms is None:
        return _nothing(state)
    if definition.move is not None:
        return _nothing(state)  # it tells again
    used = closings.used.get(name, set())
    used.discard(command.partition)
    under_way = closings.open.get(name)
    if any(each < definition.plan.partitions for each in used) or (
        under_way is not None
        and under_way.number == definition.closing
        and now_ms < under_way.began_ms + definition.options.idle_expiry_ms
    ):
        return _nothing(state)
    change = put_definition(state, name, definition._replace(closing=state.runtime.version + 1), now_ms)
    closings.open[name] = Closing(change.version, now_ms)
    return change


def note_closed(state: "State", command: PartitionsClosed, now_ms: int) -> ConfigChange:
    """Delete a queue once all shards with partitions of it take nothing in. Open it again if one of them is used."""
    closings, name = state.part(Closings), command.queue
    definition = state.runtime.definitions.find(name)
    if definition is None or definition.closing != command.closing:
        return _nothing(state)
    if command.used:
        closings.used[name] = set(command.used)
        return put_definition(state, name, definition._replace(closing=0), now_ms)
    under_way = closings.open.get(name)
    if under_way is None or under_way.number != command.closing:
        return _nothing(state)
    under_way.promised.add(command.from_shard)
    if {shard_of(each, state.shards) for each in definition.plan.names(name)} <= under_way.promised:
        return delete_definition(state, name, "", now_ms)
    return _nothing(state)


def _nothing(state: "State") -> ConfigChange:
    return ConfigChange(state.runtime.version, {}, True)


# --- on each shard ----------------------------------------------------------------------------------------------------


class IdlePartitions(Component):
    """Follows definitions that are closing. It comes before the component that empties the set of changed definitions."""

    def __init__(self, state: "State") -> None:
        super().__init__(state)
        self._closings = state.keep(Closings())
        self._followed: Definitions | None = None
        self._answered: dict[str, int] = {}
        """The closings of which shard 0 was told, by queue."""
        self._recovers = False
        self._stale: dict[str, int] = {}
        """Closings that shard 0 does not know of: they began before its restart."""

    def recover(self, now_ms: int) -> Steps:
        """Take nothing in for queues that are closing: shard 0 may have been promised that."""
        self._recovers = True
        self.on_config(now_ms)
        self._recovers = False
        yield from ()

    def on_config(self, now_ms: int) -> None:
        """Follow a change of the definitions."""
        definitions = self.state.runtime.definitions
        names: Iterable[str] = definitions.changed
        if definitions is not self._followed:
            self._followed, names = definitions, list(definitions)
        for name in names:
            definition = definitions.find(name)
            if definition is None or not definition.closing:
                self._answered.pop(name, None)
                if definition is None:
                    self._closings.open.pop(name, None)
                    self._closings.used.pop(name, None)
                else:
                    self.state.closing.pop(name, None)
                    self._open_first(name, definition, now_ms)
            elif self._answered.get(name) != definition.closing:
                self._answered[name] = definition.closing
                self._answer(name, definition, now_ms)

    def _open_first(self, name: str, definition: Definition, now_ms: int) -> None:
        """Make one partition of a queue, so that it is noticed when the queue is never used."""
        first = partition_name(name, ALWAYS_THERE)
        if definition.was_ordinary:
            return  # its first partition is the queue that it was
        if definition.options.idle_expiry_ms is not None and shard_of(first, self.state.shards) == self.state.index:
            with suppress(LuaCompilationError):  # whoever names the partition is told
                open_partition(self.state, first, now_ms)

    def _answer(self, name: str, definition: Definition, now_ms: int) -> None:
        """Promise to take nothing in for a queue that is closing, or say which of its partitions here are used.

        After a restart this shard may have promised it, so it takes nothing in whatever it finds.
        """
        state, closing = self.state, definition.closing
        if state.index == 0 and (name not in self._closings.open or self._closings.open[name].number != closing):
            self._stale[name] = closing
            self.timer.by(AT_ONCE)
        if not any(shard_of(each, state.shards) == state.index for each in definition.plan.names(name)):
            return
        here = [state.queues[each] for each in partitions_here(state, name)]
        used = [queue for queue in here if not _may_go(state, queue, definition, now_ms)]
        if self._recovers or not used:
            state.closing[name] = closing
        numbers = [int(queue.name.partition(PARTITION_MARK)[2]) for queue in used]
        state.effects.append(Post(PartitionsClosed(0, state.index, name, closing, numbers)))
        for queue in used:
            watch(state, queue, now_ms)

    def tick(self, now_ms: int) -> int | None:
        """On shard 0, open queues again whose closing began before a restart."""
        for name in list(self._stale)[:OPENED_AT_ONCE]:
            closing = self._stale.pop(name)
            self.state.effects.append(Post(PartitionsClosed(0, 0, name, closing, [ALWAYS_THERE])))
        return AT_ONCE if self._stale else None


def _may_go(state: "State", queue: "Queue", definition: Definition, now_ms: int) -> bool:
    """Return whether a partition is idle by the options of the definition, and no enqueue into it is under way."""
    return queue.options == definition.options and queue.name not in state.jobs and is_idle(state, queue, now_ms)
