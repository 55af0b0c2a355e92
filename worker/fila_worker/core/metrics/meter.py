"""The counters of a shard, gathered for monitoring.

No code here runs for each message, or for each queue or key if there are many: a report has bounds, and continues where the
last one ended.

The counters themselves are in the objects that they count: :class:`~core.model.queues.Queue`, its ring, its hooks, its
throttles, the store. A queue's :class:`~core.measures.Meter` has those that are only for monitoring.
"""

from collections.abc import Callable
from heapq import nlargest
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from fila_proto_zmq.commands import (
    Command,
    Enqueue,
    Enqueued,
    HookMetrics,
    PlaceMetrics,
    QueueMetrics,
    QueueMove,
    ScheduleMetrics,
    ShardMetrics,
    ThrottleMetrics,
)
from fila_proto_zmq.partitions import queue_with_places
from fila_worker.core.explain.concurrency import places_in_use
from fila_worker.core.inspect.moving import move_of
from fila_worker.core.metrics.top_keys import TopKeys
from fila_worker.core.model.component import Component

if TYPE_CHECKING:
    from fila_proto_zmq.errors import FilaError
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

QUEUES_SHOWN_MAX: Final = 1000
"""Queues of a shard in one report, 3 to 5 µs each."""

KEYS_LOOKED_AT_MAX: Final = 2000
"""Fairness keys that one report examines, about 2 µs each. Queues without an event since the last report are skipped."""

THROTTLES_SHOWN: Final = 10
THROTTLES_LOOKED_AT_MAX: Final = 1000
LANES_ADDED_UP_MAX: Final = 64
"""Lanes whose messages are added up for a throttle key."""

LONG_LEASE_MS: Final = 60_000
"""Leases that are older are looked at for the longest of a throttle key: healthy consumers have few of them."""

LONG_LEASES_LOOKED_AT_MAX: Final = 2000
REPORT_GAP_MS_MAX: Final = 15_000
"""Reports that are farther apart do not say whether places were in use between them."""


class ReportState:
    """The state of a shard that is only for monitoring."""

    def __init__(self) -> None:
        self.refused: dict[str, int] = {}
        """Refused requests, by the error's code."""
        self.schedules: Callable[[], ScheduleMetrics | None] = lambda: None
        """Returns the numbers of the schedules."""
        self.looked_at = 0
        """The number of queues that were examined so far: the next report begins after them."""
        self.full_since: dict[str, int] = {}
        """Since when each report found all places of a throttle key in use, and messages that waited for them, ms."""
        self.places_seen_ms = 0
        """When the places were last reported."""
        self.moves: dict[Queue, tuple[QueueMove, int, int]] = {}
        """Of partitions whose number changes: how far that had come, since when it is so, and when it was reported, ms."""
        self._top_keys: dict[Queue, TopKeys] = {}

    def top_keys(self, queue: "Queue") -> TopKeys:
        """Return what is known of a queue's busiest keys."""
        return self._top_keys.setdefault(queue, TopKeys())

    def forget_gone(self) -> None:
        """Forget queues that are gone."""
        for queue in [queue for queue in self._top_keys if queue.gone]:
            del self._top_keys[queue]
            self.moves.pop(queue, None)


# --- refusals ---------------------------------------------------------------------------------------------------------


def note_refusal(state: "State", queue: "Queue | None", command: Command, error: "FilaError") -> None:
    """Count a refused request."""
    refused = state.part(ReportState).refused
    refused[error.code] = refused.get(error.code, 0) + 1
    if queue is not None and isinstance(command, Enqueue):
        queue.meter.reject(error.code, len(command.envelopes))


def note_faults(queue: "Queue | None", enqueued: Enqueued) -> None:
    """Count the messages that an accepted enqueue refused."""
    if queue is not None:
        for _, fault in enqueued.faults:
            queue.meter.reject(fault.code)


# --- the report -------------------------------------------------------------------------------------------------------


def report(state: "State", now_ms: int) -> ShardMetrics:
    """Return all numbers of a shard; only its busiest queues if there are many."""
    queues = list(state.queues.values())
    shown = queues if len(queues) <= QUEUES_SHOWN_MAX else nlargest(QUEUES_SHOWN_MAX, queues, key=_traffic)
    watch = state.part(ReportState)
    watch.forget_gone()
    _look_at_keys(state, watch, shown)
    return ShardMetrics(
        state.index,
        [_of_queue(state, queue, now_ms) for queue in shown],
        len(queues) - len(shown),
        _throttles(state, now_ms),
        state.token_client.passes,
        state.token_client.hits,
        dict(watch.refused),
        state.buffers.used_bytes,
        state.store.metrics(),
        watch.schedules(),
        _places(state, watch, now_ms),
    )


def _traffic(queue: "Queue") -> int:
    return queue.depth + queue.enqueued + queue.delivered


def _look_at_keys(state: "State", watch: ReportState, queues: "list[Queue]") -> None:
    """Examine the keys of some queues, in turns."""
    start = watch.looked_at % len(queues) if queues else 0
    left = KEYS_LOOKED_AT_MAX
    for queue in (*queues[start:], *queues[:start]):
        if left <= 0:
            break
        left -= watch.top_keys(queue).look(state, queue, left) + 1
        watch.looked_at += 1


