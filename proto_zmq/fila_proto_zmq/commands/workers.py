"""Commands between the router and its workers."""

from collections.abc import Mapping
from enum import IntEnum
from typing import TypeAlias

from fila_proto_zmq.commands.cluster import ShardOutage
from fila_proto_zmq.commands.messages import Enqueue, Fault
from fila_proto_zmq.commands.operating import Act
from fila_proto_zmq.commands.structs import Command, Reply, Struct
from fila_proto_zmq.runtime_config import pages


class Registered(Reply):
    """The router routes to this worker; with the runtime config and the parked throttle keys that the worker lacked."""

    config_version: int = 0
    config: dict[str, str] | None = None
    """The whole runtime config; None: the worker's is as new, or the pages of a large one came before."""
    parks: dict[str, int] = {}


class Register(Command):
    """A worker offers its shards, each as ``(shard, epoch)``. A shard's higher epoch replaces a lower one.

    A worker registers again whenever one of its shards begins or ceases to serve: it does not hold a shard that it does not
    offer.
    """

    opcode, reply = 80, Registered
    worker: str
    pid: int
    version: str
    shards: list[tuple[int, int]]
    config_version: int = 0
    config: dict[str, str] = {}
    """The runtime config as this worker has it."""
    parks: dict[str, int] = {}
    """Throttle keys that deliver nothing until a time, Unix ms."""
    outages: list[ShardOutage] = []
    """The shards that it is to host and does not serve."""
    door: bytes = b""
    """Names the worker's own door for clients, see :class:`Placement`; empty: it has no door."""
    endpoints: list[str] = []
    """Where that door listens."""
    home: str = ""
    """Names the data directory: shards move only between workers with the same name. Empty: it has no directory."""
    draining: bool = False
    """Whether it gives its shards to other workers, and takes no shards."""


class BankLease(Struct):
    """Ask a router to hold the token bank of a cluster of many routers, for a time. Only the worker that leads shard 0 says
    so.

    The time counts from when the router sent ``at_ms``, so a frame that was late on its way makes it no longer.
    """

    epoch: int
    """Differs for each holder, and increases. A router that begins to hold the bank begins with empty buckets."""
    at_ms: int
    """``at_ms`` of the router's last answer."""
    for_ms: int


class Pulsed(Reply):
    """The answer to a pulse."""

    at_ms: int = 0
    """When the router answered, by its own steady clock."""
    bank: int = 0
    """The epoch of the token bank that the router holds now; 0: another router holds it."""


class Pulse(Command):
    """Show that a worker lives. The router answers with an error if the worker has to register again."""

    opcode, reply = 81, Pulsed
    rss_bytes: int
    queues: int
    direct_clients: int = 0
    """Clients that are connected to the worker's own door."""
    direct_frames: int = 0
    """Frames that passed that door since the worker started, in both directions."""
    acts: list[Act] = []
    """Administrative acts that came through that door since the last pulse."""
    keys_version: int = 0
    """The version of the worker's API keys, see PutKeys: a router that has others sends them again. 0: no keys."""
    bank: BankLease | None = None
    """That this router holds the token bank; None: the worker has nothing to say about it."""
    stored_keys: int = 0
    """The version of the API keys in the log of shard 0, if the worker leads it; 0: there are no keys. See FetchKeys."""


class Leave(Command):
    """Announce that a worker stops: nothing more is routed to it."""

    opcode = 82


class ConfigTaken(Reply):
    """The worker has the config. ``shards``: those here whose logs have this version, or a later one."""

    shards: list[int] = []


class PutConfig(Command):
    """Pass a change of the runtime config on to a worker; ``whole``: the config has no other keys.

    A whole config of many keys comes in pages. It holds with the last page, and only that page is answered. Without any
    change it only asks which shards have the version.
    """

    opcode, reply = 83, ConfigTaken
    version: int
    changes: dict[str, str | None]
    whole: bool = False
    page: int = 0
    """Counts from 0."""
    more: bool = False
    """Another page follows."""


def put_whole(version: int, config: Mapping[str, str]) -> list[PutConfig]:
    """Return a whole config as frames of bounded size, so that each is short work; at least one."""
    several = pages(config)
    return [PutConfig(version, {**page}, True, number, number + 1 < len(several)) for number, page in enumerate(several)]


class TokenWant(Struct):
    """The tokens that a shard wants of the buckets of a set of throttle keys, for messages that need all of them.

    Amounts in millionths of a token. ``least`` is the smallest useful amount, ``most`` can be used now, both *including* the
    tokens that the shard holds or that are on their way to it (granted, not yet consumed or returned). ``consumed`` and
    ``returned`` are totals of the session: lost or repeated frames do no harm. A want holds until the next one for the same
    keys.
    """

    keys: list[str]
    least: int
    most: int
    consumed: int
    returned: int


class CostCharge(Struct):
    """By how many millionths of a token deliveries cost more than their messages' costs: taken from the buckets of all keys.

    Below 0: they cost less, and the buckets get the rest back.
    """

    keys: list[str]
    more: int


class Tokens(Command):
    """Ask for tokens and report the use of earlier ones. Not answered: :class:`Grants` follow."""

    opcode = 84
    shard: int
    session: int
    """A new session starts with no tokens and totals of 0."""
    wants: list[TokenWant]
    charge: int = 0
    """The number of ``charges``, which counts up in an epoch of the shard. Sent again until it is confirmed; 0: there are
    none."""
    charges: list[CostCharge] = []


