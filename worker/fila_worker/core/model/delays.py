"""Delayed messages: out of line until their time, and back in their place.

A delayed message lies in the ``delayed`` family under the key of its place in line, with its due time in front; the schedule
has an entry for it. Where the two disagree (it was cancelled, purged, delayed anew) the message itself is right.
"""

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from fila_proto_zmq.record import HAS_TTL
from fila_worker.core.model.due_index import Kind
from fila_worker.core.model.lanes import extension_of

if TYPE_CHECKING:
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.state import State

_HEAD: Final = Struct(">QB")
DELAYED_HEAD_BYTES: Final = _HEAD.size
"""What a value of the ``delayed`` family has in front of the record."""


_RETRYING: Final = 1
_DEFERRED: Final = 2


class Delayed(NamedTuple):
    """A delayed message. ``retrying``: it was delivered before, and its key still counts it as in flight; ``deferred``: so it was,
    and its consumer put it off."""

    due_ms: int
    retrying: bool
    deferred: bool
    record: bytes


def parse_delayed(value: bytes) -> Delayed:
    """A value of the ``delayed`` family."""
    due_ms, flags = _HEAD.unpack_from(value)
    return Delayed(due_ms, bool(flags & _RETRYING), bool(flags & _DEFERRED), value[_HEAD.size :])


def delay(
    state: "State",
    lane: "Lane",
    key: bytes,
    record: bytes,
    due_ms: int,
    *,
    retrying: bool = False,
    deferred: bool = False,
) -> None:
    """Let a message of ``lane``, not counted anywhere, come to its place ``key`` at ``due_ms``."""
    state.ledger.touch(lane)
    flags = _RETRYING * retrying | _DEFERRED * deferred
    state.batch.put(key, _HEAD.pack(due_ms, flags) + record, state.store.families.delayed)
    state.due_index.add(due_ms, Kind.RELEASE, key, state.batch)
    lane.put_off(len(record), retrying=retrying)
    state.ledger.touch_queue(lane.key.queue)


def lift(state: "State", lane: "Lane", key: bytes, delayed: Delayed) -> None:
    """Take a delayed message out of the delayed ones. The caller says where it goes, and releases its slot if it had one."""
    state.ledger.touch(lane)
    state.batch.delete(key, state.store.families.delayed)
    lane.lift(len(delayed.record), retrying=delayed.retrying)
    state.ledger.touch_queue(lane.key.queue)


def too_old(record: bytes, now_ms: int) -> bool:
    """Whether a message's time to live is over."""
    if not record[1] & HAS_TTL:
        return False
    expires_ms = extension_of(record).expires_ms
    return expires_ms is not None and expires_ms <= now_ms
