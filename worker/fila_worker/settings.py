"""What a worker process is told by whoever starts it."""

from typing import Literal

import msgspec

from fila_worker.core.settings import ShardSettings


class WorkerSettings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Times in milliseconds, sizes in bytes. ``router``: the endpoint to join; ``shards``: those to host."""

    name: str
    router: str
    data_dir: str
    shards: list[int]
    shards_total: int
    durability: Literal["os", "fsync"] = "os"
    quantum: int = 1000
    visibility_timeout_ms: int = 30_000
    consumer_timeout_ms: int = 15_000
    max_payload_bytes: int = 16 * 1024 * 1024

    def for_shards(self) -> ShardSettings:
        """The part that the shards' cores need."""
        return ShardSettings(
            quantum=self.quantum,
            visibility_timeout_ms=self.visibility_timeout_ms,
            consumer_timeout_ms=self.consumer_timeout_ms,
            max_payload_bytes=self.max_payload_bytes,
        )
