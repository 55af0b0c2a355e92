"""Whether the disk under a node's copies takes what is written, or hosts with room should lead its shards.

A node that has failed is well again only after a while, and with more room than it needs: else its shards would come and go.
"""

from typing import Final

WELL_MS: Final = 120_000
"""How long no write may have failed. A shard that comes back and goes again costs two hand-overs."""
ROOM_FACTOR: Final = 1.25
"""So much more room than the least it must have, once it had less."""


class DiskHealth:
    """``least_bytes``: what must stay free on the disk. Times are of a steady clock."""

    def __init__(self, least_bytes: int, well_ms: int = WELL_MS) -> None:
        self._least_bytes, self._well_ms = least_bytes, well_ms
        self._room = ""
        self._failure = ""
        self._failed_ms = 0

    def measured(self, free_bytes: int) -> None:
        """Take how much of the disk is free."""
        if free_bytes < self._least_bytes * (ROOM_FACTOR if self._room else 1):
            free, least = free_bytes >> 20, self._least_bytes >> 20
            self._room = f"its disk has {free} MiB free, and {least} must stay free ([limits] min_free_disk_bytes)"
        else:
            self._room = ""

    def failed(self, reason: str, now_ms: int) -> None:
        """Take that a write or a read has failed."""
        self._failure, self._failed_ms = reason, now_ms

    def problem(self, now_ms: int) -> str:
        """Return what is wrong with the disk, for people; empty: it is well."""
        if self._failure and now_ms - self._failed_ms >= self._well_ms:
            self._failure = ""
        return self._room or (f"its disk failed lately: {self._failure}" if self._failure else "")
