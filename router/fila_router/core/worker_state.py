"""One worker as its router sees it.

::

    registers ──▶ routable ──── silent, unreachable ───▶ lost ── any frame ──▶ routable
                     │
                     └──── leaves ───▶ leaving: answers what it has in hand, gets nothing new

A lost worker comes back by any frame: as long as nobody else has registered its shards, it holds them. A leaving one
only comes back by registering.
"""

from dataclasses import dataclass, field
from typing import Final

from fila_proto_zmq.commands import ShardOutage
from fila_router.core.in_flight import InFlight

SILENCE_MS_MAX: Final = 3000
"""Workers pulse four times a second, and a turn takes milliseconds: so long a silence is no accident."""


@dataclass(slots=True, eq=False)
class Worker:
    """A registered worker. Invariant: ``routable`` implies not ``leaving``."""

    identity: bytes
    pid: int
    version: str
    seen_ms: int
    routable: bool = True
    """Requests may be sent to it. Read for every frame, hence a field."""
    leaving: bool = False
    rss_bytes: int = 0
    queues: int = 0
    outages: list[ShardOutage] = field(default_factory=list)
    """The shards that it is to host and does not serve."""
    config_told: int = -1
    """The version of the runtime config that it was told last; -1: it must be told the whole."""
    config_has: int = -1
    """The version that it surely has before it reads anything that is sent to it now."""
    in_flight: InFlight = field(default_factory=InFlight)

    @property
    def name(self) -> str:
        """Its identity as text."""
        return self.identity.decode(errors="replace")

    @property
    def state(self) -> str:
        """``up`` or ``down``, as cluster status says it."""
        return "up" if self.routable else "down"

    def registered(self, pid: int, version: str, outages: list[ShardOutage]) -> None:
        """Start (again) from a registration."""
        self.pid = pid
        self.outages = outages
        self.version = version
        self.leaving = False
        self.routable = True

    def seen(self, now_ms: int) -> None:
        """Note a frame from it."""
        self.seen_ms = now_ms
        self.routable = not self.leaving

    def leave(self) -> None:
        """Give it nothing new; it answers what it has."""
        self.leaving = True
        self.routable = False

    def is_silent(self, now_ms: int) -> bool:
        """Return whether it has been quiet for longer than a live worker can be."""
        return now_ms - self.seen_ms > SILENCE_MS_MAX
