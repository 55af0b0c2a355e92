"""Who is there."""

from typing import ClassVar

from fila_proto_zmq.commands.structs import Command, Reply, Struct


class ShardOutage(Struct):
    """A shard that does not serve, though its worker lives. ``state``: ``opening``, ``waiting`` (for its disk) or ``quarantined``."""

    shard: int
    state: str
    reason: str


class WorkerStatus(Struct):
    """One worker as the router sees it. ``state`` is ``up`` or ``down``; ``shards`` are those that it serves."""

    name: str
    pid: int
    state: str
    shards: list[int]
    rss_bytes: int
    queues: int
    outages: list[ShardOutage] = []


class ClusterStatus(Reply):
    """The cluster as the router sees it."""

    version: str
    shards: int
    workers: list[WorkerStatus]


class GetClusterStatus(Command):
    """Ask the router for the state of its workers."""

    opcode: ClassVar[int] = 60
    reply: ClassVar[type[Reply]] = ClusterStatus
