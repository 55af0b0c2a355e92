"""How many consumers a queue needs, to be drained in a given time: what an autoscaler asks. Pure functions.

More consumers help only with messages that limits let through. ``why`` says what limits hold back now, and how fast they let
the others through, so a throttled backlog counts with what its buckets give in that time, not with its length.

What one consumer does is measured, because nobody knows it better. While messages wait, each consumer does what it can; of
the last half hour, the latest such moments count. Consumers that keep up are partly idle, so where few messages are leased, no
more consumers work than that. Left out: what starts and ends consumers. It has to keep a higher answer for a while, because the
answer falls with the backlog.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from fila_cluster.client.explanation import Explanation
from fila_cluster.figures import counted
from fila_cluster.ops.analysis.history import CONSUMERS, TICK_S
from fila_proto_zmq.commands import QueueDescription, QueueInfo
from fila_proto_zmq.limits import EXPLAINED_KEYS_MAX
from fila_proto_zmq.reasons import ReasonCode

DRAIN_S: Final = 60.0
"""The usual time to drain a queue."""
DRAIN_S_MAX: Final = 86_400.0

NOW_TICKS: Final = 6
"""Half a minute: what is done a second now."""
ARRIVALS_TICKS: Final = 60
"""Five minutes: messages that come in batches have a rate, too, and a batch is counted in the backlog already."""
MEASURED_MIN: Final = 20
"""Settlements that a consumer's rate is taken from, if there were so many."""
SETTLED_TICKS: Final = 4
"""With the same number of consumers: who has just come has not yet done anything."""
LONG_S: Final = 30.0
"""Work that takes as long is not to be cut off: it would begin anew."""
BEHIND_S: Final = 1.0
"""Consumers keep up if fewer messages wait than are done in this time."""

Series = Mapping[str, Sequence[float]]


class Scale(msgspec.Struct, frozen=True):
    """The answer. ``consumers``: how many are wanted; ``present``: how many there are.

    ``deliverable``: of the pending messages, those that limits let through in time. ``per_second``: what all consumers
    together have to do. ``per_consumer``: what one of them does, None: not known yet.
    """

    queue: str
    consumers: int
    present: int
    pending: int
    deliverable: int
    per_second: float
    per_consumer: float | None
    reason: str


def scale(described: QueueDescription, explained: Explanation, past: Series, drain_s: float, examined: float = 1.0) -> Scale:
    """Return how many consumers drain a queue in so many seconds.

    ``past``: its last half hour, as :meth:`History.of_queue` has it. ``examined``: the part of its fairness keys that ``why``
    looks at; the others count as alike.
    """
    info, moments = described.info, _moments(past)
    pace = _pace(moments)
    deliverable, some_are_limited = _deliverable(described, explained, drain_s, pace, examined)
    done_per_s = _mean([each.done for each in moments[-NOW_TICKS:]])
    arriving_per_s = _mean(past.get("enqueued", ())[-ARRIVALS_TICKS:])
    if some_are_limited:  # messages that come for a limit that is reached are not done: what is done now, is all that can be
        arriving_per_s = min(arriving_per_s, done_per_s)
    per_second = arriving_per_s + deliverable / drain_s
    behind = deliverable > done_per_s * BEHIND_S
    at_most = math.ceil(info.in_flight + deliverable + arriving_per_s * drain_s)  # each needs a message
    if not behind:
        at_most = min(at_most, info.consumers)
    if described.options.max_in_flight is not None:
        at_most = min(at_most, described.options.max_in_flight)
    wanted = _wanted(per_second, pace, info.consumers, info.in_flight + deliverable, _stuck(moments, drain_s))
    return Scale(
        info.name,
        max(min(wanted, at_most), _at_work(info, pace)),
        info.consumers,
        info.pending,
        round(deliverable),
        round(per_second, 3),
        round(pace.per_consumer, 3) if pace else None,
        _reason(described, round(deliverable), behind, pace, drain_s),
    )


def examined_part(keys: Iterable[int]) -> float:
    """Return which part of its fairness keys ``why`` looks at; ``keys``: how many each partition of the queue has."""
    numbers = [*keys]
    return sum(min(each, EXPLAINED_KEYS_MAX) for each in numbers) / (sum(numbers) or 1) or 1.0


# --- what consumers do ------------------------------------------------------------------------------------------------


class _Moment(NamedTuple):
    """One tick of the half hour, of which everything is known. ``done``: settlements a second."""

    pending: float
    in_flight: float
    consumers: float
    done: float


class _Pace(NamedTuple):
    """What one consumer does a second, and for how long a message is leased."""

    per_consumer: float
    lease_s: float


def _moments(past: Series) -> list[_Moment]:
    columns = [past.get(name, ()) for name in ("pending", "in_flight", CONSUMERS, "acked", "nacked")]
    return [
        _Moment(pending, in_flight, consumers, acked + nacked)
        for pending, in_flight, consumers, acked, nacked in zip(*columns, strict=True)
        if not math.isnan(pending + in_flight + consumers + acked + nacked)
    ]


