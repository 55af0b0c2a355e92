"""A bounded look at what lies on disk, for whoever wants to know and not to wait."""

from collections.abc import Iterable
from typing import Final

SAMPLE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Records that are read at once; the last one may be larger. Some milliseconds."""


def sample(items: Iterable[tuple[bytes, bytes]], count_max: int) -> tuple[list[tuple[bytes, bytes]], bool]:
    """The first of some stored items, and whether they are all."""
    looked: list[tuple[bytes, bytes]] = []
    left_bytes = SAMPLE_BYTES_MAX
    for key, value in items:
        if len(looked) >= count_max or left_bytes <= 0:
            return looked, False
        looked.append((key, value))
        left_bytes -= len(value)
    return looked, True
