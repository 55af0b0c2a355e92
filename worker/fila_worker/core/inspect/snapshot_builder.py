"""Snapshots: copy what a view needs of some queues over many turns, all of it as it was at one moment.

The disk is pinned at that moment. The lanes and their counts are only in memory, so they are copied in steps afterwards. Code
that changes a lane shows it first (:meth:`core.model.ledger.Ledger.show`), and a lane without a copy is copied then. So each
copy is of that moment, though the queues go on. The holders of messages are read from the pinned records of the leases.

Cost: some 10 µs a key over all steps. Code that changes lanes meanwhile pays for the copy of each lane that it shows.
Rejected: a copy in one turn (a second for 200,000 keys), and a recovery from pinned families (the memory of a second shard).
"""

from collections.abc import Generator, Iterable, Mapping
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Final

from fila_proto_zmq.commands import OpenView, ViewedQueue
from fila_worker.core.inspect.snapshot import NO_HOLDS, Hold, KeySnapshot, LaneSnapshot, QueueSnapshot
from fila_worker.core.keys import MESSAGE_KEY_BYTES, lane_of, pack_u64
from fila_worker.core.model import acked_messages
from fila_worker.core.model.leases import decode_lease, member_ended
from fila_worker.core.walking import portions, views_of

if TYPE_CHECKING:
    from fila_worker.core.model.leases import Lease
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State
    from fila_worker.core.walking import View

LANE_COST: Final = 4
LEASE_COST: Final = 10
KEY_COST: Final = 3
"""Effort to copy a lane, to read a lease, and to complete a key."""

HOLDS_AT_ONCE: Final = 2
"""Leased messages that are noted for one unit of effort."""

NAMES_AT_ONCE: Final = 4
"""Names of keys that are sorted for one unit of effort."""

NO_THROTTLE_KEYS: Final[list[str]] = []

Holds = dict[int, dict[bytes, Hold]]
"""Leased messages, by lane."""


class _Copy:
    """What is copied of a queue so far."""

    def __init__(self, queue: "Queue") -> None:
        self.queue = queue
        self.keys: dict[str, KeySnapshot] = {}
        """Keys with messages; their lanes are in any order."""
        self.seen: set[int] = set()
        """The ids of all lanes that were shown or visited."""
        self.messages = 0