def _pace(moments: Sequence[_Moment]) -> _Pace | None:
    """Return the rate of the last moments in which messages waited; of the last ones, if none did.

    Moments in which consumers have just come or gone count only if there are no others: who comes has done nothing yet.
    """
    read = [each for each in moments if each.consumers]
    settled = [
        each for *before, each in _windows(read, SETTLED_TICKS) if all(each.consumers == old.consumers for old in before)
    ]
    waited = [each for each in settled if each.pending > each.done * BEHIND_S]
    return _latest(waited) or _latest(settled) or _latest(read)


def _windows(moments: Sequence[_Moment], size: int) -> Iterator[Sequence[_Moment]]:
    return (moments[end - size : end] for end in range(size, len(moments) + 1))


def _latest(moments: Sequence[_Moment]) -> _Pace | None:
    """Return the rate of enough moments at the end; None if nothing was done, or there is only one, which may have begun late."""
    last: list[_Moment] = []
    for each in reversed(moments):
        last.append(each)
        if len(last) >= NOW_TICKS and sum(each.done for each in last) * TICK_S >= MEASURED_MIN:
            break
    done, leased = sum(each.done for each in last), sum(each.in_flight for each in last)
    if len(last) < 2 or not done:
        return None
    working = sum(each.consumers for each in last)
    few = sum(min(each.consumers, each.in_flight) for each in last)
    # One that works on a single message at a time has none for a moment after each. What is delivered at most once is never leased.
    if 0 < few < working / 2:
        working = few
    return _Pace(done / working, leased / done)


def _stuck(moments: Sequence[_Moment], drain_s: float) -> float | None:
    """Return how many messages a consumer holds, if none of them was done in the time to drain; else None."""
    last = moments[-math.ceil(drain_s / TICK_S) :]
    if len(last) * TICK_S < drain_s or any(each.done or not each.consumers for each in last):
        return None
    return last[-1].in_flight / last[-1].consumers or None


def _wanted(per_second: float, pace: _Pace | None, present: int, messages: float, held_by_each: float | None) -> int:
    if pace is not None:
        return math.ceil(per_second / pace.per_consumer)
    if held_by_each is not None:  # work takes longer than the time to drain: all of it has to begin now
        return math.ceil(messages / held_by_each)
    return max(present, 1)  # the first one shows what one does


def _at_work(info: QueueInfo, pace: _Pace | None) -> int:
    """Return how many of the consumers are needed for what they have begun."""
    if pace is None or pace.lease_s >= LONG_S:
        return min(info.consumers, info.in_flight)
    return min(info.consumers, info.in_flight, 1)


def _mean(numbers: Sequence[float]) -> float:
    """Return the mean of the numbers that are known; 0 without any."""
    known = [each for each in numbers if not math.isnan(each)]
    return sum(known) / len(known) if known else 0.0


# --- what limits let through ------------------------------------------------------------------------------------------


def _deliverable(
    described: QueueDescription, explained: Explanation, drain_s: float, pace: _Pace | None, examined: float
) -> tuple[float, bool]:
    """Return how many pending messages limits let through in time, and whether there are limits."""
    pending, held, passed = described.info.pending, 0.0, 0.0
    if described.info.paused or _is_full(explained):
        return 0.0, True
    for each in explained.reasons:
        if each.code == ReasonCode.LIMITED:
            for limit in each.details["limits"]:
                messages = limit["messages"] / examined
                held += messages
                passed += min(messages, _passes(limit, drain_s, pace))
        elif "keys" in each.details:
            held += each.details["messages"] / examined
    return min(pending, max(0.0, pending - held) + passed), held > 0


def _is_full(explained: Explanation) -> bool:
    return any(each.code == ReasonCode.CONCURRENCY and "queue" in each.details for each in explained.reasons)


def _passes(limit: Mapping[str, Any], drain_s: float, pace: _Pace | None) -> float:
    """Return how many messages a throttle key lets through in time; a message costs one token here."""
    passes = math.inf if limit["rate"] is None else max(0.0, limit["tokens"] + limit["rate"] * drain_s)
    if limit["concurrency"] is not None and pace is not None and pace.lease_s:
        passes = min(passes, limit["concurrency"] * max(1.0, drain_s / pace.lease_s))
    return passes


def _reason(described: QueueDescription, deliverable: int, behind: bool, pace: _Pace | None, drain_s: float) -> str:
    """Return in words what the number of consumers comes from."""
    info = described.info
    if info.paused:
        return "the queue is paused"
    if info.pending and not deliverable:
        return f"{counted(info.pending, 'message')} waiting, and limits let none of them through"
    if not behind:
        return "its consumers keep up" if info.consumers else "nothing waits"
    part = f"{deliverable:,} of {counted(info.pending, 'message')} can be delivered in {drain_s:g} s"
    return part if pace is not None else f"{part}; nobody knows yet what one consumer does"
