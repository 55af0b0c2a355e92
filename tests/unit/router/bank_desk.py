"""A token bank on a test's desk: shards that ask and spend, a clock of one's own, and what must hold after every step."""

from collections import Counter

from fila_proto_zmq.commands import Grant, Grants, Tokens, TokenWant
from fila_proto_zmq.runtime_config import Limit
from fila_router.core.tokens.bucket import SessionState
from fila_router.core.tokens.token_bank import TokenBank

TOKEN = 1_000_000
EPOCH = 1


def limit(rate: float, burst: float) -> Limit:
    """``rate`` in tokens a second."""
    return Limit(round(rate * 1000), round(burst * TOKEN))


def config_of(limits: dict[str, Limit]) -> dict[str, str]:
    """Return the config that gives each key its limit."""
    return {
        entry: value
        for key, (rate, burst) in limits.items()
        for entry, value in ((f"throttle:{key}:rate", str(rate / 1000)), (f"throttle:{key}:burst", str(burst / TOKEN)))
    }


class Purse:
    """What a shard knows of its account for a set of keys."""

    def __init__(self) -> None:
        self.granted = self.consumed = self.returned = 0

    @property
    def held(self) -> int:
        return self.granted - self.consumed - self.returned


class BankDesk:
    def __init__(self, **limits: tuple[float, float]) -> None:
        self.bank = TokenBank()
        self.now_ms = 1_000
        self.session = 1
        self.purses: dict[tuple[int, tuple[str, ...]], Purse] = {}
        self.waits: dict[tuple[int, tuple[str, ...]], int] = {}
        """What the last grants said."""
        self.levels: dict[str, tuple[int, int, int]] = {}
        for key, (rate, burst) in limits.items():
            self.bank.limit(key, limit(rate, burst), self.now_ms, full=True)

    def purse(self, shard: int, keys: str) -> Purse:
        return self.purses.setdefault((shard, tuple(keys.split())), Purse())

    def say(self, shard: int, keys: str, least: float = 0, most: float = 0) -> None:
        """Send a want, with the totals as the shard knows them. Keys are separated by blanks."""
        purse = self.purse(shard, keys)
        want = TokenWant(keys.split(), round(least * TOKEN), round(most * TOKEN), purse.consumed, purse.returned)
        self.bank.ask(Tokens(shard, self.session, [want]), EPOCH, self.now_ms)
        check(self.bank)

    def serve(self) -> dict[tuple[int, str], float]:
        """Let the bank serve; returns what came, in tokens."""
        before = {place: purse.granted for place, purse in self.purses.items()}
        for grants in self.bank.serve(self.now_ms):
            self.take(grants)
        check(self.bank)
        after = {place: purse.granted - before.get(place, 0) for place, purse in self.purses.items()}
        return {(shard, " ".join(keys)): gain / TOKEN for (shard, keys), gain in after.items() if gain}

    def take(self, grants: Grants) -> None:
        assert grants.session == self.session
        self.levels.update({key: tuple(rest) for key, *rest in grants.levels})
        for grant in grants.grants:
            self._take(grants.shard, grant)

    def _take(self, shard: int, grant: Grant) -> None:
        place = (shard, tuple(grant.keys))
        purse = self.purses.setdefault(place, Purse())
        assert grant.granted >= purse.granted, "totals never go backward"
        purse.granted = grant.granted
        self.waits[place] = grant.wait_ms

    def ask(self, shard: int, keys: str, least: float, most: float | None = None) -> float:
        """Want, and be served at once as far as that goes; returns the tokens that came."""
        self.say(shard, keys, least, least if most is None else most)
        return self.serve().get((shard, keys), 0)

    def spend(self, shard: int, keys: str, amount: float | None = None, *, least: float = 0, most: float = 0) -> None:
        """Consume ``amount`` (None: all that is held) and report it, perhaps with a new want."""
        purse = self.purse(shard, keys)
        purse.consumed += purse.held if amount is None else round(amount * TOKEN)
        self.say(shard, keys, least, most)

    def give_back(self, shard: int, keys: str) -> None:
        purse = self.purse(shard, keys)
        purse.returned += purse.held
        self.say(shard, keys)

    def wait(self, span_ms: int) -> dict[tuple[int, str], float]:
        """Let time pass as the bank's own appointments say; returns all that came."""
        came: Counter[tuple[int, str]] = Counter()
        end_ms = self.now_ms + span_ms
        while (due_ms := self.bank.next_due(self.now_ms)) is not None and self.now_ms + due_ms <= end_ms:
            self.now_ms += due_ms
            came.update(self.serve())
        self.now_ms = end_ms
        return dict(came)

    def level(self, key: str) -> float:
        """The bucket's level now, in tokens."""
        bucket = self.bank.buckets[key]
        bucket.accrue(self.now_ms)
        return bucket.level / TOKEN

    def renew(self, shard: int) -> None:
        """The shard starts over: all its tokens are void."""
        self.session += 1
        for place in [place for place in self.purses if place[0] == shard]:
            del self.purses[place]


def check(bank: TokenBank) -> None:
    """What holds between any two calls."""
    outstanding: Counter[str] = Counter()
    for shard, session in bank.sessions.items():
        assert session.shard == shard
        assert session.state is not SessionState.OVER or not session.accounts
        for keys, account in session.accounts.items():
            assert account.keys == keys
            assert account.outstanding >= 0
            assert bool(account.turn) == (account.line is not None)
            assert not account.turn or (account.wanting and session.state is SessionState.OPEN)
            assert account.turn or not account.holders
            assert account.line is None or account.line.line[account.turn] is account
            assert all(account in bucket.holds for bucket in account.holders)
            if session.state is SessionState.OPEN:
                outstanding.update(dict.fromkeys(keys, account.outstanding))
    for key, bucket in bank.buckets.items():
        assert bucket.key == key
        assert bucket.level + bucket.outstanding <= bucket.burst
        assert bucket.outstanding == outstanding[key]
        assert bucket.queued == sum(account.claim for account in bucket.line.values())
        assert all(account.line is bucket and key in account.keys for account in bucket.line.values())
        assert all(bucket in account.holders and amount >= 0 for account, amount in bucket.holds.items())
    assert set(bank._due_buckets) == {
        (bucket.due_ms, key) for key, bucket in bank.buckets.items() if bucket.due_ms is not None
    }
