"""The last half hour of a cluster, in memory: the data of charts.

Each tick appends one number to each series: 4 bytes, 11 series a queue, 360 ticks: 16 KB a queue, so a thousand queues take
16 MB. Unknown numbers (no answer came, a worker was restarted between two ticks) are gaps, NaN, never a guess. Sums over all
queues are made with each tick, since adding up half hours of a thousand queues on each request would take half a second.

Left out: storing it. For more than half an hour there is Prometheus."""

import math
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from fila_cluster.ops.analysis.rates import ClusterRates, Rates, all_queues, rates
from fila_cluster.ops.analysis.rows import totals
from fila_proto_zmq.commands import OTHER_KEYS, Metrics, QueueMetrics
from fila_proto_zmq.names import is_dead_letter

TICK_S: Final = 5.0
TICKS: Final = 360
"""30 minutes."""
SHARE_TICKS: Final = 12
"""Shares of keys are taken over the last minute."""
LOOKS: Final = 7
"""Whole snapshots that are kept: half a minute, which is as far back as growth is measured."""

UNKNOWN: Final = float("nan")
LEVELS: Final = ("pending", "in_flight", "delayed", "oldest_age_s")
FLOWS: Final = ("enqueued", "delivered", "acked", "nacked", "expired", "dead_lettered")
"""Messages a second."""
SERIES: Final = (*LEVELS, *FLOWS)
DEAD_LETTERS: Final = "dead_letters"
"""Of all queues together."""
CONSUMERS: Final = "consumers"
"""Of one queue: a consumer of several would be counted several times in a sum."""


class LastMinuteShare(msgspec.Struct, frozen=True):
    """A fairness key in the last minute: the parts of its queue's deliveries that it was entitled to, and got; 0 to 1."""

    fairness_key: str
    weight: int
    pending: int
    entitled: float
    actual: float
    delivered_per_s: float


LIMITED_BELOW: Final = 0.9
"""A key below this part of the deliveries that its weight entitles it to may be limited by something else."""


def short_of_weight(shares: Sequence[LastMinuteShare], count: int) -> list[str]:
    """Return the keys with waiting messages that got clearly less than their weight entitles them to, the worst first."""
    short = [
        share
        for share in shares
        if share.pending and share.fairness_key != OTHER_KEYS and share.actual < LIMITED_BELOW * share.entitled
    ]
    return [share.fairness_key for share in sorted(short, key=lambda share: share.actual - share.entitled)[:count]]


class Look(NamedTuple):
    """A whole snapshot of the cluster, with its time, Unix seconds."""

    at_s: float
    metrics: Metrics


class _KeyTick(NamedTuple):
    """At one moment: the deliveries of each key that is shown, and the part that is due to it."""

    at_s: float
    delivered: dict[str, int]
    entitled: dict[str, float]


class _QueueHistory:
    """One queue: a ring for each series, and its last minute's keys."""

    __slots__ = ("keys", "latest", "rings", "seen_at")

    def __init__(self) -> None:
        self.rings = {name: array("f", [UNKNOWN]) * TICKS for name in (*SERIES, CONSUMERS)}
        self.keys: deque[_KeyTick] = deque(maxlen=SHARE_TICKS + 1)
        self.seen_at = 0
        """The number of the last tick that had it."""
        self.latest: QueueMetrics | None = None

    def record(self, slot: int, at_s: float, queue: QueueMetrics, flow: Rates | None) -> None:
        for name, number in _numbers(queue, flow).items():
            self.rings[name][slot] = number
        if flow is None:
            self.keys.clear()  # counted by an earlier process of its worker
        self.keys.append(_key_tick(at_s, queue))
        self.latest = queue


