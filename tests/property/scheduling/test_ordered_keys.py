"""Strict order per key: eight consumers that fail, vanish and crash, and each key's messages one after the other.

With ``max_in_flight_per_key=1``, per key, first deliveries and final settlements come in the order of enqueueing, whatever
happens; and a key that can be served is: nobody waits for another key's troubles.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fila_proto_zmq.commands import Enqueue, Enqueued, Subscribe, Verb
from fila_proto_zmq.ids import format_run
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.settings import ShardSettings
from tests.support.shard.shard import ADMIN, Got, ShardHarness
from tests.support.shard.tight_shard import TIGHT

CONSUMERS = [b"consumer %d" % number for number in range(8)]
LEASE_MS = 1000
SETTINGS = ShardSettings(consumer_timeout_ms=3000, buffer_bytes=600, limits=TIGHT)


@dataclass
class Story:
    """What happened to the messages of all keys."""

    enqueued: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    first_delivered: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    settled: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    key_of: dict[str, str] = field(default_factory=dict)


class Workshop:
    """A shard, eight consumers with a temper, and a producer."""

    def __init__(self, random: Random, keys: int, prefetch: int, max_attempts: int | None, throttled: bool) -> None:
        self.random = random
        self.throttled = throttled
        """Whether some of a key's messages carry a throttle key, its own, which a deferral parks."""
        self.keys = [f"key {number}" for number in range(keys)]
        self.prefetch = prefetch
        self.harness = ShardHarness(settings=SETTINGS)
        self.harness.create(
            visibility_timeout_ms=LEASE_MS, max_in_flight_per_key=1, dead_letter="dlq", **self._given(max_attempts)
        )  # type: ignore[arg-type]
        self.story = Story()
        self.held: dict[bytes, list[Got]] = defaultdict(list)
        self.alive = set(CONSUMERS)

    @staticmethod
    def _given(max_attempts: int | None) -> dict[str, int]:
        return {} if max_attempts is None else {"max_attempts": max_attempts}

    def enqueue(self) -> None:
        key, count = self.random.choice(self.keys), self.random.randint(1, 4)
        throttle_keys = [self.random.choice([[], [key]]) for _ in range(count)] if self.throttled else []
        command = Enqueue([seal_envelope(b"x" * 20)] * count, key, throttle_keys=throttle_keys)
        reply = self.harness.ask(command, client=b"producer")
        assert isinstance(reply, Enqueued)
        for identity in format_run(reply.id_high, reply.id_low, reply.count):
            self.story.enqueued[key].append(identity)
            self.story.key_of[identity] = key

    def subscribe(self) -> None:
        for client in sorted(self.alive):
            leases = [got.lease for got in self.held[client]] if self.random.random() < 0.5 else []
            self.harness.ask(Subscribe(1, self.prefetch, leases), client=client)

    def look(self) -> None:
        """Take what was pushed, and check that each key's messages come one at a time and in order."""
        for client in CONSUMERS:
            for got in self.harness.take_pushed(client):
                self.held[client].append(got)
                first = self.story.first_delivered[got.key]
                if got.id not in first:
                    first.append(got.id)
        for key in self.keys:
            assert self.story.first_delivered[key] == self.story.enqueued[key][: len(self.story.first_delivered[key])]

    def settle(self) -> None:
        client = self.random.choice(CONSUMERS)
        if not self.held[client] or client not in self.alive:
            return
        got = self.held[client].pop(self.random.randrange(len(self.held[client])))
        verb = self.random.choice([Verb.ACK, Verb.ACK, Verb.ACK, Verb.NACK, Verb.RETRY, Verb.FAIL, Verb.RELEASE, Verb.DEFER])
        after_ms = self.random.choice([0, 0, 300, 1500]) if verb in {Verb.RETRY, Verb.DEFER} else 0
        reply = self.harness.settle(verb, [got], after_ms=after_ms)
        if not reply.faults and verb is Verb.ACK:
            self.settled(got)

    def settled(self, got: Got) -> None:
        assert got.id not in self.story.settled[got.key], "acked twice"
        self.story.settled[got.key].append(got.id)

    def notice_dead_letters(self) -> None:
        """A dead letter is settled, too; it waits in the dead letter queue, one after the other for each key."""
        for got in self.harness.receive(100, "q.dlq", ADMIN):
            self.settled(got)
            self.harness.ack([got], "q.dlq")

    def step(self) -> None:
        match self.random.choices(
            ["enqueue", "settle", "time", "heartbeat", "vanish", "return", "kill"], [10, 30, 12, 10, 1, 2, 1]
        )[0]:
            case "enqueue":
                self.enqueue()
            case "settle":
                self.settle()
            case "time":
                self.harness.pass_time(self.random.choice([1, 50, 400, 1000]))
            case "heartbeat" | "return":
                self.subscribe()
            case "vanish":
                self.alive.discard(self.random.choice(CONSUMERS))
            case "kill":
                self.harness.restart()
                self.alive = set(CONSUMERS)
                self.subscribe()
        self.look()
        self.notice_dead_letters()
        self.nobody_waits_needlessly()

    def nobody_waits_needlessly(self) -> None:
        """While anybody has credit, a key with pending messages has one in flight, or waiting for its retry."""
        shard = self.harness.shard
        subscriptions = [each for consumer in shard.consumers.by_client.values() for each in consumer.subscriptions.values()]
        if sum(each.credit for each in subscriptions if each.queue.name == "q") <= 0:
            return
        for stats in self.harness.stats().keys:
            parked = stats.fairness_key in shard.token_client.parks
            assert not stats.pending or parked or stats.in_flight + stats.delayed == 1, stats

    def finish(self) -> None:
        """All consumers come back and only ack: everything is settled."""
        self.alive = set(CONSUMERS)
        for _ in range(1000):
            self.subscribe()
            self.look()
            for client in CONSUMERS:
                for got in self.held.pop(client, []):
                    if not self.harness.settle(Verb.ACK, [got]).faults:
                        self.settled(got)
            self.look()
            self.harness.pass_time(500)
            self.look()
            self.notice_dead_letters()
            if self.harness.counts() == (0, 0, 0):
                break
        for key in self.keys:
            assert self.story.settled[key] == self.story.enqueued[key]
            assert self.story.first_delivered[key] == self.story.enqueued[key]


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**32), keys=st.integers(1, 12), prefetch=st.integers(1, 4), max_attempts=st.sampled_from([None, 1, 3]),
    throttled=st.booleans(), steps=st.integers(20, 120),
)  # fmt: skip
def test_each_key_is_worked_off_in_order_and_no_key_waits_for_another(
    seed: int, keys: int, prefetch: int, max_attempts: int | None, throttled: bool, steps: int
) -> None:
    workshop = Workshop(Random(seed), keys, prefetch, max_attempts, throttled)
    workshop.subscribe()
    for _ in range(steps):
        workshop.step()
    workshop.finish()


@pytest.mark.parametrize("throttle_keys", [[["t"]], [["t"], []], [[], ["t"]]])
def test_a_parked_message_holds_up_its_own_key_and_no_other(throttle_keys: list[list[str]]) -> None:
    """Strict order holds over lanes: what follows a message that must wait waits, too."""
    harness = ShardHarness()
    harness.create(max_in_flight_per_key=1)
    harness.shard.park({"t": harness.now_ms + 1000}, harness.now_ms)
    columns = throttle_keys * 2 if len(throttle_keys) == 2 else throttle_keys
    harness.ask(Enqueue([seal_envelope(b"%d" % number) for number in range(4)], "a", throttle_keys=columns))
    harness.enqueue(b"other", key="b")
    order: list[bytes] = []
    for _ in range(3):
        while got := harness.receive(10):
            order += [each.payload for each in got]
            harness.ack(got)
        harness.pass_time(500)
    assert sorted(order) == [b"0", b"1", b"2", b"3", b"other"]
    assert [each for each in order if each != b"other"] == [b"0", b"1", b"2", b"3"]
    assert order.index(b"other") <= 1
