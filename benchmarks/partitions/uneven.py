"""Fairness keys that are spread unevenly over the partitions of a queue, and how fair an order of deliveries is to them."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any

from benchmarks.harness.fila import blocking_client
from benchmarks.harness.messages import Load
from fila_cluster import Message
from fila_proto_zmq.partitions import partition_of

WEIGHT_MAX = 10
SHARE_MAX = 0.05
"""How far a key may be from its entitlement, or one turn a partition, if that is more."""
TURNS = 20
"""Rounds over all keys and partitions that a window has at least."""
HELD_TIMES = 20
SPARE = 0.2
"""More messages than a window has: windows begin at several places, and all keys have messages until the end of the last."""
WINDOWS = 10
"""Windows that are looked at."""


@dataclass(frozen=True)
class Uneven:
    """Keys with weights from 1 to 10: half of them are in the first partition, one alone is in the last."""

    keys: int
    partitions: int
    turns: int = TURNS
    spare: float = SPARE

    @cached_property
    def weights(self) -> dict[str, int]:
        """The weight of each key."""
        names: list[list[str]] = [[] for _ in self._sizes]
        for number in count():
            partition = partition_of(name := f"tenant-{number}", self.partitions)
            if len(names[partition]) < self._sizes[partition]:
                names[partition].append(name)
            elif list(map(len, names)) == self._sizes:
                break
        return {name: 1 + place % WEIGHT_MAX for place, name in enumerate(name for some in reversed(names) for name in some)}

    @cached_property
    def _sizes(self) -> list[int]:
        half, between = self.keys // 2, self.partitions - 2
        rest = self.keys - half - 1
        return [half, *(rest // between + (place < rest % between) for place in range(between)), 1]

    def for_those_who_hold(self, messages: int) -> "Uneven":
        """Return it with windows of at least twenty times what all consumers may hold."""
        turns = -(-HELD_TIMES * messages // (self.partitions * sum(self.weights.values())))
        return replace(self, turns=max(self.turns, turns))

    @property
    def window(self) -> int:
        """Deliveries of a window."""
        return self.turns * self.partitions * sum(self.weights.values())

    @cached_property
    def owners(self) -> list[str]:
        """The key of each message, by its number: all keys have enough for the windows."""
        each = round(self.turns * self.partitions * (1 + self.spare))
        owners = [name for name, weight in self.weights.items() for _ in range(each * weight)]
        random.Random(self.keys).shuffle(owners)
        return owners

    @property
    def load(self) -> Load:
        """The messages."""
        return Load(len(self.owners), 16)

    def fill(self, address: str, queue: str, **options: Any) -> None:
        """Create the queue, with these options, and all messages."""
        pairs = zip(self.load.payloads(), self.owners, strict=True)
        with blocking_client(address) as client:
            client.create_queue(queue, partitions=self.partitions, **options)
            client.enqueue_many(
                queue, (Message(payload, fairness_key=key, weight=self.weights[key]) for payload, key in pairs)
            )

    def deviation(self, order: Sequence[int]) -> float:
        """Return the largest distance of a key from its entitlement in any window, as a share of that. ``order``: the
        numbers of messages as they were delivered."""
        spare = int(self.window * SPARE / 2)
        assert len(order) >= self.window + spare, f"{len(order):,} deliveries are too few for windows of {self.window:,}"
        return max(
            self._deviation(order[start : start + self.window])
            for start in range(0, spare + 1, max(1, spare // (WINDOWS - 1)))
        )

    def _deviation(self, window: Sequence[int]) -> float:
        counts, total = Counter(map(self.owners.__getitem__, window)), sum(self.weights.values())
        entitled = ((name, weight * len(window) / total) for name, weight in self.weights.items())
        return max(abs(counts[name] - share) / share for name, share in entitled)
