"""The place bank, on shard 0: it grants places of throttle keys, so that all shards together never have more than the limit.

See ``docs/decisions/places.md``. An account is written in the turn that grants or takes back, so it is durable before the
frame leaves. All state but the wants is on disk.
"""

from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec

from fila_proto_zmq.bucket_limits import is_pattern
from fila_proto_zmq.commands import GrantPlaces, PlaceAccount, PlaceOpening, PlaceWant, ReportPlaces
from fila_worker.core.due_time import AT_ONCE
from fila_worker.core.effects import Post
from fila_worker.core.held_places import concerned
from fila_worker.core.keys import pack_u32, range_of, u32
from fila_worker.core.model.component import Component, InvariantBroken, PeerVerb, Steps
from fila_worker.core.places.accounts import SCANNED_MAX, BankKey, ServedShards, ShardAccount, Want, Wants
from fila_worker.core.places.dispatch import Dispatch, Item
from fila_worker.core.places.holdings import ACCOUNT, BANK_SHARD

if TYPE_CHECKING:
    from fila_proto_zmq.commands import Command
    from fila_worker.core.model.runtime_config import FollowedLimits
    from fila_worker.core.model.state import State

KEY: Final = b"place key:"
"""The beginning of the records of keys: ``(opening, shards that are known)``. A throttle key follows."""

ROW: Final = b"place account:"
"""The beginning of the records of accounts: ``(number, granted, returned)``. The shard, u32, and a throttle key follow."""

decode_key: Final = msgspec.msgpack.Decoder(tuple[int, list[int]]).decode
decode_row: Final = msgspec.msgpack.Decoder(tuple[int, int, int]).decode

SERVED: Final = "served"
WAITING: Final = "waiting"
OPEN: Final = "open"
HELLO: Final = "hello"
"""The kinds of items that the bank says to a shard, besides accounts."""

GRANTS_MAX: Final = 1000
"""The most keys and wants that are looked at in a turn, for what can be granted."""

SHARES: Final = 4
"""Parts in which a want gets its share of many places, so that no shard gets all of its share before the others."""

OPEN_MS: Final = 500
"""How long a shard has to answer to an opening before it is asked again: its config may be behind."""

KEYS_KEPT_MAX: Final = 10_000
"""Keys that are kept although nobody uses them, because an opening takes a round to all shards. A kilobyte each."""

OPENINGS_AT_ONCE: Final = 200
"""Keys whose missing shards are asked again in one turn."""


