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
