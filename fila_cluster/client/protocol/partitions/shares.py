"""Which partitions of a queue a consumer asks, and for how many messages.

Each partition is fair among its own fairness keys. Consumers keep the queue fair over its partitions by taking from each in
proportion to the sum of the weights of the keys that wait there, which the broker names with each answer. This is weighted fair
queueing by start tags, in its simplest form (Goyal, Vin, Cheng, "Start-time Fair Queueing", 1996): a partition's tag grows by
``1 / weight`` with each message that is asked of it, and the one with the lowest tag is asked next. A partition that gets
messages again begins at the tag of the others, so it is next, and it has saved nothing up.

Consumers do not know of each other. Each of them takes in proportion, so all of them together do. A consumer begins at a random
moment of each partition's turns: else all consumers would begin with the same partition, and each with one message of a partition
whose weight entitles it to a few of them all.
"""

from heapq import heapify, heapreplace
from math import inf
from random import Random
from typing import Final

from fila_proto_zmq.limits import DELIVERY_MESSAGES_MAX

LOOK_AGAIN_S: Final = 0.02
"""How long a receive passes over a partition that had nothing, if others have something."""


class Shares:
    """The tags of the partitions. A partition is *ready* if it has messages that may be delivered, as far as is known."""

    def __init__(self, partitions: int, random: Random) -> None:
        self.partitions = partitions
        self.ready: set[int] = set()
        self._weights = [1] * partitions
        self._tags = [random.random() for _ in range(partitions)]
        self._now = 0.0
        """The tag of the last turn; 0: there was none yet."""
        self._new = set(range(partitions))
        """Partitions of which nothing is known yet."""
        self.strays: dict[int, int] = {}
        """What partitions without messages have said last of those on their way to others, if that was not 0."""
        self._looked = [-inf] * partitions
        """When each partition was asked last by a receive, monotonic seconds."""

    def resize(self, partitions: int) -> None:
        """Have another number of partitions. New ones are at the last turn."""
        more = partitions - self.partitions
        self.partitions = partitions
        self.ready = {each for each in self.ready if each < partitions}
        self._weights = (self._weights + [1] * more)[:partitions]
        self._tags = (self._tags + [self._now] * more)[:partitions]
        self._looked = (self._looked + [-inf] * more)[:partitions]

    def weight(self, partition: int) -> int:
        """Return the sum of the weights that is known of a partition."""
        return self._weights[partition]

    def note(self, partition: int, weight: int) -> None:
        """Take in a partition's sum of weights; 0: it has nothing to deliver now."""
        if partition in self._new:
            self._new.discard(partition)
            self._tags[partition] = self._tags[partition] / weight if weight > 0 and not self._now else 0.0
        if weight <= 0:
            self.ready.discard(partition)
            return
        self._weights[partition] = weight
        if partition not in self.ready:
            self.ready.add(partition)
            self._tags[partition] = max(self._tags[partition], self._now)

    def take_back(self, partition: int, count: int, weight: int) -> None:
        """Take back what a partition was asked for and did not give. ``weight``: its weight when it was asked."""
        self._tags[partition] -= count / weight

    def deal(self, count: int) -> dict[int, int]:
        """Deal ``count`` messages to the ready partitions, and return how many to ask of each."""
        counts: dict[int, int] = {}
        if not self.ready or count <= 0:
            return counts
        heap = [(self._tags[each], each) for each in self.ready]
        heapify(heap)
        tag = 0.0
        for _ in range(count):
            tag, partition = heap[0]
            counts[partition] = counts.get(partition, 0) + 1
            heapreplace(heap, (tag + 1 / self._weights[partition], partition))
        self._now = max(self._now, tag)  # the last one is the greatest
        for tag, partition in heap:
            self._tags[partition] = tag
        return counts

    def first(self, candidates: set[int], count: int, now: float) -> tuple[int, int]:
        """Return which of some partitions to ask first, and for how many of ``count`` messages.

        One that had nothing is asked again after a moment, before the others: else it would never be, while they have enough.
        """
        ready = candidates & self.ready
        stale = [each for each in candidates - ready if now - self._looked[each] >= LOOK_AGAIN_S]
        partition = stale[0] if stale else min(ready or candidates, key=self._tags.__getitem__)
        self._looked[partition] = now
        known = sum(self._weights[each] for each in candidates)
        share = min(DELIVERY_MESSAGES_MAX, max(1, -(-count * self._weights[partition] // known)))
        if partition in ready:
            self._now = max(self._now, self._tags[partition])
        self._tags[partition] += share / self._weights[partition]
        return partition, share
