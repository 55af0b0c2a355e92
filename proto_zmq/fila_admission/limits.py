"""Limits that the router and workers share: open requests of one worker, and its trust in the router."""

from dataclasses import dataclass
from typing import Final

from fila_proto_zmq.limits import DELIVERY_BYTES_MAX

TRUST_MS: Final = 2000
"""How long a worker may believe that its router counts it among the living, from a pulse that the router has answered.

It is less than the router's patience with silence, which runs from the same pulse or a later one. A router that continues
without a worker for another reason waits for so long.
"""


@dataclass(frozen=True, slots=True)
class RoomLimits:
    """Bounds of the open requests of one worker."""

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
    """Those of one client at all workers, with what it has not read. After a quarter the router checks whether it reads."""
    page_bytes: int = DELIVERY_BYTES_MAX
    """The size of an open page. It counts as unread from the moment of the question: its answer has its room by then."""
    in_flight_bytes_max: int = 128 * 1024 * 1024
    """Frames on their way to one worker, of each kind. A single larger one still passes when nothing else is in flight."""


DEFAULTS = RoomLimits()
