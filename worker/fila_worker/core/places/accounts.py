"""The accounts of the place bank by key and shard, and the shares of those that wait. See ``docs/decisions/places.md``.

Wants are served by stride scheduling: the want with the lowest *pass* is next, and each place adds the inverse of its weight
to its pass. A want that was away begins at the pass of those that were served meanwhile.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Final

from fila_proto_zmq.commands import PlaceWant

SCANNED_MAX: Final = 64
"""Wants of a key that are examined for one that can be served, where they need places of several keys."""

AWAY_MS: Final = 1000
"""After this time a want is no continuation of the last one of the same shard and keys."""

SERVED_FORGOTTEN_MAX: Final = 2000
"""The most shards and keys that are forgotten in one turn: more than a turn serves."""

PASSES_MAX: Final = 10_000
"""Passes that are remembered of wants that are over."""


@dataclass(slots=True)
class ShardAccount:
    """The places of one key that a shard has, as totals. ``short``: whether it gives back what becomes free."""

    number: int
    granted: int
    returned: int
    short: bool = False

    @property
    def outstanding(self) -> int:
        """The places that the shard may have."""
        return self.granted - self.returned


@dataclass(slots=True, eq=False)
class Want:
    """Places that a shard wants, one of each key for each message."""

    shard: int
    names: tuple[str, ...]
    count: int
    weight: int
    order: tuple[float, int]
    """Its pass, and its number."""


_NO_WANTS: Final[list[Want]] = []
"""The wants of a key that no shard waits for: most of a hundred thousand tenants' keys. Never changed."""

_order: Final = attrgetter("order")


@dataclass(slots=True, eq=False)
class BankKey:
    """A throttle key with a concurrency. ``outstanding`` is the sum over its accounts."""

    key: str
    opening: int
    limit: int
    known: frozenset[int] = frozenset()
    """The shards that have told what is leased."""
    accounts: dict[int, ShardAccount] = field(default_factory=dict)
    outstanding: int = 0
    wants: list[Want] = field(default_factory=lambda: _NO_WANTS)
    """In their order."""
    weight: int = 0
    """The sum of the weights of its wants."""
    served: frozenset[int] = frozenset()
    """The shards that got places just now (:class:`ServedShards`)."""
    version: int = 0
    """The version of the limits that it follows."""
    asked_ms: int = 0
    """When shards that are not known were last asked."""

    def free(self, shards: int) -> int:
        """Return the places that may be granted: none before all shards are known."""
        return self.limit - self.outstanding if len(self.known) >= shards else 0

    def line_up(self, want: Want) -> None:
        """Put a want in its place."""
        if self.wants:
            insort(self.wants, want, key=_order)
        else:
            self.wants = [want]

    def take_out(self, want: Want) -> bool:
        """Take a want out of line. Return whether it was there."""
        index = bisect_left(self.wants, want.order, key=_order)
        if index == len(self.wants) or self.wants[index] is not want:
            return False
        del self.wants[index]
        if not self.wants:
            self.wants = _NO_WANTS
        return True

    def put(self, shard: int, account: ShardAccount) -> None:
        """Set a shard's account."""
        before = self.accounts.get(shard)
        self.outstanding += account.outstanding - (before.outstanding if before else 0)
        self.accounts[shard] = account

    def drop(self, shard: int) -> None:
        """Remove a shard's account."""
        account = self.accounts.pop(shard, None)
        if account is not None:
            self.outstanding -= account.outstanding

    def wanted_by(self) -> frozenset[int]:
        """Return the shards that wait for places, or got some just now and may wait again."""
        return self.served.union(want.shard for want in islice(self.wants, SCANNED_MAX))


class ServedShards:
    """The shards that got places of a key within the last :data:`AWAY_MS`, kept in :attr:`BankKey.served`."""

    def __init__(self) -> None:
        self._since: OrderedDict[tuple[BankKey, int], int] = OrderedDict()
        self._lone: dict[int, frozenset[int]] = {}
        """Each shard as a set: most keys are used on one, and share it."""

    def note(self, key: BankKey, shard: int, now_ms: int) -> None:
        """Note that a shard got places of a key."""
        if shard not in key.served:
            lone = self._lone.setdefault(shard, frozenset((shard,)))
            key.served = key.served | lone if key.served else lone
        self._since[key, shard] = now_ms
        self._since.move_to_end((key, shard))

    def forget(self, now_ms: int) -> list[BankKey]:
        """Forget those whose time is up, a bounded number of them. Return their keys."""
        keys: list[BankKey] = []
        while self._since and now_ms - next(iter(self._since.values())) >= AWAY_MS and len(keys) < SERVED_FORGOTTEN_MAX:
            (key, shard), _ = self._since.popitem(last=False)
            key.served -= self._lone[shard]
            keys.append(key)
        return keys


class Wants:
    """The wants of all shards, in the order of their passes."""

    def __init__(self) -> None:
        self.wants: dict[tuple[int, tuple[str, ...]], Want] = {}
        self._passes: dict[tuple[int, tuple[str, ...]], tuple[float, int]] = {}
        """Of wants that are over: the pass with which the next one begins, and when that was, Unix ms."""
        self._now = 0.0
        """The pass of the want that was served last."""
        self._made = 0

    def put(self, shard: int, keys: list[BankKey], told: PlaceWant, now_ms: int) -> None:
        """Have a shard want places of these keys. Its last want of the same keys is over."""
        names = tuple(key.key for key in keys)
        place = shard, names
        self._made += 1
        passed, ended_ms = self._passes.pop(place, (0.0, 0))
        if now_ms - ended_ms >= AWAY_MS:
            passed = max(passed, self._now)
        want = self.wants[place] = Want(shard, names, told.count, max(1, told.weight), (passed, self._made))
        for key in keys:
            key.line_up(want)
            key.weight += want.weight

    def move(self, want: Want, keys: list[BankKey], granted: int, *, charged: bool) -> None:
        """Let others come before a want that got places. One that got all is out of line. ``charged``: others waited."""
        self._now = max(self._now, want.order[0])
        for key in keys:
            key.take_out(want)
        want.count -= granted
        self._made += 1
        want.order = want.order[0] + charged * granted / want.weight, self._made
        for key in keys:
            if want.count > 0:
                key.line_up(want)
            else:
                key.weight -= want.weight

    def remove(self, want: Want, keys: list[BankKey], now_ms: int) -> None:
        """End a want. The next one of the same shard and keys continues with its pass."""
        place = want.shard, want.names
        del self.wants[place]
        for key in keys:
            if key.take_out(want):
                key.weight -= want.weight
        if len(self._passes) >= PASSES_MAX:
            self._passes.clear()
        self._passes[place] = want.order[0], now_ms
