"""The whole life of messages against a model that a reader can check: a dict and a sort.

The shard runs on a virtual clock with so little memory that lanes live mostly on disk; its invariants are checked after every
turn. The model knows of each message where it is and how often it failed. It does not model who is next between keys (that is
``test_fairness_bounds``), but within a key every delivery must be the first in line.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fila_proto_zmq.commands import (
    Delivered,
    EndReservation,
    Enqueue,
    Enqueued,
    Extend,
    Extended,
    FetchReserved,
    RenewReservation,
    ReservationEnded,
    Reserve,
    Reserved,
    Unsubscribe,
    Verb,
)
from fila_proto_zmq.ids import format_run, parse_id
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.settings import ShardSettings
from tests.support.shard.shard import Got, ShardHarness, fences, opened
from tests.support.shard.tight_shard import ROOMY

KEYS = st.sampled_from(["a", "b", "c"])
CLIENTS = st.sampled_from([b"c1", b"c2"])
RESERVATIONS = st.sampled_from(["r1", "r2"])
DRIVER = b"driver"
"""Who reserves: what it reserved does not depend on its life."""
TIMEOUT_MS = 20_000
MAX_ATTEMPTS = 4
SETTINGS = ShardSettings(consumer_timeout_ms=15_000, buffer_bytes=400, limits=ROOMY)


@dataclass
class Known:
    """What the model knows of one message."""

    key: str
    priority: int
    payload: bytes
    state: str = "pending"
    attempts: int = 0
    due_ms: int = 0
    error: str = ""


@dataclass
class Held:
    """A delivery that a client holds, or a part of a reservation (``r1/0``), and when its lease ends."""

    got: Got
    client: bytes
    expires_ms: int


@dataclass
class Model:
    known: dict[str, Known] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    seen_ms: dict[bytes, int] = field(default_factory=dict)

    @property
    def delivered(self) -> list[Held]:
        """What clients hold: it may be settled one by one."""
        return [held for held in self.held if held.client in self.seen_ms]


class Lifecycle(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.harness = ShardHarness(settings=SETTINGS)
        self.harness.create(visibility_timeout_ms=TIMEOUT_MS, max_attempts=MAX_ATTEMPTS)
        self.model = Model()
        self.sent = 0

    # --- what clients do ----------------------------------------------------------------------------------------------

    @rule(
        count=st.integers(1, 12), key=KEYS, priority=st.sampled_from([0, 0, 0, -1, 5]),
        delay_ms=st.sampled_from([0, 0, 0, 5_000, 60_000]),
    )  # fmt: skip
    def enqueue(self, count: int, key: str, priority: int, delay_ms: int) -> None:
        payloads = [b"%d" % (self.sent + index) for index in range(count)]
        self.sent += count
        envelopes = [seal_envelope(payload) for payload in payloads]
        reply = self.harness.ask(Enqueue(envelopes, key, 0, priority, delay_ms), client=b"producer")
        assert isinstance(reply, Enqueued)
        for identity, payload in zip(format_run(reply.id_high, reply.id_low, reply.count), payloads, strict=True):
            known = self.model.known[identity] = Known(key, priority, payload)
            if delay_ms:
                known.state, known.due_ms = "delayed", self.harness.now_ms + delay_ms
        self.collect_pushes()

    @rule(client=CLIENTS, count=st.integers(1, 20))
    def receive(self, client: bytes, count: int) -> None:
        self.touch(client)
        pending = sum(1 for known in self.model.known.values() if known.state == "pending")
        subscribed = any(consumer.subscriptions for consumer in self.harness.shard.consumers.by_client.values())
        got = self.harness.receive(count, client=client)
        if not subscribed:
            assert len(got) == min(count, pending)
        self.collect_pushes((client, got))

    @rule(client=CLIENTS, prefetch=st.integers(1, 10))
    def subscribe(self, client: bytes, prefetch: int) -> None:
        self.touch(client)
        self.harness.subscribe(prefetch, client=client)
        self.collect_pushes()

    @rule(client=CLIENTS)
    def unsubscribe(self, client: bytes) -> None:
        self.touch(client)
        self.harness.ask(Unsubscribe(1), client=client)

    @precondition(lambda self: self.model.delivered)
    @rule(data=st.data(), verb=st.sampled_from(list(Verb)), after_ms=st.sampled_from([0, 0, 30_000]))
    def settle(self, data: st.DataObject, verb: Verb, after_ms: int) -> None:
        drawn = data.draw(st.lists(st.sampled_from(self.model.delivered), min_size=1, max_size=6, unique_by=id))
        chosen = [held for held in drawn if held.client == drawn[0].client]  # one frame: the model knows no turns
        for held in chosen:
            self.model.held.remove(held)
            self.settle_one(held, verb, after_ms)
        settled = self.harness.settle(verb, [held.got for held in chosen], error="boom", after_ms=after_ms)
        assert settled.faults == []
        again = self.harness.settle(verb, [held.got for held in chosen], error="boom", after_ms=after_ms)
        assert again.faults == []
        self.collect_pushes()

    def settle_one(self, held: Held, verb: Verb, after_ms: int) -> None:
        known = self.model.known[held.got.id]
        if verb is Verb.ACK:
            known.state = "gone"
        elif verb is Verb.DEFER and after_ms:
            known.state, known.due_ms = "delayed", self.harness.now_ms + after_ms
        elif verb in {Verb.RELEASE, Verb.DEFER}:
            known.state = "pending"
        else:
            self.fail_attempt(known, "boom", dead=verb is Verb.FAIL)
            if known.state == "pending" and verb is Verb.RETRY and after_ms:
                known.state, known.due_ms = "delayed", self.harness.now_ms + after_ms

    @precondition(lambda self: self.model.delivered)
    @rule(data=st.data(), duration_ms=st.sampled_from([1_000, 40_000]))
    def extend(self, data: st.DataObject, duration_ms: int) -> None:
        held = data.draw(st.sampled_from(self.model.delivered))
        reply = self.harness.ask(Extend(fences([held.got]), duration_ms), client=self.harness.holders[held.got.lease])
        assert isinstance(reply, Extended)
        assert reply.faults == []
        held.expires_ms = reply.expires_ms

    @rule(name=RESERVATIONS, part=st.integers(0, 2), count=st.integers(1, 20))
    def reserve(self, name: str, part: int, count: int) -> None:
        holder = f"{name}/{part}".encode()
        before = [held.got.id for held in self.model.held if held.client == holder]
        reserved = self.harness.ask(Reserve(name, part, count, 25_000), client=DRIVER)
        assert isinstance(reserved, Reserved)
        fetched = self.fetch(name, part) if reserved.parts else []
        assert sum(count for _, count in reserved.parts) == len(fetched)
        if before:
            assert [got.id for got in fetched] == before
        else:
            self.collect_pushes((holder, fetched))

    def fetch(self, name: str, part: int) -> list[Got]:
        delivered = self.harness.ask(FetchReserved(name, part), client=b"executor")
        assert isinstance(delivered, Delivered)
        return opened(delivered)

    @rule(name=RESERVATIONS, timeout_ms=st.sampled_from([1_000, 40_000]))
    def renew_reservation(self, name: str, timeout_ms: int) -> None:
        reserved = self.harness.ask(RenewReservation(name, timeout_ms), client=DRIVER)
        assert isinstance(reserved, Reserved)
        mine = [held for held in self.model.held if held.client.startswith(name.encode())]
        assert sum(count for _, count in reserved.parts) == len(mine)
        for held in mine:
            held.expires_ms = self.harness.now_ms + timeout_ms

    @rule(name=RESERVATIONS, verb=st.sampled_from([Verb.ACK, Verb.RELEASE]))
    def end_reservation(self, name: str, verb: Verb) -> None:
        mine = [held for held in self.model.held if held.client.startswith(name.encode())]
        for held in mine:
            self.model.held.remove(held)
            self.settle_one(held, verb, 0)
        assert self.harness.ask(EndReservation(name, verb), client=DRIVER) == ReservationEnded(len(mine))
        assert self.harness.ask(EndReservation(name, verb), client=DRIVER) == ReservationEnded(0)
        self.collect_pushes()

    @rule(client=CLIENTS)
    def heartbeat(self, client: bytes) -> None:
        self.touch(client)
        self.harness.heartbeat(client)

    @rule(client=CLIENTS)
    def goodbye(self, client: bytes) -> None:
        self.harness.goodbye(client)
        for held in [held for held in self.model.held if held.client == client]:
            self.model.held.remove(held)
            self.model.known[held.got.id].state = "pending"
        self.collect_pushes()

    @rule(count=st.integers(0, 5))
    def redrive(self, count: int) -> None:
        dead = [known for known in self.model.known.values() if known.state == "dead"]
        moved = self.harness.redrive(count).count
        assert moved == (min(count, len(dead)) if count else len(dead))
        for known in self.model.known.values():
            if known.state == "dead":
                known.state = "dead or redriven"
        self.resolve_redriven(moved)
        self.collect_pushes()

    def resolve_redriven(self, moved: int) -> None:
        """Which dead letters went is the ring's choice: look, and check that the number is right."""
        dead_lane_payloads = self.payloads_on_disk("q.dlq")
        for known in self.model.known.values():
            if known.state == "dead or redriven":
                known.state = "dead" if known.payload in dead_lane_payloads else "pending"
                if known.state == "pending":
                    known.attempts, known.error = 0, ""
                    moved -= 1
        assert moved == 0

    @precondition(lambda self: self.model.delivered)
    @rule(data=st.data())
    def ack_a_whole_lease(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.model.delivered)).got.lease
        chosen = [held for held in self.model.held if held.got.lease == lease]
        for held in chosen:
            self.model.held.remove(held)
            self.settle_one(held, Verb.ACK, 0)
        assert self.harness.settle(Verb.ACK, [held.got for held in chosen]).faults == []
        self.collect_pushes()

    # --- what time and crashes do -------------------------------------------------------------------------------------

    @rule(milliseconds=st.sampled_from([1, 900, 4_000, 9_000, 16_000, 70_000]))
    def pass_time(self, milliseconds: int) -> None:
        """Move the clock from one due time to the next: the model does not know in which order a turn does several things."""
        end_ms = self.harness.now_ms + milliseconds
        while self.harness.now_ms < end_ms:
            times = [time_ms for time_ms in self.due_times() if self.harness.now_ms < time_ms <= end_ms]
            self.pass_until(min(times, default=end_ms))

    def due_times(self) -> list[int]:
        delayed = [known.due_ms for known in self.model.known.values() if known.state == "delayed"]
        lost = [seen_ms + SETTINGS.consumer_timeout_ms for seen_ms in self.model.seen_ms.values()]
        return [*delayed, *lost, *(held.expires_ms for held in self.model.held)]

    def pass_until(self, now_ms: int) -> None:
        for known in self.model.known.values():
            if known.state == "delayed" and known.due_ms <= now_ms:
                known.state = "pending"
        for held in list(self.model.held):
            reserved = held.client not in self.model.seen_ms
            lost = not reserved and self.model.seen_ms[held.client] + SETTINGS.consumer_timeout_ms <= now_ms
            if held.expires_ms <= now_ms and reserved:
                self.model.held.remove(held)
                self.model.known[held.got.id].state = "pending"
            elif held.expires_ms <= now_ms or lost:
                self.model.held.remove(held)
                known = self.model.known[held.got.id]
                self.fail_attempt(known, "lease expired" if held.expires_ms <= now_ms else "consumer lost", dead=False)
        self.harness.pass_time(now_ms - self.harness.now_ms)
        self.collect_pushes()

    @rule()
    def crash_and_recover(self) -> None:
        self.harness.restart()
        for client in self.model.seen_ms:
            self.model.seen_ms[client] = self.harness.now_ms

    # --- the model ----------------------------------------------------------------------------------------------------

    def touch(self, client: bytes) -> None:
        self.model.seen_ms[client] = self.harness.now_ms

    def fail_attempt(self, known: Known, error: str, *, dead: bool) -> None:
        known.attempts += 1
        known.error = error
        known.state = "dead" if dead or known.attempts >= MAX_ATTEMPTS else "pending"

    def collect_pushes(self, *received: tuple[bytes, list[Got]]) -> None:
        """What came to each client at once: in line order for each, and together the first in line of each key."""
        pushes = [(client, self.harness.take_pushed(client, number)) for client, number in list(self.harness.pushed)]
        by_key: dict[str, list[Got]] = defaultdict(list)
        for client, delivered in (*received, *pushes):
            for got in delivered:
                known = self.model.known[got.id]
                assert (known.key, known.payload, known.attempts) == (got.key, got.payload, got.attempts)
                assert known.error == got.error
                by_key[got.key].append(got)
                self.model.held.append(Held(got, client, got.expires_ms))
            for key in by_key:
                places = [self.place(got.id) for got in delivered if got.key == key]
                assert places == sorted(places)
        for key, group in by_key.items():
            assert sorted(self.place(got.id) for got in group) == self.first_in_line(key, len(group))
        for group in by_key.values():
            for got in group:
                self.model.known[got.id].state = "leased"

    def place(self, identity: str) -> tuple[int, int]:
        return self.model.known[identity].priority, parse_id(identity)[1]

    def first_in_line(self, key: str, count: int) -> list[tuple[int, int]]:
        known = self.model.known.items()
        line = [self.place(identity) for identity, each in known if each.key == key and each.state == "pending"]
        return sorted(line)[:count]

    def payloads_on_disk(self, queue: str) -> set[bytes]:
        shard = self.harness.shard
        prefixes = {lane.prefix for key in shard.queues[queue].keys.values() for lane in key.lanes.values()}
        items = shard.store.scan(b"", b"\xff" * 32, shard.store.families.messages)
        return {record.split(b"\0\0\0\0")[-1] for key, record in items if key[:8] in prefixes}

    @invariant()
    def every_message_is_in_one_place(self) -> None:
        if not hasattr(self, "model"):
            return
        states = [known.state for known in self.model.known.values()]
        counts = (states.count("pending"), states.count("leased"), states.count("delayed"))
        assert self.harness.counts() == counts
        assert self.harness.counts("q.dlq") == (states.count("dead"), 0, 0)
        assert len(self.model.held) == states.count("leased")


class TestLifecycle(Lifecycle.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(deadline=None, max_examples=100, stateful_step_count=40)
