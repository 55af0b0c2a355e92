"""The places of a shard: the frames of the place bank, dealing, what goes back, and what is wanted.

See ``docs/decisions/places.md``. Everything that changes an account is written in the turn that uses it. So a restart finds at
least as many places as leases.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec

from fila_proto_zmq.commands import GrantPlaces, PlaceAccount, PlaceOpening, PlaceWant, ReportPlaces
from fila_proto_zmq.partitions import queue_with_places
from fila_worker.core.due_time import AT_ONCE
from fila_worker.core.effects import Post
from fila_worker.core.held_places import HOLD_MS, LINES_LOOKED_AT_MAX, HeldKey, Places
from fila_worker.core.keys import range_of
from fila_worker.core.model.component import Component, InvariantBroken, PeerVerb, Steps
from fila_worker.core.model.lane_tokens import Traffic
from fila_worker.core.model.queues import PlaceTaker, Queue, QueuePartition, Siblings
from fila_worker.core.places.dispatch import Dispatch, Item
from fila_worker.core.places.taking import can_use

if TYPE_CHECKING:
    from fila_proto_zmq.commands import Command
    from fila_worker.core.held_places import LeasedCount, PlaceLine
    from fila_worker.core.model.runtime_config import FollowedLimits
    from fila_worker.core.model.state import State

BANK_SHARD: Final = 0
"""The shard with the place bank."""

HELD: Final = b"places:"
"""The beginning of the keys of accounts. A throttle key follows."""

POSTPONED_AT_ONCE: Final = 1000
"""The most postponed lines of a queue that are looked at in one turn."""

WANTED_MAX: Final = 1000
"""The most places that a line wants at once: what a shard may deliver in a turn or two."""

encode_held: Final = msgspec.msgpack.Encoder().encode
decode_held: Final = msgspec.msgpack.Decoder(tuple[int, int, int, int]).decode
"""Number, opening, taken, returned."""

ACCOUNT: Final = "account"
WANT: Final = "want"
VOID: Final = "void"
OPENED: Final = "opened"
"""The kinds of items that a shard says to the bank."""


BEHIND_MS: Final = 2000
"""How long a shard waits for a config that the bank has before its process registers, to get it."""


class BankLink:
    """What a shard says to the place bank. ``asking``: queues whose receives wait for the bank's answer, by want."""

    def __init__(self, places: "Places[PlaceTaker]") -> None:
        self._places = places
        self.behind_ms = 0
        """When an opening first came for a config that this shard lacks, Unix ms; 0: it has the config."""
        self.dispatch = Dispatch()
        self.asking: dict[tuple[str, ...], list[Queue]] = {}
        self._asking: Counter[Queue] = Counter()
        """The number of these wants, by queue."""

    def ask(self, names: tuple[str, ...], queues: "list[Queue]") -> None:
        """Note that receives of these queues wait for an answer."""
        self.heard(names)
        self.asking[names] = queues
        self._asking.update(queues)
        for queue in queues:
            queue.unanswered += 1

    def heard(self, names: tuple[str, ...]) -> None:
        """Note that a want is answered, or not wanted any more."""
        for queue in self.asking.pop(names, ()):
            queue.unanswered -= 1
            if queue.partition is not None:
                self._places.doubt(queue.partition)
            self._asking[queue] -= 1
            if not self._asking[queue]:
                del self._asking[queue]
            self._places.look_again(queue)

    def asked_for(self, queue: "Queue") -> int:
        """Return the number of a queue's wants that are unanswered."""
        return self._asking.get(queue, 0)


# --- the frames of the bank -------------------------------------------------------------------------------------------


