"""The tokens of one set of throttle keys, and the lanes of a shard that need them.

Tokens that the bank grants are *dealt* to the waiting lanes, message by message, in turns of their keys' weights: where lanes
wait, tokens are scarce, not deliveries. A lane spends only its dealt tokens, so the order in which lanes are served does not
matter. A lane without tokens for its next message waits in line again.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fila_proto_zmq.runtime_config import Limit
    from fila_worker.core.held_places import HeldKey
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.queues import PlaceTaker, Queue

TOKEN: Final = 1_000_000
"""One token. Tokens are counted in millionths."""

DISMISSED_MAX: Final = 2000
"""The most waiting lanes that leave the line in one turn."""

LANES_SURVEYED: Final = 64
"""The waiting lanes that are read to estimate how many tokens are of use."""


class Traffic:
    """The counters of a throttle key: messages that got their tokens (passes), and waits of lanes that a bucket or a park
    refused (hits). ``leased``: its leased messages, those that are delivered at most once and dead letters not counted."""

    __slots__ = ("held", "hits", "leased", "passes")

    def __init__(self) -> None:
        self.passes = self.hits = self.leased = 0
        self.held: HeldKey[PlaceTaker] | None = None
        """Its account with the place bank; None: it has none."""


class BucketLevels(dict[str, tuple[int, int, int, int]]):
    """The last state of each bucket, by throttle key: time, level, rate a ms and burst, in millionths."""

    def tokens_in(self, key: str, limit: "Limit", now_ms: int) -> int:
        """Return the level of a bucket, in millionths. A bucket never asked for is full."""
        then_ms, level, rate, burst = self.get(key, (now_ms, limit.burst_micro, 0, limit.burst_micro))
        return min(burst, limit.burst_micro, level + (now_ms - then_ms) * rate)

    def in_force(self, key: str, limit: "Limit") -> "Limit":
        """Return the limit of a bucket with the rate that deferrals have left, by the bank's last count."""
        rate_milli = self[key][2] if key in self else limit.rate_milli
        return limit if rate_milli >= limit.rate_milli else limit._replace(rate_milli=rate_milli)

    def follow(self, key: str, limit: "Limit | None", now_ms: int) -> None:
        """Follow a changed limit. A changed bucket keeps its tokens; an unused or new one is full."""
        if limit is None:
            self.pop(key, None)
        elif key in self:
            now_ms = max(now_ms, self[key][0])  # the bank's level may be newer
            level = min(self.tokens_in(key, limit, now_ms), limit.burst_micro)
            self[key] = (now_ms, level, limit.rate_milli, limit.burst_micro)


