"""The places that a shard has of throttle keys with a concurrency, and the lanes that wait for them.

A message needs a place of each of its limited keys. Lanes that need places of the same keys wait in one line. Free places are
*dealt* to lanes in turns of their weights: a dealt place is for the next message of that lane. A lane may take a free place by
itself only while nobody waits for the key. So no lane overtakes those that wait. A partition of a queue with a limit waits in the
same way for places of its whole queue, which is a key of its own.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Generic, Protocol, TypeVar

from fila_proto_zmq.bucket_limits import is_pattern
from fila_worker.core.due_time import AT_ONCE, DueTime

HOLD_MS: Final = 20
"""How long a place is kept for a lane that does not use it, because it waits for tokens, or for a consumer."""

HOLD_MS_MAX: Final = 2000
"""How long it is kept while the token bank has not answered."""

LINES_LOOKED_AT_MAX: Final = 64
"""Lines that are examined for one that a free place is of use to, where messages need places of several keys."""

FORGOTTEN_AT_ONCE: Final = 1000
"""Accounts that are looked at in one turn, whether they are of use."""

TOUCHED_AT_ONCE: Final = 1000
"""Accounts whose places are dealt, or given back, in one turn."""

DEALT_MAX: Final = 1000
"""Lanes that get places, or leave their lines, in one turn."""


class LeasedCount(Protocol):
    """Counts the leased messages of a throttle key. ``held``: the account of the key; None: it has none."""

    leased: int
    held: "HeldKey[Any] | None"


class Weighted(Protocol):
    """A fairness key. ``queue``: to which it belongs."""

    @property
    def weight(self) -> int:
        """Its weight."""

    @property
    def queue(self) -> Hashable:
        """Its queue."""


class WaitingLane(Protocol):
    """A lane of messages, or a whole partition of a queue."""

    @property
    def blocked(self) -> bool:
        """Whether it may deliver nothing now."""

    @blocked.setter
    def blocked(self, blocked: bool) -> None: ...

    @property
    def key(self) -> Weighted:
        """Its fairness key."""

    @property
    def pending(self) -> int:
        """The number of its messages in line."""


L = TypeVar("L", bound=WaitingLane)
K = TypeVar("K")


_NO_LINES: Final[OrderedDict[Any, None]] = OrderedDict()


class HeldKey(Generic[L]):
    """The account of one throttle key.

    Invariants: ``taken`` and ``returned`` are on disk before a message is leased by them, and ``returned`` not before the
    leases have ended. Leased messages are at most ``held``, unless they were leased before the key had a limit.
    """

    __slots__ = (
        "counts",
        "dealt",
        "freed",
        "in_use",
        "key",
        "lines",
        "number",
        "opening",
        "returned",
        "saved",
        "short",
        "taken",
        "told",
        "version",
    )

    def __init__(self, key: str, counts: LeasedCount) -> None:
        self.key = key
        self.counts = counts
        self.number = 0
        """Of the account; 0: it has none yet."""
        self.opening = 0
        """The opening of the key that the account agrees with."""
        self.taken = self.returned = 0
        self.saved = 0, 0, 0, 0
        """What is on disk: number, opening, taken, returned. Zeros: nothing."""
        self.told = self.saved
        """What the bank was last told."""
        self.dealt = 0
        """Places that lanes have and have not used."""
        self.freed = 0
        """Leases that ended since the places were last dealt."""
        self.short = False
        """Whether a place that becomes free goes back to the bank, because others wait for it, or too many are in use."""
        self.in_use = 0
        """The places of all shards, as the bank last told."""
        self.lines: OrderedDict[PlaceLine[L], None] = _NO_LINES
        """The lines with lanes that need its places. The first is next. Without lines it is one that all share."""
        self.version = 0
        """The version of the limits that it follows."""

    @property
    def held(self) -> int:
        """The places that the shard has."""
        return self.taken - self.returned

    @property
    def idle(self) -> int:
        """The places that are neither in use nor dealt."""
        return self.taken - self.returned - self.counts.leased - self.dealt


class PlaceLine(Generic[L]):
    """The lanes that wait for places of the same keys. ``told``: the want that the bank knows, as ``(count, weight)``."""

    __slots__ = ("credit", "keys", "told", "waiting", "weight")

    def __init__(self, keys: tuple[HeldKey[L], ...]) -> None:
        self.keys = keys
        self.waiting: OrderedDict[L, tuple[int, int]] = OrderedDict()
        """For each lane the rest of its turn, and the weight with which it counts."""
        self.weight = 0
        """The sum of these weights."""
        self.credit = 0
        """The rest of the turn of this line."""
        self.told: tuple[int, int] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The throttle keys."""
        return tuple(key.key for key in self.keys)

    def add(self, lane: L, credit: int) -> None:
        """Append a lane. One whose turn is not over comes first."""
        weight = lane.key.weight
        self.waiting[lane] = credit, weight
        self.weight += weight
        if credit > 0:
            self.waiting.move_to_end(lane, last=False)
        for key in self.keys:
            if not key.lines:
                key.lines = OrderedDict()
            key.lines[self] = None

    def remove(self, lane: L) -> int:
        """Take a lane out. Return the rest of its turn."""
        credit, weight = self.waiting.pop(lane)
        self.weight -= weight
        if not self.waiting:
            for key in self.keys:
                del key.lines[self]
                if not key.lines:
                    key.lines = _NO_LINES
        return credit

    @property
    def free(self) -> int:
        """The places that it may get: as many of each key."""
        return min(key.idle for key in self.keys)


