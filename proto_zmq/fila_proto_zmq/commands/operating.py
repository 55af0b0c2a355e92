"""Questions of operators to a running cluster: the administrative acts, and the connections."""

from fila_proto_zmq.commands.structs import Command, Reply, Struct


class Act(Struct):
    """An administrative act. It has no payloads, headers, scripts, values or secrets."""

    at_ms: int
    """When it was asked for, Unix ms."""
    by: str
    """The name of the API key; empty: without a valid one, or the cluster has no authentication."""
    client: str
    """The session, by the name that people see."""
    address: str
    """Where it came from; empty: not known, as for a client of the same host that uses a socket file."""
    verb: str
    """``queue.create``, ``config.set``, …"""
    target: str
    """The queue, config key, API key, backup or session."""
    details: str
    """Names of options, a fairness key, permissions; may be empty."""
    result: str
    """``ok``, or the code of the error."""
    times: int = 1
    """Steps of one act, or refusals of one kind, are one entry; the target is that of the last one."""


class ActList(Reply):
    """Acts, the latest first."""

    acts: list[Act]


class ListActs(Command):
    """Ask for the latest administrative acts that the router remembers."""

    opcode, reply = 62, ActList
    limit: int = 100
    """1 to 1,000."""


class ConnectionView(Struct):
    """A session of a client. Times are Unix ms."""

    client: str
    """Its name for people; :class:`CloseConnection` takes it."""
    key: str
    """The name of its API key; empty: the cluster has no authentication."""
    address: str
    """Where it greeted from; empty: through a socket file."""
    version: str
    """Its name in its greeting."""
    since_ms: int
    """When it greeted this router first."""
    heard_ms: int
    """When the router or a worker last received a frame of it, to the second."""
    consumes: list[str] = []
    """Queues that it receives from, at most 10 for each worker."""
    subscriptions: int = 0
    """Its subscriptions and waiting receives."""
    unsettled: int = 0
    """Messages that are leased to it."""


class ConnectionList(Reply):
    """Connections by name, and whether more follow the last one."""

    connections: list[ConnectionView]
    more: bool = False


class ListConnections(Command):
    """Ask for the clients that have greeted, by name. A worker that does not answer in a second is left out."""

    opcode, reply = 63, ConnectionList
    after: str = ""
    """Only those after this name, the last one of the page before."""
    limit: int = 100
    """1 to 500."""


class CloseConnection(Command):
    """End a client's session everywhere: its leases go back, uncounted, and it gets nothing more. It may greet again."""

    opcode = 67
    client: str
    """Its name, 8 hex digits."""


class ClientWork(Struct):
    """The state of a client at one worker. ``heard_ms``: Unix ms; 0: not known there."""

    client: bytes
    heard_ms: int
    consumes: list[str]
    subscriptions: int
    unsettled: int


class ClientsDescribed(Reply):
    """The state of clients at one worker; those without any are left out."""

    clients: list[ClientWork]


class DescribeClients(Command):
    """Ask a worker what these clients have there."""

    opcode, reply = 88, ClientsDescribed
    clients: list[bytes]


class EndClient(Command):
    """End the leases and subscriptions that a client has at a worker. Not answered if its request is 0."""

    opcode = 89
    client: bytes
    unreached: bool = False
    """Only push nothing more through this router until the next heartbeat: the client's connection to it is gone."""


class ShardCut(Struct):
    """One shard's part of a backup."""

    shard: int
    epoch: int
    """Of the opening in which the backup began."""
    ready: bool
    """Its transfers to other shards rest, and it can be cut without a long turn."""
    rested: bool
    """Its transfers have rested since the backup began; false: this backup may lack messages, begin another one."""
    path: str = ""
    """The directory of its checkpoint, on the worker's host; empty: not cut yet."""
    size_bytes: int = 0


class BackupParts(Reply):
    """The parts of a backup. The router asks all workers and joins their answers."""

    shards: list[ShardCut]
    hosts: list[str]
    """The hosts of the workers that answered."""


class BeginBackup(Command):
    """Stop transfers between shards, and prepare for the cut. They continue if this is not repeated for 5 s."""

    opcode, reply = 64, BackupParts
    backup: str
    """A name that no other backup has: 8 to 64 of ``A-Z a-z 0-9 -``."""


class CutBackup(Command):
    """Make a checkpoint of each shard. Ask for it when all shards of the cluster are ready."""

    opcode, reply = 65, BackupParts
    backup: str


class KeepBackup(Command):
    """Resume transfers, and keep the checkpoints for a time from now on.

    The first answer says whether all shards ``rested`` until then. Only then is the backup whole.
    """

    opcode, reply = 66, BackupParts
    backup: str
    for_ms: int
    """At most 60,000; 0: remove them now."""
