"""When a shard asks its storage to give back the disk space of messages that are gone.

The storage drops what was removed when it rewrites files, which it does for writes. A queue that was emptied gets none, so without
this its disk space would stay taken for as long as nothing happens.

Giving back takes time of the disk and of a core. So it waits for a quiet moment, and for waste that is worth it.
"""

from collections.abc import Callable
from typing import Final

LOOKS_QUIET: Final = 5
"""So many looks in a row, a second apart, must find the shard quiet."""

COMMITS_QUIET_MAX: Final = 20
"""A shard that commits less often between two looks is quiet."""

LOOKS_BETWEEN: Final = 30
"""At least so many looks pass between two comparisons, because the messages' bytes are summed over all queues for one."""


class DiskSpace:
    """Decides from sizes. ``waste_bytes_min``: waste that is not worth the work."""

    def __init__(self, waste_bytes_min: int) -> None:
        self._waste_bytes_min = waste_bytes_min
        self._commits = 0
        self._quiet = 0
        """Looks in a row that found the shard quiet."""
        self._since_comparison = LOOKS_BETWEEN

    def look(self, used_bytes: int, held_bytes: Callable[[], int], commits: int) -> bool:
        """Return whether to ask for disk space now. Call it once a second.

        ``used_bytes``: the files of the storage; ``held_bytes``: of all messages; ``commits``: since the storage was opened.
        """
        made, self._commits = commits - self._commits, commits
        self._quiet = self._quiet + 1 if made <= COMMITS_QUIET_MAX else 0
        self._since_comparison += 1
        if self._quiet < LOOKS_QUIET or self._since_comparison < LOOKS_BETWEEN or used_bytes < self._waste_bytes_min:
            return False
        self._since_comparison = 0
        held = held_bytes()
        return used_bytes - held - held // 4 >= self._waste_bytes_min
