"""What a run sends, and how fast."""

from typing import Final

import msgspec

PAYLOAD_BYTES_MIN: Final = 40
"""The stamp that a payload begins with (``payloads``)."""
MESSAGES_MAX: Final = 1_000_000_000
"""A consumer keeps one bit for each message of a producer: 125 MB."""
PREFETCH: Final = 4_000
"""Of each consumer: so many that a slow acknowledgement does not stop the deliveries."""
CLOSED_IN_FLIGHT: Final = 4
OPEN_IN_FLIGHT: Final = 1_000
"""Requests that a producer has under way: few without a rate; with one, so many that only an overloaded broker makes it wait."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a run. ``messages`` and ``duration_s``: the first of them that is reached ends it; one may be None.

    ``rate_s`` is messages a second of all producers together; None: as fast as the answers come (a closed loop).
    """

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
    """What a child is to do: its first line of input. ``seed`` makes the payloads of this run different from all others."""

    endpoint: str
    queue: str
    seed: int
    number: int
    workload: Workload


class Produced(msgspec.Struct, frozen=True, kw_only=True, tag="produced"):
    """What a producer has done. Times are of the monotonic clock, in nanoseconds; ``latencies``: microseconds → how often."""

    sent: int
    first_ns: int
    last_ns: int
    cpu_s: float
    latencies: dict[int, int]


class Consumed(msgspec.Struct, frozen=True, kw_only=True, tag="consumed"):
    """What a consumer has got: ``seen`` has a bitmap for each producer, ``wrong`` an example of a message that was not whole."""

    seen: dict[int, bytes]
    received: int
    damaged: int
    wrong: str
    first_ns: int
    last_ns: int
    cpu_s: float
    latencies: dict[int, int]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A child's last line: an error of the broker or the network, for people."""

    error: str


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """How many messages a child has sent or received so far. The first one, with 0, means that it is ready."""

    count: int


class Done(msgspec.Struct, frozen=True, tag="done"):
    """A child's last line."""

    result: Produced | Consumed


Line = Failed | Progress | Done
