"""Who is there."""

from typing import ClassVar

from fila_proto_zmq.commands.structs import Command, Reply, Struct


class WorkerStatus(Struct):
    """One worker as the router sees it. ``state`` is ``up`` or ``down``."""

    name: str
    pid: int
    state: str
    shards: list[int]
    rss_bytes: int
    queues: int


class ClusterStatus(Reply):
    """The cluster as the router sees it."""

    version: str
    shards: int
    workers: list[WorkerStatus]


class GetClusterStatus(Command):
    """Ask the router for the state of its workers."""

    opcode: ClassVar[int] = 60
    reply: ClassVar[type[Reply]] = ClusterStatus