def _of_queue(state: "State", queue: "Queue", now_ms: int) -> QueueMetrics:
    meter, ring, top_keys = queue.meter, queue.ring, state.part(ReportState).top_keys(queue)
    oldest_ms = top_keys.oldest_ms if queue.pending else None
    dwell_ms = meter.dwell_ms.wire() if meter.dwell_ms else None
    settle_ms = meter.settle_ms.wire() if meter.settle_ms else None
    return QueueMetrics(
        queue.info(state.index), 0 if oldest_ms is None else max(0, now_ms - oldest_ms), queue.enqueued, queue.delivered,
        queue.acked, queue.nacked, queue.expired, queue.dead_lettered, meter.redriven, dict(meter.rejected), len(queue.keys),
        len(ring), ring.turns, ring.rounds, top_keys.keys, top_keys.others, dwell_ms, _hooks(queue, now_ms), settle_ms,
        queue.options.max_in_flight, _move(state, queue, now_ms),
    )  # fmt: skip


def _move(state: "State", queue: "Queue", now_ms: int) -> QueueMove | None:
    """Return the change of the number of partitions, with how long each report has found it the same."""
    moves = state.part(ReportState).moves
    move = move_of(state, queue, KEYS_LOOKED_AT_MAX // (1 + len(moves)))
    known, since_ms, seen_ms = moves.pop(queue, (None, now_ms, now_ms))
    if move is None:
        return None
    if known != move or now_ms - seen_ms > REPORT_GAP_MS_MAX:
        since_ms = now_ms
    moves[queue] = move, since_ms, now_ms
    return replace(move, still_ms=now_ms - since_ms)


def _hooks(queue: "Queue", now_ms: int) -> HookMetrics | None:
    guarded = queue.hooks
    if guarded is None:
        return None
    runs = guarded.hooks.run_ns.wire()
    return HookMetrics(sum(runs.counts), guarded.hooks.failed, guarded.bypassed, not guarded.breaker.allows(now_ms), runs)


def _throttles(state: "State", now_ms: int) -> list[ThrottleMetrics]:
    """Return the busiest throttle keys that have a rate."""
    throttling, limits = state.token_client, state.runtime.limits
    used = islice(throttling.traffic.items(), THROTTLES_LOOKED_AT_MAX)
    busy = [(each.passes + each.hits, key, each) for key, each in used if (each.passes or each.hits) and key in limits]
    shown = []
    for _, key, traffic in nlargest(THROTTLES_SHOWN, busy, key=itemgetter(0)):
        limit = limits[key]
        tokens = throttling.levels.tokens_in(key, limit, now_ms)
        shown.append(
            ThrottleMetrics(key, limit.rate_milli / 1000, limit.burst_micro / 1e6, tokens / 1e6, traffic.passes, traffic.hits)
        )
    return shown


def _places(state: "State", watch: ReportState, now_ms: int) -> list[PlaceMetrics]:
    """Return the throttle keys with a concurrency that have the most leased and waiting messages."""
    places = state.places
    looked_at = islice(places.keys.values(), THROTTLES_LOOKED_AT_MAX)
    busy = [
        (key.counts.leased, len(key.lines), key.key)
        for key in looked_at
        if (key.counts.leased or key.lines) and queue_with_places(key.key) is None
    ]
    since = watch.full_since if now_ms - watch.places_seen_ms <= REPORT_GAP_MS_MAX else {}
    watch.full_since, watch.places_seen_ms = {}, now_ms
    shown = []
    for leased, lines, name in nlargest(THROTTLES_SHOWN, busy):
        waiting = sum(lane.pending for lane in islice(places.waiting_for(name), LANES_ADDED_UP_MAX))
        each = PlaceMetrics(name, places.limit(name) or 0, leased, waiting)
        if lines and places_in_use(state, name) >= each.concurrency:
            watch.full_since[name] = since.get(name, now_ms)
            each.full_ms = now_ms - watch.full_since[name]
        shown.append(each)
    _measure_leases(state, {each.key: each for each in shown}, now_ms)
    return shown


def _measure_leases(state: "State", shown: dict[str, PlaceMetrics], now_ms: int) -> None:
    """Fill in the oldest leases of throttle keys, those of a minute and more."""
    for lease in islice(state.leases.leases.values(), LONG_LEASES_LOOKED_AT_MAX if shown else 0):
        if now_ms - lease.leased_ms < LONG_LEASE_MS:
            return  # so are all later ones
        if lease.labelled and not lease.at_most_once:
            for name in {name for _, _, lane in lease.open_members() for name in lane.throttle_keys if name in shown}:
                shown[name].longest_ms = max(shown[name].longest_ms, now_ms - lease.leased_ms)


class Reports(Component):
    """The metrics of a shard, as a component."""

    def __init__(self, state: "State") -> None:
        super().__init__(state)
        state.keep(ReportState())