class Grant(Struct):
    """The total of tokens granted to a shard in this session. ``wait_ms``: when ``least`` may be there; 0: it is granted."""

    keys: list[str]
    granted: int
    wait_ms: int = 0
    refused: bool = False
    """Whether a bucket had too few tokens for ``least`` when it was asked."""
    short: bool = False
    """Whether less than ``most`` is granted."""


class Grants(Command):
    """Grant tokens, in millionths. ``levels``: ``(key, level, rate, burst)`` of the buckets, the rate a millisecond."""

    opcode = 85
    shard: int
    session: int
    grants: list[Grant]
    levels: list[tuple[str, int, int, int]] = []
    charged: int = 0
    """The number of the charges that are taken; 0: nothing is confirmed."""


class Park(Command):
    """Park throttle keys: their messages are not delivered until a time, Unix ms. The router passes it on to every worker.

    Only a request with an id is answered: by a worker once it has parked them, by the router once all other workers have.
    """

    opcode = 86
    parks: dict[str, int]


class Carried(IntEnum):
    """What a transfer between partitions of a queue carries beside messages. ``number`` is the partition that it comes from."""

    MESSAGE = 0
    PAUSE = 1
    """Its fairness key is paused."""
    DEDUP_IDS = 2
    """``record`` has dedup ids."""
    LAST_DEDUP_IDS = 3
    """The same, and there are no more."""


class Transfer(Struct):
    """A message on its way to a queue of another shard. ``redriven``: it takes the normal enqueue path there."""

    queue: str
    fairness_key: str
    weight: int
    throttle_keys: list[str]
    redriven: bool
    record: bytes
    enqueue: Enqueue | None = None
    """A new message instead: the enqueue of one message, for the normal enqueue path. ``record`` is empty then."""
    due_ms: int | None = None
    """Of a message that was moved: until when it is delayed, Unix ms; 0: it is not. None: it was not moved."""
    forwarded: int = 0
    """Of a message on its way to its partition of the same queue: the version of the runtime config that created that queue.
    It stays as it is, and no hook runs. 0: of no such message."""
    version: int = 0
    """Of a message on its way to its partition: the version of the config in which the number of partitions last changed."""
    number: int = 0
    """Its sequence number, if it is from before that change; it keeps it. 0: it is not."""
    what: int = 0
    """What it is, if it is no message (:class:`Carried`)."""
    came_back: bool = False
    """Whether it waits for its next attempt, before all others of its key, or until ``due_ms``."""


class EnqueueOutcome(Struct):
    """The outcome of :attr:`Transfer.enqueue` number ``number``: the id of its message, or a fault and no message.

    A moved message that is refused has one, too, with the fault.
    """

    number: int
    id_high: int = 0
    id_low: int = 0
    fault: Fault | None = None


class TransferMessages(Command):
    """Messages for another shard, numbered from ``first`` without gaps. The router forwards it to ``to_shard``.

    Numbers are those of a ``stream``, which lasts from one opening of the sender's store to the next. Streams before
    ``since`` have ended.
    """

    opcode = 90
    to_shard: int
    from_shard: int
    first: int
    transfers: list[Transfer]
    stream: bytes
    since: bytes


class MessagesTransferred(Command):
    """Confirm that a stream's messages up to ``last`` are durable on ``from_shard``; the sender keeps the ``refused``."""

    opcode = 91
    to_shard: int
    from_shard: int
    last: int
    refused: list[int]
    stream: bytes
    outcomes: list[EnqueueOutcome] = []
    """Of the transfers that are enqueues."""


class ReportMove(Command):
    """A partition's message to shard 0, while messages move to another number of partitions: it has sent on what it had.

    ``version``: that of the config in which the number changed. ``empty``: it has no message at all. ``paused``: whether it is.
    """

    opcode = 115
    to_shard: int
    from_shard: int
    queue: str
    version: int
    number: int
    empty: bool
    paused: bool


class Appoint(Command):
    """Ask whether this queue exists; if so, it takes dead letters of other queues from then on."""

    opcode = 92
    to_shard: int
    from_shard: int
    ticket: int
    queue: str


class Appointed(Command):
    """The answer to :class:`Appoint`."""

    opcode = 93
    to_shard: int
    from_shard: int
    ticket: int
    exists: bool


class MakeByTemplate(Command):
    """Ask shard 0 to define a queue with several partitions as its template says, for a message of the broker itself."""

    opcode = 112
    to_shard: int
    queue: str


class PartitionIdle(Command):
    """Tell shard 0 that a partition has been idle for the ``idle_expiry`` of its queue."""

    opcode = 113
    to_shard: int
    queue: str
    partition: int
    created: int
    """The version of the runtime config that created the queue."""


class PartitionsClosed(Command):
    """Tell shard 0 that a shard has seen that a queue is to be deleted. It takes in nothing for that queue until the definition
    changes again; unless some of its partitions, which are ``used``, were not idle: then the queue has to stay.
    """

    opcode = 114
    to_shard: int
    from_shard: int
    queue: str
    closing: int
    """The version of the runtime config by which the queue is to be deleted."""
    used: list[int] = []


ChangesByBroker: TypeAlias = MakeByTemplate | PartitionIdle | PartitionsClosed | ReportMove
"""Messages between shards that may make shard 0 change the runtime config."""