def granted(state: "State", command: GrantPlaces, now_ms: int) -> None:
    """Take in a frame of the place bank."""
    link, places = state.part(BankLink), state.places
    is_new = link.dispatch.is_new(command.serial)
    has_items = bool(command.accounts or command.served or command.waiting or command.openings or command.hello)
    places.reports.by(AT_ONCE)
    if not link.dispatch.heard(command.serial, command.seen, has_items=has_items):
        return
    for account in command.accounts:
        _take_account(state, link, account)
    for opening in command.openings:
        _open(state, link, opening, now_ms)
    for names in map(tuple, command.served):
        link.heard(names)
        if (line := places.lines.get(names)) is not None:
            line.told = None
            places.changed[line] = None
    for names in map(tuple, command.waiting):
        link.heard(names)
    if command.served or command.waiting:
        state.consumers.waits.by(AT_ONCE)  # receives may have waited for the answer
    if is_new:
        _say_all(state, link)


def _say_all(state: "State", link: BankLink) -> None:
    """Say all accounts and wants: the bank may have lost them."""
    for key in state.places.keys.values():
        if key.held:
            link.dispatch.say((ACCOUNT, key.key))
    for line in state.places.lines.values():
        line.told = None
        state.places.changed[line] = None


def _take_account(state: "State", link: BankLink, account: PlaceAccount) -> None:
    """Take in the bank's side of an account."""
    key = state.places.keys.get(account.key)
    if key is None or key.number != account.number:
        if account.taken > account.returned:
            link.dispatch.say((VOID, account.key, account.number, account.taken))
        if key is not None and key.held:
            link.dispatch.say((ACCOUNT, key.key))
        return
    key.short, key.in_use = account.short, account.in_use
    if account.taken > key.taken:
        key.taken = account.taken
        save(state, key)
    state.places.touch(key)


def _open(state: "State", link: BankLink, opening: PlaceOpening, now_ms: int) -> None:
    """Begin an account that has a place for each leased message. Wait for the config, if it may still be without the limit."""
    places = state.places
    if state.runtime.version < opening.version:
        link.behind_ms = link.behind_ms or now_ms
        if now_ms - link.behind_ms >= BEHIND_MS:  # a frame with the config was lost
            link.behind_ms = 0
            state.to_be_registered = True
        return
    link.behind_ms = 0
    if places.limit(opening.key) is None:
        return
    key = places.account(opening.key, _count_of(state, opening.key))
    if key.opening != opening.number:
        key.number, key.opening = state.leases.new_id(), opening.number
        key.taken, key.returned = max(key.held, key.counts.leased), 0
        key.short = True  # until the bank has heard of the other shards
        save(state, key)
        places.touch(key)
        for line in key.lines:  # with the new number
            line.told = None
            places.changed[line] = None
    link.dispatch.say((ACCOUNT, key.key))
    link.dispatch.say((OPENED, key.key))


def _count_of(state: "State", name: str) -> "LeasedCount":
    """Return the count of the leased messages that need places of this name."""
    if queue_with_places(name) is not None:
        return state.queues.siblings(name)
    return state.token_client.traffic.setdefault(name, Traffic())


def save(state: "State", key: "HeldKey[PlaceTaker]") -> None:
    """Make an account durable with the turn, and have the bank told. An account without places needs no record."""
    now = (key.number, key.opening, key.taken, key.returned) if key.held else (0, 0, 0, 0)
    if now != key.saved:
        key.saved = now
        name, family = HELD + key.key.encode(), state.store.families.state
        if key.held:
            state.batch.put(name, encode_held(now), family)
        else:
            state.batch.delete(name, family)


# --- turns ------------------------------------------------------------------------------------------------------------


def _able(now_ms: int) -> "Callable[[PlaceTaker], bool]":
    return lambda lane: can_use(lane, now_ms)


def _may_use(lane: "PlaceTaker") -> bool:
    """Return whether a lane may use its places soon: the token bank was asked for it and has not answered. If it refuses, the
    places go to others.

    A partition keeps them while it has a message that lacks nothing else: any consumer of the queue with credit looks there, and
    may be farther away than :data:`HOLD_MS`.
    """
    if isinstance(lane, QueuePartition):
        return len(lane.owner.ring) > 0 or lane.owner.unanswered > 0
    throttle = lane.throttle
    return throttle is not None and lane in throttle.waiting and bool(throttle.asking)


