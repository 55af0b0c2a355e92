"""Whether every shard serves, and what is in the way."""

from typing import TypedDict

from fila_proto_zmq.commands import ClusterStatus, Metrics


class Obstacle(TypedDict):
    """One reason why the cluster is not ready. ``shard`` is None if it is not about one."""

    shard: int | None
    text: str


def obstacles(latest: Metrics | None, why_not: str) -> list[Obstacle]:
    """All reasons; none: it is ready. ``why_not``: why there is no answer, if there is none."""
    status = latest.status if latest else None
    if status is None:
        return [Obstacle(shard=None, text=f"the router does not answer: {why_not}")]
    return [Obstacle(shard=shard, text=_why(status, shard)) for shard in _down(status)]


def shards_served(status: ClusterStatus | None) -> set[int]:
    """The shards whose workers are up; none if nothing is known."""
    return {shard for worker in status.workers if worker.state == "up" for shard in worker.shards} if status else set()


def _down(status: ClusterStatus) -> list[int]:
    served = shards_served(status)
    return [shard for shard in range(status.shards) if shard not in served]


def _why(status: ClusterStatus, shard: int) -> str:
    holder = next((worker for worker in status.workers if shard in worker.shards), None)
    if holder is None:
        return f"shard {shard} has no worker yet"
    return f"shard {shard} waits for {holder.name} (pid {holder.pid}), which is {holder.state}"
