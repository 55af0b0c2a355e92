"""The options of a run, its payloads, and the messages between its processes."""

import struct
from collections.abc import Mapping
from random import Random
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

PAYLOAD_BYTES_MIN: Final = 40
"""The stamp that a payload begins with."""
MESSAGES_MAX: Final = 1_000_000_000
"""A consumer keeps one bit for each message of a producer: 125 MB."""
PREFETCH: Final = 4_000
"""Of each consumer: so many that a slow acknowledgement does not stop the deliveries."""
CLOSED_IN_FLIGHT: Final = 4
OPEN_IN_FLIGHT: Final = 1_000
"""A producer's requests in flight: few without a rate; with one, so many that it waits only for an overloaded broker."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a run, which ends at ``messages`` or ``duration_s``. ``rate_s``: of all producers; None: a closed loop."""

    messages: int | None
    duration_s: float | None
    payload_bytes: int
    batch: int
    keys: int
    producers: int
    consumers: int
    rate_s: float | None
    in_flight: int
    backlog: bool

    def share_of(self, producer: int) -> int:
        """Return how many messages a producer sends at most."""
        if self.messages is None:
            return MESSAGES_MAX
        share, rest = divmod(self.messages, self.producers)
        return share + (producer < rest)


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A child's task: its first line of input. ``seed`` makes the payloads of this run different from all others."""

    endpoint: str
    queue: str
    seed: int
    number: int
    workload: Workload


class Produced(msgspec.Struct, frozen=True, kw_only=True, tag="produced"):
    """A producer's result. Times are of the monotonic clock, in nanoseconds; ``latencies``: microseconds → count."""

    sent: int
    first_ns: int
    last_ns: int
    cpu_s: float
    latencies: dict[int, int]


class Consumed(msgspec.Struct, frozen=True, kw_only=True, tag="consumed"):
    """A consumer's result: ``seen`` has a bitmap for each producer, ``wrong`` an example of a damaged message."""

    seen: dict[int, bytes]
    received: int
    damaged: int
    wrong: str
    first_ns: int
    last_ns: int
    cpu_s: float
    latencies: dict[int, int]


class ChildFailed(msgspec.Struct, frozen=True, tag="failed"):
    """A child's last line: an error of the broker or the network, for people."""

    error: str


class ChildProgress(msgspec.Struct, frozen=True, tag="progress"):
    """How many messages a child has sent or received so far. The first one, with 0, means that it is ready."""

    count: int


class ChildDone(msgspec.Struct, frozen=True, tag="done"):
    """A child's last line."""

    result: Produced | Consumed


Line = ChildFailed | ChildProgress | ChildDone


_FACTS: Final = struct.Struct("<16sIQq")
_STAMP: Final = struct.Struct(f"<{_FACTS.size}sI")
_POOL_BYTES: Final = 1 << 20
_STEP_BYTES: Final = 4_099
"""A prime, so that messages in a row have different bytes."""

assert _STAMP.size == PAYLOAD_BYTES_MIN


class Stamp(NamedTuple):
    """The facts in a payload. ``intended_ns``: when it was to be sent, on the monotonic clock."""

    producer: int
    number: int
    intended_ns: int


class Payloads:
    """Makes and checks the payloads of one run.

    A payload is a stamp (the run's seed, producer, number, intended time, and their checksum) and random bytes that follow
    from the stamp: a receiver checks every byte without a copy of what was sent, and a store that compresses gains nothing.
    """

    def __init__(self, seed: int, size_bytes: int, keys: int) -> None:
        self._mark = seed.to_bytes(16, "big")
        self._filler_bytes = size_bytes - _STAMP.size
        self._pool = Random(seed).randbytes(_POOL_BYTES + self._filler_bytes)
        self._keys = [f"tenant-{number}" for number in range(keys)]

    def make(self, producer: int, number: int, intended_ns: int) -> bytes:
        """Return a payload."""
        facts = _FACTS.pack(self._mark, producer, number, intended_ns)
        return _STAMP.pack(facts, crc32(facts)) + self._filler(producer, number)

    def key(self, number: int) -> str:
        """Return the fairness key of a message."""
        return self._keys[number % len(self._keys)]

    def headers(self, number: int) -> dict[str, str]:
        """Return the headers of a message."""
        return {"tenant": self.key(number), "number": str(number)}

    def check(self, payload: bytes, headers: Mapping[str, str]) -> Stamp | None:
        """Return the stamp of a message that is whole and of this run, else None."""
        if len(payload) != _STAMP.size + self._filler_bytes:
            return None
        facts, checksum = _STAMP.unpack_from(payload)
        mark, producer, number, intended_ns = _FACTS.unpack(facts)
        if (
            mark != self._mark
            or checksum != crc32(facts)
            or payload[_STAMP.size :] != self._filler(producer, number)
            or headers != self.headers(number)
        ):
            return None
        return Stamp(producer, number, intended_ns)

    def _filler(self, producer: int, number: int) -> bytes:
        start = (producer * 7 + number) * _STEP_BYTES % _POOL_BYTES
        return self._pool[start : start + self._filler_bytes]
