"""The token client of a shard: the tokens that it asks from the bank, and the amounts that it reports to the bank.

The buckets are in the router (one bank for the whole cluster). A shard spends only tokens that the bank granted it. Messages
with the same set of throttle keys share one :class:`LaneTokens`, a *throttle*, because they need the same tokens: some of
each key, together or not at all. The shard asks when a lane has to wait, and reports how much it consumed, once a turn and
for all throttles in one frame. All amounts are sent as totals of a session, so a frame that is lost or comes twice does no
harm, and a new session starts from 0.

Unspent tokens count as in the bucket, for all shards. So they go back when no lane of the shard can use them, or when they
were idle for a moment (:data:`HOLD_MS`). Only a small part of a bucket may wait longer, for the next credit. Without that
part, a key that needs tokens would never find credit in a queue whose consumers are always busy with the others.

A change that concerns very many throttles (a limit, a park, the session) is not applied to each of them in one turn. It
counts up a *version*, and a throttle of another version follows the change before it is used. So the change holds at once for
all throttles. Throttles whose lanes may be waiting are visited in the background, some of them a turn.
"""

from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Final

from sortedcontainers import SortedDict

from fila_proto_zmq.bucket_limits import BucketLimits, is_pattern
from fila_proto_zmq.commands import Grants, TokenWant
from fila_worker.core.due_time import AT_ONCE, DueTime
from fila_worker.core.model.lane_tokens import DISMISSED_MAX, BucketLevels, LaneTokens, ParkedKeys, Traffic

if TYPE_CHECKING:
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.queues import Queue

MICRO_PER_MILLI: Final = 1000
"""Costs are in thousandths of a token, buckets count millionths."""

WANT_MESSAGES_MAX: Final = 1000
"""The most messages for which a shard asks for tokens at once: what it may deliver in a turn or two."""

HOLD_MS: Final = 20
HOLD_LONG_MS: Final = 10_000
"""How long tokens may be idle: the usual time until the next credit. Longer if they are no more than the shard's part of the
bucket: all shards together could not keep it empty."""

LOOK_MS: Final = 500
"""The interval of checks of tokens that may stay long."""

LIVE_MS: Final = 10_000
"""How long after its last delivery a queue without consumers counts as one that is read from time to time."""

NEVER_MS: Final = 1 << 62
"""The end of a park that is ended by an event, not by time."""

REPEAT_MS: Final = 500
REPEAT_MS_MAX: Final = 4000
"""A want is repeated after ``REPEAT_MS``. Once the bank has answered, each repetition waits twice as long as the one before,
up to this time: a frame may be lost, but not all of them."""

SETTLED_MAX: Final = 500
"""The most throttles that are settled at the end of a turn: 10 ms at most, without the deliveries that they wait for."""

FOLLOWING_MIN: Final = 250
"""Of the throttles that are visited after a change: at least so many a turn, however many others are to be settled."""

REPEATS_MAX: Final = 1000
"""The most wants that are repeated in one turn. The others stay due."""

LANES_WOKEN_MAX: Final = 2000
"""The most lanes of a throttle that may try again in one turn."""

REPEATS_SETTLED: Final = 3
"""How often the last report of a throttle that wants nothing is repeated."""

FEW_THROTTLES: Final = 4
"""Throttles of one key that are kept as a tuple."""

Throttles = tuple[LaneTokens, ...] | set[LaneTokens]

IDLE_THROTTLES_MAX: Final = 1000
"""The most throttles without lanes that are kept, because tokens may be on their way to them."""


