"""The hosts of a cluster with a replicated log: which copies of shards they have, who leads, and how far each copy is."""

from typing import Final

from fila_proto_zmq.commands.structs import Command, Histogram, Reply, Struct

BEGINS: Final = "begins"
"""The copy is being opened."""
FOLLOWS: Final = "follows"
"""The copy follows the log; another host leads the shard, or no host does."""
CLAIMS: Final = "claims"
"""The host takes the shard over: its claim is on the way to the log."""
RECOVERS: Final = "recovers"
"""The host leads the shard, and reads it from the copy before it serves."""
LEADS: Final = "leads"
"""The host leads the shard, and serves it."""
WAITS: Final = "waits"
"""The host leads the shard by all that it has read, and does not serve it: the log has confirmed nothing for too long."""
LEAVES: Final = "leaves"
"""The host gives the shard up."""


class LogReplicas(Struct):
    """The log's own copies of a shard's part."""

    in_sync: int
    """The brokers that have all of it."""
    wanted: int
    """The brokers that should."""
    in_sync_min: int
    """With fewer in sync, the log confirms nothing."""


class HostCopy(Struct):
    """One host's copy of a shard. ``role``: ``begins``, ``follows``, ``claims``, ``recovers``, ``leads``, ``waits`` or
    ``leaves``."""

    shard: int
    role: str
    epoch: int = -1
    """Where in the log the last leader began, as the copy shows. The copy with the highest epoch counts; -1: not known."""
    position: int = -1
    """The last offset of the log that is in the copy and confirmed; -1: there is no such offset."""
    end: int = -1
    """The offset behind the last record of the log, by a follower's last report; -1: not known, or it leads."""
    behind: int = -1
    """Records that a follower has still to read; -1: not known. A leader has all."""
    unconfirmed_bytes: int = 0
    """Entries that a leader has written and the log has not confirmed."""
    proof_age_ms: int = -1
    """How long ago the last record was appended that shows that it leads; -1: it does not lead."""
    queues: int = 0
    """Queues that it serves, those of dead letters not counted."""
    problem: str = ""
    """The trouble with the log, for people; empty: there is no trouble."""
    confirm_ns: Histogram | None = None
    """How long the log took to confirm what this copy wrote; None: it has written nothing."""
    log: LogReplicas | None = None
    """The last message of the log's brokers to this worker; None: there was none lately."""


class HostWorker(Struct):
    """A worker process of a host. ``name`` is the worker's, ``host`` the host's."""

    host: str
    name: str
    address: str
    """By which other hosts and their clients reach the host; empty: not said."""
    copies: list[HostCopy]
    draining: bool = False
    """Whether it gives up its shards, and takes over no shards."""
    standbys: int = 1
    """How many other hosts should be ready to take over each shard, as it was configured."""
    problem: str = ""
    """The trouble with its disk, for people: hosts with room lead its shards if there are any. Empty: no trouble."""
    log_problem: str = ""
    """The setting of the log's topic that may lose confirmed entries, for people; empty: no such setting is known."""


class HostList(Reply):
    """The workers that have answered, with their copies. No workers at all: one host, and no replicated log."""

    workers: list[HostWorker]
    shards: int = 0
    """Of the cluster."""
    silent: list[str] = []
    """The workers that are down or did not answer."""
    served: list[int] = []
    """The shards that a live worker serves, as the router sees it, whether it answered or not."""


class GetHosts(Command):
    """Ask which host leads and follows which shard. The router asks every worker that is up."""

    opcode, reply = 59, HostList
