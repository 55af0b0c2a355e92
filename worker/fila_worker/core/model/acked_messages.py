"""Acked messages that are still on disk, until enough of them can be removed at once.

An ack has to be durable, but the message need not be removed at once. So when a whole delivery batch is acked, one small
write marks its lease as acked, and its messages become *acked* in their lanes. Scans, deliveries and counts leave acked
messages out. When there are enough of them they are *purged*. Most acked messages of a lane are then one unbroken run from
its beginning, and a range tombstone removes them at the cost of two single deletes (a delete costs a third of an enqueue).
After a crash the marks show which messages were acked.

Only the purge that removes the messages of a mark removes the mark.
"""

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from fila_worker.core.keys import MESSAGE_KEY_BYTES, after, lane_of, pack_u32, pack_u64
from fila_worker.core.model.leases import SETTLED, Finished, Lease
from fila_worker.core.settings import Limits

if TYPE_CHECKING:
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.state import State

Members: TypeAlias = "list[tuple[bytes, Lane]]"


LANE_COST: Final = 2
"""Effort to remove the acked messages of a lane."""


_MARK: Final = b"\x00"
"""The first byte of an acked lease's record, unique in the family. The length of the client's id follows (0: a reservation),
then the id, then the message keys."""


class AckedMessages:
    """The leases whose messages are acked and still on disk. Invariant: these messages are in their lanes' ``acked``."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.leases: dict[int, bytes | None] = {}
        """The client that held each lease, by lease id; None for a reservation."""
        self.lanes: dict[Lane, None] = {}
        """The lanes that have acked messages."""
        self.messages = 0
        self.size_bytes = 0

    @property
    def full(self) -> bool:
        """Whether a purge is due."""
        limits = self._limits
        return (
            self.messages >= limits.acked_messages_max
            or self.size_bytes >= limits.acked_bytes_max
            or len(self.leases) >= limits.acked_leases_max
            or len(self.lanes) >= limits.acked_lanes_max
        )

    def add(self, lease_id: int, client: bytes | None, members: Members, size_bytes: int) -> None:
        """Remember a lease whose messages are acked in their lanes."""
        self.leases[lease_id] = client
        self.lanes |= dict.fromkeys([lane for _, lane in members])
        self.messages += len(members)
        self.size_bytes += size_bytes

    def take(self) -> "tuple[dict[int, bytes | None], dict[Lane, None]]":
        """Return the leases and the lanes, and forget them."""
        taken = self.leases, self.lanes
        self.leases, self.lanes = {}, {}
        self.messages = self.size_bytes = 0
        return taken


def mark_acked(state: "State", lease: Lease) -> None:
    """Mark ``lease`` as acked, and leave its messages on disk. All members must be acked, and none had ended before."""
    members: Members = lease.members  # type: ignore[assignment]  # all are pairs
    mark = pack_mark(lease.client or b"", [key for key, _ in members])
    state.batch.put(pack_u64(lease.id), mark, state.store.families.leases)
    for key, lane in members:
        lane.leased.remove(key)
        (lane.acked or lane.acks()).append(key)
    state.acked.add(lease.id, lease.client, members, sum(lease.sizes))
    if state.acked.full:
        purge(state)


_CLIENT_AT: Final = len(_MARK) + 4


class Mark(NamedTuple):
    """The content of a mark. ``client``: empty if a reservation held the lease."""

    client: bytes
    keys: list[bytes]


def pack_mark(client: bytes, keys: list[bytes]) -> bytes:
    """Return the mark of an acked lease."""
    return b"".join([_MARK, pack_u32(len(client)), client, *keys])


def parse_mark(data: bytes) -> Mark:
    """Return the content of a mark. Raise :class:`ValueError` if it is malformed."""
    keys_at = _CLIENT_AT + int.from_bytes(data[len(_MARK) : _CLIENT_AT], "big")
    if len(data) < keys_at or (len(data) - keys_at) % MESSAGE_KEY_BYTES:
        raise ValueError(f"the mark of an acked lease has {len(data)} bytes, its client ends at {keys_at}")
    keys = [data[start : start + MESSAGE_KEY_BYTES] for start in range(keys_at, len(data), MESSAGE_KEY_BYTES)]
    return Mark(data[_CLIENT_AT:keys_at], keys)


def is_mark(data: bytes) -> bool:
    """Return whether the record of a lease is the mark of an acked one."""
    return data.startswith(_MARK)


def recover_mark(state: "State", lease_id: int, data: bytes) -> bool:
    """Take up the mark of an acked lease after a crash; recovery purges it. Return False if ``data`` is no such mark."""
    if not is_mark(data):
        return False
    mark = parse_mark(data)
    members = [(key, state.known_lane(lane_of(key))) for key in mark.keys]
    for key, lane in members:
        lane.recover_acked(key)
    state.acked.add(lease_id, mark.client or None, members, 0)
    return True


def purge(state: "State") -> None:
    """Remove all acked messages from disk."""
    leases, lanes = state.acked.take()
    for lease_id, client in leases.items():
        state.leases.remember(lease_id, Finished(client, SETTLED), state.batch)
    state.jobs.charge(LANE_COST * len(lanes))
    for lane in lanes:
        state.ledger.touch(lane)
        _remove(state, lane, lane.take_acked())


def _remove(state: "State", lane: "Lane", keys: list[bytes]) -> None:
    messages = state.store.families.messages
    if len(keys) >= state.settings.limits.range_messages_min and _nothing_lives_up_to(lane, last := max(keys)):
        state.batch.delete_range(min(keys), after(last), messages)
        return
    for key in keys:
        state.batch.delete(key, messages)


def _nothing_lives_up_to(lane: "Lane", key: bytes) -> bool:
    head = lane.peek()
    living = (head[0] if head else None, lane.tail, min(lane.leased, default=None))
    return all(each is None or each > key for each in living)
