"""Whether every shard serves, and the reasons if not."""

import re
from collections.abc import Iterable
from typing import Final, TypedDict

from fila_cluster.client.shard_copies import NO_LEADER, ShardCopies, shard_copies, shard_trouble
from fila_cluster.ops.analysis.hosts import WARNINGS, hosts_in, risks
from fila_proto_zmq.commands import ClusterStatus, Metrics
from fila_proto_zmq.outages import FOLLOWING, NO_QUORUM

_FOLDERS: Final = re.compile(r"(?<![\w.:/])(?:/[^\s/'\",:;()]+)+/")
"""Of an absolute path, up to its last part. Text after a colon is a URL."""


class Obstacle(TypedDict):
    """One reason why the cluster is not ready. ``shard`` is None if it is not about one shard.

    ``state``: ``down``, ``silent`` (its worker does not answer), or that of a shard's outage: ``opening``, ``waiting``,
    ``quarantined``. On a replicated log: ``no_quorum`` (the log does not confirm), ``no_leader`` (a standby takes over),
    ``catching_up`` (a copy has to, before it can lead), ``no_copy``, ``recovering``; of a warning: ``no_standby``,
    ``few_standbys``, ``copy_behind``, ``host_silent``, ``log_under_replicated``, ``host_failing``, ``copy_failing``,
    ``log_unsafe``.
    """

    shard: int | None
    state: str
    text: str


def obstacles(latest: Metrics | None, why_not: str) -> list[Obstacle]:
    """Return the obstacles by the router's status; empty: every shard is served, and can confirm its writes.

    ``why_not``: why there is no answer, if so.
    """
    status = latest.status if latest else None
    if status is None:
        return [Obstacle(shard=None, state="down", text=f"the router does not answer: {why_not}")]
    copies = _copies(latest)
    down = {shard: _hosts_obstacle(copies.get(shard)) or _obstacle(status, shard) for shard in _down(status)}
    unconfirmed = {
        shard: found
        for shard, each in copies.items()
        if each.state == NO_QUORUM and (found := _hosts_obstacle(each)) is not None
    }
    return [found for _, found in sorted({**unconfirmed, **down}.items())]


def warnings(latest: Metrics | None) -> list[Obstacle]:
    """Return the risks that stop no shard now, and would make the loss of another host worse."""
    hosts = hosts_in(latest)
    found = [] if hosts is None else risks(hosts)
    return [Obstacle(shard=risk.shard, state=risk.code, text=risk.text) for risk in found if risk.code in WARNINGS]


def without_folders(found: Iterable[Obstacle]) -> list[Obstacle]:
    """Return obstacles whose texts name files without their folders, for readers without a key."""
    return [Obstacle(shard=each["shard"], state=each["state"], text=_FOLDERS.sub("", each["text"])) for each in found]


def _copies(latest: Metrics | None) -> dict[int, ShardCopies]:
    hosts = hosts_in(latest)
    return {} if hosts is None else {each.shard: each for each in shard_copies(hosts)}


def _hosts_obstacle(copies: ShardCopies | None) -> Obstacle | None:
    """Return why no host serves a shard, by its copies; None: they do not show a reason."""
    trouble = None if copies is None else shard_trouble(copies)
    return None if copies is None or trouble is None else Obstacle(shard=copies.shard, state=trouble.code, text=trouble.text)


def silences(latest: Metrics | None) -> list[Obstacle]:
    """Return the shards of workers that are up by the router's status, and did not answer."""
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
    """Return the shards whose workers are up; empty without a status."""
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
                if outage.state == FOLLOWING:
                    text = f"no host leads shard {shard} now, by the router's status"
                    return Obstacle(shard=shard, state=NO_LEADER, text=text)
                return Obstacle(shard=shard, state=outage.state, text=f"shard {shard} is {outage.state}: {outage.reason}")
    return Obstacle(shard=shard, state="down", text=f"shard {shard} has no worker yet")
