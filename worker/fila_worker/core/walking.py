"""Walks over all fairness keys, or all leases, of a queue that take many turns.

Keys come and go while a walk rests. So a walk takes keys in *portions*, in the order in which they were made. Its position is
the number of keys before the next portion, and the number of keys that the queue has ever forgotten. When keys are forgotten,
the position moves back by as many. So a walk meets each key that exists all the time, and each key that is made meanwhile. It
may meet some keys twice.

Rejected: ids in a sorted list (60 bytes a key), and a list of all keys when a walk begins (8 MiB for each walk over a
million).
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
"""A lane for reading only."""

VIEWS_AT_ONCE: Final = 1
"""Lanes that are made views for one unit of effort."""

SKIPPED_AT_ONCE: Final = 200
"""Keys that are skipped for one unit of effort."""

LOOKS_AT_ONCE: Final = 4
"""Leases, or leased messages, that are read for one unit of effort."""


def keys_from(state: "State", queue: "Queue", start: int, count: int) -> "tuple[list[FairnessKey], int]":
    """Return up to ``count`` keys of a queue, and where the next ones begin. ``start`` 0: the first keys."""
    position = max(0, start - queue.forgotten_keys)
    keys = queue.keys.portion(position, count)
    state.jobs.charge((position + len(keys)) // SKIPPED_AT_ONCE)
    return keys, position + len(keys) + queue.forgotten_keys


def portions(state: "State", queue: "Queue") -> "Iterator[list[FairnessKey]]":
    """Yield all keys of a queue, in portions."""
    keys, start = keys_from(state, queue, 0, state.settings.limits.walk_keys_max)
    while keys:
        yield keys
        keys, start = keys_from(state, queue, start, state.settings.limits.walk_keys_max)


def views_of(state: "State", keys: "Iterable[FairnessKey]") -> Iterator[View]:
    """Yield the lanes of some keys, each as it is at that time. A forgotten key has none."""
    for key in keys:
        if key.several is None:
            yield from key.views
        else:
            for lane in list(key.several.values()):
                view = again(state, lane)
                if view is not None:
                    yield view


def pieces(state: "State", queue: "Queue", count: int, key_name: str | None = None) -> Iterator[list[View]]:
    """Yield the lanes of a queue, or of one of its keys, in pieces of ``count``. Lanes may come and go between two pieces.

    The lanes of a piece exist when it is yielded. A caller that rests within a piece must get the others with :func:`again`.
    """
    chosen = [queue.keys[key_name]] if key_name is not None and key_name in queue.keys else []
    parts = portions(state, queue) if key_name is None else iter([chosen])
    views = (view for keys in parts for view in views_of(state, keys))
    while not queue.gone and (piece := list(islice(views, count))):
        yield piece


def again(state: "State", view: View) -> "View | None":
    """Return the present form of a lane, which may have been cooled down or warmed up; None if it was forgotten."""
    lane = state.lanes.get(view.id)
    if lane is not None:
        return lane
    key = getattr(view, "key", None)  # a lane that was cooled down has no key
    if key is not None and key.cold is not None and (cold := unpacked(key)).id == view.id:
        return cold
    return state.find_lane(view.id)


def lease_pieces(state: "State", queue: "Queue") -> "Iterator[tuple[list[Lease], int]]":
    """Yield the open leases of a queue in pieces, each with the effort to read all its messages.

    Leases may come and go between two pieces. Leases that are made meanwhile are left out, and so are leases that ended.
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
