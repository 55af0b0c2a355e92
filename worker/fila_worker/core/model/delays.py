"""Delayed messages: out of line until their due time, then in line again at their place.

A delayed message is in the ``delayed`` family under the key of its place in line, with its due time in front. The due index
has an entry for it. Where the two disagree (the message was cancelled, purged, or delayed again) the message is right.
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
"""The bytes in front of the record, in a value of the ``delayed`` family."""


_RETRYING: Final = 1
_DEFERRED: Final = 2


class Delayed(NamedTuple):
    """A delayed message.

    ``retrying``: it was delivered before, and its key still counts it as in flight. ``deferred``: likewise, and its consumer
    deferred it.
    """

    due_ms: int
    retrying: bool
    deferred: bool
    record: bytes


def parse_delayed(value: bytes) -> Delayed:
    """Return the delayed message in a value of the ``delayed`` family."""
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
    """Delay a message of ``lane``, counted nowhere, until ``due_ms``. Its place in line is ``key``."""
    state.ledger.touch(lane)
    flags = _RETRYING * retrying | _DEFERRED * deferred
    state.batch.put(key, _HEAD.pack(due_ms, flags) + record, state.store.families.delayed)
    state.due_index.add(due_ms, Kind.RELEASE, key, state.batch)
    lane.put_off(len(record), retrying=retrying)
    state.ledger.touch_queue(lane.key.queue)


def lift(state: "State", lane: "Lane", key: bytes, delayed: Delayed) -> None:
    """Take a message out of the delayed ones. The caller puts it elsewhere, and releases its slot if it had one."""
    state.ledger.touch(lane)
    state.batch.delete(key, state.store.families.delayed)
    lane.lift(len(delayed.record), retrying=delayed.retrying)
    state.ledger.touch_queue(lane.key.queue)


def too_old(record: bytes, now_ms: int) -> bool:
    """Return whether a message's time to live is over."""
    if not record[1] & HAS_TTL:
        return False
    expires_ms = extension_of(record).expires_ms
    return expires_ms is not None and expires_ms <= now_ms
