"""The token buckets of the cluster: one bank for all shards, in the router.

Shards ask for tokens of *sets* of throttle keys, because a message needs the tokens of all its keys at once; the bank grants
a set whole or not at all. Every want has its turn in the order of arrival:

* A want waits in line at the bucket that will take longest. Wants behind it there wait too, so that small wants
  can't starve a large one. Its other buckets serve other wants meanwhile: waiting at an empty bucket holds up no want at a
  full one.
* When its turn has come there, another bucket may be empty: then it moves to that one's line, in its old place, and the
  tokens that it found are held for it against later wants, but only for its patience, which doubles with each vain move. So
  two busy buckets can't move it to and fro for ever, and an account that waits for days holds nothing.
* A want that is served gets an equal part of the tokens with all that wait for them, at least its least and at most its most.
  Then the account has to ask again, behind the others: no shard starves another.

A report or a want costs about 15 microseconds, however many others wait; a bucket is served only when its head may have its
tokens.

Left out: nothing is on disk. A new router's buckets start empty, and fill as the limits say. There may be a hundred thousand
of them, so the buckets of a config that came as a whole are made when a shard first asks for their tokens, as of that
config's time. So are buckets of keys that a pattern limits, and they are forgotten once they are full. Of several routers one holds the bank (:mod:`token_grants`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from fila_proto_zmq.bucket_limits import BucketLimits, split_names
from fila_proto_zmq.commands import Grant, Grants, Tokens, TokenWant
from fila_proto_zmq.runtime_config import Limit, number_of
from fila_router.core.tokens.bucket import NEVER_MS, PATIENCE_MS, Account, Bucket, DueBuckets, SessionState, ShardSession
from fila_router.core.tokens.learned_rates import LearnedRates

NOTICE_MS: Final = 10
"""A shorter wait is not reported: the tokens themselves come soon."""

REMIND_MS: Final = 200
"""A shard that asks again this long after an update has not received it."""

LEVEL_MIN: Final = -(2**62)
"""The deepest debt that is reported: the wire has 64 bits."""


class GrantUpdates:
    """Accounts with an update for their shard: the total, and how long to wait (0: not at all)."""

    def __init__(self) -> None:
        self._waits: dict[ShardSession, dict[Account, int]] = {}
        self._charged: dict[ShardSession, int] = {}
        """The numbers of the charges to confirm."""

    def __bool__(self) -> bool:
        return bool(self._waits or self._charged)

    def confirm(self, session: ShardSession, charge: int) -> None:
        """Confirm that the charges of a shard are taken."""
        self._charged[session] = charge
        self._waits.setdefault(session, {})

    def report(self, account: Account, wait_ms: int, now_ms: int) -> None:
        """Report an account's total, and that it has to wait for ``wait_ms``."""
        account.updated_ms = now_ms
        self._waits.setdefault(account.session, {})[account] = wait_ms

    def announce(self, account: Account, wait_ms: int, now_ms: int) -> None:
        """Report a wait, if it is longer than the reported one and worth a frame."""
        until_ms = account.reported_until_ms
        if wait_ms >= NOTICE_MS and (until_ms is None or now_ms + wait_ms > until_ms + NOTICE_MS + wait_ms // 8):
            account.reported_until_ms = now_ms + wait_ms
            self.report(account, wait_ms, now_ms)

    def is_overdue(self, account: Account, now_ms: int) -> bool:
        """Return whether an account that asks again needs its update again."""
        return account.updated_ms is None or now_ms - account.updated_ms >= REMIND_MS

    def drop(self, session: ShardSession, account: Account | None = None) -> None:
        """Drop the update of an account, or of a whole session."""
        if account is None:
            self._waits.pop(session, None)
            self._charged.pop(session, None)
        else:
            self._waits.get(session, {}).pop(account, None)

    def take(self, buckets_of: Callable[[Account], Iterable[Bucket]]) -> list[Grants]:
        """Return all updates, a frame for each shard, with the levels of the buckets concerned."""
        (waits, self._waits), (charged, self._charged) = (self._waits, {}), (self._charged, {})
        return [
            _grants(session, updates, buckets_of, charged.get(session, 0))
            for session, updates in waits.items()
            if updates or session in charged
        ]


def _grants(
    session: ShardSession, waits: dict[Account, int], buckets_of: Callable[[Account], Iterable[Bucket]], charged: int
) -> Grants:
    grants = [
        Grant(list(account.keys), account.granted, wait_ms, account.refused, account.outstanding < account.most)
        for account, wait_ms in waits.items()
    ]
    concerned = {bucket.key: bucket for account in waits for bucket in buckets_of(account)}
    levels = [(bucket.key, max(bucket.level, LEVEL_MIN), bucket.rate, bucket.burst) for bucket in concerned.values()]
    return Grants(session.shard, session.number, grants, levels, charged)


BUCKETS_MAX: Final = 1_500_000
"""The most buckets, some 300 bytes each, before keys without limits of their own have to wait until others are full again."""

LOOKED_AT_MIN: Final = 10_000
"""The least number of buckets that a sweep looks at, whether they can be forgotten."""

SERVED_MAX: Final = 500
"""Accounts served in one go, about 10 ms of work: forwarding must not wait noticeably."""

IDLE_MS: Final = 60_000
"""Settled accounts are forgotten after this long without a frame about them."""

AMOUNT_MAX: Final = 2**62
"""The bound of a want, and of a session's grants to an account: 64 bits on the wire. Shards begin a new session before."""


class TokenBank:
    """All buckets, and the tokens that shards have of them. Call :meth:`serve` after each batch of frames, and when due."""

    def __init__(self) -> None:
        self.buckets: dict[str, Bucket] = {}
        self.sessions: dict[int, ShardSession] = {}
        """The last session of each shard, over or not."""
        self.limits = BucketLimits()
        self._limits_since_ms = 0
        """When the config came as a whole. Buckets that are not made yet have been filling since then."""
        self._added: set[str] = set()
        """The throttle keys and patterns that got a rate since then. Buckets that have their first limit by them are full."""
        self._looked_at: list[str] = []
        """Buckets that are still to be looked at, whether they can be forgotten."""
        self._charged: dict[int, tuple[int, int]] = {}
        """The epoch and the number of the last charges of each shard."""
        self._learned = LearnedRates()
        self._turns = 0
        self._due_buckets = DueBuckets()
        self._updates = GrantUpdates()

    def begin(self, now_ms: int) -> None:
        """Forget all accounts, and begin with empty buckets: the tokens that are out are another bank's."""
        self.buckets, self.sessions = {}, {}
        self._due_buckets, self._updates = DueBuckets(), GrantUpdates()
        self._limits_since_ms = now_ms
        self._added.clear()
        self._learned = LearnedRates()

    # --- limits -------------------------------------------------------------------------------------------------------

    def limit(self, key: str, limit: Limit | None, now_ms: int, *, full: bool) -> None:
        """Apply the config to one bucket: None removes it. ``full``: a new one starts full, else empty."""
        bucket = self.buckets.get(key)
        if limit is None:
            if bucket is not None:
                self._remove(bucket, now_ms)
        elif bucket is None:
            self.buckets[key] = Bucket(key, limit, self._outstanding(key), now_ms, full=full)
        elif limit != (bucket.rate, bucket.burst):
            bucket.change(limit, now_ms)
            self._place_anew(bucket, now_ms)

    def adopt(self, values: dict[str, str], now_ms: int) -> None:
        """Apply a whole config. Existing buckets stay; the others are empty, and are made when they are first wanted."""
        self.limits, self._limits_since_ms = BucketLimits(values), now_ms
        self._added.clear()
        self._follow_all(now_ms)

    def follow(self, changes: Mapping[str, str | None], now_ms: int) -> None:
        """Apply a change of the config. A bucket that has no limit before it is full."""
        names, patterns = split_names(changes)
        self.make_buckets(names, now_ms)
        before = {name for name in names | patterns if self.limits.has_own(name)}
        self.limits.change(changes)
        for name in names | patterns:
            if not self.limits.has_own(name):
                self._added.discard(name)
            elif name not in before:
                self._added.add(name)
        for name in names:
            self.limit(name, self._limit_of(name), now_ms, full=True)
        if patterns:
            self._follow_all(now_ms)

    def _follow_all(self, now_ms: int) -> None:
        """Apply the limits to all buckets and accounts: some microseconds for each, as rarely as an operator changes them."""
        outstanding = Counter[str]()
        for session in self.sessions.values():
            for account in session.accounts.values():
                held = account.outstanding if session.state is SessionState.OPEN else 0
                outstanding.update(dict.fromkeys(account.keys, held))
        for key in {**self.buckets, **outstanding}:
            limit = self._limit_of(key)
            if key in self.buckets or limit is None:
                self.limit(key, limit, now_ms, full=False)
            else:
                self.buckets[key] = Bucket(key, limit, outstanding[key], now_ms, full=self._is_new(key))

    def make_buckets(self, keys: Iterable[str], now_ms: int) -> None:
        """Make the buckets of these keys that are not made yet: no account has tokens of them."""
        for key in keys:
            if key not in self.buckets and (limit := self._limit_of(key)) is not None:
                full = self._is_new(key)
                self.buckets[key] = Bucket(key, limit, 0, now_ms if full else self._limits_since_ms, full=full)

    def _limit_of(self, key: str) -> Limit | None:
        """Return the limit of a bucket, with the rate that deferrals have left."""
        learns = self._learns(key) if key in self._learned else None
        return self.limits.get(key) if learns is None else self._learned.in_force(key, *learns)

    def _learns(self, key: str) -> tuple[Limit, int] | None:
        """Return the limit of a key that has a least rate, and that; None: deferrals do not lower its rate."""
        limit, least = self.limits.get(key), self.limits.find(key, "rate_min")
        least_rate = number_of(least)
        return None if limit is None or least_rate is None else (limit, min(round(least_rate * 1000), limit.rate_milli))

    def defer(self, keys: Iterable[str], now_ms: int) -> None:
        """Lower the rates of keys whose messages a consumer has deferred."""
        for key in keys:
            if (learns := self._learns(key)) is not None:
                self.make_buckets((key,), now_ms)
                self._learned.deferred(key, *learns, now_ms)
                self.limit(key, self._limit_of(key), now_ms, full=False)

    def _grow_rates(self, now_ms: int) -> None:
        for _ in range(SERVED_MAX):
            key = self._learned.due(now_ms)
            if key is None:
                return
            learns = self._learns(key)
            self._learned.grow(key, None if learns is None else learns[0])
            if key in self.buckets:
                self.limit(key, self._limit_of(key), now_ms, full=False)

    def _has_room(self, keys: Iterable[str]) -> bool:
        """Return whether the buckets of these keys may be made: those of keys without limits of their own are bounded."""
        if len(self.buckets) < BUCKETS_MAX:
            return True
        return all(key in self.buckets or self.limits.has_own(key) or key not in self.limits for key in keys)

    def _is_new(self, key: str) -> bool:
        """Return whether a key has had no limit before those that were added to the config."""
        return all(source in self._added for source in self.limits.sources(key))

    def _remove(self, bucket: Bucket, now_ms: int) -> None:
        del self.buckets[bucket.key]
        for account in bucket.holds:
            account.holders.remove(bucket)
        self._place_anew(bucket, now_ms)
        self._due_buckets.put_down(bucket, None)

    def _place_anew(self, bucket: Bucket, now_ms: int) -> None:
        for account in list(bucket.line.values()):
            self._place(account, now_ms)
        if bucket.key in self.buckets:
            self._schedule(bucket, now_ms)

    def _outstanding(self, key: str) -> int:
        open_sessions = (session for session in self.sessions.values() if session.state is SessionState.OPEN)
        accounts = (account for session in open_sessions for account in session.accounts.values())
        return sum(account.outstanding for account in accounts if key in account.keys)

    def _buckets_of(self, account: Account) -> list[Bucket]:
        """Return the buckets that limit the account; keys without a limit restrict nothing."""
        buckets = self.buckets
        return [buckets[key] for key in account.keys if key in buckets]

    def _made_buckets_of(self, account: Account, now_ms: int) -> list[Bucket]:
        """Return them, after those are made that were not made yet, or were forgotten as full."""
        self.make_buckets(account.keys, now_ms)
        return self._buckets_of(account)

    # --- sessions -----------------------------------------------------------------------------------------------------

    def close(self, shard: int, now_ms: int) -> None:
        """End a shard's session: its worker has registered, or has lost it. Outstanding tokens count as spent from now on."""
        session = self.sessions.get(shard)
        if session is not None:
            self._write_off(session, SessionState.OVER, now_ms)
            session.accounts.clear()

    def suspend(self, shards: Iterable[int], now_ms: int) -> None:
        """Count the tokens of a lost or leaving worker's shards as spent, until it returns."""
        for shard in shards:
            session = self.sessions.get(shard)
            if session is not None and session.state is SessionState.OPEN:
                self._write_off(session, SessionState.SUSPENDED, now_ms)

    def resume(self, shards: Iterable[int], now_ms: int) -> None:
        """Count the tokens of a lost worker that is back as outstanding again."""
        for shard in shards:
            session = self.sessions.get(shard)
            if session is not None and session.state is SessionState.SUSPENDED:
                session.state = SessionState.OPEN
                for account in session.accounts.values():
                    for bucket in self._made_buckets_of(account, now_ms):
                        bucket.accrue(now_ms)
                        bucket.take_back(account.outstanding)

    def _write_off(self, session: ShardSession, state: SessionState, now_ms: int) -> None:
        for account in session.accounts.values():
            self._dismiss(account, now_ms)
            if session.state is SessionState.OPEN:
                for bucket in self._buckets_of(account):
                    bucket.accrue(now_ms)
                    bucket.settle(account.outstanding, 0)
                    self._schedule(bucket, now_ms)
        session.state = state
        self._updates.drop(session)

    def _session(self, shard: int, epoch: int, number: int, now_ms: int) -> ShardSession:
        session = self.sessions.get(shard)
        if session is None or (session.epoch, session.number) != (epoch, number):
            self.close(shard, now_ms)
            session = self.sessions[shard] = ShardSession(shard, epoch, number)
        return session

    def sweep(self, now_ms: int) -> None:
        """Forget settled accounts without recent frames."""
        for session in self.sessions.values():
            idle = [
                keys for keys, account in session.accounts.items() if account.settled and now_ms - account.seen_ms >= IDLE_MS
            ]
            for keys in idle:
                del session.accounts[keys]
        self._forget_full(now_ms)

    def _forget_full(self, now_ms: int) -> None:
        """Forget full buckets of keys that only a pattern limits, some at a time: they are made again as full."""
        if not self.limits.has_patterns:
            return
        self._looked_at = self._looked_at or list(self.buckets)
        count = max(LOOKED_AT_MIN, len(self.buckets) // 4)
        some, self._looked_at = self._looked_at[-count:], self._looked_at[:-count]
        for key in some:
            bucket = self.buckets.get(key)
            if bucket is not None and not self.limits.has_own(key):
                bucket.accrue(now_ms)
                if bucket.at_rest:
                    self._due_buckets.put_down(bucket, None)
                    del self.buckets[key]

    # --- reports and wants --------------------------------------------------------------------------------------------

    def ask(self, tokens: Tokens, epoch: int, now_ms: int) -> None:
        """Take in a shard's reports and wants. Frames of an ended session are ignored."""
        session = self._session(tokens.shard, epoch, tokens.session, now_ms)
        if session.state is SessionState.OVER:
            return
        if tokens.charge:
            self._charge(tokens, epoch, now_ms)
            self._updates.confirm(session, tokens.charge)
        for want in tokens.wants:
            if want.consumed < 0 or want.returned < 0 or want.consumed + want.returned > AMOUNT_MAX:
                continue  # such a total is beyond any session's
            account = self._account(session, want, now_ms)
            self._report(account, want.consumed, want.returned, now_ms)
            if session.state is SessionState.OPEN and self._has_room(account.keys):  # else it is asked again later
                self._want(account, want, now_ms)

    def _charge(self, tokens: Tokens, epoch: int, now_ms: int) -> None:
        """Take what deliveries really cost into account, each batch once."""
        if self._charged.get(tokens.shard, (0, 0)) >= (epoch, tokens.charge):
            return
        self._charged[tokens.shard] = epoch, tokens.charge
        for charge in tokens.charges:
            keys = dict.fromkeys(charge.keys)
            self.make_buckets(keys, now_ms)
            for bucket in (self.buckets[key] for key in keys if key in self.buckets):
                bucket.accrue(now_ms)
                bucket.charge(min(charge.more, AMOUNT_MAX))
                self._schedule(bucket, now_ms)

    def _account(self, session: ShardSession, want: TokenWant, now_ms: int) -> Account:
        keys = tuple(dict.fromkeys(want.keys))
        account = session.accounts.get(keys)
        if account is not None and want.consumed + want.returned < account.consumed + account.returned:
            self._forget(account, now_ms)  # the shard has forgotten it, too
            account = None
        if account is None:
            settled = want.consumed + want.returned
            account = session.accounts[keys] = Account(session, keys, settled, want.consumed, want.returned, now_ms)
        account.seen_ms = now_ms
        return account

    def _forget(self, account: Account, now_ms: int) -> None:
        self._dismiss(account, now_ms)
        self._report(account, account.granted - account.returned, account.returned, now_ms)
        self._updates.drop(account.session, account)

    def _report(self, account: Account, consumed: int, returned: int, now_ms: int) -> None:
        """Settle tokens. A shard can't have spent more than was granted, but if it did, that is charged."""
        newly_consumed, newly_returned = consumed - account.consumed, returned - account.returned
        # Only a shard with a defect reports more than it had. The excess becomes a debt of the bucket: the rate holds.
        excess = max(0, newly_consumed + newly_returned - account.outstanding)
        account.granted += excess
        account.consumed, account.returned = consumed, returned
        if account.session.state is not SessionState.OPEN or not (newly_consumed or newly_returned):
            return
        for bucket in self._buckets_of(account):
            bucket.accrue(now_ms)
            bucket.lend(excess)
            bucket.settle(newly_consumed, newly_returned)
            self._schedule(bucket, now_ms)

    def _want(self, account: Account, want: TokenWant, now_ms: int) -> None:
        unchanged = (account.least, account.most) == (want.least, want.most)
        account.least = min(max(0, want.least), AMOUNT_MAX)
        account.most = min(max(want.most, account.least), AMOUNT_MAX)
        if not account.wanting or account.granted > AMOUNT_MAX:
            self._dismiss(account, now_ms)
            if account.least and self._updates.is_overdue(account, now_ms):
                self._updates.report(account, 0, now_ms)
        elif not account.turn:
            self._turns += 1
            account.turn = self._turns
            account.patience_ms = PATIENCE_MS
            account.refused = False
            account.reported_until_ms = None
            self._place(account, now_ms)
        # The same want again is usually a reminder: it changes nothing unless its last update may be lost.
        elif not unchanged or self._updates.is_overdue(account, now_ms):
            account.reported_until_ms = None
            self._place(account, now_ms)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _place(self, account: Account, now_ms: int) -> None:
        """Append an account to the line of the bucket that will take longest, or grant its tokens if nothing limits it."""
        self._withdraw(account, now_ms)
        buckets = self._made_buckets_of(account, now_ms)
        if not buckets:
            self._grant(account, account.most - account.outstanding, now_ms)
            return
        for bucket in buckets:
            bucket.accrue(now_ms)
        waits = [bucket.wait_ms(bucket.shortfall(account)) for bucket in buckets]
        longest_ms = max(waits)
        account.refused |= longest_ms > 0
        slowest = buckets[waits.index(longest_ms)]
        # Hold tokens only if the slowest bucket is ready soon, else an account would block the others for its whole wait.
        if 0 < longest_ms <= account.patience_ms:
            for bucket, wait_ms in zip(buckets, waits, strict=True):
                if wait_ms == 0:
                    bucket.hold(account)
        account.patience_ms = min(2 * account.patience_ms, NEVER_MS - 1)
        slowest.join(account)
        self._schedule(slowest, now_ms)
        self._updates.announce(account, longest_ms, now_ms)

    def _withdraw(self, account: Account, now_ms: int) -> None:
        """Take an account out of its line, and release the tokens that are held for it."""
        left = account.holders
        account.holders = []
        for bucket in left:
            bucket.let_go(account)
        if account.line is not None:
            left.append(account.line)
            account.line.leave(account)
        for bucket in left:
            self._schedule(bucket, now_ms)

    def _dismiss(self, account: Account, now_ms: int) -> None:
        """End an account's wait."""
        if account.turn:
            self._withdraw(account, now_ms)
            account.turn = 0

    def _schedule(self, bucket: Bucket, now_ms: int) -> None:
        """Compute anew when ``bucket`` is due, after a change for the accounts in its line."""
        if bucket.line:
            bucket.accrue(now_ms)
        self._due_buckets.put_down(bucket, bucket.head_due_ms(now_ms))

    # --- serving ------------------------------------------------------------------------------------------------------

    def next_due(self, now_ms: int) -> int | None:
        """Return the milliseconds until an account may be served; None: not before a shard's frame."""
        if self._updates:
            return 0
        times = [each for each in (self._due_buckets.first_ms(), self._learned.next_due()) if each is not None]
        return max(0, min(times) - now_ms) if times else None

    def serve(self, now_ms: int) -> list[Grants]:
        """Grant what is due, as much as may be done in one go; return the updates, one for each shard."""
        self._grow_rates(now_ms)
        left = SERVED_MAX
        while left > 0 and (key := self._due_buckets.due(now_ms)) is not None:
            left = self._serve(self.buckets[key], left, now_ms)
        return self._updates.take(self._buckets_of)

    def _serve(self, bucket: Bucket, left: int, now_ms: int) -> int:
        """Serve up to ``left`` accounts in line; return how many of ``left`` remain."""
        bucket.accrue(now_ms)
        while left > 0 and (account := bucket.head) is not None and bucket.shortfall(account) <= 0:
            left -= 1
            buckets = self._made_buckets_of(account, now_ms)
            for other in buckets:
                other.accrue(now_ms)
            # A set is granted whole or not at all. If another bucket lacks tokens, the account waits there, in its old turn.
            if any(other.shortfall(account) > 0 for other in buckets):
                self._place(account, now_ms)
            else:
                self._grant(account, _share(account, buckets), now_ms)
        if bucket.head is not None and bucket.shortfall(bucket.head) > 0:
            bucket.head.refused = True
        self._schedule(bucket, now_ms)
        return left - 1

    def _grant(self, account: Account, amount: int, now_ms: int) -> None:
        for bucket in self._buckets_of(account):
            bucket.lend(amount)
        account.granted += amount
        self._dismiss(account, now_ms)
        self._updates.report(account, 0, now_ms)


def _share(account: Account, buckets: list[Bucket]) -> int:
    """Return the grant for the account whose turn it is: as much as the others get, in portions of a useful size."""
    fair = min(bucket.free_for(account) // (len(bucket.line) + (account.line is not bucket)) for bucket in buckets)
    total = account.outstanding + fair
    if total >= account.most:
        return account.most - account.outstanding
    return max(account.least, total - total % account.least) - account.outstanding
