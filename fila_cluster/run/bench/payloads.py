"""Payloads that prove that they are whole, and headers that belong to them.

A payload is a stamp (the run's seed, producer, number, intended time, and their checksum) and a stretch of random bytes that
the stamp decides, so that a receiver compares every byte without keeping what was sent. Random bytes, and not the same for each message,
because a store that compresses must not gain by them.
"""

import struct
from collections.abc import Mapping
from random import Random
from typing import Final, NamedTuple
from zlib import crc32

from fila_cluster.run.bench.workload import PAYLOAD_BYTES_MIN

_FACTS: Final = struct.Struct("<16sIQq")
_STAMP: Final = struct.Struct(f"<{_FACTS.size}sI")
_POOL_BYTES: Final = 1 << 20
_STEP_BYTES: Final = 4_099
"""A prime, so that messages in a row have different bytes."""

assert _STAMP.size == PAYLOAD_BYTES_MIN


class Stamp(NamedTuple):
    """What a payload says of its message. ``intended_ns``: when it was to be sent, on the monotonic clock."""

    producer: int
    number: int
    intended_ns: int


class Payloads:
    """Makes and checks the payloads of one run."""

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