class PlaceDeals(Component):
    """The dealing of places that came or became free. It comes before the delivery."""

    def __init__(self, state: "State") -> None:
        super().__init__(state, state.places.deals)

    def tick(self, now_ms: int) -> int | None:
        """Give back what the bank asks for, and deal the other free places."""
        places = self.state.places
        places.collect_unused(_may_use, now_ms)
        for key in places.in_turn():
            if key.short:
                key.returned += max(0, min(key.freed, key.idle))
            key.freed = 0
        self.state.unblock(places.release_some() + places.deal(_able(now_ms), now_ms))
        return AT_ONCE if places.ending else places.next_unused()


class PlaceReports(Component):
    """The accounts and wants of a shard, and the frames to the bank. It comes after the delivery, which uses places."""

    peer_verbs: ClassVar["dict[type[Command], PeerVerb]"] = {GrantPlaces: granted}

    def __init__(self, state: "State") -> None:
        super().__init__(state, state.places.reports)
        self._link = state.keep(BankLink(state.places))
        self._rooms: dict[Queue, int] = {}
        """For how many more messages each queue may want places in this turn."""
        self._followed: FollowedLimits | None = None
        """The limits that were followed last."""

    def recover(self, now_ms: int) -> Steps:
        """Read the accounts, before the lanes and leases that use them, and tell the bank about them."""
        state = self.state
        self._followed, _ = state.runtime.follow_concurrencies(None)
        step = state.settings.limits.recovery_records_max
        for number, (name, data) in enumerate(state.store.scan(*range_of(HELD), state.store.families.state)):
            if number % step == 0:
                yield
            throttle_key = name[len(HELD) :].decode()
            if state.places.limit(throttle_key) is None:
                state.batch.delete(name, state.store.families.state)
                continue
            key = state.places.account(throttle_key, _count_of(state, throttle_key))
            key.short = True  # until the bank says that it may keep what becomes free
            key.saved = key.number, key.opening, key.taken, key.returned = decode_held(data)
            self._link.dispatch.say((ACCOUNT, throttle_key))
            state.places.touch(key)

    def on_config(self, now_ms: int) -> None:
        """Follow limits that came and went."""
        state = self.state
        self._followed, changes = state.runtime.follow_concurrencies(self._followed)
        if changes == []:
            return
        for key in state.places.follow(changes):
            key.taken = key.returned = 0
            save(state, key)
            self._end(key)
        for names in [names for names in self._link.asking if names not in state.places.lines]:
            self._link.heard(names)

    def tick(self, now_ms: int) -> int | None:
        """Return the places that are of no use here, and tell the bank what has changed."""
        state, places = self.state, self.state.places
        state.unblock(places.dismiss(_able(now_ms)))
        for key in places.in_turn():
            del places.touched[key]
            if key.idle > 0 and not key.short and places.line_in_turn(key) is not None:
                places.touched[key] = None  # too many for one turn
                continue
            key.returned += max(0, key.idle)
            if (now := (key.number, key.opening, key.taken, key.returned)) != key.told:
                save(state, key)
                key.told = key.saved if key.saved == now else now
                if key.number:
                    self._link.dispatch.say((ACCOUNT, key.key))
        if places.touched:
            places.deals.by(AT_ONCE)
        self._want(now_ms)
        places.collect_doubtful(_may_use)
        self._send(now_ms)
        for key in places.forget_unused(self._is_used):
            self._end(key)
        return AT_ONCE if places.touched else self._link.dispatch.due_ms()

    def _is_used(self, key: "HeldKey[PlaceTaker]") -> bool:
        """Return whether messages here may need places of a key, or the bank has yet to hear of its account."""
        dispatch = self._link.dispatch
        return (
            (key.counts.count > 0 if isinstance(key.counts, Siblings) else key.key in self.state.token_client.by_key)
            or dispatch.pending((ACCOUNT, key.key))
            or dispatch.pending((OPENED, key.key))
        )

    def _end(self, key: "HeldKey[PlaceTaker]") -> None:
        """Forget what else is kept of a throttle key whose account has ended."""
        key.counts.held = None
        self.state.queues.forget_siblings(key.key)
        self.state.token_client.forget_key(key.key)

    def _want(self, now_ms: int) -> None:
        """Tell the bank of lines that begin or cease to want places, or whose weight has changed much."""
        places, link = self.state.places, self._link
        self._rooms = {}
        left: dict[PlaceLine[PlaceTaker], None] = {}
        for line in places.changed:
            names = line.names
            if places.lines.get(names) is not line:
                continue  # it has ended
            if not line.waiting:
                if line.told is not None:
                    line.told = None
                    link.heard(names)
                    link.dispatch.say((WANT, names))
                if link.dispatch.pending((WANT, names)):
                    left[line] = None
                else:
                    del places.lines[names]
                continue
            if line.told is not None and line.told[1] <= 2 * line.weight and line.weight <= 2 * line.told[1]:
                continue
            if line.told is None and not self._may_ask(line, now_ms):
                continue
            self._ask(line)
        places.changed = left
        self._go_on(now_ms)

    def _may_ask(self, line: "PlaceLine[PlaceTaker]", now_ms: int) -> bool:
        """Return whether a line may want places now. If not, it is postponed: a shard may have lanes of 100,000 tenants."""
        queues = dict.fromkeys(map(_queue_of, islice(line.waiting, LINES_LOOKED_AT_MAX)))
        if line.names in self._link.asking or any(self._room(queue, now_ms) > 0 for queue in queues):
            return True  # a want that is asked again is none more
        if any(isinstance(lane, QueuePartition) for lane in islice(line.waiting, 1)):
            return True  # a shard has few partitions, and without their places no lane of them wants others
        for queue in queues:
            self.state.places.postponed.setdefault(queue, {})[line] = None
        return False

    def _room(self, queue: Queue, now_ms: int) -> int:
        """Return how many messages the consumers of a queue take, beyond those that have places or wait for an answer.

        After a delivery, as many are expected to be taken again soon, and no longer: places would go to and fro.
        """
        room = self._rooms.get(queue)
        if room is None:
            wanted = queue.credit or (queue.served if now_ms - queue.served_ms < HOLD_MS else 0)
            room = wanted - self._link.asked_for(queue) - self.state.places.ready.get(queue, 0)
            self._rooms[queue] = room
        return room

    def _ask(self, line: "PlaceLine[PlaceTaker]") -> None:
        names, (count, queues) = line.names, _survey(line)
        line.told = count, line.weight
        for key in line.keys:
            key.number = key.number or self.state.leases.new_id()
        self._link.dispatch.say((WANT, names))
        self._link.ask(names, queues)
        for queue in queues:
            if queue in self._rooms:
                self._rooms[queue] -= 1

    def _go_on(self, now_ms: int) -> None:
        """Want places for postponed lines, as far as their queues' consumers have credit. Forget those that wait no more.

        Queues without news are looked at in rotation, one a turn, for lines that wait no more.
        """
        places = self.state.places
        if not places.postponed:
            return
        queues, places.eager = places.eager, {}
        queues[next(iter(places.postponed))] = None
        for queue in queues:
            if (lines := places.postponed.get(queue)) is None:
                continue
            assert isinstance(queue, Queue)
            places.postponed.move_to_end(queue)
            for line in list(islice(lines, POSTPONED_AT_ONCE)):
                waits = line.waiting and line.told is None and places.lines.get(line.names) is line
                if waits and self._room(queue, now_ms) <= 0:
                    break
                del lines[line]
                if waits:
                    self._ask(line)
            else:
                if lines:
                    places.look_again(queue)
            if not lines:
                del places.postponed[queue]

    def _send(self, now_ms: int) -> None:
        dispatch = self._link.dispatch
        due_ms = dispatch.due_ms()
        if due_ms is None or due_ms > now_ms:
            return
        report = ReportPlaces(BANK_SHARD, self.state.index, self.state.leases.new_id(), dispatch.take_owed(), [], [], [])
        if dispatch.fill(report.serial, partial(self._add, report), now_ms) or report.seen:
            self.state.effects.append(Post(report))

    def _add(self, report: ReportPlaces, item: Item) -> bool:
        """Add what an item stands for to a frame. Return False if there is nothing of it any more."""
        kind, name = item[0], item[1]
        if kind == VOID:
            number, granted = item[2:]
            assert isinstance(number, int)
            assert isinstance(granted, int)
            report.accounts.append(PlaceAccount(str(name), number, granted, granted))
            return True
        if kind == WANT:
            assert isinstance(name, tuple)
            line = self.state.places.lines.get(name)
            count, weight = (line.told if line is not None else None) or (0, 0)
            if line is not None and count:  # the bank grants to accounts, and drops those without places and wants
                report.accounts += map(_account_of, line.keys)
            report.wants.append(PlaceWant(list(name), count, weight))
            return True
        key = self.state.places.keys.get(str(name))
        if key is None:
            return False
        if kind == OPENED:
            report.opened.append(PlaceOpening(key.key, key.opening))
        else:
            report.accounts.append(_account_of(key))
        return True

    def check(self) -> None:
        """Compare the counts of leased messages with the leases, and the accounts with the disk."""
        check_places(self.state)


