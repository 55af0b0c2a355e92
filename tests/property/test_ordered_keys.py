"""Strict order within a key (``max_in_flight_per_key=1``) on a virtual clock: eight consumers, nacks, lapses, crashes.

However settlements, lapses, crashes and the clock interleave: the deliveries of a key never go back behind a message that a later
one has followed, its settlements are in enqueue order, and a key that could be served never waits for another.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from fila_proto_zmq.commands import Delivered, Receive, Verb
from tests.support.shard import Got, ShardHarness, opened

CONSUMERS = [b"consumer %d" % number for number in range(8)]
KEYS = ("a", "b", "c")
VISIBILITY_MS = 5_000


@dataclass
class Work:
    """A delivery in a consumer's hands."""

    client: bytes
    got: Got


class Ordered:
    """A queue of strictly ordered keys, and everything that was seen of it."""

    def __init__(self, per_key: int) -> None:
        self.shard = ShardHarness()
        self.shard.create(max_in_flight_per_key=1, visibility_timeout_ms=VISIBILITY_MS, max_attempts=4)
        for number in range(per_key):
            for key in KEYS:
                self.shard.enqueue(b"%d" % number, key=key)
        self.per_key = per_key
        self.delivered: dict[str, list[int]] = defaultdict(list)
        self.settled: dict[str, list[int]] = defaultdict(list)
        self.held: list[Work] = []

    def receive(self, consumer: int) -> None:
        """A consumer takes one message; if it gets none, no key had one to give."""
        client = CONSUMERS[consumer]
        reply = self.shard.ask(Receive(1, 0), client=client)
        assert isinstance(reply, Delivered)
        got = opened(reply)
        if not got:
            assert not self.servable(), f"{self.servable()} waited although nothing of theirs was out"
        for each in got:
            self.delivered[each.key].append(int(each.payload))
            self.held.append(Work(client, each))

    def servable(self) -> list[str]:
        """The keys with messages in line, and nothing leased or waiting for a retry."""
        return [key.fairness_key for key in self.shard.stats().keys if key.pending and not (key.in_flight or key.delayed)]

    def settle(self, index: int, verb: Verb, after_ms: int = 0) -> None:
        """Settle one of the deliveries that are held, perhaps too late."""
        if not self.held:
            return
        work = self.held.pop(index % len(self.held))
        refused = self.shard.settle(verb, [work.got], after_ms=after_ms).faults
        dead = verb is Verb.FAIL or (verb in {Verb.NACK, Verb.RETRY} and work.got.attempts == 3)
        if not refused and (verb is Verb.ACK or dead):
            self.settled[work.got.key].append(int(work.got.payload))

    def pass_time(self, milliseconds: int) -> None:
        """Leases may lapse; whoever held them will be refused."""
        self.shard.pass_time(milliseconds)

    def crash(self) -> None:
        """Drop the shard and recover it."""
        self.shard.restart()

    def finish(self) -> None:
        """Work off the rest."""
        self.held.clear()
        for _ in range(20 * self.per_key):
            self.pass_time(VISIBILITY_MS + 1)
            for consumer in range(len(CONSUMERS)):
                self.receive(consumer)
            while self.held:
                self.settle(0, Verb.ACK)
            if not any(self.shard.counts()):
                return
        raise AssertionError(f"never done: {self.shard.stats()}")


def actions() -> st.SearchStrategy[Callable[[Ordered], None]]:
    verbs = st.sampled_from([Verb.ACK, Verb.ACK, Verb.ACK, Verb.NACK, Verb.RETRY, Verb.FAIL, Verb.RELEASE, Verb.DEFER])
    receives = st.integers(0, 7).map(lambda consumer: lambda queue: queue.receive(consumer))
    settles = st.tuples(st.integers(0, 7), verbs, st.sampled_from([0, 700, 9_000])).map(
        lambda chosen: lambda queue: queue.settle(*chosen)
    )
    times = st.sampled_from([1, 800, VISIBILITY_MS, 16_000]).map(
        lambda milliseconds: lambda queue: queue.pass_time(milliseconds)
    )
    crashes = st.just(lambda queue: queue.crash())
    return st.one_of(receives, receives, receives, settles, settles, settles, times, crashes)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(actions(), max_size=60), per_key=st.integers(1, 6))
def test_each_key_is_served_and_settled_in_order_and_no_key_waits_for_another(
    steps: list[Callable[[Ordered], None]], per_key: int
) -> None:
    queue = Ordered(per_key)
    for step in steps:
        step(queue)
    queue.finish()
    for key in KEYS:
        assert queue.delivered[key] == sorted(queue.delivered[key]), f"{key}: deliveries went back"
        assert set(queue.delivered[key]) == set(range(per_key))
        assert queue.settled[key] == sorted(queue.settled[key]), f"{key}: settlements out of order"
