"""How often a run crosses the boundaries that the scaled-down limits make: counted, so that nobody has to believe that they are met.

A boundary is a function of the product that is called where a limit bites, and what tells whether it did. They are rare, or cheap beside what
they look at. A name that is gone is an error.

Not among them: that the router drops what is not read. It refuses requests long before, so it takes more deliveries to a client that does not
read than a run has.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fila_admission.in_flight import _ROOM_OF, InFlight
from fila_admission.keys import LoginAttempts
from fila_cluster.client.protocol import settling
from fila_cluster.client.protocol.short_calls import ShortCalls
from fila_cluster.client.requests.connection import BrokerConnection
from fila_cluster.client.requests.open_calls import OpenCalls
from fila_proto_zmq.errors import OverloadedError
from fila_router.core.keys.access import Access
from fila_router.core.unread import Unread
from fila_worker.core.callback_groups.owned import OwnedBatches
from fila_worker.core.deliver import delivery
from fila_worker.core.enqueue import enqueue
from fila_worker.core.enqueue.dedup import Dedup
from fila_worker.core.enqueue.sequences import Sequences
from fila_worker.core.inspect.browse import BrowseCursors
from fila_worker.core.jobs import Jobs
from fila_worker.core.manage import purge
from fila_worker.core.model import cold_lanes, lanes
from fila_worker.core.model.acked_messages import AckedMessages
from fila_worker.core.model.due_index import DueIndex
from fila_worker.core.model.lanes import Lane
from fila_worker.core.model.leases import LeaseBook
from fila_worker.core.model.ledger import Ledger
from fila_worker.core.model.state import State
from fila_worker.core.model.token_client import TokenClient
from fila_worker.core.schedules import schedules
from fila_worker.core.shard import Shard
from fila_worker.process.held import HeldEffects
from fila_worker.process.slots import Slot
from tests.simulation.replacing import replaced


def _always(before: Any, result: Any, arguments: Any) -> bool:
    return True


def _was(before: Any, result: Any, arguments: Any) -> bool:
    return bool(before)


def _no(before: Any, result: Any, arguments: Any) -> bool:
    return result is False


@dataclass(frozen=True)
class Boundary:
    """``crossed(before, result, arguments)`` tells whether a call of ``owner.name`` crossed it; ``measure(arguments)`` is ``before``."""

    owner: Any
    name: str
    crossed: Callable[[Any, Any, Any], bool] = _always
    measure: Callable[[Any], Any] | None = None
    raises: tuple[type[Exception], ...] = ()
    """It is crossed if the call raises one of these."""


BOUNDARIES: dict[str, Boundary] = {
    "a turn's effort is used up": Boundary(Shard, "commit", _was, lambda of: of[0].jobs.left <= 0),
    "a turn's deliveries are used up": Boundary(delivery, "_serve", lambda before, served, of: served >= of[2]),
    "due entries wait for a later turn": Boundary(
        DueIndex, "take_due", lambda before, entries, of: len(entries) >= of[0]._limits.turn_due_max
    ),
    "an enqueue is taken in by steps": Boundary(
        enqueue, "_take_in_steps", _was, lambda of: len(of[3].envelopes) > of[0].settings.limits.enqueue_step_messages
    ),
    "a short call is answered": Boundary(ShortCalls, "_answered"),
    "a short call becomes a usual one": Boundary(ShortCalls, "widen"),
    "an enqueue is cut": Boundary(Sequences, "cut"),
    "a purge goes on in steps": Boundary(purge, "_purge_in_steps"),
    "a job is refused": Boundary(Jobs, "_refuse_if_crowded", raises=(Exception,)),
    "a finished lease is forgotten": Boundary(
        LeaseBook,
        "remember",
        lambda before, _, of: of[2].client is not None and len(of[0].finished) <= before,
        lambda of: len(of[0].finished),
    ),
    "acked messages are removed because they are many": Boundary(AckedMessages, "take", _was, lambda of: of[0].full),
    "a fold of the ledger begins": Boundary(Ledger, "fold", _was, lambda of: not of[0].folding),
    "an idle lane is forgotten": Boundary(State, "forget_lane"),
    "a lane cools down": Boundary(cold_lanes, "_cool"),
    "a lane is read on from the disk": Boundary(lanes, "refill"),
    "what came back to a lane is spilled": Boundary(Lane, "spill"),
    "dedup ids of a batch take several entries": Boundary(
        Dedup,
        "remember",
        _was,
        lambda of: len([name for name in of[1] if name]) > of[0]._state.settings.limits.dedup_entry_ids_max,
    ),
    "a browse's place is forgotten": Boundary(
        BrowseCursors, "note", lambda before, _, of: len(of[0]) <= before, lambda of: len(of[0])
    ),
    "effects are held for a commit that is not confirmed": Boundary(
        HeldEffects, "hold", lambda _, sent, of: bool(of[2]) and not sent
    ),
    "a log has too much to confirm": Boundary(
        Slot,
        "look_at_log",
        lambda full, _, of: not full and of[0].log_full_ms is not None,
        lambda of: of[0].log_full_ms is not None,
    ),
    "a message waits for tokens": Boundary(TokenClient, "take", _no),
    "the router refuses a call": Boundary(InFlight, "has_room", lambda _, fits, of: not fits and _ROOM_OF[of[2]] == 0),
    "the router refuses a wait": Boundary(InFlight, "has_room", lambda _, fits, of: not fits and _ROOM_OF[of[2]] == 2),
    "the router refuses a page": Boundary(InFlight, "has_room", lambda _, fits, of: not fits and _ROOM_OF[of[2]] == 3),
    "the router holds back what is not read": Boundary(Unread, "hold"),
    "a client refuses a call": Boundary(OpenCalls, "_no_room"),
    "a client's frame waits for room in its pipe": Boundary(BrokerConnection, "_fits", _no),
    "nacks take several frames": Boundary(settling._Frame, "has_room", _no),
    "a batch too many is refused": Boundary(OwnedBatches, "open", raises=(OverloadedError,)),
    "a batch that has ended is forgotten": Boundary(
        OwnedBatches, "end", lambda before, _, of: len(of[0].ended) <= before, lambda of: len(of[0].ended)
    ),
    "a batch is open for too long": Boundary(OwnedBatches, "too_old", lambda before, found, of: bool(found)),
    "schedules wait for a later turn": Boundary(
        schedules, "carry_out_due", lambda before, _, of: (of[1].next_due() or of[2] + 1) <= of[2]
    ),
    "an API key too many is refused": Boundary(Access, "_create", raises=(OverloadedError,)),
    "a greeting with a wrong key gets no answer": Boundary(LoginAttempts, "take", _no),
    "an address that greeted with wrong keys is forgotten": Boundary(LoginAttempts, "_forget_oldest"),
}
"""By what happens there."""


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count what is crossed meanwhile."""
    counts: Counter[str] = Counter()
    watched: dict[tuple[Any, str], list[tuple[str, Boundary]]] = {}
    for what, boundary in BOUNDARIES.items():
        watched.setdefault((boundary.owner, boundary.name), []).append((what, boundary))
    with replaced(
        (owner, name, _watching(getattr(owner, name), several, counts)) for (owner, name), several in watched.items()
    ):
        yield counts


def _watching(real: Any, several: list[tuple[str, Boundary]], counts: Counter[str]) -> Any:
    what, first = several[0]
    crossed, measure = first.crossed, first.measure

    def raising(*arguments: Any, **options: Any) -> Any:
        try:
            return real(*arguments, **options)
        except first.raises:
            counts[what] += 1
            raise

    def alone(*arguments: Any, **options: Any) -> Any:
        before = measure(arguments) if measure is not None else None
        result = real(*arguments, **options)
        if crossed(before, result, arguments):
            counts[what] += 1
        return result

    def together(*arguments: Any, **options: Any) -> Any:
        result = real(*arguments, **options)
        for each, boundary in several:
            counts[each] += boundary.crossed(None, result, arguments)
        return result

    return raising if first.raises else alone if len(several) == 1 else together
