"""The limits of throttle keys and quotas that a runtime config sets, those by patterns included.

An entry ``throttle:<prefix>*:<limit>`` holds for each throttle key that begins with the prefix and has no entry of its own
for that limit; of several patterns the longest holds. Each such key has a bucket and places of its own. A look-up cuts the key to each
length that a pattern has, so it costs no more with many patterns or keys, and keys under a pattern take no memory here.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from fila_proto_zmq.runtime_config import (
    THROTTLE_LIMITS,
    Limit,
    bucket_limit,
    buckets_of,
    count_of,
    is_concurrency,
    is_quota_bucket,
    throttle_entry,
    throttle_key_of,
    throttle_limit,
)

ANY: Final = "*"
"""The end of a pattern."""


CHANGES_KEPT_MAX: Final = 1000
"""The last changes of concurrencies that are remembered, for those who follow them."""


def is_pattern(name: str) -> bool:
    """Return whether entries of this throttle key hold for others, too."""
    return name.endswith(ANY)


class BucketLimits:
    """All limits of one config. ``values``: its stored keys. Change both with :meth:`change`."""

    def __init__(self, values: dict[str, str] | None = None) -> None:
        self.values: dict[str, str] = {}
        self.own: dict[str, Limit] = {}
        """The limits of buckets with a rate of their own, by their own entries alone."""
        self._lengths = {limit: Counter[int]() for limit in THROTTLE_LIMITS}
        """How many patterns have an entry for each limit, by the length of their prefixes."""
        self.has_patterns = False
        self._concurrencies: set[str] = set()
        self.concurrency_changes = 0
        """How often entries of a concurrency were changed."""
        self._last_concurrencies: deque[str] = deque(maxlen=CHANGES_KEPT_MAX)
        """The keys and patterns of the last of these changes."""
        self.change(values or {})

    def change(self, changes: Mapping[str, str | None]) -> None:
        """Apply changes of stored keys. None: the key goes."""
        values = self.values
        for key, value in changes.items():
            name = throttle_key_of(key)
            if name is not None and is_pattern(name) and (key in values) != (value is not None):
                self._count(name, key, 1 if value is not None else -1)
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value
            if is_concurrency(key):
                (self._concurrencies.discard if value is None else self._concurrencies.add)(key)
                self.note_concurrency(name or "")
        for bucket in buckets_of(changes):
            limit = bucket_limit(bucket, values)
            if limit is None:
                self.own.pop(bucket, None)
            else:
                self.own[bucket] = limit

    def note_concurrency(self, name: str) -> None:
        """Note that the concurrency of a key or pattern has changed."""
        self.concurrency_changes += 1
        self._last_concurrencies.append(name)

    def _count(self, pattern: str, key: str, change: int) -> None:
        lengths = self._lengths[key.rpartition(":")[2]]
        lengths[len(pattern) - 1] += change
        if not lengths[len(pattern) - 1]:
            del lengths[len(pattern) - 1]
        self.has_patterns = any(self._lengths.values())

    def find(self, throttle_key: str, limit: str) -> str | None:
        """Return the value of one of the :data:`~fila_proto_zmq.runtime_config.THROTTLE_LIMITS` that holds for a key."""
        return next((self.values[throttle_entry(name, limit)] for name in self.sources(throttle_key, limit)), None)

    @property
    def has_concurrency(self) -> bool:
        """Whether any throttle key or pattern has a concurrency."""
        return bool(self._concurrencies)

    def concurrency(self, throttle_key: str) -> int | None:
        """Return how many messages with a throttle key, or of a pattern, may be leased at a time; None: any number."""
        return count_of(self.find(throttle_key, "concurrency"))

    def concurrencies_since(self, changes: int) -> list[str] | None:
        """Return the keys and patterns whose concurrency has changed since then; None: too many to know."""
        count = self.concurrency_changes - changes
        kept = self._last_concurrencies
        return list(dict.fromkeys(islice(kept, len(kept) - count, None))) if 0 <= count <= len(kept) else None

    def covers(self, throttle_key: str) -> bool:
        """Return whether a throttle key has any limit."""
        return any(self.find(throttle_key, limit) is not None for limit in THROTTLE_LIMITS)

    def sources(self, throttle_key: str, limit: str = "rate") -> Iterator[str]:
        """Yield the key, if it has an entry of its own for a limit, then the patterns that have one: the first one holds."""
        if throttle_entry(throttle_key, limit) in self.values:
            yield throttle_key
        for length in sorted(self._lengths[limit], reverse=True):
            pattern = throttle_key[:length] + ANY
            if length <= len(throttle_key) and pattern != throttle_key and throttle_entry(pattern, limit) in self.values:
                yield pattern

    def has_own(self, bucket: str) -> bool:
        """Return whether a bucket, or a pattern, has a rate of its own."""
        return bucket in self.own

    def get(self, bucket: str) -> Limit | None:
        """Return the limit of a bucket; None: it has no limit."""
        if not self.has_patterns or is_quota_bucket(bucket):
            return self.own.get(bucket)
        return throttle_limit(self.find(bucket, "rate"), self.find(bucket, "burst"))

    def __getitem__(self, bucket: str) -> Limit:
        limit = self.get(bucket)
        if limit is None:
            raise KeyError(bucket)
        return limit

    def __contains__(self, bucket: object) -> bool:
        return self.get(str(bucket)) is not None


def split_names(changes: Iterable[str]) -> tuple[set[str], set[str]]:
    """Return the buckets whose limits the stored keys decide: those with these names, and patterns."""
    names = buckets_of(changes)
    patterns = {name for name in names if is_pattern(name) and not is_quota_bucket(name)}
    return names - patterns, patterns
