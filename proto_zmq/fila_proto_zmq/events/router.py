"""Events of the router: workers that come and go, and clients that it refuses."""

from fila_proto_zmq.events.event import Event


class RouterListening(Event):
    """The router takes connections of clients and workers."""

    event = "router.listening"
    version: str
    endpoint: str
    worker_endpoint: str
    shards: int


class WorkerJoined(Event):
    """A worker has registered its shards, and they are served."""

    event = "worker.joined"
    worker: str
    worker_pid: int
    version: str
    shards: list[int]


class WorkerLost(Event):
    """A worker is gone or silent; its shards are down."""

    event = "worker.lost"
    level = "warning"
    advice = "Wait: under `up` it comes back by itself. `silent`: it is overloaded or stopped, or its machine sleeps."
    worker: str
    worker_pid: int
    shards: list[int]
    reason: str


class WorkerReturned(Event):
    """A worker that was lost sends frames again, and serves its shards as before."""

    event = "worker.returned"
    advice = "If this comes often, the machine, or the network to it, is overloaded."
    worker: str
    worker_pid: int
    shards: list[int]


class WorkerLeft(Event):
    """A worker has announced its stop; its shards are down until a worker registers them."""

    event = "worker.left"
    worker: str
    worker_pid: int
    shards: list[int]


class ShardMoved(Event):
    """A shard has gone from one worker to another, as an operator asked; ``outage_ms``: how long it did not serve."""

    event = "shard.moved"
    shard: int
    source: str
    target: str
    outage_ms: int


class ShardNotMoved(Event):
    """A shard could not be moved to another worker."""

    event = "shard.not_moved"
    level = "warning"
    advice = "`reason` says why. `status` shows where the shard is; move it again if it is not where you want it."
    shard: int
    source: str
    target: str
    reason: str


class WorkerDraining(Event):
    """A worker begins to give its shards to the others, and takes none from now on."""

    event = "worker.draining"
    worker: str
    shards: list[int]


class WorkerUndrained(Event):
    """A worker that was drained may take shards again."""

    event = "worker.undrained"
    worker: str


class WorkerRefused(Event):
    """A worker's registration was refused."""

    event = "worker.refused"
    level = "error"
    advice = "`reason` says what is wrong. Mostly the same shards were started twice: stop one of the two."
    worker: str
    error: str
    reason: str


class ConfigNotTaken(Event):
    """A worker could not take over a change of the runtime config."""

    event = "config.not_taken"
    level = "error"
    advice = "The worker's own log says why; mostly its disk is full. Set the key again."
    worker: str
    version: int
    error: str


class ClientConnected(Event):
    """A client has introduced itself."""

    event = "client.connected"
    level = "debug"
    client: str


class ClientRefused(Event):
    """Clients were refused: ``refusals`` since the last such event, the last one of ``client``."""

    event = "client.refused"
    level = "warning"
    advice = "`UNSUPPORTED_VERSION`: upgrade that client. `INVALID_FRAME`: something that is no client connects to this port."
    client: str
    error: str
    refusals: int


class AdminActed(Event):
    """Somebody has changed something, or was refused that.

    The steps of one act, and refusals of one kind within 10 s, are one line. ``by`` is the API key, ``client`` the session.
    ``result`` is ``ok`` or the code of an error.
    """

    event = "admin.acted"
    by: str
    client: str
    address: str
    verb: str
    target: str
    details: str
    result: str
