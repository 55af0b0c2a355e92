"""A power cut under ``durability="os"``: what was written and not synced is lost, and what was synced before it stays."""

from fila_worker.core.store import StoreBatch
from fila_worker.storage.memory import MemoryStore
from tests.support.shard.shard import ShardHarness


class UnsyncedStore(MemoryStore):
    """Remembers what had reached the disk for certain."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0
        self._synced = self._copy()

    def commit(self, batch: StoreBatch, *, sync: bool = False) -> None:
        """Apply a batch; a synced one, and all before it, can't be lost."""
        super().commit(batch, sync=sync)
        if sync:
            self.syncs += 1
            self._synced = self._copy()

    def lose_power(self) -> None:
        """Go back to what was synced last."""
        for family, kept in zip(self.families, self._synced, strict=True):
            family.clear()
            family.update(kept)

    def _copy(self) -> list[dict[bytes, bytes]]:
        return [dict(family) for family in self.families]


class RestoredStore(MemoryStore):
    """Can be put back to an older state, as from a backup: synced or not."""

    def copy(self) -> list[dict[bytes, bytes]]:
        """What is there now."""
        return [dict(family) for family in self.families]

    def restore(self, copy: list[dict[bytes, bytes]]) -> None:
        """Put an older state in place."""
        for family, kept in zip(self.families, copy, strict=True):
            family.clear()
            family.update(kept)


def cut_power(shard: ShardHarness) -> None:
    """Lose what was not synced, and start again."""
    assert isinstance(shard.store, UnsyncedStore)
    shard.store.lose_power()
    shard.restart()
