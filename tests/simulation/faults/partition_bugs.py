"""Bugs of queues with several partitions, to be planted: see :mod:`planted`."""

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import msgspec

from fila_cluster.client.protocol.partitions.feed import PartitionFeed
from fila_proto_zmq.commands import ConfigChange, PartitionIdle
from fila_worker.core import shard
from fila_worker.core.deliver import delivery
from fila_worker.core.enqueue import enqueue
from fila_worker.core.manage import partition_moves, partitions
from fila_worker.core.manage.partition_moves import MoveReports
from fila_worker.core.manage.partitions import Partitions
from tests.simulation.faults.planting import Plant, replace
from tests.simulation.replacing import replaced


def forgotten_asks(stack: ExitStack) -> None:
    """A consumer asks for all that it may hold again while its other partitions have not answered yet."""
    room = property(lambda feed: feed.subscription.prefetch - feed.held)
    stack.enter_context(replaced([(PartitionFeed, "_room", room)]))


def left_strays(stack: ExitStack) -> None:
    """Messages of a stray key stay where they are, until the shard is opened anew."""

    def make(real: Any) -> Any:
        def tick(partitions: Any, now_ms: int) -> int | None:
            return None

        return tick

    replace(stack, Partitions, "tick", make)


def unwatched_partition(stack: ExitStack) -> None:
    """A consumer looks at a partition once, and not again when it has nothing."""

    def make(real: Any) -> Any:
        def watch(feed: Any, partition: int, wait_s: float = 1.0) -> None:
            if not wait_s:
                real(feed, partition, wait_s)

        return watch

    replace(stack, PartitionFeed, "_watch", make)


def each_for_itself(stack: ExitStack) -> None:
    """Each partition has as many messages leased as the whole queue may have."""

    def make(real: Any) -> Any:
        def room(state: Any, queue: Any) -> float:
            most = queue.options.max_in_flight
            return real(state, queue) if most is None or queue.at_most_once else most - queue.in_flight

        return room

    replace(stack, delivery, "room", make)


def lasting_definition(stack: ExitStack) -> None:
    """Shard 0 does nothing when partitions tell that they are idle, so their queue is kept for ever."""

    def note_idle(state: Any, command: PartitionIdle, now_ms: int) -> ConfigChange:
        return ConfigChange(state.runtime.version, {}, True)

    stack.enter_context(patch.dict(shard._CHANGES, {PartitionIdle: note_idle}))


def broken_promise(stack: ExitStack) -> None:
    """A shard that promised to take nothing in for a queue that is about to be deleted takes messages in."""
    for module, name in (shard, "check_open"), (enqueue, "check_open"):
        replace(stack, module, name, lambda real: lambda state, queue: None)
    replace(stack, shard, "is_closing", lambda real: lambda state, queue: False)


# --- another number of partitions -------------------------------------------------------------------------------------


def hasty_removal(stack: ExitStack) -> None:
    """A partition that is no more is removed with the messages that it has."""
    for module in (partitions, partition_moves):
        replace(stack, module, "is_empty", lambda real: lambda state, queue: True)


def unrepeated_report(stack: ExitStack) -> None:
    """How far a partition has come is said once, whether shard 0 hears it or not."""
    replace(stack, MoveReports, "send", lambda real: lambda reports, state, queues, now_ms: real(reports, state, queues, 0))


def forgotten_ids(stack: ExitStack) -> None:
    """Dedup ids stay where they were."""
    replace(stack, partition_moves, "known_ids", lambda real: lambda *args: (msgspec.msgpack.encode([]), None))


PARTITION_BUGS: tuple[Plant, ...] = (
    forgotten_asks, left_strays, unwatched_partition, each_for_itself, lasting_definition, broken_promise, hasty_removal,
    unrepeated_report, forgotten_ids,
)  # fmt: skip
