"""Whether every shard serves, and the reasons if not."""

from typing import TypedDict

from fila_proto_zmq.commands import ClusterStatus, Metrics


class Obstacle(TypedDict):
    """One reason why the cluster is not ready. ``shard`` is None if it is not about one shard.

    ``state``: ``down``, ``silent`` (its worker does not answer), or that of a shard's outage: ``opening``, ``waiting``,
    ``quarantined``.
    """

    shard: int | None
    state: str
    text: str


def obstacles(latest: Metrics | None, why_not: str) -> list[Obstacle]:
    """Return the obstacles that the router knows; none: every shard has a worker that serves it.

    ``why_not``: why there is no answer, if so.
    """
    status = latest.status if latest else None
    if status is None:
        return [Obstacle(shard=None, state="down", text=f"the router does not answer: {why_not}")]
    return [_obstacle(status, shard) for shard in _down(status)]


def silences(latest: Metrics | None) -> list[Obstacle]:
    """Return the shards of workers that are up by the router's knowledge, and did not answer."""
    if latest is None or latest.status is None:
        return []
    heard = {shard.shard for worker in latest.workers for shard in worker.shards}
    return [
        Obstacle(
            shard=shard,
            state="silent",
            text=f"shard {shard} waits for {worker.name} (pid {worker.pid}), which does not answer",
        )
        for worker in latest.status.workers
        for shard in worker.shards
        if worker.state == "up" and shard not in heard
    ]


def shards_served(status: ClusterStatus | None) -> set[int]:
    """Return the shards whose workers are up; none if nothing is known."""
    return {shard for worker in status.workers if worker.state == "up" for shard in worker.shards} if status else set()


def _down(status: ClusterStatus) -> list[int]:
    served = shards_served(status)
    return [shard for shard in range(status.shards) if shard not in served]


def _obstacle(status: ClusterStatus, shard: int) -> Obstacle:
    for worker in status.workers:
        if shard in worker.shards:
            text = f"shard {shard} waits for {worker.name} (pid {worker.pid}), which is {worker.state}"
            return Obstacle(shard=shard, state="down", text=text)
        for outage in worker.outages:
            if outage.shard == shard and worker.state == "up":
                return Obstacle(shard=shard, state=outage.state, text=f"shard {shard} is {outage.state}: {outage.reason}")
    return Obstacle(shard=shard, state="down", text=f"shard {shard} has no worker yet")
