"""Walks over all fairness keys, or all leases, of a queue that take many turns.

Keys come and go while a walk rests. So it takes them in *portions*, in the order in which they were made, and remembers where the next
one begins: how many keys lie before it, and how many the queue has ever forgotten. When keys are forgotten the position moves back by as
many: so a key that is there all the time comes, one that is made meanwhile too, and some may come twice.

Rejected: ids in a sorted list (60 bytes a key), and a list of all keys when a walk begins (8 MiB for each walk over a million).
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from fila_worker.core.model.cold_lanes import unpacked

if TYPE_CHECKING:
    from fila_worker.core.model.cold_lanes import ColdLane
    from fila_worker.core.model.fairness_keys import FairnessKey
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.leases import Lease
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

View: TypeAlias = "Lane | ColdLane"
"""A lane to be read only."""

VIEWS_AT_ONCE: Final = 1
"""Lanes that are made views for one unit of effort."""

SKIPPED_AT_ONCE: Final = 200
"""Keys that are passed over for one unit of effort."""

LOOKS_AT_ONCE: Final = 4
"""Leases, or leased messages, that are looked at for one unit of effort."""


def keys_from(state: "State", queue: "Queue", start: int, count: int) -> "tuple[list[FairnessKey], int]":
    """Up to ``count`` keys of a queue, and where the next ones begin. 0: the first ones."""
    position = max(0, start - queue.forgotten_keys)
    keys = queue.keys.portion(position, count)
    state.jobs.charge((position + len(keys)) // SKIPPED_AT_ONCE)
    return keys, position + len(keys) + queue.forgotten_keys


def portions(state: "State", queue: "Queue") -> "Iterator[list[FairnessKey]]":
    """All keys of a queue."""
    keys, start = keys_from(state, queue, 0, state.settings.limits.walk_keys_max)
    while keys:
        yield keys
        keys, start = keys_from(state, queue, start, state.settings.limits.walk_keys_max)


def views_of(state: "State", keys: "Iterable[FairnessKey]") -> Iterator[View]:
    """The lanes of some keys as each is when it comes; a key that is forgotten has none."""
    for key in keys:
        if key.several is None:
            yield from key.views
        else:
            for lane in list(key.several.values()):
                view = again(state, lane)
                if view is not None:
                    yield view


def pieces(state: "State", queue: "Queue", count: int, key_name: str | None = None) -> Iterator[list[View]]:
    """The lanes of a queue, or of one of its keys, in pieces of ``count``; between two of them others may come and go.

    What is in a piece is there when it comes. Who rests before the end of a piece asks for the others :func:`again`.
    """
    chosen = [queue.keys[key_name]] if key_name is not None and key_name in queue.keys else []
    parts = portions(state, queue) if key_name is None else iter([chosen])
    views = (view for keys in parts for view in views_of(state, keys))
    while not queue.gone and (piece := list(islice(views, count))):
        yield piece


def again(state: "State", view: View) -> "View | None":
    """The same lane as it is now: it may have been cooled down, warmed up or forgotten."""
    lane = state.lanes.get(view.id)
    if lane is not None:
        return lane
    key = getattr(view, "key", None)  # a lane that was cooled down has none
    if key is not None and key.cold is not None and (cold := unpacked(key)).id == view.id:
        return cold
    return state.find_lane(view.id)


def lease_pieces(state: "State", queue: "Queue") -> "Iterator[tuple[list[Lease], int]]":
    """The open leases of a queue in pieces, each with the effort to look at all of its messages.

    Between two pieces others may come and go: those that are made meanwhile are left out, and so are those that have ended.
    """
    piece: list[Lease] = []
    looks, looks_max = 0, state.settings.limits.step_effort * LOOKS_AT_ONCE
    for lease in list(state.leases.leases.values()):
        looks += 1
        if lease.queue is queue and lease.open:
            looks += lease.open
            piece.append(lease)
        if looks >= looks_max:
            yield piece, looks // LOOKS_AT_ONCE
            piece, looks = [], 0
    yield piece, 1 + looks // LOOKS_AT_ONCE
