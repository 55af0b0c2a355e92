"""Every bound of a router in one place, each with its reason. Tests scale them down."""

from dataclasses import dataclass

from fila_proto_zmq.limits import DELIVERY_BYTES_MAX


@dataclass(frozen=True, slots=True)
class RouterLimits:
    """Bounds of what clients can make a router keep."""

    sessions_max: int = 20_000
    """Sessions remembered, about 500 bytes each. Beyond, those that were silent longest are forgotten."""
    session_silence_ms: int = 600_000
    """A session that is silent for this long is forgotten: its client greets again when it is refused. A client that holds
    leases at a worker is never silent for more than ``consumer_timeout_ms``, and a session lives for at least ten times that.
    """
    calls_max: int = 10_000
    """Requests that load one worker: about a second of its time; a client that comes now would wait that long."""
    relieving_calls_max: int = 40_000
    """Requests that relieve one worker."""
    waits_max: int = 100_000
    """Receives and reservations that wait at one worker. They cost memory, not time."""
    client_waits_max: int = 10_000
    """Those of one client at one worker: when a client leaves, all of them end in one turn."""
    pages_max: int = 256
    """Open pages (Browse, BrowseView, FetchReserved) of one worker: up to 1 MiB each, and some ms of its time."""
    client_pages_max: int = 8
    """Those of one client at all workers, together with what it has not read. After a quarter of them the router checks
    whether the client reads."""
    page_bytes: int = DELIVERY_BYTES_MAX
    """The size of an open page. It counts as unread from the moment of the question: its answer has its room by then."""
    in_flight_bytes_max: int = 128 * 1024 * 1024
    """Frames on their way to one worker, of each kind. A single larger one still passes when nothing else is in flight."""
    questions_max: int = 1000
    """Open questions to all workers, and open changes of the runtime config."""
    pipe_frames: int = 100
    """Frames that libzmq keeps for a client that does not read them (ZMQ_SNDHWM): few, because the router sees by a full pipe
    how much was read; enough for the answers of one worker's turn to one client."""
    inbound_frames: int = 100
    """Frames that libzmq takes in advance from one client (ZMQ_RCVHWM); then it stops reading the connection."""
    unread_little: int = 256 * 1024
    """Unread bytes that need no check: the amount that a client gets in a moment."""
    unread_probed: int = 8 * 1024 * 1024
    """Unread bytes of one client from which on the router checks whether it reads."""
    client_unread_refused: int = 32 * 1024 * 1024
    """Unread bytes of one client beyond which its requests are refused."""
    client_unread_max: int = 128 * 1024 * 1024
    """Unread bytes of one client beyond which nothing more is sent: the default prefetch of messages of 1 MiB, and more."""
    unread_max: int = 256 * 1024 * 1024
    """Unread bytes of all clients together: beyond it each has its share. The total may reach three times as much."""


DEFAULTS = RouterLimits()
