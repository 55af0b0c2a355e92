"""Deliveries by tenant against what their weights entitle them to.

Of the last minute, where a dashboard tells of it and something was delivered in it; else from the queue's own counters, which start with
its shard. A tenant that had little to do got less than its entitlement, and the others more: that is no unfairness, so the backlog
is shown beside.
"""

from collections.abc import Sequence

from fila_cluster.client.views import KeyStats, QueueStats
from fila_cluster.observer.half_hour import KeyShare
from fila_cluster.spark.report.figures import TENANTS_SHOWN, Share
from fila_proto_zmq.commands import OTHER_KEYS


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


def shares_lately(told: Sequence[KeyShare], stats: QueueStats) -> list[Share]:
    """Those of the last minute, the others together last; none if nothing was delivered in it."""
    if not any(share.delivered_per_s for share in told):
        return []
    named = [share for share in told if share.fairness_key != OTHER_KEYS][:TENANTS_SHOWN]
    known = {key.fairness_key: key for key in stats.keys}
    shown = [_share_lately(share, known.get(share.fairness_key)) for share in named]
    if others := [share for share in told if share not in named]:
        shown.append(_others_lately(others, shown, stats))
    return shown


def _share_lately(share: KeyShare, key: KeyStats | None) -> Share:
    return Share(
        share.fairness_key,
        key.weight if key else share.weight,
        key.delivered if key else 0,
        key.pending if key else share.pending,
        share.actual,
        share.entitled,
        share.delivered_per_s,
    )


def _others_lately(others: Sequence[KeyShare], shown: Sequence[Share], stats: QueueStats) -> Share:
    """What is due to them is what is not due to those that are shown; nothing, if nobody competes."""
    names = {share.fairness_key for share in shown}
    keys = [key for key in stats.keys if key.fairness_key not in names]
    due = sum(share.entitled for share in shown)
    return Share(
        None,
        sum(key.weight for key in keys),
        max(0, stats.delivered - sum(share.delivered for share in shown)),
        sum(key.pending for key in keys),
        sum(share.actual for share in others),
        max(0.0, 1 - due) if due else 0.0,
        sum(share.delivered_per_s for share in others),
    )


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
