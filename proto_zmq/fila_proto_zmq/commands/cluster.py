"""Greetings, and the state of the cluster's processes."""

from typing import ClassVar, Final

from fila_proto_zmq.commands.structs import Command, Reply, Struct

MARK: Final = 2
"""Opcode of a push without content: the broker sends it to test whether a connection takes frames. Ignore it."""


class Welcome(Reply):
    """The version chosen, and what a client needs to know of the broker."""

    version: int
    server_version: str
    shards: int
    consumer_timeout_ms: int
    """A client that is silent for longer loses its leases: send a heartbeat at least three times in this span."""
    max_payload_bytes: int = 0
    """The largest payload that this broker accepts; 0: not known. Far larger frames cost a client its connection."""
    session: bytes = b""
    """The secret of this session, 32 bytes: a later Hello with it is from the same client.

    Its first 4 bytes are the epoch of requests.
    """


class Hello(Command):
    """First frame of a client. Sent in any version's header; answered by the router."""

    opcode: ClassVar[int] = 1
    reply: ClassVar[type[Reply]] = Welcome
    versions: list[int]
    client: str = ""
    session: bytes = b""
    """The secret of an earlier Welcome; empty: a new session."""


class ShardOutage(Struct):
    """A shard that does not serve, though its worker lives.

    ``state``: ``opening``, ``waiting`` (for its disk) or ``quarantined``.
    """

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
