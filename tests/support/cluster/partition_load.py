"""A load on one queue with several partitions: a producer for each, and consumers of the whole. What is confirmed must arrive."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from threading import Event, Thread
from typing import NamedTuple

from fila_cluster import Client, Request
from fila_cluster.errors import FilaError
from fila_proto_zmq.commands import GetQueueStats, QueueStats
from fila_proto_zmq.partitions import partition_of
from tests.support.cluster.cluster import PATIENCE_S, eventually

PAUSE_S = 0.02
"""Of a producer between two messages."""


class Noted(NamedTuple):
    """Something that went well. ``at``: on the monotonic clock."""

    at: float
    what: str
    partition: int
    payload: bytes


ENQUEUED, DELIVERED = "enqueued", "delivered"


class PartitionLoad:
    """``noted``: what went well, in its order."""

    def __init__(self, endpoint: str, queue: str, partitions: int, consumers: int = 3, prefetch: int = 4) -> None:
        self.endpoint, self.queue, self.partitions = endpoint, queue, partitions
        self.noted: list[Noted] = []
        self._prefetch = prefetch
        self._enough, self._over = Event(), Event()
        self._producers = [Thread(target=self._produce, args=(each,), daemon=True) for each in range(partitions)]
        self._consumers = [Thread(target=self._consume, daemon=True) for _ in range(consumers)]

    def _produce(self, partition: int) -> None:
        key = next(key for key in map("tenant-{}".format, count()) if partition_of(key, self.partitions) == partition)
        with Client(self.endpoint, timeout=2.0) as client:
            number = 0
            while not self._enough.wait(PAUSE_S):
                payload = f"{partition}-{number}"
                with suppress(FilaError):  # unknown, or refused: the same one again
                    client.enqueue(self.queue, payload.encode(), fairness_key=key, dedup_id=payload)
                    self._note(ENQUEUED, partition, payload.encode())
                    number += 1

    def _consume(self) -> None:
        with Client(self.endpoint) as client, client.consume(self.queue, prefetch=self._prefetch) as deliveries:
            while not self._over.is_set():
                delivery = deliveries.take(0.2)
                if delivery is not None:
                    self._note(DELIVERED, int(delivery.payload.partition(b"-")[0]), delivery.payload)
                    with suppress(FilaError):  # it comes again
                        delivery.ack()

    def _note(self, what: str, partition: int, payload: bytes) -> None:
        self.noted.append(Noted(time.monotonic(), what, partition, payload))

    def of(self, what: str, partition: int, since: int = 0) -> list[Noted]:
        """What went well with a partition, from a place in ``noted`` on."""
        return [each for each in self.noted[since:] if (each.what, each.partition) == (what, partition)]

    def goes_on(self, *partitions: int, messages: int = 10) -> None:
        """Wait until messages of these partitions are enqueued, and delivered."""
        since = len(self.noted)
        for each in partitions:
            for what in (ENQUEUED, DELIVERED):
                went_on = partial(self._went_on, what, each, since, messages)
                eventually(went_on, f"{messages} messages of partition {each} are {what}")

    def _went_on(self, what: str, partition: int, since: int, messages: int) -> bool:
        return len(self.of(what, partition, since)) >= messages

    def shards(self) -> dict[int, int]:
        """The shard of each partition."""
        with Client(self.endpoint) as client:
            found: dict[int, int] = {}
            for each in range(self.partitions):
                stats: QueueStats = client.request(Request(f"{self.queue}@{each}", GetQueueStats()))
                found[each] = stats.info.shard
            return found

    def lost(self) -> set[bytes]:
        """Confirmed messages that did not come."""
        came = {each.payload for each in self.noted if each.what == DELIVERED}
        return {each.payload for each in self.noted if each.what == ENQUEUED} - came

    @contextmanager
    def running(self) -> Iterator[None]:
        """Go on for a block. At its end all that was confirmed is awaited: :meth:`lost` says what did not come."""
        for thread in (*self._consumers, *self._producers):
            thread.start()
        try:
            yield
            self._enough.set()
            for thread in self._producers:
                thread.join()
            with suppress(AssertionError):
                eventually(lambda: not self.lost(), "all came", PATIENCE_S)
        finally:
            self._enough.set()
            self._over.set()
            for thread in (*self._consumers, *self._producers):
                thread.join(PATIENCE_S)