class History:
    """Half an hour of all queues, and of their sums. Call :meth:`record` every :data:`TICK_S`."""

    def __init__(self) -> None:
        self._queues: dict[str, _QueueHistory] = {}
        self._all = {name: array("d", [UNKNOWN]) * TICKS for name in (*SERIES, DEAD_LETTERS)}
        self._times = array("d", [UNKNOWN]) * TICKS
        self._ticks = 0
        self._looks: deque[Look] = deque(maxlen=LOOKS)

    def record(self, now_s: float, metrics: Metrics | None) -> None:
        """Append the numbers of now (Unix seconds); None: no answer came."""
        slot = self._ticks % TICKS
        self._times[slot] = now_s
        for ring in (*self._all.values(), *(ring for queue in self._queues.values() for ring in queue.rings.values())):
            ring[slot] = UNKNOWN
        if metrics is None:
            self._looks.clear()
        else:
            self._record_look(slot, Look(now_s, metrics))
        self._ticks += 1
        self._forget()

    def _record_look(self, slot: int, look: Look) -> None:
        before = self._looks[-1] if self._looks else None
        cluster_rates = rates(look.metrics, before.metrics if before else None, look.at_s - before.at_s if before else 0.0)
        for queue in all_queues(look.metrics):
            known = self._queues.setdefault(queue.info.name, _QueueHistory())
            known.seen_at = self._ticks
            known.record(slot, look.at_s, queue, cluster_rates.queues.get(queue.info.name))
        for name, number in _sums(look.metrics, cluster_rates).items():
            self._all[name][slot] = number
        self._looks.append(look)

    def _forget(self) -> None:
        """Drop queues that were in no answer for the whole half hour."""
        for name in [name for name, queue in self._queues.items() if self._ticks - queue.seen_at > TICKS]:
            del self._queues[name]

    def look_back(self, now_s: float, seconds: float) -> Look | None:
        """Return the snapshot closest to ``seconds`` ago; None if there is none. At most half a minute is kept."""
        return min(self._looks, key=lambda look: abs(now_s - look.at_s - seconds), default=None)

    def times(self) -> list[float]:
        """Return when the ticks were, oldest first, Unix seconds."""
        return self._in_order(self._times)

    def of_queue(self, queue: str) -> Mapping[str, list[float]]:
        """Return all :data:`SERIES` of a queue, and its consumers, along :meth:`times`; empty if it was never seen."""
        known = self._queues.get(queue)
        return {name: self._in_order(ring) for name, ring in known.rings.items()} if known else {}

    def latest(self, queue: str) -> QueueMetrics | None:
        """Return the last counters of a queue; None if it was never seen."""
        known = self._queues.get(queue)
        return known.latest if known else None

    def of_all(self) -> Mapping[str, list[float]]:
        """Return :data:`SERIES` summed over all queues but those of dead letters (of ages: the largest), and the depth of
        those as ``dead_letters``."""
        return {name: self._in_order(ring) for name, ring in self._all.items()}

    def of_some(self, may_see: Callable[[str], bool]) -> Callable[[], Mapping[str, list[float]]]:
        """Return a function that sums :meth:`of_all` over the queues that may be seen, without the dead letters. It takes a
        part of a millisecond a queue, and may be called in a thread."""
        rings = [queue.rings for name, queue in self._queues.items() if may_see(name) and not is_dead_letter(name)]
        columns = {name: [self._copied(each[name]) for each in rings] for name in SERIES}
        none = [()] * min(self._ticks, TICKS)
        return lambda: {
            name: [_together(name, numbers) for numbers in (zip(*rows, strict=True) if rows else none)]
            for name, rows in columns.items()
        }

    def shares(self, queue: str) -> list[LastMinuteShare]:
        """Return the busiest keys of the last minute by deliveries, then all others together as :data:`OTHER_KEYS`. Empty
        once the queue is in no answer any more: its last minute would be another one."""
        known = self._queues.get(queue)
        if known is None or known.latest is None or len(known.keys) < 2 or known.seen_at != self._ticks - 1:
            return []
        shown = {key.fairness_key: key for key in known.latest.keys}
        first, last = known.keys[0], known.keys[-1]
        delivered = {key: max(0, count - first.delivered.get(key, 0)) for key, count in last.delivered.items()}
        total = max(1, sum(delivered.values()))
        entitled = {key: sum(tick.entitled.get(key, 0.0) for tick in known.keys) / len(known.keys) for key in delivered}
        if OTHER_KEYS in entitled:
            entitled[OTHER_KEYS] = max(0.0, 1.0 - sum(entitled.values()))
        shares = [
            LastMinuteShare(
                key,
                shown[key].weight if key in shown else 0,
                shown[key].pending if key in shown else 0,
                entitled[key],
                count / total,
                count / (last.at_s - first.at_s),
            )
            for key, count in delivered.items()
        ]
        return sorted(shares, key=lambda share: (share.fairness_key == OTHER_KEYS, -share.actual, share.fairness_key))

    def _in_order(self, ring: "array[float]") -> list[float]:
        return self._copied(ring).tolist()

    def _copied(self, ring: "array[float]") -> "array[float]":
        if self._ticks <= TICKS:
            return ring[: self._ticks]
        slot = self._ticks % TICKS
        return ring[slot:] + ring[:slot]