class ParkedKeys(dict[str, int]):
    """The parked throttle keys, which deliver nothing, and when each park ends, Unix ms."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[tuple[int, str]] = []
        """A heap of the keys by the end of their parks. An entry that differs from the park is stale."""

    def add(self, parks: Mapping[str, int], now_ms: int) -> dict[str, int]:
        """Park keys until a time. Return the new parks: a later end stays."""
        news = {key: until_ms for key, until_ms in parks.items() if until_ms > max(now_ms, self.get(key, 0))}
        for key, until_ms in news.items():
            self[key] = until_ms
            heappush(self.ends, (until_ms, key))
        return news

    def until(self, keys: Iterable[str]) -> int:
        """Return until when a set of throttle keys delivers nothing."""
        return max((self.get(key, 0) for key in keys), default=0)

    def end(self, now_ms: int) -> list[str]:
        """End the parks whose time is up. Return their keys."""
        ended: list[str] = []
        while self.ends and self.ends[0][0] <= now_ms:
            _, key = heappop(self.ends)
            if self.get(key, now_ms + 1) <= now_ms:
                del self[key]
                ended.append(key)
        return ended


_NO_LANES: Final[dict["Lane", None]] = {}
_NO_LINE: Final[OrderedDict["Lane", None]] = OrderedDict()
"""The containers of sets of keys for which no lane waits or has tokens. Never changed."""


class LaneTokens:
    """The tokens of one set of throttle keys.

    Invariants: ``granted = consumed + returned + dealt + pool``, and no term is negative. ``dealt`` is the sum of its lanes'
    ``tokens``, and ``holders`` are the lanes that have some. A lane is in ``waiting`` if and only if it is ``blocked``, and
    then it has no tokens.
    """

    __slots__ = (
        "asking", "burst", "consumed", "dealt", "granted", "holders", "keys", "lanes", "limited", "news_due_ms",
        "parked_until_ms", "placed", "places_version", "refused", "returned", "session", "told", "told_again", "traffic", "uncounted", "version",
        "waiting",
    )  # fmt: skip

    def __init__(self, keys: tuple[str, ...], session: int) -> None:
        self.keys = keys
        self.version = -1
        """The version of limits, parks and session that it follows (:mod:`core.model.token_client`)."""
        self.session = session
        """The session of its totals."""
        self.lanes = 0
        """The number of lanes that use it."""
        self.limited = False
        """Whether any of the keys has a rate."""
        self.burst = 0
        """The smallest burst of the keys with a rate."""
        self.parked_until_ms = 0
        self.granted = self.consumed = self.returned = 0
        """Totals of the session, as they are sent to the bank."""
        self.dealt = 0
        self.holders = _NO_LANES
        self.waiting = _NO_LINE
        """The lanes that wait, in the order of their turns: the first is next."""
        self.refused = False
        """Whether a bucket had too few tokens for the last want, so that a lane that joins the line has to wait."""
        self.uncounted = _NO_LANES
        """The waiting lanes that no bucket has refused: the bank was asked for their tokens, or will be."""
        self.told: tuple[int, int, int, int] | None = None
        """The last want that was sent, so that only a change is sent."""
        self.told_again = 0
        """The number of times that it was repeated."""
        self.news_due_ms: int | None = None
        """When it is to be repeated."""
        self.traffic: tuple[Traffic, ...] = ()
        """The counters of its keys."""
        self.placed: tuple[HeldKey[PlaceTaker], ...] = ()
        """The accounts of the keys that have a concurrency, by the config of ``places_version``."""
        self.places_version = -1
        self.asking: Sequence[Queue] = ()
        """The queues for which the bank was asked and has not answered."""

    @property
    def held(self) -> int:
        """Tokens that may be spent."""
        return self.granted - self.consumed - self.returned

    @property
    def pool(self) -> int:
        """Tokens that may be spent and are dealt to no lane."""
        return self.granted - self.consumed - self.returned - self.dealt

    # --- lanes --------------------------------------------------------------------------------------------------------

    def is_free(self, version: int, now_ms: int) -> bool:
        """Return whether messages need no tokens, by the limits of this version, and nothing parks the keys."""
        return not self.limited and self.version == version and self.parked_until_ms <= now_ms

    def may_spend(self, lane: "Lane", need: int, now_ms: int) -> bool:
        """Return whether a lane has the tokens for its next message, or needs none, and nothing parks the keys."""
        has_tokens = need <= lane.tokens and not self.burst < lane.tokens != need  # as in spend()
        return self.parked_until_ms <= now_ms and (has_tokens or not self.limited)

    def spend(self, lane: "Lane", need: int) -> bool:
        """Pay for a lane's next message. Return False if the lane has too few tokens."""
        tokens = lane.tokens
        if tokens < need or self.burst < tokens != need:
            return False  # more than the burst is granted for one message that needs it all, and pays for no other
        self.consumed += need
        self.dealt -= need
        lane.tokens = tokens - need
        if tokens == need:
            self.collect(lane)
        return True

    def block(self, lane: "Lane", need: int) -> None:
        """Block a lane until it has this number of tokens; first in line, if its turn is not over."""
        self.collect(lane)
        lane.need = need
        lane.blocked = True
        if not self.waiting:
            self.waiting = OrderedDict()
        self.waiting[lane] = None
        if not self.uncounted:
            self.uncounted = {}
        self.uncounted[lane] = None
        if lane.token_credit > 0:
            self.waiting.move_to_end(lane, last=False)

    def release(self, lane: "Lane") -> None:
        """Unblock a waiting lane."""
        del self.waiting[lane]
        self.uncounted.pop(lane, None)
        lane.blocked = False
        self._shrink()

    def _shrink(self) -> None:
        """Keep no containers without lanes: a shard may have a hundred thousand sets of keys of which few wait."""
        if not self.waiting:
            self.waiting = _NO_LINE
        if not self.uncounted:
            self.uncounted = _NO_LANES

    def take_uncounted(self) -> int:
        """Return how many waiting lanes a bucket has refused now."""
        count = len(self.uncounted)
        self.uncounted = _NO_LANES
        return count

    def collect(self, lane: "Lane") -> None:
        """Take back the tokens that a lane has not spent."""
        if self.holders.pop(lane, self) is None:
            self.dealt -= lane.tokens
            lane.tokens = 0
            if not self.holders:
                self.holders = _NO_LANES

    def trim(self, lane: "Lane", dealt_max: int) -> None:
        """Take back a lane's tokens as far as more than ``dealt_max`` is dealt in all. The rest pays for whole messages."""
        kept = max(0, min(lane.tokens, dealt_max - (self.dealt - lane.tokens)))
        kept -= kept % max(1, lane.need)
        self.collect(lane)
        if kept:
            self._give(lane, kept)

    def collect_all(self) -> None:
        """Take back the tokens that all lanes have not spent."""
        for lane in list(self.holders):
            self.collect(lane)

    def give_back_all(self) -> None:
        """Take back the tokens of all lanes, and return them to the bank."""
        self.collect_all()
        self.returned += self.pool

    def begin_session(self, session: int) -> None:
        """Begin a session: all tokens are void, and the totals start at 0."""
        self.session = session
        self.collect_all()
        self.granted = self.consumed = self.returned = 0
        self.told = None

    # --- dealing ------------------------------------------------------------------------------------------------------

    def deal(self) -> "list[Lane]":
        """Deal the pool to waiting lanes. Return the lanes with enough tokens."""
        waiting, pool = self.waiting, self.pool
        dealt: dict[Lane, None] = {}
        while waiting and pool > 0:
            lane = self._next_in_turn()
            need = max(1, lane.need)
            if need > pool or (need > self.burst and self.dealt) or self.burst < pool != need:
                break
            alone = len(waiting) == 1
            in_turn = pool if alone else lane.token_credit + need - 1
            count = max(1, min(min(in_turn, pool) // need, lane.pending - lane.tokens // need))
            self._give(lane, count * need)
            pool -= count * need
            dealt[lane] = None
            lane.token_credit = 0 if alone else lane.token_credit - count * need
            if lane.tokens >= lane.pending * need:
                del waiting[lane]
            elif lane.token_credit <= 0:
                waiting.move_to_end(lane)
        for lane in dealt:
            waiting.pop(lane, None)
            self.uncounted.pop(lane, None)
            lane.blocked = False
        self._shrink()
        return list(dealt)

    def _give(self, lane: "Lane", amount: int) -> None:
        lane.tokens += amount
        self.dealt += amount
        if not self.holders:
            self.holders = {}
        self.holders[lane] = None

    def _next_in_turn(self) -> "Lane":
        """Move the lane whose turn it is to the front, and return it: deficit round robin by weight."""
        waiting = self.waiting
        while True:
            for _ in range(len(waiting)):
                lane = next(iter(waiting))
                if lane.token_credit <= 0:
                    lane.token_credit += lane.key.weight * TOKEN
                if lane.token_credit > 0:
                    return lane
                waiting.move_to_end(lane)
            # In so many rounds no lane gains a turn.
            rounds = min(-lane.token_credit // (lane.key.weight * TOKEN) for lane in waiting)
            for lane in waiting:
                lane.token_credit += rounds * lane.key.weight * TOKEN

    # --- tokens of use ------------------------------------------------------------------------------------------------

    def dismiss(self, able: "Callable[[Lane], bool]") -> "list[Lane]":
        """Take lanes that can't use tokens out of line, and return them. They come back when a consumer wants messages."""
        dismissed: list[Lane] = []
        while len(dismissed) < DISMISSED_MAX and (
            unable := [lane for lane in islice(self.waiting, LANES_SURVEYED) if not able(lane)]
        ):
            for lane in unable:
                self.release(lane)
            dismissed += unable
        return dismissed

    @property
    def has_room(self) -> bool:
        """Whether the burst has room for the next lane's tokens beside the dealt ones."""
        return not (self.dealt and self.waiting) or self.dealt + self._next_in_turn().need <= self.burst

    def survey(self, messages_max: int) -> "tuple[int, int, list[Queue]]":
        """Return ``(least, most)`` tokens of use, the dealt ones included, and the queues that would use them."""
        pending = 0
        queues: dict[Queue, None] = {}
        for lane in islice(self.waiting, LANES_SURVEYED):
            pending += lane.pending
            queues[lane.key.queue] = None
        wanted = sum(queue.appetite() for queue in queues)
        need = max(1, self._next_in_turn().need)
        most = need * max(1, min(pending, wanted, messages_max))
        return self.dealt + need, max(need, min(self.dealt + most, self.burst)), list(queues)
