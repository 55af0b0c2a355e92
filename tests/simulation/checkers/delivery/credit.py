"""Credit is conserved: what was pushed to a living client and never reached it does not count as held by it for ever.

Looks inside: from outside it cannot be told whether a message is leased to a client or waits for one.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.run import Run

Missing = tuple[str, int, int]
"""A client, a shard and a lease."""


def unknown_leases(run: "Run") -> set[Missing]:
    """What shards count as held by subscriptions of living clients that know nothing of it. Looks inside both."""
    alive = {process.identity: process for process in run.history.clients if process.alive and process.identity}
    missing: set[Missing] = set()
    for worker in run.cluster.workers:
        for shard in worker.host.shards.values() if worker.host is not None else ():
            for lease in shard.leases.leases.values():
                process = alive.get(lease.client)
                if process is None or process.closed_us is not None or not lease.subscription_id:
                    continue
                if process.name in run.history.keys:  # once its key has ended, the shard waits for it in vain
                    continue
                if run.history.settlements_undone(shard.index, lease.id):
                    continue
                if lease.id not in _known(process.client._session._consumption):
                    missing.add((process.name, shard.index, lease.id))
    return missing


def _known(consumption: object) -> set[int]:
    subscriptions = consumption.subscriptions.values()  # type: ignore[attr-defined]
    groups = [*(each.leases for each in subscriptions), *consumption._loose.values()]  # type: ignore[attr-defined]
    return {lease for group in groups for lease in group}


def report_unknown(run: "Run", missing: set[Missing]) -> None:
    """They were missing at each look, seconds apart."""
    for client, shard, lease in sorted(missing):
        run.history.fail(
            "credit",
            f"shard {shard} counts lease {lease & 0xFFFFF} of epoch {lease >> 40} as held by {client}, which never had it",
        )
