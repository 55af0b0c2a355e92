"""What the router and its workers say to each other."""

from collections.abc import Mapping
from typing import ClassVar

from fila_proto_zmq.commands.cluster import ShardOutage
from fila_proto_zmq.commands.structs import Command, Reply, Struct
from fila_proto_zmq.runtime_config import pages


class Registered(Reply):
    """The router routes to this worker now; what it lacked of the runtime config and of the parked throttle keys."""

    config_version: int = 0
    config: dict[str, str] | None = None
    """The whole runtime config; None: the worker's is as new, or the pages of a large one came before."""
    parks: dict[str, int] = {}


class Register(Command):
    """A worker offers its shards, each as ``(shard, epoch)``. A shard's higher epoch replaces a lower one.

    A worker registers again whenever one of its shards begins or ceases to serve: what it does not offer, it does not hold.
    """

    opcode: ClassVar[int] = 80
    reply: ClassVar[type[Reply]] = Registered
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


class Pulse(Command):
    """A worker lives. The router answers with :class:`Done`, or with an error if the worker has to register again."""

    opcode: ClassVar[int] = 81
    rss_bytes: int
    queues: int


class Leave(Command):
    """A worker is about to stop: route nothing more to it."""

    opcode: ClassVar[int] = 82


class PutConfig(Command):
    """The router tells a worker of a change to the runtime config; ``whole``: there is nothing else in it.

    A whole config of many keys comes in pages, one after the other. It holds with the last of them, which alone is answered.
    """

    opcode: ClassVar[int] = 83
    version: int
    changes: dict[str, str | None]
    whole: bool = False
    page: int = 0
    """Counts from 0."""
    more: bool = False
    """Another page follows."""


def put_whole(version: int, config: Mapping[str, str]) -> list[PutConfig]:
    """Return a whole config as frames that are no long work for anybody; at least one."""
    several = pages(config)
    return [PutConfig(version, {**page}, True, number, number + 1 < len(several)) for number, page in enumerate(several)]


class TokenWant(Struct):
    """What a shard wants of the buckets of a set of throttle keys, for messages that need all of them.

    Amounts in millionths of a token. ``least`` is of use at all, ``most`` can be used now, both *including* the tokens that
    the shard holds or that are on their way to it (granted, not yet consumed or returned). ``consumed`` and ``returned``
    are totals of the session: lost or repeated frames do no harm. A want stands until the next one for the same keys.
    """

    keys: list[str]
    least: int
    most: int
    consumed: int
    returned: int


class Tokens(Command):
    """A shard asks for tokens and says what it did with those it had. Not answered: :class:`Grants` follow."""

    opcode: ClassVar[int] = 84
    shard: int
    session: int
    """A new one starts with no tokens and totals of 0."""
    wants: list[TokenWant]


class Grant(Struct):
    """Tokens granted to a shard in this session in all. ``wait_ms``: when ``least`` may be there; 0: it is granted."""

    keys: list[str]
    granted: int
    wait_ms: int = 0


class Grants(Command):
    """The router grants tokens. ``levels``: of the buckets concerned, ``(key, level, rate, burst)``, the rate a millisecond.

    Amounts in millionths of a token.
    """

    opcode: ClassVar[int] = 85
    shard: int
    session: int
    grants: list[Grant]
    levels: list[tuple[str, int, int, int]] = []


class Park(Command):
    """Deliver nothing that carries these throttle keys until a time, Unix ms. To the router, which tells every worker."""

    opcode: ClassVar[int] = 86
    parks: dict[str, int]


class Transfer(Struct):
    """A message on its way to a queue of another shard. ``redriven``: it takes the normal enqueue path there."""

    queue: str
    fairness_key: str
    weight: int
    throttle_keys: list[str]
    redriven: bool
    record: bytes


class TransferMessages(Command):
    """Messages for another shard, numbered from ``first`` without gaps. The router forwards it to ``to_shard``.

    Numbers are those of a ``stream``, which lasts from one opening of the sender's store to the next; of streams before ``since``
    nothing can come any more.
    """

    opcode: ClassVar[int] = 90
    to_shard: int
    from_shard: int
    first: int
    transfers: list[Transfer]
    stream: bytes
    since: bytes


class MessagesTransferred(Command):
    """All of a stream up to number ``last`` are durable on ``from_shard``, except ``refused``, which the sender keeps."""

    opcode: ClassVar[int] = 91
    to_shard: int
    from_shard: int
    last: int
    refused: list[int]
    stream: bytes


class Appoint(Command):
    """Ask whether this queue exists; if so, it takes dead letters of other queues from then on."""

    opcode: ClassVar[int] = 92
    to_shard: int
    from_shard: int
    ticket: int
    queue: str


class Appointed(Command):
    """The answer to :class:`Appoint`."""

    opcode: ClassVar[int] = 93
    to_shard: int
    from_shard: int
    ticket: int
    exists: bool
