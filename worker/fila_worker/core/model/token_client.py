"""Throttles as a shard has them: what it asks the bank of tokens for, and what it tells it.

The buckets themselves are the router's (one bank for the whole cluster); a shard only ever spends what the bank granted it.
Messages with the same set of throttle keys share a :class:`Throttle`, because they need the same tokens: some of each key,
together or not at all. The shard asks when a lane has to wait, and says how much it consumed, once a turn and for all throttles
in one frame. All amounts travel as totals of a session, so that a frame which is lost or comes twice does no harm, and a new
session starts from nothing.

Tokens that are not spent count as in the bucket, for all shards: so they go back when nobody here can use them, or when they lay
idle for a moment (:data:`HOLD_MS`). Only a small part of a bucket may wait for longer for the next credit: without it a key that
needs tokens would never find credit in a queue whose consumers are always busy with the others.

What changes for very many throttles at once (a limit, a park, the session) is not brought to each of them in one turn. It counts up
a *version*, and a throttle of another version follows before anything is done with it: so what changed holds at once, whichever throttles
were visited. Those whose lanes may be waiting are visited in the background, some of them a turn.
"""

from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Final

from fila_proto_zmq.commands import Grants, TokenWant
from fila_worker.core.model.lane_tokens import DISMISSED_MAX, LaneTokens, Traffic
from fila_worker.core.timer import AT_ONCE, Timer

if TYPE_CHECKING:
    from fila_proto_zmq.runtime_config import Limit
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.queues import Queue

MICRO_PER_MILLI: Final = 1000
"""Costs are thousandths of a token, buckets count millionths."""

WANT_MESSAGES_MAX: Final = 1000
"""How many messages' tokens a shard asks for at once: what it may deliver in a turn or two."""

HOLD_MS: Final = 20
HOLD_LONG_MS: Final = 10_000
"""How long tokens may lie idle: as long as the next credit usually takes; or long, if they are no more than the shard's part of
the bucket, so that all shards together could not keep it empty."""

LOOK_MS: Final = 500
"""How often tokens that may stay long are looked at."""

LIVE_MS: Final = 10_000
"""For so long after its last delivery a queue that nobody reads is taken for one that somebody reads now and then."""

NEVER_MS: Final = 1 << 62
"""The end of a park that ends with something else than time."""

REPEAT_MS: Final = 500
REPEAT_MS_MAX: Final = 4000
"""A want is repeated after this time; once the bank has answered, after twice as much, four times as much: the frame may have
been lost, but not all of them."""

SETTLED_MAX: Final = 500
"""Throttles that are settled at the end of a turn: 10 ms at most, beside the deliveries that they wait for."""

FOLLOWING_MIN: Final = 250
"""Of those that are visited because something changed for many: so many a turn, however many others there are to settle."""

REPEATS_MAX: Final = 1000
"""Wants that may be repeated in one turn; the others are still due."""

LANES_WOKEN_MAX: Final = 2000
"""Lanes of a throttle that may try again in one turn."""

REPEATS_SETTLED: Final = 3
"""How often the last word of a throttle that wants nothing is repeated."""

IDLE_THROTTLES_MAX: Final = 1000
"""Throttles that no lane uses any more, kept because tokens may be on their way to them."""