class SnapshotBuilder:
    """Copies some queues as of the moment of its construction, which may be within a turn."""

    def __init__(self, state: "State", queues: "list[Queue]") -> None:
        self._state = state
        acked_messages.purge(state)
        state.settle_writes()
        families = state.store.families
        self.pin = state.store.pin([families.messages, families.delayed])
        """The messages at that moment."""
        self._lease_pin = state.store.pin([families.leases])
        self._copies = {queue.id: _Copy(queue) for queue in queues}
        self._last_lane = state.counters.lane
        self._leases = list(state.leases.leases.values())
        state.ledger.watches.append(self._copy)

    def freeze(self, command: OpenView) -> "Generator[int, int, tuple[dict[str, QueueSnapshot], list[ViewedQueue]]]":
        """Copy the queues in steps; return the snapshots by name, and a description of each."""
        for copy in self._copies.values():
            yield from self._walk(copy.queue)
        self._state.ledger.watches.remove(self._copy)
        holds = yield from self._read_leases()
        self._lease_pin.close()
        frozen, viewed = {}, []
        for copy in self._copies.values():
            queue, bounds = yield from self._put_together(copy, holds, command)
            frozen[queue.name] = queue
            viewed.append(ViewedQueue(queue.name, copy.messages, bounds))
        return frozen, viewed

    # --- lanes --------------------------------------------------------------------------------------------------------

    def _copy(self, lane: "View", leaving: bytes | None = None) -> None:
        """Copy a lane that is as it was at the moment, except for ``leaving``, a message that was taken out of its line."""
        copy = self._copies.get(lane.key.queue.id)
        if copy is None or lane.id > self._last_lane or lane.id in copy.seen:
            return
        copy.seen.add(lane.id)
        if not (lane.stored or lane.delayed):
            return
        throttle_keys = list(lane.throttle_keys) if lane.throttle_keys else NO_THROTTLE_KEYS
        frozen = LaneSnapshot(lane.id, throttle_keys, _start(lane, leaving), lane.stored, lane.delayed, NO_HOLDS)
        copy.messages += lane.stored + lane.delayed
        key = copy.keys.get(lane.key.name)
        if key is None:
            copy.keys[lane.key.name] = KeySnapshot(lane.key.name, lane.key.weight, [frozen])
        else:
            key.lanes.append(frozen)

    def _walk(self, queue: "Queue") -> "Generator[int, int, None]":
        step = max(1, self._state.settings.limits.step_effort // LANE_COST)
        for keys in portions(self._state, queue):
            views = views_of(self._state, keys)
            while piece := list(islice(views, step)):
                for view in piece:
                    self._copy(view)
                yield LANE_COST * len(piece)

    # --- leases -------------------------------------------------------------------------------------------------------

    def _read_leases(self) -> "Generator[int, int, Holds]":
        holds: Holds = {}
        effort = 0
        for lease in self._leases:
            effort += 1
            if lease.queue.id in self._copies:
                effort += LEASE_COST + self._read_lease(lease, holds) // HOLDS_AT_ONCE
            if effort >= self._state.settings.limits.step_effort:
                yield effort
                effort = 0
        self._state.jobs.charge(effort)
        return holds

    def _read_lease(self, lease: "Lease", holds: Holds) -> int:
        """Note which messages a lease held at the moment; return how many messages its record lists."""
        wanted = pack_u64(lease.id)
        key, data = next(self._lease_pin.scan(wanted, self._state.store.families.leases))
        assert key == wanted, f"lease {lease.id} was open and has no record"
        record = decode_lease(data)
        common = Hold(record.leased_ms, record.expires_ms, lease.holder.shown)
        for index, start in enumerate(range(0, len(record.keys), MESSAGE_KEY_BYTES)):
            message_key = record.keys[start : start + MESSAGE_KEY_BYTES]
            if member_ended(message_key) is None:
                hold = common._replace(expires_ms=record.extended[index]) if index in record.extended else common
                holds.setdefault(lane_of(message_key), {})[message_key] = hold
        return len(record.keys) // MESSAGE_KEY_BYTES

    # --- keys ---------------------------------------------------------------------------------------------------------

    def _put_together(
        self, copy: _Copy, holds: Holds, command: OpenView
    ) -> "Generator[int, int, tuple[QueueSnapshot, list[str]]]":
        """Return a queue with its keys in the order of their names, and the names that divide the keys into ranges."""
        limits = self._state.settings.limits
        target = max(command.range_messages, -(-copy.messages // limits.view_ranges_max))
        queue, bounds, gathered = QueueSnapshot(copy.queue.name, copy.keys, []), [], 0
        step = max(1, limits.step_effort // KEY_COST)
        names = yield from _sorted_runs(copy.keys, limits.view_names_at_once)
        while piece := list(islice(names, step)):
            for name in piece:
                lanes = copy.keys[name].lanes
                if gathered >= target:
                    bounds.append(name)
                    gathered = 0
                for lane in lanes:
                    gathered += lane.stored + lane.delayed
                if holds or len(lanes) > 1:
                    lanes[:] = [_with_holds(lane, holds) for lane in sorted(lanes)]
            queue.names.extend(piece)
            yield KEY_COST * len(piece)
        return queue, bounds


def _start(lane: "View", leaving: bytes | None) -> bytes:
    """Return a key from which a scan meets no tombstones of messages that were consumed before."""
    head = lane.peek()
    start = head[0] if head else lane.end
    for first in (lane.tail, leaving, min(lane.claimed, default=None)):
        if first is not None and first < start:
            start = first
    return start


def _with_holds(lane: LaneSnapshot, holds: Mapping[int, dict[bytes, Hold]]) -> LaneSnapshot:
    held = holds.get(lane.id)
    if held is None:
        return lane
    return lane._replace(holds=held if len(held) == 1 else dict(sorted(held.items())))


def _sorted_runs(names: Iterable[str], at_once: int) -> "Generator[int, int, Iterable[str]]":
    """Return names in order: each step sorts a run, and the runs are merged while the result is read."""
    left, runs = iter(names), []
    while run := sorted(islice(left, at_once)):
        runs.append(run)
        yield 1 + len(run) // NAMES_AT_ONCE
    return merge(*runs)