def _together(name: str, numbers: Sequence[float]) -> float:
    """Return the sum, or the greatest age, of the numbers that are known."""
    known = [number for number in numbers if not math.isnan(number)]
    if not known:
        return UNKNOWN
    return max(known) if name == "oldest_age_s" else sum(known)


def _numbers(queue: QueueMetrics, flow: Rates | None) -> dict[str, float]:
    levels = (queue.info.pending, queue.info.in_flight, queue.info.delayed, queue.oldest_pending_ms / 1000)
    return dict(zip(LEVELS, levels, strict=True)) | {CONSUMERS: queue.info.consumers} | _flows(flow)


def _flows(flow: Rates | None) -> dict[str, float]:
    return {name: getattr(flow, name) if flow else UNKNOWN for name in FLOWS}


def _sums(metrics: Metrics, cluster_rates: ClusterRates) -> dict[str, float]:
    held = totals(metrics)
    oldest_ms = held.oldest.oldest_pending_ms if held.oldest else 0
    levels = (held.pending, held.in_flight, held.delayed, oldest_ms / 1000)
    return dict(zip(LEVELS, levels, strict=True)) | {DEAD_LETTERS: held.dead_letters} | _flows(cluster_rates.total)


def _key_tick(at_s: float, queue: QueueMetrics) -> _KeyTick:
    delivered = {key.fairness_key: key.delivered for key in queue.keys}
    if queue.known_keys > len(queue.keys) or queue.other_delivered:
        delivered[OTHER_KEYS] = queue.other_delivered
    return _KeyTick(at_s, delivered, _entitled(queue))


def _entitled(queue: QueueMetrics) -> dict[str, float]:
    """Return the part due to each key that has something to deliver, or would have if it were not throttled or blocked. A
    shard reports the parts among keys that could deliver at once; if it shows all keys, their weights give the others'
    parts."""
    if queue.known_keys > len(queue.keys):
        return {key.fairness_key: key.fair_share for key in queue.keys}
    competing = [key for key in queue.keys if key.pending or key.fair_share]
    weights = sum(key.weight for key in competing)
    return {key.fairness_key: key.weight / weights for key in competing}


DIGITS = 3
"""The digits of a thousandth of a second."""


class HalfHour(msgspec.Struct, frozen=True):
    """The answer. ``series`` are along ``times``, Unix seconds, oldest first; ``queue`` None: of all queues together.

    ``workers``: the workers that answer now, with their process ids, which identify the cluster; empty while the broker is
    down.
    """

    queue: str | None
    times: list[float]
    series: dict[str, list[float | None]]
    shares: list[LastMinuteShare]
    workers: dict[str, int]


def half_hour(history: History, queue: str | None, seen: Metrics | None) -> HalfHour | None:
    """Return the half hour of a queue (None: of all together); None if the queue is unknown. ``seen``: the last answer.

    Call it on the event loop, where the history is fed: a queue's 3,600 numbers take a millisecond or two.
    """
    series = history.of_all() if queue is None else history.of_queue(queue)
    if not series:
        return None
    return HalfHour(
        queue,
        [round(at_s, DIGITS) for at_s in history.times()],
        {name: _known(numbers) for name, numbers in series.items()},
        history.shares(queue) if queue is not None else [],
        {} if seen is None or seen.status is None else {worker.name: worker.pid for worker in seen.status.workers},
    )


def nothing_known(queue: str) -> str:
    """Return why a queue has no half hour, for people."""
    return (
        f"no history of the queue {queue!r}: it does not exist, or was made in the last seconds, "
        "or its shard has a thousand busier ones"
    )


def _known(numbers: Sequence[float]) -> list[float | None]:
    return [None if math.isnan(number) else round(number, DIGITS) for number in numbers]