@dataclass(slots=True)
class DealtPlaces(Generic[L]):
    """The places that a lane got and has not used."""

    keys: tuple[HeldKey[L], ...]
    count: int
    since_ms: int
    until_ms: int


def concerned(keys: Mapping[str, K], names: Sequence[str] | None, has_limit: Callable[[str], bool]) -> list[K]:
    """Return the keys that follow changed limits at once: those that are named, and those of patterns without a limit now."""
    if names is None:
        return list(keys.values())
    found = [keys[name] for name in names if name in keys]
    ended = tuple(name[:-1] for name in names if is_pattern(name) and not has_limit(name))
    return found + [key for name, key in keys.items() if name.startswith(ended)] if ended else found


class Places(Generic[L]):
    """All places of a shard."""

    def __init__(self, limit: Callable[[str], int | None]) -> None:
        self.limit = limit
        """Returns how many messages with a throttle key may be leased in the whole cluster; None: any number."""
        self.version = 0
        """Counts changes of the limits."""
        self.keys: OrderedDict[str, HeldKey[L]] = OrderedDict()
        self.made = 0
        """Accounts for which two are still to be looked at, whether they are of use."""
        self.lines: dict[tuple[str, ...], PlaceLine[L]] = {}
        self.where: dict[L, PlaceLine[L]] = {}
        """The line of each lane that waits."""
        self.dealt: OrderedDict[L, DealtPlaces[L]] = OrderedDict()
        """In the order in which they are taken back."""
        self.ready: Counter[Hashable] = Counter()
        """The number of these lanes, by queue."""
        self.doubtful: dict[L, None] = {}
        """Those among them that may not use their places soon."""
        self.touched: dict[HeldKey[L], None] = {}
        """Keys whose places came, became free, or were left over."""
        self.changed: dict[PlaceLine[L], None] = {}
        """Lines whose wants may have changed."""
        self.postponed: OrderedDict[Hashable, dict[PlaceLine[L], None]] = OrderedDict()
        """Lines that want places later, by queue: its consumers have too little credit for more wants at once."""
        self.eager: dict[Hashable, None] = {}
        """Those of these queues that may have credit for more wants now."""
        self.ending: list[PlaceLine[L]] = []
        """Lines of keys that have no limit any more."""
        self.deals, self.reports = DueTime(), DueTime()
        """When there may be places to deal, and something to tell the bank."""
        self._credits: dict[L, int] = {}
        """The rest of the turns of lanes that do not wait."""

    # --- taking -------------------------------------------------------------------------------------------------------

    def placed(self, names: Sequence[str], counts: Sequence[LeasedCount]) -> tuple[HeldKey[L], ...]:
        """Return the accounts of the keys with a limit among these."""
        return tuple(
            self.account(name, count) for name, count in zip(names, counts, strict=True) if self.limit(name) is not None
        )

    def account(self, name: str, counts: LeasedCount) -> HeldKey[L]:
        """Return the account of a key, a new one if need be."""
        key = self.keys.get(name)
        if key is None:
            key = counts.held = self.keys[name] = HeldKey(name, counts)
            key.version = self.version
            self.made += 1
        return key

    def forget_unused(self, is_used: Callable[[HeldKey[L]], bool]) -> list[HeldKey[L]]:
        """Forget accounts that nobody uses, and return them. Two are looked at for each new one: so few are of no use."""
        count = min(FORGOTTEN_AT_ONCE, 2 * self.made + 2)
        self.made = max(0, self.made - FORGOTTEN_AT_ONCE // 2)
        unused = []
        for name, key in list(islice(self.keys.items(), count)):
            if key.held or key.lines or key.dealt or is_used(key):
                self.keys.move_to_end(name)
            else:
                del self.keys[name]
                self.touched.pop(key, None)
                unused.append(key)
        return unused

    def room(self, lane: L, keys: tuple[HeldKey[L], ...]) -> int:
        """Return how many places of each key a lane may take now."""
        dealt = self.dealt.get(lane)
        if dealt is not None:
            if dealt.keys == keys:
                return dealt.count
            self._collect(lane)
        return 0 if any(key.lines for key in keys) else max(0, min(key.idle for key in keys))

    def spend(self, lane: L, keys: tuple[HeldKey[L], ...], count: int = 1) -> bool:
        """Use dealt places of these keys for messages that are counted as leased now. Return whether the lane had some."""
        dealt = self.dealt.get(lane)
        if dealt is None or dealt.keys != keys:
            return False
        dealt.count -= count
        for key in keys:
            key.dealt -= count
        if not dealt.count:
            self._use_up(lane)
        return True

    def wait(self, lane: L, keys: tuple[HeldKey[L], ...]) -> None:
        """Block a lane until it gets a place of each key."""
        names = tuple(key.key for key in keys)
        line = self.lines.get(names)
        if line is None or line.keys != keys:  # or the accounts are new ones
            line = self.lines[names] = PlaceLine(keys)
        line.add(lane, self._credits.pop(lane, 0))
        self.where[lane] = line
        lane.blocked = True
        self.changed[line] = None
        self.reports.by(AT_ONCE)

    def leave(self, lane: L) -> None:
        """Forget a lane that has nothing to deliver: it waits no more, and its places go to others."""
        if lane in self.where:
            self._release(lane)
        if lane in self.dealt:
            self._collect(lane)
        self._credits.pop(lane, None)

    def _release(self, lane: L) -> int:
        line = self.where.pop(lane)
        credit = line.remove(lane)
        lane.blocked = False
        self.changed[line] = None
        self.reports.by(AT_ONCE)
        return credit

    def _collect(self, lane: L) -> None:
        dealt = self._use_up(lane)
        for key in dealt.keys:
            key.dealt -= dealt.count
            self.touch(key)

    def _use_up(self, lane: L) -> DealtPlaces[L]:
        queue = lane.key.queue
        self.ready[queue] -= 1
        if not self.ready[queue]:
            del self.ready[queue]
        self.look_again(queue)
        return self.dealt.pop(lane)

    def touch(self, key: HeldKey[L]) -> None:
        """Deal the places of a key, and settle what is left over, in this turn."""
        self.touched[key] = None
        self.deals.by(AT_ONCE)
        self.reports.by(AT_ONCE)

    def look_again(self, queue: Hashable) -> None:
        """Have postponed lines of a queue want places in this turn, if there is credit for more wants."""
        if queue in self.postponed:
            self.eager[queue] = None
            self.reports.by(AT_ONCE)

    def in_turn(self) -> list[HeldKey[L]]:
        """Return the touched keys that are to be looked at in this turn."""
        keys = list(islice(self.touched, TOUCHED_AT_ONCE))
        for key in keys:
            if key.version != self.version:
                self._follow(key)
        return keys

    def waiting_for(self, name: str) -> Iterator[L]:
        """Yield the lanes that wait for places of a key."""
        key = self.keys.get(name)
        for line in () if key is None else key.lines:
            yield from line.waiting

    # --- dealing ------------------------------------------------------------------------------------------------------

    def collect_unused(self, keeps: Callable[[L], bool], now_ms: int) -> None:
        """Take back places that were not used for a while. A lane ``keeps`` its own a little longer if it will use them soon."""
        while self.dealt:
            lane, dealt = next(iter(self.dealt.items()))
            if dealt.until_ms > now_ms:
                break
            if keeps(lane) and now_ms < dealt.since_ms + HOLD_MS_MAX:
                dealt.until_ms = now_ms + HOLD_MS
                self.dealt.move_to_end(lane)
            else:
                self._collect(lane)

    def doubt(self, lane: L) -> None:
        """Look at the end of the turn whether a lane keeps its places."""
        if lane in self.dealt:
            self.doubtful[lane] = None
            self.reports.by(AT_ONCE)

    def collect_doubtful(self, keeps: Callable[[L], bool]) -> None:
        """Take back the places of lanes that may not use them soon, unless they are to be kept."""
        doubtful, self.doubtful = self.doubtful, {}
        for lane in doubtful:
            if lane in self.dealt and not keeps(lane):
                self._collect(lane)

    def next_unused(self) -> int | None:
        """Return when places may be taken back, Unix ms."""
        return next((dealt.until_ms for dealt in self.dealt.values()), None)

    def deal(self, able: Callable[[L], bool], now_ms: int) -> list[L]:
        """Deal the free places of keys that were touched. Return the lanes that may go on: with places, or not ``able``."""
        free: list[L] = []
        fed: dict[L, None] = {}
        for key in self.in_turn():
            while key.idle > 0 and len(free) + len(fed) < DEALT_MAX and (line := self.line_in_turn(key)) is not None:
                lane = next(iter(line.waiting))
                if able(lane):
                    fed[lane] = None
                    self._give(lane, line, now_ms)
                else:
                    self._release(lane)
                    free.append(lane)
        for lane in fed:
            if lane in self.where:
                self._credits[lane] = self._release(lane)
        return free + list(fed)

    def _give(self, lane: L, line: PlaceLine[L], now_ms: int) -> None:
        """Deal places to the lane whose turn it is, as many as its turn allows and it can use."""
        credit, weight = line.waiting[lane]
        credit = credit if credit > 0 else weight
        alone = len(line.waiting) == 1 and all(len(key.lines) == 1 for key in line.keys)
        if alone:
            credit = max(credit, lane.pending)  # its turn would be followed by its next one
        dealt = self.dealt.get(lane)
        if dealt is None:
            dealt = self.dealt[lane] = DealtPlaces(line.keys, 0, now_ms, now_ms + HOLD_MS)
            self.ready[lane.key.queue] += 1
        count = max(1, min(line.free, lane.pending - dealt.count, credit))
        dealt.count += count
        for key in line.keys:
            key.dealt += count
        line.waiting[lane] = min(credit - count, weight), weight
        if dealt.count >= lane.pending:
            self._release(lane)
        elif credit == count:
            line.waiting.move_to_end(lane)
        line.credit = 0 if alone else line.credit - count
        if line.credit <= 0 and line.waiting:
            line.credit += line.weight
            for key in line.keys:
                key.lines.move_to_end(line)

    def line_in_turn(self, key: HeldKey[L]) -> PlaceLine[L] | None:
        """Return the next line that a place of a key is of use to."""
        return next((line for line in islice(key.lines, LINES_LOOKED_AT_MAX) if line.free > 0), None)

    def dismiss(self, able: Callable[[L], bool]) -> list[L]:
        """Take lanes that can't use places now out of the changed lines, and return them."""
        unable: list[L] = []
        for line in list(self.changed):
            while line.waiting and len(unable) < DEALT_MAX:
                some = [lane for lane in islice(line.waiting, LINES_LOOKED_AT_MAX) if not able(lane)]
                if not some:
                    break
                for lane in some:
                    self._release(lane)
                unable += some
        return unable

    # --- limits -------------------------------------------------------------------------------------------------------

    def follow(self, names: Sequence[str] | None) -> list[HeldKey[L]]:
        """Follow changed limits of keys and patterns; None: of any. Return the accounts that end.

        The lanes that wait for their places are released in turns. A key of a pattern with a new limit follows when it is used.
        """
        self.version += 1
        follow_now = concerned(self.keys, names, lambda name: self.limit(name) is not None)
        gone = [key for key in follow_now if self._follow(key) is None]
        if not gone:
            return gone
        ended = set(gone)
        for lane in [lane for lane, dealt in self.dealt.items() if not ended.isdisjoint(dealt.keys)]:
            self._collect(lane)
        for line in [line for line in self.lines.values() if not ended.isdisjoint(line.keys)]:
            del self.lines[line.names]
            if line.waiting:
                self.ending.append(line)
        for key in gone:
            self.touched.pop(key, None)
            del self.keys[key.key]
        self.deals.by(AT_ONCE if self.ending else None)
        return gone

    def _follow(self, key: HeldKey[L]) -> int | None:
        key.version, limit = self.version, self.limit(key.key)
        if limit is not None and key.held > limit:
            key.short = True  # the bank will say so
        return limit

    def release_some(self) -> list[L]:
        """Return lanes whose lines have ended, which wait no more."""
        free: list[L] = []
        while self.ending and len(free) < DEALT_MAX:
            line = self.ending[-1]
            for lane in list(islice(line.waiting, DEALT_MAX)):
                self._release(lane)
                free.append(lane)
            if not line.waiting:
                self.ending.pop()
        return free
