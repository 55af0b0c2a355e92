"""Several shards and the bank of their tokens on one virtual clock, with wires in between that take time and may lose frames.

There is no router here, only what it does for throttles: it hands frames on, and tells everybody of limits and parked keys.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from fila_proto_zmq.commands import Enqueue, Grants, Park, PutConfig, Subscribe, Tokens, Verb
from fila_proto_zmq.record import seal_envelope
from fila_proto_zmq.runtime_config import changes_for
from fila_router.core.tokens.token_bank import TokenBank
from fila_worker.core.settings import ShardSettings
from tests.support.shard.shard import Got, ShardHarness

PATIENT = ShardSettings(consumer_timeout_ms=1 << 40, visibility_timeout_ms=12 * 3600 * 1000)
"""Consumers and leases live as long as a test."""

TURNS_MAX = 1000
"""Turns of one shard within a millisecond: more is a shard that never comes to rest."""


@dataclass
class Delivery:
    """One message delivered, when and where."""

    now_ms: int
    shard: int
    queue: str
    got: Got

    @property
    def cost(self) -> float:
        return self.got.record.extension.cost_milli / 1000


@dataclass
class Consumer:
    """A subscription that settles whatever comes after ``hold_ms``."""

    shard: int
    queue: str
    client: bytes
    hold_ms: int
    settle: Callable[["ClusterOfShards", "Consumer", list[Got]], None]


def ack(cluster: "ClusterOfShards", consumer: Consumer, got: list[Got]) -> None:
    """What consumers usually do with what they get."""
    cluster.shards[consumer.shard].settle(Verb.ACK, got, consumer.queue)


@dataclass
class ClusterOfShards:
    """``loss``: the probability that a frame between a shard and the bank is lost; ``checked``: after each turn, not each run."""

    count: int = 2
    wire_ms: int = 1
    loss: float = 0.0
    seed: int = 0
    checked: bool = False
    settings: ShardSettings = PATIENT
    now_ms: int = 1_000_000
    bank: TokenBank = field(default_factory=TokenBank)
    deliveries: list[Delivery] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.shards = [
            ShardHarness(settings=self.settings, now_ms=self.now_ms, checked=self.checked, index=index)
            for index in range(self.count)
        ]
        self.config: dict[str, str] = {}
        self.version = 0
        self.consumers: list[Consumer] = []
        self.frames = 0
        """Frames sent to the bank so far."""
        self._events: list[tuple[int, int, Callable[[], object]]] = []
        self._sent = 0

    # --- what tests do ------------------------------------------------------------------------------------------------

    def limit(self, key: str, rate: float | None, burst: float | None = None) -> None:
        """Set the limit of a throttle key everywhere; None: there is none."""
        changes = changes_for(f"throttle:{key}:rate", None if rate is None else str(rate), self.config)
        changes |= changes_for(f"throttle:{key}:burst", None if burst is None else str(burst), self.config)
        self.config = {name: value for name, value in (self.config | changes).items() if value is not None}
        self.version += 1
        self.bank.follow(changes, self.now_ms)
        for harness in self.shards:
            harness.shard.put_config(PutConfig(self.version, changes), self.now_ms)
            self._turn(harness)

    def create(self, shard: int, queue: str = "q", **options: object) -> None:
        self.shards[shard].create(queue, **options)  # type: ignore[arg-type]

    def enqueue(
        self, shard: int, count: int, throttles: str = "", key: str = "default", queue: str = "q", **columns: int
    ) -> None:
        """``throttles``: the throttle keys, separated by blanks."""
        keys = [throttles.split()] if throttles else []
        self.shards[shard].ask(Enqueue([seal_envelope(b"")] * count, key, throttle_keys=keys, **columns), queue, b"producer")
        self._turn(self.shards[shard])

    def consume(
        self,
        shard: int,
        queue: str = "q",
        prefetch: int = 100,
        hold_ms: int = 0,
        settle: Callable[["ClusterOfShards", Consumer, list[Got]], None] = ack,
    ) -> Consumer:
        """Let a new consumer take what it can get from now on."""
        consumer = Consumer(shard, queue, b"consumer %d" % len(self.consumers), hold_ms, settle)
        self.consumers.append(consumer)
        self.shards[shard].ask(Subscribe(1, prefetch), queue, consumer.client)
        self._turn(self.shards[shard])
        return consumer

    def resubscribe(self, consumer: Consumer, prefetch: int = 100) -> None:
        """After a restart of its shard, or to change its prefetch."""
        self.shards[consumer.shard].ask(Subscribe(1, prefetch), consumer.queue, consumer.client)
        self._turn(self.shards[consumer.shard])

    def restart(self, shard: int) -> None:
        """Kill a shard, with all frames from and to it, and let it register anew."""
        harness = self.shards[shard]
        harness.posted.clear()
        harness.pushed.clear()
        harness.restart()
        self.bank.close(shard, self.now_ms)
        self._turn(harness)

    def new_session(self, shard: int) -> None:
        """The router has lost sight of a shard: it registers anew, and lives on."""
        self.bank.close(shard, self.now_ms)
        self.shards[shard].shard.new_session(self.now_ms)
        self._turn(self.shards[shard])

    def restart_bank(self) -> None:
        """A new router: its buckets start empty, all shards register."""
        self.bank = TokenBank()
        self.bank.adopt(self.config, self.now_ms)
        for harness in self.shards:
            harness.shard.new_session(self.now_ms)
            self._turn(harness)

    # --- time ---------------------------------------------------------------------------------------------------------

    def run(self, span_ms: int) -> list[Delivery]:
        """Let time pass; returns what was delivered meanwhile."""
        first, end_ms = len(self.deliveries), self.now_ms + span_ms
        for harness in self.shards:
            self._turn(harness)  # what was asked of it directly
        while (due_ms := self._next_ms()) <= end_ms:
            self._go_to(due_ms)
            self._step()
        self._go_to(end_ms)
        for harness in self.shards:
            harness.shard.check()
        return self.deliveries[first:]

    def _next_ms(self) -> int:
        waits = [self.bank.next_due(self.now_ms), *(harness.shard.next_due(self.now_ms) for harness in self.shards)]
        times = [self.now_ms + wait for wait in waits if wait is not None] + [event[0] for event in self._events[:1]]
        return min(times, default=1 << 60)

    def _go_to(self, now_ms: int) -> None:
        self.now_ms = now_ms
        for harness in self.shards:
            harness.now_ms = now_ms

    def _step(self) -> None:
        while self._events and self._events[0][0] <= self.now_ms:
            heappop(self._events)[2]()
        for harness in self.shards:
            if harness.shard.next_due(self.now_ms) == 0:
                self._turn(harness)
        for grants in self.bank.serve(self.now_ms):
            self._send(self._grant, grants)

    def _turn(self, harness: ShardHarness) -> None:
        """Turns of one shard, until it rests."""
        for _ in range(TURNS_MAX):
            harness.turn()
            self._collect(harness)
            if harness.shard.next_due(self.now_ms) != 0:
                return
        raise AssertionError(f"shard {harness.index} never comes to rest")

    def _collect(self, harness: ShardHarness) -> None:
        for consumer in self.consumers:
            got = harness.take_pushed(consumer.client) if consumer.shard == harness.index else []
            if got:
                self.deliveries += [Delivery(self.now_ms, harness.index, consumer.queue, each) for each in got]
                self.later(consumer.hold_ms, lambda consumer=consumer, got=got: self._settle(consumer, got))
        posted = [post.command for post in harness.posted]
        harness.posted.clear()
        for command in posted:
            if isinstance(command, Tokens):
                self.frames += 1
                self._send(lambda tokens, epoch=harness.shard.epoch: self.bank.ask(tokens, epoch, self.now_ms), command)
            elif isinstance(command, Park):
                self._send(lambda park, origin=harness: self._park(park, origin), command)

    def _settle(self, consumer: Consumer, got: list[Got]) -> None:
        consumer.settle(self, consumer, got)
        self._turn(self.shards[consumer.shard])

    def _grant(self, grants: Grants) -> None:
        harness = self.shards[grants.shard]
        harness.shard.granted(grants, self.now_ms)
        self._turn(harness)

    def _park(self, park: Park, origin: ShardHarness) -> None:
        for harness in self.shards:
            if harness is not origin:
                harness.shard.park(park.parks, self.now_ms)
                self._turn(harness)

    def _send(self, arrive: Callable[..., object], frame: object) -> None:
        if not isinstance(frame, Park) and self.random.random() < self.loss:
            return
        self.later(self.wire_ms, lambda: arrive(frame))

    def later(self, delay_ms: int, event: Callable[[], object]) -> None:
        """Let something happen in a while; things due at the same time happen in the order in which they were asked for."""
        self._sent += 1
        heappush(self._events, (self.now_ms + delay_ms, self._sent, event))


# --- what must hold ---------------------------------------------------------------------------------------------------


def spent(deliveries: list[Delivery], key: str) -> Iterator[tuple[int, float]]:
    """``(when, cost)`` of the deliveries that needed tokens of a throttle key."""
    return ((each.now_ms, each.cost) for each in deliveries if key in each.got.throttle_keys)


def worst_excess(deliveries: list[Delivery], key: str, rate: float) -> float:
    """By how much the worst window of all exceeds ``rate × its length``, in tokens: must never be above the burst."""
    level = worst = 0.0
    since_ms = 0
    for now_ms, cost in spent(deliveries, key):
        level = max(0.0, level - rate * (now_ms - since_ms) / 1000) + cost
        since_ms, worst = now_ms, max(worst, level)
    return worst
