"""How much of everything a shard keeps and does: the bounds that users have no reason to set.

They are parameters because tests scale them down: a boundary that no test crosses is where the next defect is. A limit that is a
fact of a format (how long a name may be) is not here, nor is one that users set (:mod:`fila_worker.core.settings`).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Counts, bytes and milliseconds; the unit is the last word but ``max`` of a name."""

    finished_leases_max: int = 8192
    """Finished leases that are remembered, so that a repeated settlement gets its first answer again."""
