"""Acked messages that still lie on disk, until enough of them can be removed at once.

An ack has to be durable, but the message need not be gone at once. So when all of a delivery batch is acked, one small write
marks its lease as acked, and its messages stay *leased* as far as their lanes can see: nobody will scan, deliver or count
them. When enough have gathered they are *purged*: most of a lane's are then one unbroken run from its beginning, and a range
tombstone removes them for what two single deletes cost (a delete costs a third of an enqueue). After a crash the marks say
which messages are dead.

A mark is removed by the purge that removes its messages, and by nothing else.
"""

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from fila_worker.core.keys import MESSAGE_KEY_BYTES, after, lane_of, pack_u32, pack_u64
from fila_worker.core.model.leases import SETTLED, Finished, Lease
from fila_worker.core.settings import Limits

if TYPE_CHECKING:
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.state import State

Members: TypeAlias = "list[tuple[bytes, Lane]]"


LANE_COST: Final = 2
"""Effort to remove the dead messages of a lane."""


class AckedLease(NamedTuple):
    """An acked lease: whose it was, None for a reservation, and its messages."""

    client: bytes | None
    members: Members


_MARK: Final = b"\x00"
"""First byte of an acked lease's record, which no other record in the family begins with. The client's id follows, after its length
(0: a reservation), and the message keys."""


class AckedMessages:
    """The dead messages by lease. Invariant: each is in its lane's ``leased`` and ``stored``, and in no open lease."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.dead: dict[int, AckedLease] = {}
        self.lanes: set[Lane] = set()
        """That have dead messages."""
        self.messages = 0
        self.size_bytes = 0

    @property
    def full(self) -> bool:
        """Whether it is time to purge."""
        limits = self._limits
        return (
            self.messages >= limits.acked_messages_max
            or self.size_bytes >= limits.acked_bytes_max
            or len(self.dead) >= limits.acked_leases_max
            or len(self.lanes) >= limits.acked_lanes_max
        )

    def add(self, lease_id: int, dead: AckedLease, size_bytes: int) -> None:
        """Remember the messages of an acked lease."""
        self.dead[lease_id] = dead
        self.lanes.update([lane for _, lane in dead.members])
        self.messages += len(dead.members)
        self.size_bytes += size_bytes

    def count_by_lane(self) -> Counter[int]:
        """How many are dead in each lane, by lane id."""
        return Counter(lane.id for dead in self.dead.values() for _, lane in dead.members)

    def take(self) -> dict[int, AckedLease]:
        """All of it, and start anew."""
        dead, self.dead = self.dead, {}
        self.lanes.clear()
        self.messages = self.size_bytes = 0
        return dead


def mark_acked(state: "State", lease: Lease) -> None:
    """All members of ``lease``, none of which had ended, were acked: mark it so, and let its messages lie."""
    members: Members = lease.members  # type: ignore[assignment]  # all are pairs
    client = lease.client or b""
    mark = b"".join([_MARK, pack_u32(len(client)), client, *[key for key, _ in members]])
    state.batch.put(pack_u64(lease.id), mark, state.store.families.leases)
    state.acked.add(lease.id, AckedLease(lease.client, members), sum(lease.sizes))
    if state.acked.full:
        purge(state)


_CLIENT_AT: Final = len(_MARK) + 4


def is_mark(data: bytes) -> bool:
    """Whether the record of a lease is the mark of an acked one."""
    return data.startswith(_MARK)


def recover_mark(state: "State", lease_id: int, data: bytes) -> bool:
    """After a crash: take up the mark of an acked lease, for recovery to purge; False if ``data`` is no such mark."""
    if not is_mark(data):
        return False
    keys_at = _CLIENT_AT + int.from_bytes(data[len(_MARK) : _CLIENT_AT], "big")
    keys = [data[start : start + MESSAGE_KEY_BYTES] for start in range(keys_at, len(data), MESSAGE_KEY_BYTES)]
    dead = AckedLease(data[_CLIENT_AT:keys_at] or None, [(key, state.known_lane(lane_of(key))) for key in keys])
    for key, lane in dead.members:
        lane.leases().add(key)
        lane.key.queue.pending -= 1
    state.acked.add(lease_id, dead, 0)
    return True


def purge(state: "State") -> None:
    """Remove all dead messages from disk."""
    by_lane: dict[Lane, list[bytes]] = {}
    for lease_id, dead in state.acked.take().items():
        state.leases.remember(lease_id, Finished(dead.client, SETTLED), state.batch)
        for key, lane in dead.members:
            if lane in by_lane:
                by_lane[lane].append(key)
            else:
                by_lane[lane] = [key]
    state.jobs.charge(LANE_COST * len(by_lane))
    touch, delete, messages = state.ledger.touch, state.batch.delete, state.store.families.messages
    for lane, keys in by_lane.items():
        touch(lane)
        lane.stored -= len(keys)
        if len(keys) == 1:
            lane.leased.remove(keys[0])
            delete(keys[0], messages)
        else:
            lane.leased.difference_update(keys)
            _remove(state, lane, keys)


def _remove(state: "State", lane: "Lane", keys: list[bytes]) -> None:
    messages = state.store.families.messages
    first, last = min(keys), max(keys)
    if len(keys) >= state.settings.limits.range_messages_min and _nothing_lives_up_to(lane, last):
        state.batch.delete_range(first, after(last), messages)
        return
    for key in keys:
        state.batch.delete(key, messages)


def _nothing_lives_up_to(lane: "Lane", key: bytes) -> bool:
    head = lane.peek()
    living = (head[0] if head else None, lane.tail, min(lane.leased, default=None))
    return all(each is None or each > key for each in living)
