"""Every bound of a router in one place, each with its reason. Tests scale them down."""

from dataclasses import dataclass

from fila_admission.limits import RoomLimits


@dataclass(frozen=True, slots=True)
class RouterLimits(RoomLimits):
    """Bounds of what clients can make a router keep."""

    sessions_max: int = 20_000
    """Sessions remembered, about 500 bytes each. Beyond, those that were silent longest are forgotten."""
    session_silence_ms: int = 600_000
    """A session that is silent for this long is forgotten: its client greets again when it is refused. A client that holds
    leases at a worker is never silent for more than ``consumer_timeout_ms``, and a session lives for at least ten times that.
    """
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

    keys_max: int = 4096
    """API keys. Workers get all of them in one frame."""
    failures_max: int = 200
    """Greetings with wrong keys from one address that are answered at once; more of them get no answer."""
    failure_ms: int = 50
    """The time after which one more of them may be answered."""
    addresses_max: int = 10_000
    """Addresses whose failed greetings are remembered, some 200 bytes each."""

    acts_max: int = 1000
    """Administrative acts that are remembered, some 500 bytes each, and as many refusals."""


DEFAULTS = RouterLimits()
