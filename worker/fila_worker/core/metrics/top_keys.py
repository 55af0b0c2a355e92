"""The busiest fairness keys of a queue, for monitoring: ten of perhaps a hundred thousand.

Keys are ranked by their pending and delivered messages. If a queue has many keys, each look examines some of them, so that no
look takes long. The keys that are shown already are examined each time.

Shown counts never decrease, because rates are computed from them. A key counts from the moment it is first shown: its earlier
deliveries stay with the others. When a key is no longer shown, its count is in neither number. One exception: if a new key's
deliveries were not yet reported with the others, they move with it.
"""

from collections.abc import Iterable
from heapq import nlargest
from typing import TYPE_CHECKING, Final

from fila_proto_zmq.commands import OTHER_KEYS, KeyMetrics
from fila_worker.core.metrics.oldest_message import waiting_since_ms

if TYPE_CHECKING:
    from fila_worker.core.model.fairness_keys import FairnessKey
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

KEYS_SHOWN: Final = 10
HEADS_READ_MAX: Final = 4
"""First messages of lanes that are read from disk in one look."""


class TopKeys:
    """A queue's busiest keys, as of the last look."""

    __slots__ = ("_bases", "_cursor", "_past", "_seen", "_weights", "keys", "oldest_ms", "others")

    def __init__(self) -> None:
        self.keys: list[KeyMetrics] = []
        """The keys that are shown."""
        self.others = 0
        """The deliveries of keys while they were not shown."""
        self.oldest_ms: int | None = None
        """When the oldest message that was examined was enqueued; None: no message."""
        self._bases: dict[FairnessKey, int] = {}
        """The keys that are shown, and what each had delivered when it was first shown."""
        self._past = 0
        """The deliveries of keys that are no longer shown, while they were."""
        self._weights = 0.0
        """The weights of all keys that may deliver."""
        self._cursor = 0
        self._seen: tuple[int, ...] = ()
        """The queue's counts at the last look, if that look examined all keys."""

    def look(self, state: "State", queue: "Queue", keys_max: int) -> int:
        """Choose the keys to show, among ``keys_max`` keys and those shown at present; return how many were examined."""
        now = (queue.enqueued, queue.delivered, queue.pending, queue.delayed, queue.nacked, len(queue.ring), len(queue.keys))
        if now == self._seen:
            return 0
        self._seen = now if len(queue.keys) <= keys_max else ()
        seen = self._next_keys(queue, keys_max)
        shown = [key for key in self._bases if queue.keys.get(key.name) is key]
        candidates = dict.fromkeys((*shown, *seen))
        active = [key.weight for key in seen if key.active]
        self._weights = len(queue.ring) * sum(active) / len(active) if active else 0.0
        self.oldest_ms = waiting_since_ms(state, candidates, HEADS_READ_MAX)
        self._show(queue, nlargest(KEYS_SHOWN, (key for key in candidates if key.name != OTHER_KEYS), key=_rank))
        return len(candidates)

    def _next_keys(self, queue: "Queue", keys_max: int) -> "list[FairnessKey]":
        if len(queue.keys) <= keys_max:
            return list(queue.keys.values())
        if self._cursor >= len(queue.keys):
            self._cursor = 0
        start, self._cursor = self._cursor, self._cursor + keys_max
        return queue.keys.portion(start, keys_max)

    def _show(self, queue: "Queue", chosen: "Iterable[FairnessKey]") -> None:
        unclaimed = self._count_others(queue) - self.others
        old, self._bases = self._bases, {}
        for key in chosen:
            base = old.pop(key, None)
            if base is None:
                brought = max(0, min(unclaimed, key.delivered))
                unclaimed -= brought
                base = key.delivered - brought
            self._bases[key] = base
        self._past += sum(key.delivered - base for key, base in old.items())
        self.others = self._count_others(queue)
        self.keys = [
            KeyMetrics(key.name, key.weight, key.pending, key.delivered - base, self._share(key))
            for key, base in self._bases.items()
        ]

    def _count_others(self, queue: "Queue") -> int:
        return queue.delivered - self._past - sum(key.delivered - base for key, base in self._bases.items())

    def _share(self, key: "FairnessKey") -> float:
        return min(1.0, key.weight / max(self._weights, key.weight)) if key.active else 0.0


def _rank(key: "FairnessKey") -> int:
    return key.pending + key.delivered
