"""When those whom a full queue refused may come again, so that most of them are taken in then.

Room comes at the rate at which messages leave, and all who were refused want it. So they stand in a *line*: each gets a date that is later than
the one before by the time in which what it could not store leaves the queue. A client that asks again before its date moves its own
date only: nobody else's wait grows because one is impatient.

The rate is a guess: messages leave in bursts, others send without a date, and those who are let in go on sending. So what comes of the dates
is looked at: when more than a tenth of those who came at their dates were refused again, the dates of that queue are stretched, else they
are shortened.

Rejected: to keep room for those who have a date. One that never comes back would make a queue refuse what it has room for. Dates at a distance that
depends on the number of clients alone: they bunch, and where they are sparse the queue runs dry.
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
"""When to try again if nothing says when there will be room."""

RETRY_MS_MAX: Final = 60_000
DRAIN_SPAN_MS: Final = 1000
"""The rate at which a queue drains is looked at over spans of this length, at least."""

DRAIN_SPAN_MS_MAX: Final = 10_000
"""After a longer span without a refusal it is taken to be what the queue delivers lately."""

FORGET_MS: Final = 5000
"""A client that has not come so long after its date does not count as one that waits."""

KEPT_MIN: Final = 4
KEPT_MAX: Final = 20
"""Dates that are kept before something is learnt from them: about those of all clients, once."""

IN_VAIN_MAX: Final = 0.1
"""The part of them that may be in vain before the next ones are stretched."""

SHORTEN: Final = 0.85
STRETCH_MAX: Final = 1000.0


class Returns:
    """The dates of a shard's clients. Invariant: ``_waiting`` counts, for each queue, the clients that have one."""

    def __init__(self, clients_max: int) -> None:
        """``clients_max``: dates that are remembered; beyond, all are forgotten, and some clients come too early once."""
        self._clients_max = clients_max
        self.dates: dict[tuple[int, bytes], tuple[float, int]] = {}
        """When to come, and when that was said, by queue and client."""
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
            return  # no news of how it is since
        line.kept, line.kept_in_vain = line.kept + 1, line.kept_in_vain + (not taken)
        if line.kept >= min(max(KEPT_MIN, self._waiting[queue.id]), KEPT_MAX):
            _learn(line, now_ms)

    def say_when(self, queue: "Queue", client: bytes, faults: list[tuple[int, Fault]], now_ms: int) -> None:
        """Put into what refuses messages for want of room when all of them will have some."""
        refused = [fault for _, fault in faults if fault.code == OverloadedError.code]
        if refused:
            retry_ms = self._date(queue, client, len(refused), now_ms)
            for fault in refused:
                fault.retry_after_ms = retry_ms
                fault.text += f"; try again in {retry_ms / 1000:g} s, or let more consumers work on it"

    def _date(self, queue: "Queue", client: bytes, messages: int, now_ms: int) -> int:
        """Give a client a date; returns how long that is from now."""
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
    """Stretch the dates to come, or shorten them."""
    in_vain = line.kept_in_vain / line.kept
    change = 1 + 2 * in_vain if in_vain > IN_VAIN_MAX else SHORTEN
    line.stretch = min(max(line.stretch * change, 1.0), STRETCH_MAX)
    line.kept, line.kept_in_vain, line.stretched_ms = 0, 0, now_ms


def _between_ms(queue: "Queue", line: RefusedLine, messages: int, now_ms: int) -> float:
    """How much later than the one before a client that wants so many messages stored is to come."""
    rate = _leaving(queue, line, now_ms)
    if not rate:
        return RETRY_MS if line.until_ms <= now_ms else RETRY_MS / 20
    return max(messages, min(messages * line.stretch, queue.depth / 2)) / rate  # half of it: or it would run dry


def _leaving(queue: "Queue", line: RefusedLine, now_ms: int) -> float:
    """How many messages leave in a millisecond, as far as that is known.

    A lower rate than the one before is believed in slowly: a queue that ran dry because all waited for long is not slow.
    """
    left, span_ms = queue.acked + queue.dead_lettered, now_ms - line.looked_ms
    if span_ms >= DRAIN_SPAN_MS:
        latest = (
            (left - line.left) / span_ms if span_ms <= DRAIN_SPAN_MS_MAX else queue.delivery_rate.per_second(now_ms) / 1000
        )
        line.rate = max(latest, line.rate * exp(-span_ms / DRAIN_SPAN_MS_MAX)) if latest else 0.0
        line.looked_ms, line.left = now_ms, left
    return line.rate
