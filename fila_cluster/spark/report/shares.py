"""Deliveries by tenant against what their weights entitle them to.

From the queue's own counters, which start with its shard. A tenant that had little to do got less than its entitlement, and the
others more: that is no unfairness, so the backlog is shown beside.
"""

from collections.abc import Sequence

from fila_cluster.client.views import KeyStats, QueueStats
from fila_cluster.spark.report.figures import TENANTS_SHOWN, Share


def shares_of(stats: QueueStats) -> list[Share]:
    """Those with the most deliveries or the largest entitlement, then the others together; none before the first delivery."""
    keys = sorted((key for key in stats.keys if key.delivered or key.pending), key=_prominence)
    delivered = max(stats.delivered, sum(key.delivered for key in keys))
    if not keys or not delivered:
        return []
    weights = sum(key.weight for key in keys)
    shown = [_share(key.fairness_key, [key], delivered, weights) for key in keys[:TENANTS_SHOWN]]
    if others := keys[TENANTS_SHOWN:]:
        shown.append(_share(None, others, delivered, weights))
    return shown


def _prominence(key: KeyStats) -> tuple[int, int, str]:
    return -key.delivered, -key.weight, key.fairness_key


def _share(name: str | None, keys: Sequence[KeyStats], delivered: int, weights: int) -> Share:
    own_weight = sum(key.weight for key in keys)
    own = sum(key.delivered for key in keys)
    return Share(
        name,
        own_weight,
        own,
        sum(key.pending for key in keys),
        own / delivered,
        own_weight / weights,
    )
