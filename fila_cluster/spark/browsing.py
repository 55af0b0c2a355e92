"""``read.format("fila")``: queues at one moment, without leasing anything.

Planning opens a view on each shard that has some of the queues, so all tasks read the messages of that moment. (The views of
shards are opened one after the other, some milliseconds apart.) Spark keeps a plan with the loaded DataFrame: for newer
messages, load another one. Each task reads ranges of fairness keys of one shard. Tasks of different shards alternate in
Spark's order, because a view that is idle for long is closed.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from pyspark.sql.datasource import DataSourceReader, InputPartition

from fila_cluster.client import Client
from fila_cluster.client.calls.reservations import KeyRange, ShardViews
from fila_cluster.client.forwarding import CommandsAhead
from fila_cluster.spark.options import BrokerAccess, queue_of
from fila_cluster.spark.pushdown import PushedFilters, Selection, is_asked_for, meant
from fila_proto_zmq.commands import MessageView, ViewedQueue
from fila_proto_zmq.errors import OverloadedError
from fila_proto_zmq.names import whole_queue

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

TASK_MESSAGES: Final = 50_000
"""Messages of a task: about half a second's work, against some ten milliseconds to start it."""

IDLE_S: Final = 600.0
"""How long a view may wait for its next reader: tasks may be queued behind those of other jobs."""

ROOM_WAIT_S: Final = 90.0
"""How long to wait for a shard that has as many open views as it can; an unread view is closed within a minute."""


@dataclass(frozen=True)
class ViewPart(InputPartition):
    """The input of one task: parts of queues in one shard's view."""

    view: str
    stretches: tuple[KeyRange, ...]


class BrowseReader(DataSourceReader):
    """Reads the queues that the option ``queue`` selects: pending, delayed and leased messages."""

    def __init__(self, options: Mapping[str, str], schema: "StructType") -> None:
        self._connection = BrokerAccess.of(options)
        self._selection = Selection.of(queue_of(options))
        self._wanted = PushedFilters.of_options(options)
        self._with_dead_lettered_at = "dead_lettered_at" in schema.names

    # --- on the driver ------------------------------------------------------------------------------------------------

    def partitions(self) -> list[InputPartition]:
        """Open the views, and divide them among tasks."""
        with self._connection.client() as client:
            return list(interleaved([self._parts(client, queues) for queues in self._queues_by_shard(client)]))

    def _queues_by_shard(self, client: Client) -> list[list[str]]:
        shards: dict[int, list[str]] = {}
        for info in meant(client, self._selection, to_drain=False):
            if self._wanted.wants("queue", whole_queue(info.name)):
                shards.setdefault(info.shard, []).append(info.name)
        return list(shards.values())

    def _parts(self, client: Client, queues: Sequence[str]) -> list[InputPartition]:
        """Return the tasks that read some queues of one shard."""
        name = f"spark-{uuid4().hex}"
        opened = opened_in_time(lambda: ShardViews(CommandsAhead(client)).open(name, queues, TASK_MESSAGES, IDLE_S))
        stretches = [sized for queue in opened for sized in stretches_of(queue, self._wanted.of("fairness_key"))]
        return [ViewPart(name, packed) for packed in pack(stretches)]

    # --- on the executors ---------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> "Iterator[RecordBatch]":
        """Read the input of a task."""
        if not isinstance(partition, ViewPart):
            return  # Spark makes an empty partition where there is nothing to read
        from fila_cluster.spark.schema import with_dead_lettered_at  # noqa: PLC0415 - the driver does not need it

        keys, states = self._wanted.of("fairness_key"), self._wanted.of("state")
        more = self._with_dead_lettered_at
        with self._connection.client() as client:
            for stretch in partition.stretches:
                for page in ShardViews(CommandsAhead(client)).pages(
                    partition.view, stretch, fairness_keys=keys, states=states
                ):
                    batch = _as_batch(whole_queue(stretch.queue), page)
                    yield with_dead_lettered_at(batch, [each.record for each in page]) if more else batch


class FilteringReader(BrowseReader):
    """The same, where it is safe to take over filters in this version of Spark, or for this DataFrame."""

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:  # noqa: N802
        """Take over the filters that the broker can apply; Spark applies the others."""
        return self._wanted.push(filters)


def browse_reader(options: Mapping[str, str], schema: "StructType") -> BrowseReader:
    """Return the reader for these options."""
    return (FilteringReader if is_asked_for(options) else BrowseReader)(options, schema)


def opened_in_time(
    opening: Callable[[], list[ViewedQueue]],
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> list[ViewedQueue]:
    """Open a view; wait if there are too many now."""
    give_up_at = now() + ROOM_WAIT_S
    while True:
        try:
            return opening()
        except OverloadedError as error:
            pause_s = max(error.retry_after or 0.0, 0.1)
            if now() + pause_s > give_up_at:
                raise
            sleep(pause_s)


def stretches_of(queue: ViewedQueue, keys: Sequence[str] | None) -> Iterator[tuple[KeyRange, int]]:
    """Yield a queue's ranges of keys that may have some of the ``keys``, each with about its number of messages."""
    if not queue.messages:
        return
    messages = -(-queue.messages // (len(queue.bounds) + 1))
    for first, end in zip(["", *queue.bounds], [*queue.bounds, None], strict=True):
        if keys is None or any(first <= key and (end is None or key < end) for key in keys):
            yield KeyRange(queue.name, first, end), messages


def pack(stretches: Sequence[tuple[KeyRange, int]]) -> Iterator[tuple[KeyRange, ...]]:
    """Yield tasks of about :data:`TASK_MESSAGES`, or of one larger stretch."""
    packed: list[KeyRange] = []
    total = 0
    for stretch, messages in stretches:
        if packed and total + messages > TASK_MESSAGES:
            yield tuple(packed)
            packed, total = [], 0
        packed.append(stretch)
        total += messages
    if packed:
        yield tuple(packed)


def interleaved(of_shards: Sequence[Sequence[InputPartition]]) -> Iterator[InputPartition]:
    """Return the tasks of all shards, one of each in turn."""
    return (part for part in chain.from_iterable(zip_longest(*of_shards)) if part is not None)


def _as_batch(queue: str, page: Sequence[MessageView]) -> "RecordBatch":
    from fila_cluster.spark.schema import record_batch  # noqa: PLC0415 - the driver does not need it

    return record_batch(
        queue,
        [message.state for message in page],
        [message.fairness_key for message in page],
        [message.weight for message in page],
        [message.throttle_keys for message in page],
        [message.due_ms for message in page],
        [message.record for message in page],
    )
