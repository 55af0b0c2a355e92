"""What a worker process is told by whoever starts it."""

from typing import Literal

import msgspec

from fila_worker.core.settings import ShardSettings


class WorkerSettings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Times in milliseconds, sizes in bytes; a limit of None is none. ``router``: the endpoint to join; ``shards``: those to
    host.
    """

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
    max_queue_messages: int | None = None
    max_queue_bytes: int | None = None
    max_key_messages: int | None = None
    min_free_disk_bytes: int = 0
    dedup_window_ms: int = 300_000
    lua_timeout_ms: int = 10
    lua_memory_limit_bytes: int = 1024 * 1024
    lua_breaker_threshold: int = 3
    lua_breaker_cooldown_ms: int = 10_000

    def for_shards(self) -> ShardSettings:
        """The part that the shards' cores need."""
        return ShardSettings(
            quantum=self.quantum,
            visibility_timeout_ms=self.visibility_timeout_ms,
            consumer_timeout_ms=self.consumer_timeout_ms,
            max_payload_bytes=self.max_payload_bytes,
            max_queue_messages=self.max_queue_messages,
            max_queue_bytes=self.max_queue_bytes,
            max_key_messages=self.max_key_messages,
            min_free_disk_bytes=self.min_free_disk_bytes,
            dedup_window_ms=self.dedup_window_ms,
            lua_timeout_ms=self.lua_timeout_ms,
            lua_memory_limit_bytes=self.lua_memory_limit_bytes,
            lua_breaker_threshold=self.lua_breaker_threshold,
            lua_breaker_cooldown_ms=self.lua_breaker_cooldown_ms,
        )
