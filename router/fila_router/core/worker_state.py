"""One worker as its router sees it.

::

    registers ──▶ routable ──── silent, unreachable ───▶ lost ── any frame ──▶ routable
                     │
                     └──── leaves ───▶ leaving: answers its open requests, gets nothing new

A lost worker comes back by any frame: it holds its shards until another worker registers them. A leaving one
only comes back by registering.
"""

from dataclasses import dataclass, field
from typing import Final

from fila_admission.in_flight import InFlight
from fila_proto_zmq.commands import Register, ShardOutage

SILENCE_MS_MAX: Final = 3000
"""Workers send a pulse four times a second, and a turn takes milliseconds: a live worker is never silent for so long."""


@dataclass(slots=True, eq=False)
class WorkerState:
    """A registered worker. Invariant: ``routable`` implies not ``leaving``."""

    identity: bytes
    pid: int
    version: str
    seen_ms: int
    routable: bool = True
    """Requests may be sent to it. A field, because it is read for every frame."""
    leaving: bool = False
    lost: bool = False
    """Whether it is taken for lost, and no frame of it has come since."""
    rss_bytes: int = 0
    queues: int = 0
    outages: list[ShardOutage] = field(default_factory=list)
    """The shards that are placed on it and that it does not serve."""
    door: bytes = b""
    """The id of its socket for clients; empty: it has no such socket."""
    endpoints: list[str] = field(default_factory=list)
    """Where that socket listens."""
    home: str = ""
    """The name of its data directory. Empty: its shards cannot move."""
    draining: bool = False
    """Whether its shards are moved to other workers, and no shard is moved to it."""
    direct_clients: int = 0
    direct_frames: int = 0
    """The clients and frames at that socket, as its last pulse reported."""
    config_sent: int = -1
    """The version of the runtime config that was last sent to it; -1: it must get the whole config."""
    config_has: int = -1
    """The version that it certainly has before it reads the next frame."""
    in_flight: InFlight = field(default_factory=InFlight)

    @property
    def name(self) -> str:
        """Its identity as text."""
        return self.identity.decode(errors="replace")

    @property
    def state(self) -> str:
        """``up`` or ``down``, as in the cluster status."""
        return "up" if self.routable else "down"

    def registered(self, offer: Register) -> None:
        """Start (again) with a registration."""
        self.pid = offer.pid
        self.outages = offer.outages
        self.version = offer.version
        self.door, self.endpoints = offer.door, offer.endpoints
        self.home, self.draining = offer.home, offer.draining
        self.leaving = self.lost = False
        self.routable = True

    def seen(self, now_ms: int) -> None:
        """Note a frame from it."""
        self.seen_ms = now_ms
        self.routable = not self.leaving

    def leave(self) -> None:
        """Send no new requests to it; it answers its open ones."""
        self.leaving = True
        self.routable = False

    def is_silent(self, now_ms: int) -> bool:
        """Return whether it has been silent for longer than a live worker can be."""
        return now_ms - self.seen_ms > SILENCE_MS_MAX
