"""What a shard counts, gathered for those who watch it. Nothing here is called for a message, and nothing for each of many queues
or keys: a look has bounds, and goes on where the last one ended.

The counters themselves are where things happen: in :class:`~core.model.queues.Queue`, its ring, its hooks, its throttles, the store. A
queue's :class:`Meter` has those that nobody else needs.
"""

from heapq import nlargest
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from fila_proto_zmq.commands import (
    Command,
    Enqueue,
    Enqueued,
    HookMetrics,
    QueueMetrics,
    ShardMetrics,
    ThrottleMetrics,
)
from fila_proto_zmq.ids import enqueued_ms
from fila_proto_zmq.record import unpack_fixed
from fila_worker.core.measures import DWELL_MS, Histogram
from fila_worker.core.metrics.top_keys import TopKeys

if TYPE_CHECKING:
    from fila_proto_zmq.errors import FilaError
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.state import State

QUEUES_SHOWN_MAX: Final = 1000
"""Queues of a shard in one report, 3 to 5 µs each."""

KEYS_LOOKED_AT_MAX: Final = 2000
"""Fairness keys looked at for one report, about 2 µs each. Queues in which nothing happened since are not looked into."""

THROTTLES_SHOWN: Final = 10
THROTTLES_LOOKED_AT_MAX: Final = 1000


class Meter:
    """What is counted of a queue only for those who watch it."""

    __slots__ = ("dwell_ms", "redriven", "rejected", "settle_ms", "top_keys")

    def __init__(self) -> None:
        self.redriven = 0
        """Dead letters that went back from here."""
        self.rejected: dict[str, int] = {}
        """Messages that were refused, by the error's code."""
        self.dwell_ms: Histogram | None = None
        """How long messages waited for their first delivery: the first of each delivery batch speaks for the others."""
        self.settle_ms: Histogram | None = None
        """How long messages were leased until they were acked."""
        self.top_keys = TopKeys()

    def delivered(self, first: bytes, count: int, now_ms: int) -> None:
        """A batch was delivered whose first record is this."""
        _, attempts, _, high, _ = unpack_fixed(first)
        if not attempts:
            if self.dwell_ms is None:
                self.dwell_ms = Histogram(DWELL_MS)
            self.dwell_ms.observe(max(0, now_ms - enqueued_ms(high)), count)

    def acked(self, leased_ms: int, count: int, now_ms: int) -> None:
        """So many messages of one lease were acked."""
        if self.settle_ms is None:
            self.settle_ms = Histogram(DWELL_MS)
        self.settle_ms.observe(max(0, now_ms - leased_ms), count)

    def reject(self, code: str, count: int = 1) -> None:
        """So many messages were refused."""
        self.rejected[code] = self.rejected.get(code, 0) + count


# --- refusals ---------------------------------------------------------------------------------------------------------


def note_refusal(state: "State", queue: "Queue | None", command: Command, error: "FilaError") -> None:
    """A request was refused."""
    state.refused[error.code] = state.refused.get(error.code, 0) + 1
    if queue is not None and isinstance(command, Enqueue):
        queue.meter.reject(error.code, len(command.envelopes))


def note_faults(queue: "Queue | None", enqueued: Enqueued) -> None:
    """An enqueue was accepted, but not all of its messages."""
    if queue is not None:
        for _, fault in enqueued.faults:
            queue.meter.reject(fault.code)


# --- the report -------------------------------------------------------------------------------------------------------


def report(state: "State", now_ms: int) -> ShardMetrics:
    """All numbers of a shard, its busiest queues only where they are many."""
    queues = list(state.queues.values())
    shown = queues if len(queues) <= QUEUES_SHOWN_MAX else nlargest(QUEUES_SHOWN_MAX, queues, key=_traffic)
    _look_at_keys(state, shown)
    return ShardMetrics(
        state.index, [_of_queue(state, queue, now_ms) for queue in shown], len(queues) - len(shown), _throttles(state, now_ms),
        state.token_client.passes, state.token_client.hits, dict(state.refused), state.buffers.used_bytes, state.store.metrics(),
    )  # fmt: skip


def _traffic(queue: "Queue") -> int:
    return queue.depth + queue.enqueued + queue.delivered


def _look_at_keys(state: "State", queues: "list[Queue]") -> None:
    """Look at the keys of some queues, in turns."""
    start = state.looked_at % len(queues) if queues else 0
    left = KEYS_LOOKED_AT_MAX
    for queue in (*queues[start:], *queues[:start]):
        if left <= 0:
            break
        left -= queue.meter.top_keys.look(state, queue, left) + 1
        state.looked_at += 1


def _of_queue(state: "State", queue: "Queue", now_ms: int) -> QueueMetrics:
    meter, ring, spotlight = queue.meter, queue.ring, queue.meter.top_keys
    oldest_ms = spotlight.oldest_ms if queue.pending else None
    dwell_ms = meter.dwell_ms.wire() if meter.dwell_ms else None
    settle_ms = meter.settle_ms.wire() if meter.settle_ms else None
    return QueueMetrics(
        queue.info(state.index), 0 if oldest_ms is None else max(0, now_ms - oldest_ms), queue.enqueued, queue.delivered,
        queue.acked, queue.nacked, queue.expired, queue.dead_lettered, meter.redriven, dict(meter.rejected), len(queue.keys),
        len(ring), ring.turns, ring.rounds, spotlight.keys, spotlight.others, dwell_ms, _hooks(queue, now_ms), settle_ms,
    )  # fmt: skip


def _hooks(queue: "Queue", now_ms: int) -> HookMetrics | None:
    guarded = queue.hooks
    if guarded is None:
        return None
    runs = guarded.hooks.run_ns.wire()
    return HookMetrics(
        sum(runs.counts), guarded.hooks.failed, guarded.bypassed, not guarded.breaker.allows(now_ms), runs
    )  # fmt: skip


def _throttles(state: "State", now_ms: int) -> list[ThrottleMetrics]:
    """The busiest throttle keys that have a rate."""
    throttling, limits = state.token_client, state.runtime.limits
    used = ((key, throttling.traffic.get(key)) for key in islice(limits, THROTTLES_LOOKED_AT_MAX))
    busy = [(each.passes + each.hits, key, each) for key, each in used if each and (each.passes or each.hits)]
    shown = []
    for _, key, traffic in nlargest(THROTTLES_SHOWN, busy, key=itemgetter(0)):
        limit = limits[key]
        tokens = throttling.tokens_in(key, limit, now_ms)
        shown.append(
            ThrottleMetrics(key, limit.rate_milli / 1000, limit.burst_micro / 1e6, tokens / 1e6, traffic.passes, traffic.hits)
        )
    return shown