class PlaceBank(Component):
    """The accounts of all shards. On other shards than 0 it has nothing to do."""

    def __init__(self, state: "State") -> None:
        super().__init__(state)
        state.keep(self)
        self.keys: OrderedDict[str, BankKey] = OrderedDict()
        self._begun = 0
        """Keys that were opened since the last turn."""
        self._wants = Wants()
        self._links: dict[int, Dispatch] = {}
        self._unserved: dict[BankKey, None] = {}
        """Keys whose free places, limits or wants have changed."""
        self._fresh: list[tuple[int, tuple[str, ...]]] = []
        """Wants that came since the last turn."""
        self._changed: dict[BankKey, None] = {}
        """Keys that were served in this turn."""
        self._unopened: dict[BankKey, None] = {}
        """Keys of which some shards are not known."""
        self._everybody = frozenset(range(state.shards))
        self._served = ServedShards()
        self._followed: FollowedLimits | None = None
        """The limits that were followed last."""
        self._version = 0
        """Counts their changes. A key of another version follows before it is used."""
        self._behind: list[BankKey] = []
        """Keys that are still to be looked at, because a pattern has a new limit."""

    peer_verbs: ClassVar["dict[type[Command], PeerVerb]"] = {
        ReportPlaces: lambda state, command, now_ms: state.part(PlaceBank).report(command, now_ms)
    }

    def _link(self, shard: int) -> Dispatch:
        return self._links.setdefault(shard, Dispatch())

    def _limit(self, name: str) -> int | None:
        return self.state.runtime.concurrency(name)

    # --- what shards say ----------------------------------------------------------------------------------------------

    def report(self, command: ReportPlaces, now_ms: int) -> None:
        """Take in a frame of a shard."""
        shard, link = command.from_shard, self._link(command.from_shard)
        is_new = link.is_new(command.serial)
        has_items = bool(command.accounts or command.wants or command.opened)
        self.timer.by(AT_ONCE)
        if not link.heard(command.serial, command.seen, has_items=has_items):
            return
        for account in command.accounts:
            self._settle(shard, account)
        for want in command.wants:
            self._want(shard, want, now_ms)
        for opening in command.opened:
            self._opened(shard, opening)
        if is_new:  # it has forgotten what it was told
            for key in self.keys.values():
                if shard in key.accounts:
                    link.say((ACCOUNT, key.key))

    def _settle(self, shard: int, told: PlaceAccount) -> None:
        """Take in the shard's side of an account. Of one number the larger totals count."""
        key = self.keys.get(told.key)
        if key is None:
            return
        account = key.accounts.get(shard)
        if account is not None and told.number < account.number:
            self._link(shard).say((ACCOUNT, key.key))
            return
        granted, returned, short = told.taken, told.returned, key in self._unopened
        if account is not None and told.number == account.number:
            granted, returned, short = max(granted, account.granted), max(returned, account.returned), account.short
        self._keep(shard, key, ShardAccount(told.number, granted, min(returned, granted), short))

    def _keep(self, shard: int, key: BankKey, account: ShardAccount) -> None:
        """Set an account, and make it durable. One without places needs no record."""
        state, name = self.state, ROW + pack_u32(shard) + key.key.encode()
        before = key.accounts.get(shard)
        key.put(shard, account)
        if account.outstanding:
            row = msgspec.msgpack.encode((account.number, account.granted, account.returned))
            state.batch.put(name, row, state.store.families.state)
        elif before is not None and before.outstanding:
            state.batch.delete(name, state.store.families.state)
        self._unserved[key] = None

    def _want(self, shard: int, told: PlaceWant, now_ms: int) -> None:
        names = tuple(told.keys)
        known = self._wants.wants.get((shard, names))
        if known is not None:
            self._end(known, now_ms)
        if told.count <= 0 or not names or any(self._limit(name) is None for name in names):
            return
        keys = [self.keys.get(name) or self._begin(name) for name in names]
        self._wants.put(shard, keys, told, now_ms)
        self._unserved |= dict.fromkeys(keys)
        self._fresh.append((shard, names))

    def _end(self, want: Want, now_ms: int) -> None:
        keys = [self.keys[name] for name in want.names if name in self.keys]
        self._wants.remove(want, keys, now_ms)
        self._unserved |= dict.fromkeys(keys)

    # --- openings -----------------------------------------------------------------------------------------------------

    def _begin(self, name: str) -> BankKey:
        """Open a key: ask all shards for what they have leased."""
        key = self.keys[name] = BankKey(name, self.state.leases.new_id(), self._limit(name) or 0)
        key.version = self._version
        self._begun += 1
        self._save(key)
        self._unopened[key] = None
        self._ask(key)
        return key

    def _ask(self, key: BankKey) -> None:
        for shard in range(self.state.shards):
            if shard not in key.known:
                self._link(shard).say((OPEN, key.key))

    def _opened(self, shard: int, opening: PlaceOpening) -> None:
        key = self.keys.get(opening.key)
        if key is not None and key.opening == opening.number and shard not in key.known:
            key.known |= {shard}
            self._save(key)
            self._unserved[key] = None
            if key.known >= self._everybody:
                key.known = self._everybody  # one object for all keys
                self._unopened.pop(key, None)

    def _save(self, key: BankKey) -> None:
        row = msgspec.msgpack.encode((key.opening, sorted(key.known)))
        self.state.batch.put(KEY + key.key.encode(), row, self.state.store.families.state)

    def on_config(self, now_ms: int) -> None:
        """Follow limits that changed, and end keys that have none any more."""
        self._followed, changes = self.state.runtime.follow_concurrencies(self._followed)
        if changes == []:
            return
        self._version += 1
        for key in concerned(self.keys, changes, lambda name: self._limit(name) is not None):
            if self._limit(key.key) is None:
                self._close(key, now_ms)
            else:
                self._follow(key)
        if any(map(is_pattern, changes or ())):
            self._behind = list(self.keys.values())
        self.timer.by(AT_ONCE)

    def _follow(self, key: BankKey) -> None:
        """Follow the limit of a key that still has one."""
        if key.version != self._version:
            key.version, before, key.limit = self._version, key.limit, self._limit(key.key) or 0
            if key.limit != before:
                self._unserved[key] = None

    def _follow_some(self) -> None:
        for key in self._behind[-GRANTS_MAX:]:
            if self.keys.get(key.key) is key:
                self._follow(key)
        del self._behind[-GRANTS_MAX:]

    def _close(self, key: BankKey, now_ms: int) -> None:
        """Forget a key: its next limit begins with a new opening."""
        for want in list(key.wants):
            self._end(want, now_ms)
        del self.keys[key.key]
        self._unserved.pop(key, None)
        self._unopened.pop(key, None)
        batch, family = self.state.batch, self.state.store.families.state
        batch.delete(KEY + key.key.encode(), family)
        for shard in key.accounts:
            batch.delete(ROW + pack_u32(shard) + key.key.encode(), family)

    def _forget_idle(self, now_ms: int) -> None:
        """Forget keys without places and wants, if there are many: the next want opens them again."""
        looks = min(len(self.keys) - KEYS_KEPT_MAX, 2 * self._begun + 2)
        self._begun = 0
        for name, key in list(islice(self.keys.items(), max(0, looks))):
            if key.outstanding or key.wants or key in self._unserved or key in self._unopened:
                self.keys.move_to_end(name)
            else:
                self._close(key, now_ms)

    # --- grants -------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> int | None:
        """Grant what is free, and send what is to be told."""
        if not self.keys and not self._links:
            return None
        self._follow_some()
        self._serve(now_ms)
        self._answer()
        self._ask_again(now_ms)
        self._forget_idle(now_ms)
        for shard, link in self._links.items():
            if (due_ms := link.due_ms()) is not None and due_ms <= now_ms:
                self._send(shard, link, now_ms)
        due = [each for link in self._links.values() if (each := link.due_ms()) is not None]
        if self._unopened:
            due.append(now_ms + OPEN_MS)
        return AT_ONCE if self._unserved or self._behind else min(due, default=None)

    def _serve(self, now_ms: int) -> None:
        left = GRANTS_MAX
        for key in self._served.forget(now_ms):
            self._drop_unused(key)
        served: dict[Want, int] = {}
        while self._unserved and left > 0:
            key = next(iter(self._unserved))
            self._follow(key)
            del self._unserved[key]
            while left > 0 and (want := self._next_want(key)) is not None:
                left -= 1
                served[want] = served.get(want, 0) + self._grant(want)
            left -= 1
            self._changed[key] = None
        for want, count in served.items():
            if count:
                for name in want.names:
                    self._served.note(self.keys[name], want.shard, now_ms)
            if (want.shard, want.names) in self._wants.wants:
                self._end(want, now_ms)
            self._link(want.shard).say((SERVED, want.names))
        for key in self._changed:
            if left > 0:  # its own grants have put it back
                self._unserved.pop(key, None)
            self._tell_short(key)
        self._changed.clear()

    def _answer(self) -> None:
        """Tell shards whose new wants found no place: receives wait for the answer. A key that is being opened has none yet."""
        opening: list[tuple[int, tuple[str, ...]]] = []
        for shard, names in self._fresh:
            if (shard, names) not in self._wants.wants:
                continue
            if any(self.keys[name] in self._unopened for name in names):
                opening.append((shard, names))
                continue
            self._link(shard).say((WAITING, names))
        self._fresh = opening

    def _next_want(self, key: BankKey) -> Want | None:
        """Return the want with the lowest pass that all its keys have a free place for."""
        if key.free(self.state.shards) <= 0:
            return None
        for want in islice(key.wants, SCANNED_MAX):
            if all(self._free(name) > 0 for name in want.names):
                return want
        return None

    def _free(self, name: str) -> int:
        key = self.keys.get(name)
        if key is None:
            return 0
        self._follow(key)
        return key.free(self.state.shards)

    def _grant(self, want: Want) -> int:
        """Grant a want a part of its share of what is free, at least one place. Return how many.

        When all is granted its shard is told, and wants again.
        """
        keys = [self.keys[name] for name in want.names]
        if any(want.shard not in key.accounts for key in keys):
            self._wants.move(want, keys, want.count, charged=False)  # the shard says it again, with its accounts
            return 0
        shares = [key.free(self.state.shards) * want.weight // (SHARES * key.weight) for key in keys]
        alone = all(len(key.wants) == 1 for key in keys)
        free = min(key.free(self.state.shards) for key in keys)
        count = min(want.count, free if alone else max(1, min(shares)))
        for key in keys:
            account = key.accounts[want.shard]
            granted = account.granted + count
            self._keep(want.shard, key, ShardAccount(account.number, granted, account.returned, account.short))
        self._wants.move(want, keys, count, charged=not alone)
        return count

    def _tell_short(self, key: BankKey) -> None:
        """Tell shards whether they keep the places that become free: not before all have said what is leased."""
        if self.keys.get(key.key) is not key:
            return
        wanted_by, full, excess = key.wanted_by(), key.outstanding >= key.limit, key.outstanding > key.limit
        for shard, account in list(key.accounts.items()):
            short = account.outstanding > 0 and (key in self._unopened or excess or (full and bool(wanted_by - {shard})))
            if short != account.short:
                account.short = short
                self._link(shard).say((ACCOUNT, key.key))
        self._drop_unused(key)

    @staticmethod
    def _drop_unused(key: BankKey) -> None:
        """Drop the accounts of shards that have no places and want none."""
        wanted_by = key.wanted_by()
        for shard in [shard for shard, account in key.accounts.items() if not account.outstanding]:
            if shard not in wanted_by:
                key.drop(shard)

    def _ask_again(self, now_ms: int) -> None:
        for key in list(islice(self._unopened, OPENINGS_AT_ONCE)):
            if now_ms - key.asked_ms >= OPEN_MS:
                key.asked_ms = now_ms
                self._ask(key)
                del self._unopened[key]
                self._unopened[key] = None

    # --- frames -------------------------------------------------------------------------------------------------------

    def _send(self, shard: int, link: Dispatch, now_ms: int) -> None:
        frame = GrantPlaces(shard, self.state.index, self.state.leases.new_id(), link.take_owed(), [], [], [], [])
        if link.fill(frame.serial, partial(self._add, frame), now_ms) or frame.seen:
            self.state.effects.append(Post(frame))

    def _add(self, frame: GrantPlaces, item: Item) -> bool:
        """Add what an item stands for to a frame. Return False if there is nothing of it any more."""
        kind, name = item[0], item[1]
        if kind == HELLO:
            frame.hello = True
            return True
        if kind in {SERVED, WAITING}:
            assert isinstance(name, tuple)
            for each in name:  # places of one key without those of the others would go back
                self._add_account(frame, self.keys.get(str(each)))
            (frame.served if kind == SERVED else frame.waiting).append(list(name))
            return True
        key = self.keys.get(str(name))
        if key is None or kind != OPEN:
            return self._add_account(frame, key)
        frame.openings.append(PlaceOpening(key.key, key.opening, self.state.runtime.version))
        return True

    def _add_account(self, frame: GrantPlaces, key: BankKey | None) -> bool:
        """Add a shard's account of a key to a frame for it. Return False if it has none."""
        account = None if key is None else key.accounts.get(frame.to_shard)
        if key is None or account is None:
            return False
        frame.accounts.append(
            PlaceAccount(key.key, account.number, account.granted, account.returned, account.short, key.outstanding)
        )
        return True

    # --- recovery -----------------------------------------------------------------------------------------------------

    def recover(self, now_ms: int) -> Steps:
        """Read keys and accounts, and ask all shards to say again what they want."""
        state = self.state
        if state.index != BANK_SHARD:
            return
        self._followed, _ = state.runtime.follow_concurrencies(None)
        gone: list[bytes] = []
        for name, data in self._stored(KEY):
            throttle_key = name[len(KEY) :].decode()
            limit = self._limit(throttle_key)
            if limit is None:
                gone.append(name)
            else:
                opening, known = decode_key(data)
                is_known = self._everybody.issubset(known)
                heard = self._everybody if is_known else frozenset(known)
                key = self.keys[throttle_key] = BankKey(throttle_key, opening, limit, heard)
                self._unserved[key] = None
                if not is_known:
                    self._unopened[key] = None
            yield
        for name, data in self._stored(ROW):
            shard, throttle_key = u32(name[len(ROW) :]), name[len(ROW) + 4 :].decode()
            if throttle_key in self.keys:
                self.keys[throttle_key].put(shard, ShardAccount(*decode_row(data)))
            else:
                gone.append(name)
            yield
        for name in gone:
            state.batch.delete(name, state.store.families.state)
        if state.runtime.has_concurrency:  # also without keys: a power cut may have undone them
            for shard in range(state.shards):
                self._link(shard).say((HELLO, ""))
            self.timer.by(AT_ONCE)

    def _stored(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(self.state.store.scan(*range_of(prefix), self.state.store.families.state))

    def check(self) -> None:
        """Compare the sums with the accounts, and the accounts with the disk."""
        for key in self.keys.values():
            _expect(f"places of {key.key!r}", key.outstanding, sum(each.outstanding for each in key.accounts.values()))
            _expect(f"weights of {key.key!r}", key.weight, sum(want.weight for want in key.wants))
        kept = {
            (shard, key.key): (account.number, account.granted, account.returned)
            for key in self.keys.values()
            for shard, account in key.accounts.items()
            if account.outstanding
        }
        stored = {
            (u32(name[len(ROW) :]), name[len(ROW) + 4 :].decode()): decode_row(data) for name, data in self._stored(ROW)
        }
        if self.state.index == BANK_SHARD:
            _expect("accounts of the place bank", kept, stored)


def _expect(what: str, kept: object, derived: object) -> None:
    if kept != derived:
        raise InvariantBroken(f"{what}: kept {kept!r}, derived {derived!r}")