def _account_of(key: "HeldKey[PlaceTaker]") -> PlaceAccount:
    return PlaceAccount(key.key, key.number, key.taken, key.returned)


def _queue_of(lane: "PlaceTaker") -> Queue:
    return lane.owner if isinstance(lane, QueuePartition) else lane.key.queue


def _survey(line: "PlaceLine[PlaceTaker]") -> "tuple[int, list[Queue]]":
    """Return how many places a line could use now, and the queues that would."""
    pending = 0
    queues: dict[Queue, None] = {}
    for lane in islice(line.waiting, LINES_LOOKED_AT_MAX):
        pending += lane.pending
        queues[_queue_of(lane)] = None
    wanted = sum(queue.appetite() for queue in queues)
    return max(1, min(pending, wanted, WANTED_MAX)), list(queues)


def check_places(state: "State") -> None:
    """Raise :class:`InvariantBroken` if counts of places contradict leases, lanes or the disk."""
    leased: dict[str, int] = {}
    for lease in state.leases.leases.values():
        for _, _, lane in () if lease.at_most_once else lease.open_members():
            for traffic_key in lane.throttle.keys if lane.throttle is not None else ():
                leased[traffic_key] = leased.get(traffic_key, 0) + 1
    counted = {key: each.leased for key, each in state.token_client.traffic.items() if each.leased}
    if counted != leased:
        raise InvariantBroken(f"leased messages of throttle keys: {counted}, derived {leased}")
    places = state.places
    stored = {
        name[len(HELD) :].decode(): decode_held(data)
        for name, data in state.store.scan(*range_of(HELD), state.store.families.state)
    }
    kept = {name: key.saved for name, key in places.keys.items() if key.saved[0]}
    if kept != stored:
        raise InvariantBroken(f"accounts of places: {kept}, on disk {stored}")
    for key in places.keys.values():
        if key.opening and key.counts.leased > key.held:
            raise InvariantBroken(f"{key.counts.leased} messages of {key.key!r} are leased, with {key.held} places")
        dealt = sum(each.count for each in places.dealt.values() if key in each.keys)
        if dealt != key.dealt:
            raise InvariantBroken(f"places of {key.key!r}: {key.dealt} dealt, derived {dealt}")
    _check_siblings(state)
    for taker, line in places.where.items():
        if not taker.blocked or taker not in line.waiting:
            raise InvariantBroken(f"{_queue_of(taker).name!r} waits for places of {line.names}, not blocked or not in line")


def _check_siblings(state: "State") -> None:
    together: dict[Siblings, int] = {}
    for queue in state.queues.values():
        if queue.partition is not None and (siblings := queue.partition.siblings) is not None:
            together[siblings] = together.get(siblings, 0) + queue.in_flight
            if queue.partition.blocked and queue.partition not in state.places.where:
                raise InvariantBroken(f"partition {queue.name!r} is blocked, and waits for no place")
    for siblings, in_flight in together.items():
        if siblings.leased != in_flight:
            raise InvariantBroken(f"leased messages of {siblings.name!r}: {siblings.leased}, derived {in_flight}")
