"""Every bound of a door in one place, each with its reason. Tests scale them down."""

from dataclasses import dataclass, replace

from fila_admission.limits import RoomLimits


@dataclass(frozen=True, slots=True)
class DoorLimits(RoomLimits):
    """Bounds of what clients can make a worker keep at its own door."""

    connections_max: int = 8192
    """Connections at a time; fewer if the process may not have so many descriptors. Beyond, the one that is idle longest makes
    room, if it is idle for ``spared_ms``; else the new one is closed, and its client goes through the router."""
    spared_ms: int = 10_000
    """A connection that carried a frame so lately is not idle."""
    greeting_ms: int = 5_000
    """A connection that has not greeted for so long is closed."""
    idle_ms: int = 600_000
    """A connection without a frame for so long is closed; a client that holds something is never silent for so long."""
    greeting_bytes_max: int = 4096
    """The largest frame before the greeting."""
    read_bytes: int = 256 * 1024
    """Bytes taken from one connection at a time: a bounded part of a turn."""
    unfinished_bytes_max: int = 256 * 1024 * 1024
    """Bytes of unfinished frames of all connections together. Beyond, the connection with most of them is closed."""
    unread_paused: int = 4 * 1024 * 1024
    """Unread bytes of one client from which on nothing more is read from it."""
    client_unread_max: int = 128 * 1024 * 1024
    """Unread bytes of one client beyond which its connection is closed: as much as the router keeps for it."""
    unread_max: int = 256 * 1024 * 1024
    """Unread bytes of all clients together. Beyond, the connection with most of them is closed."""

    acts_max: int = 250
    """Administrative acts that are kept for the next pulse, which reports them to the router, and as many refusals. The log has all."""


DEFAULTS = DoorLimits()


def limits_here(connections_allowed: int) -> DoorLimits:
    """Return the limits of a process that may have so many connections."""
    return replace(DEFAULTS, connections_max=min(DEFAULTS.connections_max, connections_allowed))
