"""``/history``: the last half hour of a queue, or of all together, for programs.

Made on the event loop, because the history is fed there: a queue's 3,600 numbers take a millisecond or two, and are only read
on request. Unknown numbers are null.
"""

import math
from collections.abc import Sequence

import msgspec

from fila_cluster.ops.analysis.history import History
from fila_proto_zmq.commands import Metrics

DIGITS = 3
"""The digits of a thousandth of a second."""


class KeyShare(msgspec.Struct, frozen=True):
    """A fairness key's last minute, as :class:`fila_cluster.ops.analysis.history.LastMinuteShare`."""

    fairness_key: str
    weight: int
    pending: int
    entitled: float
    actual: float
    delivered_per_s: float


class HalfHour(msgspec.Struct, frozen=True):
    """The answer. ``series`` are along ``times``, Unix seconds, oldest first; ``queue`` None: of all queues together.

    ``workers``: the workers that answer now, with their process ids, which identify the cluster; empty while the broker is
    down.
    """

    queue: str | None
    times: list[float]
    series: dict[str, list[float | None]]
    shares: list[KeyShare]
    workers: dict[str, int]


def half_hour(history: History, queue: str | None, seen: Metrics | None) -> HalfHour | None:
    """Return the half hour of a queue (None: of all together); None if the queue is unknown. ``seen``: the last answer."""
    series = history.of_all() if queue is None else history.of_queue(queue)
    if not series:
        return None
    return HalfHour(
        queue,
        [round(at_s, DIGITS) for at_s in history.times()],
        {name: _known(numbers) for name, numbers in series.items()},
        [KeyShare(*share) for share in history.shares(queue)] if queue is not None else [],
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
