"""Ids that producers give their messages, so that the same message is stored once however often it is sent.

For each there is a durable record with the id that the message got; the due index removes it when its window ends. It does not
matter what has become of the message meanwhile.
"""

from collections.abc import Iterable
from struct import Struct
from typing import TYPE_CHECKING, Final

from fila_worker.core.keys import pack_u32
from fila_worker.core.schedule import Kind, on_the_grid

if TYPE_CHECKING:
    from fila_worker.core.queues import Queue
    from fila_worker.core.state import State

_RECORD: Final = Struct(">QQQ")


class Dedup:
    """The dedup ids of one batch: which were seen before, and which are new."""

    def __init__(self, shard: "State", queue: "Queue", dedup_ids: Iterable[str], now_ms: int) -> None:
        self._shard = shard
        self._prefix = pack_u32(queue.id)
        self._now_ms = now_ms
        self._seen = self._look_up({dedup_id for dedup_id in dedup_ids if dedup_id})

    def _look_up(self, dedup_ids: set[str]) -> dict[str, tuple[int, int]]:
        if not dedup_ids:
            return {}
        shard = self._shard
        shard.settle_writes()
        names = sorted(dedup_ids)
        records = shard.store.get_many([self._prefix + name.encode() for name in names], shard.store.families.dedup)
        seen = {}
        for name, record in zip(names, records, strict=True):
            expires_ms, high, low = _RECORD.unpack(record) if record is not None else (0, 0, 0)
            if expires_ms > self._now_ms:
                seen[name] = (high, low)
        return seen

    def find(self, dedup_id: str) -> tuple[int, int] | None:
        """The id of the message that had this dedup id first; None if it is new."""
        return self._seen.get(dedup_id) if dedup_id else None

    def remember(self, dedup_id: str, high: int, low: int) -> None:
        """A message with this dedup id was stored."""
        if not dedup_id:
            return
        shard = self._shard
        self._seen[dedup_id] = (high, low)
        expires_ms = self._now_ms + shard.settings.dedup_window_ms
        key = self._prefix + dedup_id.encode()
        shard.batch.put(key, _RECORD.pack(expires_ms, high, low), shard.store.families.dedup)
        shard.schedule.add(on_the_grid(expires_ms), Kind.FORGET, key, shard.batch)
