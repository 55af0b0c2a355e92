"""Messages that can be checked: each payload has its number, its time, and a tail that all payloads of the load share."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from benchmarks.harness.report.results import Verified

HEADERS = {"tenant": "acme", "kind": "order.created"}
NUMBER_BYTES = 8
HEAD_BYTES = 16
"""A number and a time, 8 bytes each. A payload is never shorter."""

HEADS_MAX = 1_000_000


@dataclass(frozen=True)
class Load:
    """``count`` messages, numbered from ``first``, over ``keys`` fairness keys in turn. Systems without fairness keys ignore
    these."""

    count: int
    payload_bytes: int = 1024
    keys: int = 1
    first: int = 0
    headers: dict[str, str] = field(default_factory=lambda: dict(HEADERS))
    time_ns: int = 0
    """The time in all payloads, ns of the monotonic clock."""

    @cached_property
    def tail(self) -> bytes:
        """What stands behind the number and the time: bytes that no compression makes smaller, the same in each process."""
        return random.Random(self.payload_bytes).randbytes(max(0, self.payload_bytes - HEAD_BYTES))

    def payload(self, number: int, time_ns: int = 0) -> bytes:
        """Return a message's payload."""
        return number.to_bytes(NUMBER_BYTES, "big") + time_ns.to_bytes(NUMBER_BYTES, "big") + self.tail

    def payloads(self) -> list[bytes]:
        """Return the payloads of all messages."""
        return [self.payload(number, self.time_ns) for number in range(self.first, self.first + self.count)]

    def key_names(self) -> list[str]:
        """Return the fairness keys of all messages."""
        numbers = range(self.first, self.first + self.count)
        if self.keys >= self.count:
            return [f"tenant-{number % self.keys}" for number in numbers]
        names = [f"tenant-{number}" for number in range(self.keys)]
        return [names[number % self.keys] for number in numbers]

    def parts(self, size: int) -> "Iterator[Load]":
        """Yield the same messages in loads of at most so many, so that a large load needs not fit into memory."""
        for first in range(self.first, self.first + self.count, size):
            count = min(size, self.first + self.count - first)
            yield replace(self, count=count, first=first)


def time_of(payload: bytes) -> int:
    """Return the time in a payload, ns of the monotonic clock."""
    return int.from_bytes(payload[NUMBER_BYTES:HEAD_BYTES], "big")


class Check:
    """Notes what a consumer received, and compares it with what was sent.

    While the clock runs, it keeps eight bytes of each message and compares the tails. Numbers are counted afterwards, those
    of large loads from time to time, so that a million messages take some 50 MB.
    """

    def __init__(self, load: Load, most: int | None = None) -> None:
        self._load = load
        self._most = load.count if most is None else most
        self._tail = load.tail
        self._heads: list[bytes] = []
        self._times = bytearray(load.count)
        """How often each message came, up to 255."""
        self._damaged = self._strange = self._counted = 0

    @property
    def received(self) -> int:
        """How many messages were noted."""
        return self._counted + len(self._heads)

    @property
    def left(self) -> int:
        """How many of the ``most`` that are to come have not come yet, if each comes once."""
        return self._most - self.received

    def expect(self, count: int) -> None:
        """Let so many more come."""
        self._most = self.received + count

    def note(self, payloads: Sequence[bytes]) -> None:
        """Note messages that came."""
        self._heads += [payload[:NUMBER_BYTES] for payload in payloads]
        tail = self._tail
        self._damaged += sum([not payload.endswith(tail) for payload in payloads])
        if len(self._heads) >= HEADS_MAX:
            self._count()

    def _count(self) -> None:
        first, count, times = self._load.first, self._load.count, self._times
        for head in self._heads:
            place = int.from_bytes(head, "big") - first
            if 0 <= place < count:
                times[place] = min(255, times[place] + 1)
            else:
                self._strange += 1
        self._counted += len(self._heads)
        self._heads = []

    def merge(self, other: "Check") -> None:
        """Add what another consumer of the same load noted, in another process perhaps."""
        for check in (self, other):
            check._count()
        self._times = bytearray(map(_sum, self._times, other._times))
        self._counted += other._counted
        self._damaged += other._damaged
        self._strange += other._strange

    def verified(self) -> Verified:
        """Return what came of the load. A number that was not sent is a damaged message."""
        self._count()
        missing = self._times.count(0)
        repeated = sum(self._times) - (self._load.count - missing)
        return Verified(self._load.count, self._counted, missing, repeated, self._damaged + self._strange)


def _sum(one: int, other: int) -> int:
    return min(255, one + other)