class TokenClient:
    """All throttles of a shard, the runtime limits they follow, and the keys that are parked."""

    def __init__(self, session: int, shards: int) -> None:
        self.session = session
        self.throttles: dict[tuple[str, ...], LaneTokens] = {}
        self.by_key: dict[str, set[LaneTokens]] = {}
        self.limits: Mapping[str, Limit] = {}
        """Of the throttle keys that have a rate. Whoever changes it calls :meth:`limit`."""
        self.held = False
        """Nothing that has throttle keys is delivered: the limits are about to be others, and are not known yet."""
        self.parks: dict[str, int] = {}
        """Parked keys, and until when, Unix ms."""
        self.levels: dict[str, tuple[int, int, int, int]] = {}
        """What the bank last said of a bucket, or what follows from the config: when, level, rate a ms, burst; in millionths."""
        self._shards = shards
        self._idle: dict[LaneTokens, None] = {}
        """Throttles without lanes, the one that was left first in front."""
        self._parked: list[tuple[int, str]] = []
        """Parked keys by when that ends; an entry that ``parks`` does not confirm is stale."""
        self._holds: list[tuple[int, int, Lane]] = []
        """When to look at what lanes hold: one entry for each that does, or did a moment ago; it may be too early."""
        self._repeats: list[tuple[int, int, LaneTokens]] = []
        """When to repeat what was told; an entry whose time is not its throttle's ``news_due_ms`` is stale."""
        self._changed: dict[LaneTokens, None] = {}
        """Throttles to settle at the end of a turn; where there are too many, or one has too much to do, of a later one."""
        self._settling: list[LaneTokens] = []
        self._version = 0
        """Counts up with the limits, parks and sessions: a throttle of another version follows them before it is used."""
        self._behind: OrderedDict[str | None, None] = OrderedDict()
        """Keys for which something changed, and whose throttles are yet to be visited; None: all throttles."""
        self._visiting: list[LaneTokens] = []
        """What is left of those of the key before."""
        self._entries = 0
        self.idleness, self.bank = Timer(), Timer()
        """When a park may end or tokens lie idle, and when there is something to settle with the bank."""
        self.traffic: dict[str, Traffic] = {}
        """Of each throttle key that messages have, or that has a limit."""
        self.passes = self.hits = 0
        """Of all messages that needed tokens: how many got them, and how often a lane had to wait for some."""

    # --- lanes come and go --------------------------------------------------------------------------------------------

    def enter(self, lane: "Lane") -> None:
        """A lane is new: its messages need tokens."""
        keys = lane.throttle_keys
        throttle = self.throttles.get(keys)
        if throttle is None:
            throttle = self.throttles[keys] = LaneTokens(keys, self.session)
            throttle.traffic = [self.traffic.setdefault(key, Traffic()) for key in keys]
            for key in keys:
                self.by_key.setdefault(key, set()).add(throttle)
            self._follow(throttle)
        self._idle.pop(throttle, None)
        throttle.lanes += 1
        lane.throttle = throttle

    def rest(self, lane: "Lane") -> None:
        """A lane has nothing to deliver."""
        throttle = lane.throttle
        if throttle is not None:
            self._keep_up(throttle)
            if lane.blocked:
                throttle.release(lane)
            throttle.collect(lane)
            self._unsettled(throttle)

    def leave(self, lane: "Lane") -> None:
        """A lane is forgotten."""
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
            self.by_key[key].discard(throttle)
            if not self.by_key[key]:
                del self.by_key[key]
                self._forget_traffic(key)

    # --- spending -----------------------------------------------------------------------------------------------------

    def take(self, throttle: LaneTokens, lane: "Lane", cost_milli: int, now_ms: int) -> bool:
        """Spend the tokens for one message; False, and the lane waits, if it has not got them."""
        if throttle.version != self._version:
            self._keep_up(throttle)
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
        self.hits += 1
        for traffic in throttle.traffic:
            traffic.hits += 1
        throttle.block(lane, cost_milli * MICRO_PER_MILLI)
        self._unsettled(throttle)
        return False

    def wake(self, throttle: LaneTokens, now_ms: int) -> "list[Lane]":
        """The lanes that may try again: those that get tokens; all of them if there is no limit."""
        self._keep_up(throttle)
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
        """Take back tokens that lay idle."""
        while self._holds and self._holds[0][0] <= now_ms:
            _, _, lane = heappop(self._holds)
            lane.look_ms, throttle = None, lane.throttle
            if throttle is not None:
                self._keep_up(throttle)
            if throttle is None or not lane.tokens:
                continue
            idle_ms = now_ms - lane.tokens_ms
            if idle_ms < HOLD_MS:
                self._look_again(lane, lane.tokens_ms + HOLD_MS)
                continue
            stays = idle_ms < HOLD_LONG_MS and throttle.has_room and _is_live(lane, now_ms)
            throttle.trim(lane, throttle.burst // self._shards if stays else 0)
            self._unsettled(throttle)
            if lane.tokens:
                self._look_again(lane, now_ms + LOOK_MS)

    def _unsettled(self, throttle: LaneTokens) -> None:
        """A throttle is to be settled at the end of the turn."""
        self._changed[throttle] = None
        self.bank.due_ms = AT_ONCE

    def _follow_later(self, keys: "Iterable[str | None]") -> None:
        """Something changed for some keys: their throttles are to be visited. None: all throttles."""
        self._behind |= dict.fromkeys(keys)
        self.bank.by(AT_ONCE)

    # --- the bank -----------------------------------------------------------------------------------------------------

    def granted(self, grants: Grants, now_ms: int) -> list[LaneTokens]:
        """Take in what the bank granted; returns the throttles that have more now."""
        for key, level, rate, burst in grants.levels:
            self.levels[key] = (now_ms, level, rate, burst)
        more: list[LaneTokens] = []
        if grants.session != self.session:
            return more
        for grant in grants.grants:
            throttle = self.throttles.get(tuple(grant.keys))
            if throttle is None:
                continue
            self._keep_up(throttle)
            _heard(throttle)
            if grant.granted > throttle.granted:
                throttle.granted = grant.granted
                self._unsettled(throttle)
                more.append(throttle)
        return more

    def settle(self, now_ms: int) -> "Iterator[Lane]":
        """At the end of a turn, deal anew what lanes have left; the lanes that may try again."""
        self._settling, free = [], 0
        self._visit(max(FOLLOWING_MIN, SETTLED_MAX - len(self._changed)), now_ms)
        for throttle in list(islice(self._changed, SETTLED_MAX)):
            if free >= LANES_WOKEN_MAX:
                return
            self._keep_up(throttle)
            self._settling.append(throttle)
            del self._changed[throttle]
            for lane in list(throttle.holders):
                if not _is_live(lane, now_ms):
                    throttle.collect(lane)
            if throttle.waiting and throttle.parked_until_ms <= now_ms:
                lanes = throttle.dismiss(lambda lane: _is_live(lane, now_ms))
                if len(lanes) < DISMISSED_MAX:
                    lanes += self.wake(throttle, now_ms)
                else:
                    self._unsettled(throttle)
                yield from lanes
                free += len(lanes)

    def wants(self, now_ms: int) -> list[TokenWant]:
        """What is news to the bank at the end of a turn. Tokens that nobody could use go back."""
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
        """What should be told again, some of it a turn: a frame may have been lost."""
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
        """The bank has forgotten this shard, or this shard the bank: tokens held are void, all wants are told again."""
        self.session = session
        for throttle in list(self._idle):
            self._forget(throttle)
        self._version += 1
        self._follow_later([None])

    # --- changes ------------------------------------------------------------------------------------------------------

    @property
    def catching_up(self) -> bool:
        """Whether throttles are yet to be visited after a change."""
        return bool(self._behind or self._visiting)

    def _visit(self, count: int, now_ms: int) -> list[LaneTokens]:
        """Let some keys and throttles follow for which something changed, and settle those in this turn; returns the throttles."""
        visited: list[LaneTokens] = []
        while count > 0 and self.catching_up:
            count -= 1
            if not self._visiting:
                self._visiting = self._with_key(self._behind.popitem(last=False)[0], now_ms)
                continue
            throttle = self._visiting.pop()
            if self.throttles.get(throttle.keys) is throttle:
                self._keep_up(throttle)
                self._unsettled(throttle)
                visited.append(throttle)
        return visited

    def _visit_at_once(self, now_ms: int) -> list[LaneTokens]:
        """The same for the first ones, which may be all: as many as can be settled at the end of the turn."""
        return self._visit(SETTLED_MAX - len(self._changed), now_ms)

    def _with_key(self, key: str | None, now_ms: int) -> list[LaneTokens]:
        """Let what is known of a key follow its limit; the throttles that have it. None: all."""
        if key is None:
            return list(self.throttles.values())
        self._follow_level(key, self.limits.get(key), now_ms)
        self._forget_traffic(key)
        return list(self.by_key.get(key, ()))

    def _keep_up(self, throttle: LaneTokens) -> None:
        """Let a throttle follow what changed; it is to be settled if it did."""
        if throttle.version != self._version:
            self._follow(throttle)
            self._unsettled(throttle)

    def _follow(self, throttle: LaneTokens) -> None:
        if throttle.session != self.session:
            throttle.begin_session(self.session)
            _heard(throttle)
        bursts = [self.limits[key].burst_micro for key in throttle.keys if key in self.limits]
        limited, burst = bool(bursts), min(bursts, default=0)
        parked_until_ms = NEVER_MS if self.held else self.parked_until(throttle.keys)
        if (limited, burst) != (throttle.limited, throttle.burst) or parked_until_ms > throttle.parked_until_ms:
            throttle.give_back_all()  # what was granted under other rules is not spent under these
        throttle.version, throttle.limited, throttle.burst = self._version, limited, burst
        throttle.parked_until_ms = parked_until_ms

    # --- limits and parks ---------------------------------------------------------------------------------------------

    def recover(self, limits: "Mapping[str, Limit]", at_once: int, now_ms: int) -> Generator[None, int | None, None]:
        """Take up a config that was at rest, so many keys a step: the buckets are empty after a restart, as far as this shard knows."""
        self.limits = limits
        left = iter(limits.items())
        while some := list(islice(left, at_once)):
            self.levels.update((key, (now_ms, 0, limit.rate_milli, limit.burst_micro)) for key, limit in some)
            yield

    def limit(self, keys: Iterable[str], limits: "Mapping[str, Limit]", now_ms: int) -> list[LaneTokens]:
        """Follow a config in which the limits of some keys changed; returns throttles whose lanes should try again.

        Those are the first ones of many. The limits hold for the others at once, and their lanes try again in later turns.
        """
        self.limits = limits
        self._version += 1
        self._follow_later(keys)
        return self._visit_at_once(now_ms)

    def hold(self, *, held: bool) -> None:
        """Deliver nothing that has throttle keys, until this ends."""
        if held != self.held:
            self.held = held
            self._version += 1
            if not held:
                self._follow_later([None])

    def replace(self, limits: "Mapping[str, Limit]") -> None:
        """Follow a config in which all limits may have changed."""
        self.limits = limits
        self._version += 1
        self._follow_later([None])
        self.levels = {key: level for key, level in self.levels.items() if key in limits}
        self.traffic = {key: each for key, each in self.traffic.items() if key in limits or key in self.by_key}

    def _follow_level(self, key: str, limit: "Limit | None", now_ms: int) -> None:
        """A bucket that is changed keeps its tokens; one that nobody drew on stays full, and a new one is."""
        if limit is None:
            self.levels.pop(key, None)
        elif key in self.levels:
            now_ms = max(now_ms, self.levels[key][0])  # the bank may have said more since
            level = min(self.tokens_in(key, limit, now_ms), limit.burst_micro)
            self.levels[key] = (now_ms, level, limit.rate_milli, limit.burst_micro)

    def park(self, parks: Mapping[str, int], now_ms: int) -> dict[str, int]:
        """Let throttle keys deliver nothing until a time; returns what is news: a later time that was known stays."""
        news = {key: until_ms for key, until_ms in parks.items() if until_ms > max(now_ms, self.parks.get(key, 0))}
        for key, until_ms in news.items():
            self.parks[key] = until_ms
            self._follow_later([key])
            heappush(self._parked, (until_ms, key))
            self.idleness.by(until_ms)
        if news:
            self._version += 1
            self._visit_at_once(now_ms)
        return news

    def parked_until(self, keys: Iterable[str]) -> int:
        """Until when a set of throttle keys delivers nothing, Unix ms."""
        return max((self.parks.get(key, 0) for key in keys), default=0)

    def unpark(self, now_ms: int) -> tuple[list[str], list[LaneTokens]]:
        """The keys whose time is up, and throttles that may have been waiting for it: the first ones of many."""
        ended: list[str] = []
        while self._parked and self._parked[0][0] <= now_ms:
            _, key = heappop(self._parked)
            if self.parks.get(key, now_ms + 1) <= now_ms:
                del self.parks[key]
                ended.append(key)
                self._follow_later([key])  # their lanes may ask for tokens now
        return ended, self._visit_at_once(now_ms) if ended else []

    def next_idle(self) -> int | None:
        """When a park ends, or tokens have lain idle, Unix ms."""
        return min((heap[0][0] for heap in (self._parked, self._holds) if heap), default=None)

    def next_settling(self) -> int | None:
        """When throttles are to be settled, or a want should be repeated, Unix ms."""
        if self._changed or self.catching_up:
            return AT_ONCE
        return self._repeats[0][0] if self._repeats else None

    def tokens_in(self, key: str, limit: "Limit", now_ms: int) -> int:
        """What is in a bucket, in millionths, as far as the bank has said; full, if it is new and was never asked for."""
        then_ms, level, rate, burst = self.levels.get(key, (now_ms, limit.burst_micro, 0, limit.burst_micro))
        return min(burst, limit.burst_micro, level + (now_ms - then_ms) * rate)

    def used_by(self, lanes: "Iterable[Lane]") -> list[str]:
        """The throttle keys with a limit that these lanes draw on, by name."""
        return sorted({key for lane in lanes if lane.throttle for key in lane.throttle_keys} & self.limits.keys())

    def _forget_traffic(self, key: str) -> None:
        """A key may be of no interest any more."""
        if key not in self.limits and key not in self.by_key:
            self.traffic.pop(key, None)


def _is_live(lane: "Lane", now_ms: int) -> bool:
    """Whether tokens would be of use to a lane now or soon: nothing else holds it up, and somebody reads its queue.

    Who comes now and then finds it waiting only if the queue has other messages, else the bank can be asked when he comes.
    """
    queue = lane.key.queue
    read = bool(queue.subscribers) or (len(queue.ring) > 0 and now_ms - queue.served_ms < LIVE_MS)
    return lane.active and read and lane.key.open and not queue.paused


def _asked(throttle: LaneTokens, queues: "list[Queue]") -> None:
    throttle.asking = queues
    for queue in queues:
        queue.unanswered += 1


def _heard(throttle: LaneTokens) -> None:
    for queue in throttle.asking:
        queue.unanswered -= 1
    throttle.asking = []
