"""Queues with partitions that are about to be deleted because they were idle: this shard takes nothing in for them.

Whoever needs such a queue is refused for a moment, and shard 0 is told that the queue has to stay
(:mod:`core.manage.idle_partitions`).
"""

from typing import TYPE_CHECKING

from fila_proto_zmq.commands import PartitionsClosed
from fila_proto_zmq.errors import ShardUnavailableError
from fila_proto_zmq.names import root_name, whole_queue
from fila_worker.core.effects import Post

if TYPE_CHECKING:
    from fila_worker.core.model.state import State

ALWAYS_THERE = 0
"""The partition that a queue with an idle expiry always has: it says when it is idle again."""


def is_closing(state: "State", name: str) -> bool:
    """Return whether a queue, or a partition, is about to be deleted. Then it has to stay, because it is needed."""
    queue, definition = root_name(whole_queue(name)), state.runtime.definitions.find(name)
    if definition is None or not definition.closing or state.closing.get(queue) != definition.closing:
        return False
    state.effects.append(Post(PartitionsClosed(0, state.index, queue, definition.closing, [ALWAYS_THERE])))
    return True


def check_open(state: "State", name: str) -> None:
    """Raise :class:`ShardUnavailableError` if a queue, or a partition, is about to be deleted."""
    if is_closing(state, name):
        raise ShardUnavailableError(
            f"queue {whole_queue(name)!r} was idle and was about to be deleted: it stays, try again",
            details={"refused": True},
        )