class TokenClient:
    """All throttles of a shard, the runtime limits that they follow, and the parked keys."""

    def __init__(self, session: int, shards: int) -> None:
        self.session = session
        self.throttles: dict[tuple[str, ...], LaneTokens] = {}
        self.by_key: SortedDict[str, Throttles] = SortedDict()
        """The throttles that have a key: usually one."""
        self.limits = BucketLimits()
        """The limits of throttle keys. Change them with :meth:`limit` or :meth:`replace`."""
        self.held = False
        """Whether no message with throttle keys is delivered, because new limits are coming and are not known yet."""
        self.parks, self.levels = ParkedKeys(), BucketLevels()
        self._shards = shards
        self._idle: dict[LaneTokens, None] = {}
        """Throttles without lanes. The one that lost its last lane first is in front."""
        self._holds: list[tuple[int, int, Lane]] = []
        """When to check the tokens of a lane: one entry for each lane that has or had some. It may be too early."""
        self._repeats: list[tuple[int, int, LaneTokens]] = []
        """When to repeat a want. An entry whose time is not its throttle's ``news_due_ms`` is stale."""
        self._changed: dict[LaneTokens, None] = {}
        """Throttles to settle at the end of a turn; at a later turn's end if they are too many or one has too many lanes."""
        self._settling: list[LaneTokens] = []
        self.version = 0
        """Counts changes of limits, parks and sessions. A throttle of another version follows them before it is used."""
        self._behind: OrderedDict[str | None, None] = OrderedDict()
        """Keys with a change whose throttles are still to be visited; None: all throttles."""
        self._visiting: list[LaneTokens] = []
        """The throttles still to be visited, of the key taken from ``_behind`` last."""
        self._entries = 0
        self.idleness, self.bank = DueTime(), DueTime()
        """The next times when a park may end or tokens may be idle, and when there is something to settle with the bank."""
        self.traffic: dict[str, Traffic] = {}
        """The counters of each throttle key that messages have, or that has a limit."""
        self.passes = self.hits = 0
        """Over all throttle keys: messages that got their tokens, and waits of lanes that a bucket or a park refused."""

    # --- lanes come and go --------------------------------------------------------------------------------------------

    def enter(self, lane: "Lane") -> None:
        """Add a new lane whose messages need tokens."""
        keys = lane.throttle_keys
        throttle = self.throttles.get(keys)
        if throttle is None:
            throttle = self.throttles[keys] = LaneTokens(keys, self.session)
            throttle.traffic = tuple([self.traffic.setdefault(key, Traffic()) for key in keys])
            for key in keys:
                self.by_key[key] = _with(self.by_key.get(key, ()), throttle)
            self._follow(throttle)
        self._idle.pop(throttle, None)
        throttle.lanes += 1
        lane.throttle = throttle

    def rest(self, lane: "Lane") -> None:
        """Take back the tokens of a lane that has nothing to deliver."""
        throttle = lane.throttle
        if throttle is not None:
            self.keep_up(throttle)
            if lane in throttle.waiting:
                throttle.release(lane)
            throttle.collect(lane)
            self._unsettled(throttle)

    def leave(self, lane: "Lane") -> None:
        """Remove a lane that is forgotten."""
        throttle = lane.throttle
        if throttle is None:
            return
        self.rest(lane)
        throttle.lanes -= 1
        if not throttle.lanes:
            self._idle[throttle] = None
            if throttle.told is None:
                self._forget(throttle)
            elif len(self._idle) > IDLE_THROTTLES_MAX:
                self._forget(next(iter(self._idle)))

    def _forget(self, throttle: LaneTokens) -> None:
        _heard(throttle)
        del self._idle[throttle]
        del self.throttles[throttle.keys]
        self._changed.pop(throttle, None)
        throttle.news_due_ms = None
        for key in throttle.keys:
            left = self.by_key[key] = _without(self.by_key[key], throttle)
            if not left:
                del self.by_key[key]
                self.forget_key(key)

    # --- spending -----------------------------------------------------------------------------------------------------

    def take(self, throttle: LaneTokens, lane: "Lane", cost_milli: int, now_ms: int) -> bool:
        """Spend the tokens for one message. If the lane has too few, let it wait and return False."""
        if throttle.version != self.version:
            self.keep_up(throttle)
        if throttle.parked_until_ms <= now_ms:
            if not throttle.limited:
                return True
            if throttle.spend(lane, cost_milli * MICRO_PER_MILLI):
                lane.tokens_ms = now_ms
                self._unsettled(throttle)
                self.passes += 1
                for traffic in throttle.traffic:
                    traffic.passes += 1
                return True
        throttle.block(lane, cost_milli * MICRO_PER_MILLI)
        if throttle.refused or throttle.parked_until_ms > now_ms:
            self._count_hits(throttle)
        self._unsettled(throttle)
        return False

    def _count_hits(self, throttle: LaneTokens) -> None:
        """Count the lanes that have to wait. A request to the bank is not yet a wait: the shard holds few tokens."""
        count = throttle.take_uncounted()
        self.hits += count
        for traffic in throttle.traffic:
            traffic.hits += count

    def wake(self, throttle: LaneTokens, now_ms: int) -> "list[Lane]":
        """Return the lanes to unblock: those that get tokens, or all of them without a limit."""
        self.keep_up(throttle)
        if not throttle.waiting or throttle.parked_until_ms > now_ms:
            return []
        if not throttle.limited:
            lanes = list(islice(throttle.waiting, LANES_WOKEN_MAX))
            for lane in lanes:
                throttle.release(lane)
            if throttle.waiting:
                self._unsettled(throttle)
            return lanes
        lanes = throttle.deal()
        for lane in lanes:
            lane.tokens_ms = now_ms
            if lane.look_ms is None:
                self._look_again(lane, now_ms + HOLD_MS)
        return lanes

    def _look_again(self, lane: "Lane", due_ms: int) -> None:
        self._entries += 1
        lane.look_ms = due_ms
        heappush(self._holds, (due_ms, self._entries, lane))
        self.idleness.by(due_ms)

    def let_go(self, now_ms: int) -> None:
        """Take back tokens that were idle."""
        while self._holds and self._holds[0][0] <= now_ms:
            _, _, lane = heappop(self._holds)
            lane.look_ms, throttle = None, lane.throttle
            if throttle is not None:
                self.keep_up(throttle)
            if throttle is None or not lane.tokens:
                continue
            idle_ms = now_ms - lane.tokens_ms
            if idle_ms < HOLD_MS:
                self._look_again(lane, lane.tokens_ms + HOLD_MS)
                continue
            usable = is_live(lane, now_ms) and not lane.key.queue.full
            stays = usable and idle_ms < HOLD_LONG_MS and throttle.has_room
            throttle.trim(lane, throttle.burst // self._shards if stays else 0)
            self._unsettled(throttle)
            if lane.tokens:
                self._look_again(lane, now_ms + LOOK_MS)

    def _unsettled(self, throttle: LaneTokens) -> None:
        """Settle a throttle at the end of the turn."""
        self._changed[throttle] = None
        self.bank.by(AT_ONCE)

    def _follow_later(self, keys: "Iterable[str | None]") -> None:
        """Visit the throttles of keys with a change later. None: all throttles."""
        self._behind |= dict.fromkeys(keys)
        self.bank.by(AT_ONCE)

    # --- the bank -----------------------------------------------------------------------------------------------------

    def granted(self, grants: Grants, now_ms: int) -> list[LaneTokens]:
        """Take in the bank's grants. Return the throttles that got tokens."""
        for key, level, rate, burst in grants.levels:
            if key in self.by_key or key in self.limits.own:
                self.levels[key] = (now_ms, level, rate, burst)
        more: list[LaneTokens] = []
        if grants.session != self.session:
            return more
        for grant in grants.grants:
            throttle = self.throttles.get(tuple(grant.keys))
            if throttle is None:
                continue
            self.keep_up(throttle)
            _heard(throttle)
            throttle.refused = grant.short
            if grant.refused:
                self._count_hits(throttle)
            if grant.granted > throttle.granted:
                throttle.granted = grant.granted
                self._unsettled(throttle)
                more.append(throttle)
        return more

    def settle(self, now_ms: int) -> "Iterator[Lane]":
        """Deal again the tokens that lanes have left, at the end of a turn. Yield the lanes that may try again."""
        self._settling, free = [], 0
        self._visit(max(FOLLOWING_MIN, SETTLED_MAX - len(self._changed)), now_ms)
        for throttle in list(islice(self._changed, SETTLED_MAX)):
            if free >= LANES_WOKEN_MAX:
                return
            self.keep_up(throttle)
            self._settling.append(throttle)
            del self._changed[throttle]
            for lane in list(throttle.holders):
                if not is_live(lane, now_ms):
                    throttle.collect(lane)
            if throttle.waiting and throttle.parked_until_ms <= now_ms:
                lanes = throttle.dismiss(lambda lane: is_live(lane, now_ms))
                if len(lanes) < DISMISSED_MAX:
                    lanes += self.wake(throttle, now_ms)
                else:
                    self._unsettled(throttle)
                yield from lanes
                free += len(lanes)

    def wants(self, now_ms: int) -> list[TokenWant]:
        """Return the changed wants for the bank at the end of a turn. Tokens that no lane could use go back."""
        news = []
        for throttle in self._settling:
            throttle.returned += throttle.pool
            want = self._want(throttle, now_ms)
            told = (want.least, want.most, want.consumed, want.returned)
            if told == throttle.told or not (throttle.told or any(told)):
                continue
            throttle.told, throttle.told_again = told, 0
            self._repeat_at(throttle, now_ms + REPEAT_MS)
            news.append(want)
        self._settling = []
        return news

    def _want(self, throttle: LaneTokens, now_ms: int) -> TokenWant:
        least = most = 0
        queues: list[Queue] = []
        if throttle.waiting and throttle.limited and throttle.parked_until_ms <= now_ms and throttle.has_room:
            least, most, queues = throttle.survey(WANT_MESSAGES_MAX)
        if not least or throttle.told is None or not throttle.told[0]:
            _heard(throttle)
            _asked(throttle, queues)
        return TokenWant(list(throttle.keys), least, most, throttle.consumed, throttle.returned)

    def _repeat_at(self, throttle: LaneTokens, due_ms: int) -> None:
        self._entries += 1
        throttle.news_due_ms = due_ms
        heappush(self._repeats, (due_ms, self._entries, throttle))
        self.bank.by(due_ms)

    def repeat(self, now_ms: int) -> list[TokenWant]:
        """Return the wants to be sent again, some of them a turn, because a frame may have been lost."""
        again, left = [], REPEATS_MAX
        while left > 0 and self._repeats and self._repeats[0][0] <= now_ms:
            left -= 1
            due_ms, _, throttle = heappop(self._repeats)
            if throttle.news_due_ms != due_ms or throttle.told is None or throttle.session != self.session:
                continue
            throttle.news_due_ms = None
            least, most, consumed, returned = throttle.told
            if least or throttle.told_again < REPEATS_SETTLED:
                throttle.told_again += not throttle.asking
                self._repeat_at(throttle, now_ms + min(REPEAT_MS_MAX, REPEAT_MS << throttle.told_again))
                again.append(TokenWant(list(throttle.keys), least, most, consumed, returned))
        return again

    def new_session(self, session: int) -> None:
        """Begin a session: the bank or this shard has lost its state. Held tokens are void, and all wants are sent again."""
        self.session = session
        for throttle in list(self._idle):
            self._forget(throttle)
        self.version += 1
        self._follow_later([None])

    # --- changes ------------------------------------------------------------------------------------------------------

    @property
    def catching_up(self) -> bool:
        """Whether throttles are still to be visited after a change."""
        return bool(self._behind or self._visiting)

    def _visit(self, count: int, now_ms: int) -> list[LaneTokens]:
        """Apply the changes to some keys and throttles, to be settled in this turn. Return the throttles."""
        visited: list[LaneTokens] = []
        while count > 0 and self.catching_up:
            count -= 1
            if not self._visiting:
                self._visiting = self._with_key(self._behind.popitem(last=False)[0], now_ms)
                continue
            throttle = self._visiting.pop()
            if self.throttles.get(throttle.keys) is throttle:
                self.keep_up(throttle)
                self._unsettled(throttle)
                visited.append(throttle)
        return visited

    def _visit_at_once(self, now_ms: int) -> list[LaneTokens]:
        """Visit as many throttles as can be settled at the end of the turn, which may be all of them. Return them."""
        return self._visit(SETTLED_MAX - len(self._changed), now_ms)

    def _with_key(self, key: str | None, now_ms: int) -> list[LaneTokens]:
        """Apply the limit of a key to its level and counters. Return the throttles that have the key. None: all."""
        if key is None:
            return list(self.throttles.values())
        self.levels.follow(key, self.limits.get(key), now_ms)
        self.forget_key(key)
        return list(self.by_key.get(key, ()))

    def keep_up(self, throttle: LaneTokens) -> None:
        """Apply the changes to a throttle, and settle it if there were any."""
        if throttle.version != self.version:
            self._follow(throttle)
            self._unsettled(throttle)

    def _follow(self, throttle: LaneTokens) -> None:
        if throttle.session != self.session:
            throttle.begin_session(self.session)
            _heard(throttle)
        bursts = [limit.burst_micro for key in throttle.keys if (limit := self.limits.get(key)) is not None]
        limited, burst = bool(bursts), min(bursts, default=0)
        parked_until_ms = NEVER_MS if self.held else self.parks.until(throttle.keys)
        if (limited, burst) != (throttle.limited, throttle.burst) or parked_until_ms > throttle.parked_until_ms:
            throttle.give_back_all()  # tokens granted under other limits are not spent under these
        throttle.version, throttle.limited, throttle.burst = self.version, limited, burst
        throttle.parked_until_ms = parked_until_ms

    # --- limits and parks ---------------------------------------------------------------------------------------------

    def recover(self, limits: BucketLimits, at_once: int, now_ms: int) -> Generator[None, int | None, None]:
        """Take up the stored limits, ``at_once`` keys a step. After a restart this shard takes the buckets for empty."""
        self.limits = limits
        left = iter(limits.own.items())
        while some := list(islice(left, at_once)):
            self.levels.update((key, (now_ms, 0, limit.rate_milli, limit.burst_micro)) for key, limit in some)
            yield

    def limit(self, keys: Iterable[str], limits: BucketLimits, now_ms: int) -> list[LaneTokens]:
        """Apply a config in which the limits of some keys or patterns changed. Return throttles whose lanes should try again.

        With many throttles these are the first ones. The limits hold at once for the others, too, and their lanes try again
        later.
        """
        self.limits = limits
        self.version += 1
        self._follow_later([None if is_pattern(key) else key for key in keys])
        return self._visit_at_once(now_ms)

    def hold(self, *, held: bool) -> None:
        """Begin or end a time in which no message with throttle keys is delivered."""
        if held != self.held:
            self.held = held
            self.version += 1
            if not held:
                self._follow_later([None])

    def replace(self, limits: BucketLimits) -> None:
        """Follow a config in which all limits may have changed."""
        self.limits = limits
        self.version += 1
        self._follow_later([None])
        for key in self.levels.keys() | self.traffic.keys():
            self.forget_key(key)

    def park(self, parks: Mapping[str, int], now_ms: int) -> dict[str, int]:
        """Park throttle keys until a time. Return the new parks: a later end stays."""
        news = self.parks.add(parks, now_ms)
        for key, until_ms in news.items():
            self._follow_later([key])
            self.idleness.by(until_ms)
        if news:
            self.version += 1
            self._visit_at_once(now_ms)
        return news

    def unpark(self, now_ms: int) -> tuple[list[str], list[LaneTokens]]:
        """End parks whose time is up. Return their keys, and throttles that may have waited; with many, the first ones."""
        ended = self.parks.end(now_ms)
        if ended:
            self._follow_later(ended)  # their lanes may ask for tokens again
        return ended, self._visit_at_once(now_ms) if ended else []

    def next_idle(self) -> int | None:
        """Return when a park ends, or when tokens are to be checked for idleness, Unix ms."""
        return min((heap[0][0] for heap in (self.parks.ends, self._holds) if heap), default=None)

    def next_settling(self) -> int | None:
        """Return when throttles are to be settled, or a want is to be repeated, Unix ms."""
        if self._changed or self.catching_up:
            return AT_ONCE
        return self._repeats[0][0] if self._repeats else None

    def forget_key(self, key: str) -> None:
        """Forget the counters and the level of a key that has no limit of its own, no account and no throttles."""
        if key not in self.limits.own and key not in self.by_key:
            if key in self.traffic and self.traffic[key].held is None:
                del self.traffic[key]
            self.levels.pop(key, None)


def is_live(lane: "Lane", now_ms: int) -> bool:
    """Return whether a lane can use tokens at once or soon: nothing else blocks it, and its queue is read.

    A queue that is read from time to time keeps tokens only if it has other messages to deliver. If it has none, the bank can
    be asked when a consumer comes.
    """
    queue = lane.key.queue
    read = bool(queue.subscribers) or (len(queue.ring) > 0 and now_ms - queue.served_ms < LIVE_MS)
    return lane.active and read and lane.key.open and not queue.paused


def _asked(throttle: LaneTokens, queues: "list[Queue]") -> None:
    throttle.asking = queues or ()
    for queue in queues:
        queue.unanswered += 1


def _heard(throttle: LaneTokens) -> None:
    for queue in throttle.asking:
        queue.unanswered -= 1
    throttle.asking = ()


def _with(throttles: Throttles, another: LaneTokens) -> Throttles:
    """Add a throttle. A few are a tuple, which is a fifth of a set of one."""
    if isinstance(throttles, tuple):
        if another in throttles:
            return throttles
        if len(throttles) < FEW_THROTTLES:
            return (*throttles, another)
        throttles = set(throttles)
    throttles.add(another)
    return throttles


def _without(throttles: Throttles, one: LaneTokens) -> Throttles:
    if isinstance(throttles, tuple):
        return tuple(each for each in throttles if each is not one)
    throttles.discard(one)
    return throttles
