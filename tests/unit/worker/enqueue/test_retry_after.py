"""A refusal for want of room says when to come again, and most of those who come then are taken in."""

from heapq import heapify, heappop, heappush
from itertools import pairwise
from random import Random

import pytest

from fila_proto_zmq.commands import Enqueue, Enqueued
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.enqueue.retry_after import RETRY_MS, RETRY_MS_MAX, Returns
from fila_worker.core.settings import Limits, ShardSettings
from tests.support.shard.shard import ShardHarness

LIMIT = 400
BATCH = [seal_envelope(b"x")] * 20
CONSUMER = -1


def full(**limits: int) -> ShardHarness:
    shard = ShardHarness(settings=ShardSettings(max_queue_messages=LIMIT, limits=Limits(**limits)), checked=False)
    shard.create()
    while not refused(shard, b"filler"):
        pass
    return shard


def refused(shard: ShardHarness, client: bytes) -> int | None:
    """Offer a batch; returns when to come again, if not all of it was taken."""
    reply = shard.ask(Enqueue(BATCH, "k"), client=client)
    assert isinstance(reply, Enqueued)
    waits = {fault.retry_after_ms for _, fault in reply.faults}
    assert len(waits) <= 1, "one date for all of a batch"
    return min(waits, default=None)


class Producers:
    """Producers that send again at once after they were taken in, else at the given time, beside a consumer that acks now and then."""

    def __init__(self, shard: ShardHarness, producers: int, burst: int, every_ms: int) -> None:
        self._shard, self._burst, self._every_ms, self._random = shard, burst, every_ms, Random(producers)
        self._line = [(shard.now_ms + self._random.randrange(50), number, False) for number in range(producers)]
        self._line.append((shard.now_ms + every_ms, CONSUMER, False))
        heapify(self._line)
        self.acked = self.came = self.taken = 0
        self.served: set[int] = set()

    def run(self, seconds: int) -> None:
        self.acked = self.came = self.taken = 0
        end_ms = self._shard.now_ms + 1000 * seconds
        while self._line[0][0] < end_ms:
            now_ms, number, waited = heappop(self._line)
            self._shard.now_ms = max(self._shard.now_ms, now_ms)
            wait_ms = self._consume() if number == CONSUMER else self._send(number, waited)
            heappush(self._line, (self._shard.now_ms + max(wait_ms, 1) + self._random.randrange(3), number, bool(wait_ms)))

    def _consume(self) -> int:
        got = self._shard.receive(self._burst, client=b"consumer")
        self._shard.ack(got)
        self.acked += len(got)
        return self._every_ms

    def _send(self, number: int, waited: bool) -> int:
        wait_ms = refused(self._shard, b"producer-%d" % number)
        self.came, self.taken = self.came + waited, self.taken + (waited and not wait_ms)
        if not wait_ms:
            self.served.add(number)
        return wait_ms or 0


@pytest.mark.parametrize(
    ("producers", "burst", "every_ms", "seconds"),
    [(1, 100, 150, 10), (5, 10, 15, 10), (20, 100, 150, 15), (60, 100, 150, 30)],
)
def test_most_producers_that_return_at_the_given_time_are_taken_in(
    producers: int, burst: int, every_ms: int, seconds: int
) -> None:
    shard = full()
    world = Producers(shard, producers, burst, every_ms)
    world.run(seconds)  # it learns how messages leave
    world.run(seconds)
    assert world.taken > 0.7 * world.came > 0
    assert world.acked > 0.9 * burst * seconds * 1000 / every_ms, "the queue does not run dry meanwhile"
    assert len(world.served) == producers


def test_each_gets_a_date_of_its_own() -> None:
    shard = full()
    for _ in range(10):
        shard.now_ms += 1000
        shard.ack(shard.receive(100))
        while not refused(shard, b"filler"):
            pass
    waits = [refused(shard, b"producer-%d" % number) or 0 for number in range(5)]
    assert all(later > earlier for earlier, later in pairwise(waits))


def test_without_a_rate_they_get_short_waits_that_differ() -> None:
    shard = full()
    waits = [refused(shard, b"producer-%d" % number) or 0 for number in range(10)]
    assert RETRY_MS <= min(waits) < max(waits) < 3 * RETRY_MS
    assert len(set(waits)) == 10


def test_no_producer_waits_longer_because_another_is_impatient() -> None:
    shard = full()
    for _ in range(2000):
        impatient = refused(shard, b"impatient")
    assert impatient == RETRY_MS_MAX
    assert (refused(shard, b"patient") or 0) < 2 * RETRY_MS


def test_what_is_remembered_is_bounded() -> None:
    shard = full(returns_max=10)
    for number in range(100):
        assert refused(shard, b"producer-%d" % number)
        assert len(shard.shard.part(Returns)) <= 10


def test_those_who_do_not_come_are_forgotten() -> None:
    shard = full()
    for number in range(50):
        assert refused(shard, b"producer-%d" % number)
    shard.now_ms += 10 * RETRY_MS_MAX
    assert refused(shard, b"late")
    assert len(shard.shard.part(Returns)) == 1
