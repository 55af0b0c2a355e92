"""Greetings, the state of the cluster's processes, and moves of shards from one worker to another (``core/moves.py``)."""

from typing import Final

from fila_proto_zmq.commands.structs import Command, Reply, Struct

MARK: Final = 2
"""Opcode of a push without content: the broker sends it to test whether a connection takes frames. Ignore it."""


PLACEMENT: Final = 3
"""Opcode of a push by the router to the clients that asked for it in Hello: where the shards are."""

WORKER_BANNER: Final = 4
"""Opcode of the first frame on a direct connection, pushed by the worker: which door it is."""

CLOSED: Final = 6
"""Opcode of a push without content by the router: an operator has ended this session. Greet again before anything else."""


class DoorView(Struct):
    """The own door of a live worker, through which clients reach the worker's shards without the router."""

    worker: str
    door: bytes
    """16 random bytes, new in each life of the worker."""
    endpoints: list[str]
    """Where it listens: ``ipc://PATH`` on its own host, or ``tcp://HOST:PORT``; ``*`` is the host of the router."""
    shards: list[tuple[int, int]]
    """The shards that it serves, each as ``(shard, epoch)``."""


class Welcome(Reply):
    """The version chosen, and the facts of the broker that a client needs."""

    version: int
    server_version: str
    shards: int
    consumer_timeout_ms: int
    """A client that is silent for longer loses its leases: send a heartbeat at least three times in this span."""
    max_payload_bytes: int = 0
    """The largest payload that this broker accepts; 0: not known. Far larger frames cost a client its connection."""
    session: bytes = b""
    """The session's secret, 32 bytes, for a later Hello of the same client. Its first 4 bytes are the epoch of requests."""
    doors: list[DoorView] | None = None
    """The placement of the shards, if the greeting asked for it; None: not known yet, an earlier one holds."""


class Hello(Command):
    """First frame of a client. Sent in any version's header; answered by the router."""

    opcode, reply = 1, Welcome
    versions: list[int]
    client: str = ""
    session: bytes = b""
    """The secret of an earlier Welcome; empty: a new session."""
    direct: bool = False
    """Name the placement of the shards in the answer, and push it whenever it changes."""
    api_key: str = ""
    """The secret of an API key, if the cluster has authentication."""


class WorkerBanner(Struct):
    """Which door a direct connection leads to. A client that expects another door closes the connection."""

    door: bytes
    """Empty: the door is about to close. Send nothing more here, and close the connection once all answers are there."""


class Placement(Reply):
    """The doors of the workers. A shard that no door serves is reached through the router."""

    doors: list[DoorView] | None
    """None: a router that has just started has no placement yet; an earlier one holds."""


class GetPlacement(Command):
    """Ask the router where the shards are."""

    opcode, reply = 5, Placement


class ShardOutage(Struct):
    """A shard that does not serve, though its worker lives.

    ``state``: ``opening``, ``waiting`` (for its disk), ``quarantined``, or, with a replicated log, ``following`` or
    ``beginning``.
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
    draining: bool = False
    """Whether it gives its shards to other workers, and takes no shards."""


class ClusterStatus(Reply):
    """The cluster as the router sees it."""

    version: str
    shards: int
    workers: list[WorkerStatus]


class GetClusterStatus(Command):
    """Ask the router for the state of its workers."""

    opcode, reply = 60, ClusterStatus


# --- moves of shards ----------------------------------------------------------------------------------------------------


class MoveShard(Command):
    """Move a shard to another worker, and wait until it serves there.

    Both workers use the same data directory. The command may be repeated: a shard that is there already stays there.
    """

    opcode = 68
    shard: int
    worker: str


class DrainWorker(Command):
    """Move all shards of a worker, one after the other, to the others of its data directory, and give it no shard until
    this is undone.

    The answer comes before the shards have moved: :class:`ClusterStatus` shows what is left. A restart of the worker ends it,
    too.
    """

    opcode = 69
    worker: str
    undo: bool = False


class PrepareShard(Command):
    """Write what a shard has in memory to its files, while it serves. Answered when that is done."""

    opcode = 94
    shard: int


class ReleaseShard(Command):
    """Close a shard for another worker of the same data directory. The router sends no more requests for it after this one.

    Answered when everything else is answered, and the shard's next host is on disk.
    """

    opcode = 95
    shard: int
    worker: str
    """The next host."""


class AdoptShards(Command):
    """Look for shards that other workers have released for this one. Not answered: the worker registers them."""

    opcode = 96


class PutDraining(Command):
    """Set whether a worker is drained. It repeats that whenever it registers. Not answered."""

    opcode = 97
    draining: bool
