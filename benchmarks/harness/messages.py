"""Messages that can be checked: each payload has its number, its time, and a tail that all payloads of the load share."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from benchmarks.harness.results import Verified

HEADERS = {"tenant": "acme", "kind": "order.created"}
NUMBER_BYTES = 8
HEAD_BYTES = 16
"""A number and a time, 8 bytes each. A payload is never shorter."""


@dataclass(frozen=True)
class Load:
    """``count`` messages, numbered from ``first``, over ``keys`` fairness keys in turn. Systems without fairness keys ignore these."""

    count: int
    payload_bytes: int = 1024
    keys: int = 1
    first: int = 0
    headers: dict[str, str] = field(default_factory=lambda: dict(HEADERS))

    @cached_property
    def tail(self) -> bytes:
        """What stands behind the number and the time: bytes that no compression makes smaller, the same in each process."""
        return random.Random(self.payload_bytes).randbytes(max(0, self.payload_bytes - HEAD_BYTES))

    def payload(self, number: int, time_ns: int = 0) -> bytes:
        """Return a message's payload."""
        return number.to_bytes(NUMBER_BYTES, "big") + time_ns.to_bytes(NUMBER_BYTES, "big") + self.tail

    def payloads(self) -> list[bytes]:
        """Return the payloads of all messages."""
        return [self.payload(number) for number in range(self.first, self.first + self.count)]

    def key_names(self) -> list[str]:
        """Return the fairness keys of all messages."""
        names = [f"tenant-{number}" for number in range(self.keys)]
        return [names[number % self.keys] for number in range(self.first, self.first + self.count)]

    def parts(self, size: int) -> "Iterator[Load]":
        """Yield the same messages in loads of at most so many, so that a large load needs not fit into memory."""
        for first in range(self.first, self.first + self.count, size):
            count = min(size, self.first + self.count - first)
            yield Load(count, self.payload_bytes, self.keys, first, self.headers)


def time_of(payload: bytes) -> int:
    """Return the time in a payload, ns of the monotonic clock."""
    return int.from_bytes(payload[NUMBER_BYTES:HEAD_BYTES], "big")


class Check:
    """Notes what a consumer received, and compares it with what was sent.

    While the clock runs, it keeps eight bytes of each message and compares the tails. Numbers are counted afterwards.
    """

    def __init__(self, load: Load) -> None:
        self._load = load
        self._tail = load.tail
        self._heads: list[bytes] = []
        self._damaged = 0

    @property
    def received(self) -> int:
        """How many messages were noted."""
        return len(self._heads)

    @property
    def left(self) -> int:
        """How many have not come yet, if each comes once."""
        return self._load.count - len(self._heads)

    def note(self, payloads: Sequence[bytes]) -> None:
        """Note messages that came."""
        self._heads += [payload[:NUMBER_BYTES] for payload in payloads]
        tail = self._tail
        self._damaged += sum([not payload.endswith(tail) for payload in payloads])

    def verified(self) -> Verified:
        """Return what came of the load. A number that was not sent is a damaged message."""
        numbers = [int.from_bytes(head, "big") for head in self._heads]
        expected = range(self._load.first, self._load.first + self._load.count)
        known = {number for number in numbers if number in expected}
        strange = sum(number not in expected for number in numbers)
        repeated = len(numbers) - strange - len(known)
        return Verified(self._load.count, len(numbers), self._load.count - len(known), repeated, self._damaged + strange)
