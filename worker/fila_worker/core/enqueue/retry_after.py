"""When the clients that a full queue refused may come again, so that most of them are accepted then.

Room appears at the rate at which messages leave, and all refused clients want it. So these clients are in a *line*. Each gets
a date, later than the one before by the time in which as many messages leave the queue as the client could not store. A
client that asks again before its date moves only its own date, not those of other clients.

The rate is an estimate: messages leave in bursts, other clients send without a date, and accepted clients send more. So the
outcome of the dates is measured. When more than a tenth of the clients that came at their dates were refused again, the dates
of that queue are stretched, else they are shortened.

Rejected: reserving room for clients with a date, because a client that does not come back would make a queue with room refuse
messages. Dates at a distance that depends only on the number of clients: they bunch, and where they are sparse the queue runs
dry.
"""

from collections import Counter
from math import exp
from typing import TYPE_CHECKING, Final

from fila_proto_zmq.commands import Fault
from fila_proto_zmq.errors import OverloadedError
from fila_worker.core.model.queues import RefusedLine

if TYPE_CHECKING:
    from fila_worker.core.model.queues import Queue

RETRY_MS: Final = 1000
"""When to try again if it is not known when there will be room."""

RETRY_MS_MAX: Final = 60_000
DRAIN_SPAN_MS: Final = 1000
"""The shortest span over which the rate at which a queue drains is measured."""

DRAIN_SPAN_MS_MAX: Final = 10_000
"""After a longer span without a refusal, the rate is the queue's recent delivery rate."""

FORGET_MS: Final = 5000
"""A client that has not come so long after its date does not count as waiting."""

KEPT_MIN: Final = 4
KEPT_MAX: Final = 20
"""The number of clients that come at their dates between two corrections: about all clients, once, within these bounds."""

IN_VAIN_MAX: Final = 0.1
"""The part of these clients that may be refused again before later dates are stretched."""

SHORTEN: Final = 0.85
STRETCH_MAX: Final = 1000.0


class Returns:
    """The dates of a shard's clients. Invariant: ``_waiting`` counts, for each queue, the clients that have a date."""

    def __init__(self, clients_max: int) -> None:
        """``clients_max``: the most dates. With more, all dates are forgotten, and some clients come too early once."""
        self._clients_max = clients_max
        self.dates: dict[tuple[int, bytes], tuple[float, int]] = {}
        """The date, and when it was sent, by queue and client."""
        self._waiting: Counter[int] = Counter()
        self._swept_ms = 0

    def __len__(self) -> int:
        return len(self.dates)

    def came(self, queue: "Queue", client: bytes, now_ms: int, *, taken: bool) -> None:
        """Note that a client asked, and whether most of what it sent was taken in."""
        date, said_ms = self.dates.get((queue.id, client), (now_ms + 1, 0))
        if date > now_ms:
            return
        self._forget((queue.id, client))
        line = queue.refused
        if line is None or said_ms < line.stretched_ms:
            return  # the date is older than the last correction
        line.kept, line.kept_in_vain = line.kept + 1, line.kept_in_vain + (not taken)
        if line.kept >= min(max(KEPT_MIN, self._waiting[queue.id]), KEPT_MAX):
            _learn(line, now_ms)

    def say_when(self, queue: "Queue", client: bytes, faults: list[tuple[int, Fault]], now_ms: int) -> None:
        """Put the client's date into the faults of messages that were refused because the queue is full."""
        refused = [fault for _, fault in faults if fault.code == OverloadedError.code]
        if refused:
            retry_ms = self._date(queue, client, len(refused), now_ms)
            for fault in refused:
                fault.retry_after_ms = retry_ms
                fault.text += f"; try again in {retry_ms / 1000:g} s, or let more consumers work on it"

    def _date(self, queue: "Queue", client: bytes, messages: int, now_ms: int) -> int:
        """Give a client a date, and return the time until then."""
        if now_ms - self._swept_ms >= FORGET_MS:
            self._sweep(now_ms)
        name = queue.id, client
        if name not in self.dates:
            if len(self.dates) >= self._clients_max:
                self.dates.clear()
                self._waiting.clear()
            self._waiting[queue.id] += 1
        line = queue.refused = queue.refused or RefusedLine()
        between_ms = _between_ms(queue, line, messages, now_ms)
        date, _ = self.dates.get(name, (0, 0))
        if date > now_ms:
            date += between_ms * self._waiting[queue.id]
        else:
            date = line.until_ms = min(max(line.until_ms, now_ms) + between_ms, now_ms + RETRY_MS_MAX)
        date = min(date, now_ms + RETRY_MS_MAX)
        self.dates[name] = date, now_ms
        return max(1, round(date - now_ms))

    def _sweep(self, now_ms: int) -> None:
        self._swept_ms = now_ms
        for name in [name for name, (date, _) in self.dates.items() if date + FORGET_MS <= now_ms]:
            self._forget(name)

    def _forget(self, name: tuple[int, bytes]) -> None:
        del self.dates[name]
        self._waiting[name[0]] -= 1
        if not self._waiting[name[0]]:
            del self._waiting[name[0]]


def _learn(line: RefusedLine, now_ms: int) -> None:
    """Stretch or shorten later dates."""
    in_vain = line.kept_in_vain / line.kept
    change = 1 + 2 * in_vain if in_vain > IN_VAIN_MAX else SHORTEN
    line.stretch = min(max(line.stretch * change, 1.0), STRETCH_MAX)
    line.kept, line.kept_in_vain, line.stretched_ms = 0, 0, now_ms


def _between_ms(queue: "Queue", line: RefusedLine, messages: int, now_ms: int) -> float:
    """Return the time between a client that wants to store ``messages`` and the one before it."""
    rate = _leaving(queue, line, now_ms)
    if not rate:
        return RETRY_MS if line.until_ms <= now_ms else RETRY_MS / 20
    return max(messages, min(messages * line.stretch, queue.depth / 2)) / rate  # half of the depth: or it would run dry


def _leaving(queue: "Queue", line: RefusedLine, now_ms: int) -> float:
    """Return the number of messages that leave in a millisecond, as far as it is known.

    A lower rate than the last one takes effect slowly: a queue that ran dry because all clients waited for long is not slow.
    """
    left, span_ms = queue.acked + queue.dead_lettered, now_ms - line.looked_ms
    if span_ms >= DRAIN_SPAN_MS:
        latest = (
            (left - line.left) / span_ms if span_ms <= DRAIN_SPAN_MS_MAX else queue.delivery_rate.per_second(now_ms) / 1000
        )
        line.rate = max(latest, line.rate * exp(-span_ms / DRAIN_SPAN_MS_MAX)) if latest else 0.0
        line.looked_ms, line.left = now_ms, left
    return line.rate
