"""The whole scheduler against a naive model: the same messages, in the same order, to the same consumers.

The shard has so little memory that almost everything spills to disk, and its invariants are checked after each turn. Tokens are not
in here (they come when the bank says so: see ``test_throttled``), but lanes, parks, caps, pauses, costs and times to live are.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fila_proto_zmq.commands import (
    Cancel,
    Enqueue,
    Enqueued,
    Goodbye,
    Pause,
    QueueOptions,
    Receive,
    Subscribe,
    UpdateQueue,
    Verb,
)
from fila_proto_zmq.ids import format_run, parse_id
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.settings import ShardSettings
from tests.support.shard.naive_scheduler import Demand, Message, NaiveScheduler
from tests.support.shard.shard import ADMIN, Got
from tests.support.shard.tight_shard import ROOMY, RecordingHarness

KEYS = st.sampled_from("abcd")
CLIENTS = st.sampled_from([b"c1", b"c2", b"c3"])
THROTTLES = st.sampled_from([(), (), ("t",), ("t", "u")])
SELDOM = st.sampled_from([True, *[False] * 6])
TIMEOUT_MS = 20_000
SETTINGS = ShardSettings(consumer_timeout_ms=1 << 40, buffer_bytes=500, limits=ROOMY)


@dataclass
class Lease:
    """What one delivery left with a client."""

    client: bytes
    subscribed: bool
    expires_ms: int
    members: list[tuple[Got, Message]] = field(default_factory=list)
    mortal: bool = False
    """Whether any of its messages has a time to live."""


class Scheduler(RuleBasedStateMachine):
    @initialize(cap=st.sampled_from([None, 1, 2]), max_attempts=st.sampled_from([None, 2]))
    def start(self, cap: int | None, max_attempts: int | None) -> None:
        self.harness = RecordingHarness(settings=SETTINGS)
        self.harness.create(
            visibility_timeout_ms=TIMEOUT_MS, max_in_flight_per_key=cap, max_attempts=max_attempts, dead_letter="discard"
        )  # type: ignore[arg-type]
        self.model = NaiveScheduler(cap, max_attempts)
        self.known: dict[str, Message] = {}
        self.leases: dict[int, Lease] = {}
        self.prefetch: dict[bytes, int] = {}

    # --- what clients do ----------------------------------------------------------------------------------------------

    @rule(
        names=st.lists(KEYS, min_size=1, max_size=8), weight=st.sampled_from([0, 0, 1, 2, 3]), throttles=THROTTLES,
        priority=st.sampled_from([0, 0, 0, -1, 5]), cost_milli=st.sampled_from([1000, 1000, 1000, 250, 2500, 40_000]),
        delay_ms=st.sampled_from([0, 0, 0, 700, 30_000]), ttl_ms=st.sampled_from([0, 0, 0, 1500, 25_000]),
    )  # fmt: skip
    def enqueue(
        self,
        names: list[str],
        weight: int,
        throttles: tuple[str, ...],
        priority: int,
        cost_milli: int,
        delay_ms: int,
        ttl_ms: int,
    ) -> None:
        columns = {"cost_milli": cost_milli, "delay_ms": delay_ms, "ttl_ms": ttl_ms}
        envelopes = [seal_envelope(b"0123456789")] * len(names)
        command = Enqueue(envelopes, names, weight, priority, throttle_keys=[list(throttles)], **columns)
        number = self.harness.shard.counters.sequence
        reply = self.harness.ask(command, client=b"producer")
        assert isinstance(reply, Enqueued)
        now_ms = self.harness.now_ms
        for index, identity in enumerate(format_run(reply.id_high, reply.id_low, reply.count)):
            message = Message(identity, number + index + 1, (names[index], throttles), priority, cost_milli)
            message.due_ms = now_ms + delay_ms
            message.expires_ms = now_ms + ttl_ms if ttl_ms else None
            self.known[identity] = message
            self.model.enqueue(message, weight, now_ms)
        self.compare()

    @rule(names=st.lists(KEYS, min_size=4, max_size=16), throttles=THROTTLES)
    def enqueue_plain(self, names: list[str], throttles: tuple[str, ...]) -> None:
        self.enqueue(names, 0, throttles, 0, 1000, 0, 0)

    @rule(client=CLIENTS, count=st.integers(1, 10))
    def receive(self, client: bytes, count: int) -> None:
        self.model.demands.append(Demand(client, count, receive=True))
        self.harness.ask(Receive(count, 0), client=client)
        self.compare()

    @rule(client=CLIENTS, prefetch=st.integers(1, 6))
    def subscribe(self, client: bytes, prefetch: int) -> None:
        self.prefetch[client] = prefetch = max(prefetch, self.prefetch.get(client, 0))
        self.harness.ask(Subscribe(1, prefetch), client=client)
        self.want(client)
        self.compare()

    @precondition(lambda self: self.model.ring())
    @rule(client=CLIENTS, count=st.integers(1, 4), times=st.integers(1, 8), defer=SELDOM)
    def work(self, client: bytes, count: int, times: int, defer: bool) -> None:
        """Receive and ack, or defer, a few times over."""
        for _ in range(times):
            self.receive(client, count)
            mine = [number for number, lease in self.leases.items() if lease.client == client][-1:]
            for number in mine:
                messages = [message for _, message in self.leases[number].members]
                verb, after_ms = (Verb.DEFER, 5_000) if defer else (Verb.ACK, 0)
                self.harness.settle(verb, [got for got, _ in self.leases[number].members], after_ms=after_ms)
                self.end(number, messages, verb, after_ms)
                self.compare()

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), verb=st.sampled_from(list(Verb)), after_ms=st.sampled_from([0, 0, 900, 30_000]))
    def settle(self, data: st.DataObject, verb: Verb, after_ms: int) -> None:
        held = [(lease, *member) for lease, each in self.leases.items() for member in each.members]
        chosen = data.draw(st.lists(st.sampled_from(held), min_size=1, max_size=6, unique_by=lambda member: member[2].id))
        by_client: dict[bytes, list[tuple[int, Got, Message]]] = {}
        for each in chosen:
            by_client.setdefault(self.leases[each[0]].client, []).append(each)
        for mine in by_client.values():  # a frame, and a turn, for each
            self.settle_of(mine, verb, after_ms)

    def settle_of(self, chosen: list[tuple[int, Got, Message]], verb: Verb, after_ms: int) -> None:
        settled = self.harness.settle(verb, [got for _, got, _ in chosen], after_ms=after_ms)
        assert settled.faults == []
        by_lease: dict[int, list[Message]] = {}
        for lease, _, message in chosen:
            by_lease.setdefault(lease, []).append(message)
        for lease, messages in by_lease.items():
            self.end(lease, messages, verb, after_ms)
        self.compare()

    @rule(client=CLIENTS)
    def goodbye(self, client: bytes) -> None:
        self.harness.ask(Goodbye(), client=client)
        self.prefetch.pop(client, None)
        self.model.demands = [demand for demand in self.model.demands if demand.client != client]
        for number in [number for number, lease in self.leases.items() if lease.client == client]:
            self.end(number, [message for _, message in self.leases[number].members], Verb.RELEASE, 0)
        self.compare()

    # --- what operators do --------------------------------------------------------------------------------------------

    @rule(paused=SELDOM)
    def pause(self, paused: bool) -> None:
        self.model.paused = paused
        self.harness.ask(Pause(paused), client=ADMIN)
        self.compare()

    @rule(paused=SELDOM, name=KEYS)
    def pause_key(self, paused: bool, name: str) -> None:
        self.harness.ask(Pause(paused, name), client=ADMIN)
        if paused:
            self.model.paused_keys.add(name)
        else:
            self.model.paused_keys.discard(name)
        if name in self.model.keys:
            self.model.refresh_eligibility(self.model.keys[name])
        self.compare()

    @rule(cap=st.sampled_from([None, 1, 1, 2, 3]))
    def change_cap(self, cap: int | None) -> None:
        self.harness.ask(UpdateQueue(QueueOptions(max_in_flight_per_key=cap), ["max_in_flight_per_key"]), client=ADMIN)
        self.model.cap = cap
        for name in self.harness.shard.queues["q"].keys:  # no order of keys is promised here
            key = self.model.key(name)
            key.blocked_head = None
            self.model.refresh_eligibility(key)
        self.compare()

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        message = self.known[data.draw(st.sampled_from(sorted(self.known)))]
        if message.state not in {"pending", "delayed"}:
            return
        self.harness.ask(Cancel(*parse_id(message.id)), client=ADMIN)
        if message.state == "pending":
            self.model.take_out(message)
        else:
            self.model.ack(message)
        self.compare()

    # --- what time and crashes do -------------------------------------------------------------------------------------

    @rule(milliseconds=st.sampled_from([1, 800, 5_000, 21_000, 40_000]))
    def pass_time(self, milliseconds: int) -> None:
        """Whatever is due at different times happens at different times."""
        end_ms = self.harness.now_ms + milliseconds
        while self.harness.now_ms < end_ms:
            times = [time for time in self.times() if self.harness.now_ms < time <= end_ms]
            self.harness.pass_time(min(times, default=end_ms) - self.harness.now_ms)
            expired = [number for number, lease in self.leases.items() if lease.expires_ms <= self.harness.now_ms]
            for number in expired:
                self.end(number, [message for _, message in self.leases[number].members], Verb.NACK, 0)
            self.compare()

    def times(self) -> Iterator[int]:
        yield from (lease.expires_ms for lease in self.leases.values())
        yield from self.model.parks.values()
        for message in self.known.values():
            yield message.due_ms
            if message.expires_ms:
                yield message.expires_ms
                yield -(-message.expires_ms // 1000) * 1000

    @rule()
    def crash_and_recover(self) -> None:
        self.harness.restart()
        self.prefetch.clear()
        self.model.restart()
        self.harness.shard.check()

    # --- the model ----------------------------------------------------------------------------------------------------

    def want(self, client: bytes) -> None:
        """A subscription is in line for as much as it may have more."""
        held = sum(len(lease.members) for lease in self.leases.values() if lease.client == client and lease.subscribed)
        credit = self.prefetch.get(client, 0) - held
        for demand in self.model.demands:
            if demand.client == client and not demand.receive:
                demand.credit = credit
                return
        if credit > 0:
            self.model.demands.append(Demand(client, credit))

    def end(self, number: int, messages: list[Message], verb: Verb, after_ms: int) -> None:
        lease, now_ms = self.leases[number], self.harness.now_ms
        lease.members = [member for member in lease.members if member[1] not in messages]
        if not lease.members:
            del self.leases[number]
        if verb is Verb.DEFER:
            for message in messages:
                for throttle in message.lane[1]:
                    self.model.parks[throttle] = max(self.model.parks.get(throttle, 0), now_ms + after_ms)
        together = verb is not Verb.RELEASE or self.model.cap == 1 or lease.mortal
        self.model.returning = list(messages) if together and verb is not Verb.ACK else []
        for message in messages:
            self.model.returning = self.model.returning[1:]
            if verb in {Verb.ACK, Verb.FAIL}:
                self.model.ack(message)
            elif verb is Verb.DEFER:
                self.model.give_back(message, now_ms + after_ms, now_ms)
            elif verb is Verb.RELEASE:
                self.model.give_back(message, 0, now_ms)
            else:
                self.model.fail(message, now_ms + after_ms if verb is Verb.RETRY and after_ms else 0, now_ms)
        self.want(lease.client)

    def compare(self) -> None:
        """Let the model do its turn, and see that the shard did the same."""
        now_ms = self.harness.now_ms
        self.model.advance(now_ms)
        expected = [(client, [message.id for message in picked]) for client, picked in self.model.deliver(now_ms)]
        delivered, self.harness.delivered = self.harness.delivered, []
        assert [(client, [got.id for got in each]) for client, _, each in delivered] == expected
        for client, subscribed, each in delivered:
            for got in each:
                message = self.known[got.id]
                assert (got.key, got.throttle_keys, got.attempts) == (*message.lane, message.attempts)
                assert got.weight == self.model.key(got.key).weight
                lease = self.leases.setdefault(got.lease, Lease(client, subscribed, got.expires_ms))
                lease.members.append((got, message))
                lease.mortal |= message.expires_ms is not None
        states = [message.state for message in self.known.values()]
        assert self.harness.counts() == tuple(states.count(name) for name in ("pending", "leased", "delayed"))


class TestScheduler(Scheduler.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(deadline=None, max_examples=100, stateful_step_count=40)
