"""What a shard needs to know of its configuration."""

from dataclasses import dataclass, field

from fila_worker.core.limits import Limits

BUFFER_BYTES = 48 * 1024 * 1024
"""Records of pending messages that a shard keeps in memory; what does not fit is read back when its turn comes."""


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """Times in milliseconds, sizes in bytes; ``quantum`` in units of cost. A limit of None is none."""

    quantum: int = 1000
    visibility_timeout_ms: int = 30_000
    consumer_timeout_ms: int = 15_000
    max_payload_bytes: int = 16 * 1024 * 1024
    buffer_bytes: int = BUFFER_BYTES
    max_queue_messages: int | None = None
    max_queue_bytes: int | None = None
    max_key_messages: int | None = None
    max_keys_per_queue: int = 1_000_000
    min_free_disk_bytes: int = 0
    dedup_window_ms: int = 300_000
    lua_timeout_ms: int = 10
    lua_memory_limit_bytes: int = 1024 * 1024
    lua_breaker_threshold: int = 3
    lua_breaker_cooldown_ms: int = 10_000
    limits: Limits = field(default_factory=Limits)
