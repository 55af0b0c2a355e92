"""A shard on a virtual clock: no sockets, no processes, and an invariant check after every turn."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from random import Random
from typing import TypeVar

from fila_proto_zmq.commands import (
    Command,
    CreateQueue,
    Delivered,
    Enqueue,
    Enqueued,
    Fences,
    GetQueueStats,
    Goodbye,
    Heartbeat,
    QueueOptions,
    QueueStats,
    Receive,
    Redrive,
    Redriven,
    Reply,
    Settle,
    Settled,
    Subscribe,
    Verb,
)
from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.ids import format_id, format_run
from fila_proto_zmq.record import Record, open_envelope, seal_envelope, unpack_record
from fila_worker.core.effects import Answer, ClientCall, Effect, Post, Push
from fila_worker.core.hooks import HookCompiler
from fila_worker.core.jobs import REST_MS
from fila_worker.core.recovery import recover
from fila_worker.core.settings import Limits, ShardSettings
from fila_worker.core.shard import Shard
from fila_worker.core.store import Store
from fila_worker.lua import compile_hooks as compile_lua
from fila_worker.process.cron import CALENDAR
from fila_worker.storage.memory import MemoryStore

R = TypeVar("R")

SHARDS = 8

ADMIN = b"admin"
"""A client that never consumes: what it asks keeps no consumer alive."""


def limited(**limits: int) -> ShardSettings:
    """The usual settings with other limits."""
    return ShardSettings(limits=Limits(**limits))


@dataclass
class Got:
    """One delivered message, opened."""

    lease: int
    index: int
    expires_ms: int
    key: str
    weight: int
    record: Record
    throttle_keys: tuple[str, ...] = ()

    @property
    def payload(self) -> bytes:
        return open_envelope(self.record.envelope)[1]

    @property
    def headers(self) -> dict[str, str]:
        return open_envelope(self.record.envelope)[0]

    @property
    def id(self) -> str:
        return format_id(self.record.id_high, self.record.id_low)

    @property
    def attempts(self) -> int:
        return self.record.attempts

    @property
    def error(self) -> str:
        return self.record.extension.error


def opened(delivered: Delivered) -> list[Got]:
    """The messages of a delivery, in order."""
    got = []
    for batch in delivered.batches:
        for index, data in enumerate(batch.records):
            key = batch.fairness_key if isinstance(batch.fairness_key, str) else batch.fairness_key[index]
            weight = batch.weight if isinstance(batch.weight, int) else batch.weight[index]
            column = batch.throttle_keys
            throttle_keys = tuple(column[index if len(column) > 1 else 0]) if column else ()
            got.append(Got(batch.lease, index, batch.expires_ms, key, weight, unpack_record(data), throttle_keys))
    return got


def fences(got: list[Got]) -> Fences:
    """What names these deliveries."""
    by_lease: dict[int, list[int]] = {}
    for each in got:
        by_lease.setdefault(each.lease, []).append(each.index)
    return list(by_lease.items())


def finished(work: Generator[int, int, R], now_ms: int = 0) -> R:
    """What comes of work in steps, if all its steps are taken at once."""
    try:
        next(work)
        while True:
            work.send(now_ms)
    except StopIteration as end:
        result: R = end.value
        return result


TURNS_MAX = 100_000
"""More turns than anything in a test takes: what goes on longer never ends, and would hang the test."""


@dataclass
class ShardHarness:
    """Commands in, answers out; the clock is ``now_ms`` and moves only by :meth:`pass_time`."""

    store: Store = field(default_factory=MemoryStore)
    settings: ShardSettings = field(default_factory=ShardSettings)
    now_ms: int = 1_000_000
    checked: bool = True
    compile_hooks: HookCompiler = compile_lua
    index: int = 3
    shards: int = SHARDS

    def __post_init__(self) -> None:
        self.requests = 0
        self.pushed: dict[tuple[bytes, int], list[Got]] = {}
        self.late: dict[int, Reply | FilaError] = {}
        self.holders: dict[int, bytes] = {}
        """Which client got each lease."""
        self.posted: list[Post] = []
        """What the shard had to say to the router and to other shards."""
        self.openings = 0
        self.shard = self._opened()

    def restart(self) -> None:
        """Drop the shard as a crash would, and recover another from the store."""
        self.shard = self._opened()
        self.shard.check()

    def _opened(self) -> Shard:
        self.openings += 1
        entropy = Random(self.openings * self.shards + self.index).getrandbits(64)
        return recover(
            self.store,
            self.settings,
            self.compile_hooks,
            index=self.index,
            shards=self.shards,
            now_ms=self.now_ms,
            entropy=entropy,
            calendar=CALENDAR,
        )

    def limit(self, **limits: int) -> None:
        """Restart the shard with other limits than it had."""
        self.settings = replace(self.settings, limits=replace(self.settings.limits, **limits))
        self.restart()

    def turn(self) -> None:
        """Let the shard do what is due."""
        for effect in self.shard.turn(self.now_ms):
            effect.frames()
            self._note_holders(effect)
            if isinstance(effect, Push):
                got = opened(effect.delivered)
                self.pushed.setdefault((effect.client, effect.delivered.subscription), []).extend(got)
            elif isinstance(effect, Answer):
                self.late[effect.call.request] = effect.reply
            else:
                self.posted.append(effect)
        if self.checked:
            self.shard.check()

    def _note_holders(self, effect: Effect) -> None:
        if isinstance(effect, Push):
            self.holders.update((batch.lease, effect.client) for batch in effect.delivered.batches)
        elif isinstance(effect, Answer) and isinstance(effect.reply, Delivered):
            self.holders.update((batch.lease, effect.call.client) for batch in effect.reply.batches)

    def pass_time(self, milliseconds: int) -> None:
        """Move the clock, and let the shard do all that came due."""
        self.now_ms += milliseconds
        self.turn()
        self._turn_while(lambda: self.shard.next_due(self.now_ms) == 0)

    def finish(self) -> None:
        """Let turns pass until all jobs are done, and a moment where all of them rest."""

        def busy() -> bool:
            if self.shard.jobs.open and self.shard.next_due(self.now_ms):
                self.now_ms += REST_MS
            return self.shard.jobs.open > 0

        self._turn_while(busy)

    def _turn_while(self, busy: Callable[[], bool]) -> None:
        for _ in range(TURNS_MAX):
            if not busy():
                return
            self.turn()
        raise AssertionError(f"after {TURNS_MAX} turns there is still something to do")

    def send(self, command: Command, queue: str = "q", client: bytes = b"c1") -> int:
        """Apply a command in a turn of its own, and go on until all jobs are done; its answer is in ``late`` under the number."""
        number = self.begin(command, queue, client)
        self.finish()
        return number

    def begin(self, command: Command, queue: str = "q", client: bytes = b"c1") -> int:
        """Apply a command in a turn of its own, and leave it at that; its answer will be in ``late`` under the number."""
        self.requests += 1
        self.shard.apply(ClientCall(client, self.requests, queue, self.now_ms), command)
        self.turn()
        return self.requests

    def ask(self, command: Command, queue: str = "q", client: bytes = b"c1") -> Reply:
        """The answer to a command; raises the error that refuses it."""
        answer = self.late.pop(self.send(command, queue, client))
        if isinstance(answer, FilaError):
            raise answer
        return answer

    # --- shorthands ---------------------------------------------------------------------------------------------------

    def create(self, queue: str = "q", **options: int) -> None:
        self.ask(CreateQueue(QueueOptions(**options)), queue)

    def enqueue(self, *payloads: bytes, queue: str = "q", key: str = "default", **columns: int) -> list[str]:
        envelopes = [seal_envelope(payload) for payload in payloads]
        reply = self.ask(Enqueue(envelopes, key, **columns), queue)
        assert isinstance(reply, Enqueued)
        assert not reply.faults, reply.faults
        return format_run(reply.id_high, reply.id_low, reply.count)

    def receive(self, count: int = 1, queue: str = "q", client: bytes = b"c1") -> list[Got]:
        reply = self.ask(Receive(count, 0), queue, client)
        assert isinstance(reply, Delivered)
        return opened(reply)

    def subscribe(self, prefetch: int, queue: str = "q", client: bytes = b"c1", number: int = 1) -> None:
        self.ask(Subscribe(number, prefetch), queue, client)

    def take_pushed(self, client: bytes = b"c1", number: int = 1) -> list[Got]:
        return self.pushed.pop((client, number), [])

    def settle(self, verb: Verb, got: list[Got], queue: str = "q", **options: object) -> Settled:
        """Let the clients that hold these deliveries settle them, in a frame for each client."""
        by_client: dict[bytes, list[Got]] = {}
        for each in got:
            by_client.setdefault(self.holders.get(each.lease, b"c1"), []).append(each)
        faults = []
        for client, held in (by_client or {b"c1": []}).items():
            reply = self.ask(Settle(verb, fences(held), **options), queue, client)  # type: ignore[arg-type]
            assert isinstance(reply, Settled)
            faults += reply.faults
        return Settled(faults)

    def ack(self, got: list[Got], queue: str = "q") -> None:
        assert not self.settle(Verb.ACK, got, queue).faults

    def nack(self, got: list[Got], error: str = "", queue: str = "q") -> None:
        assert not self.settle(Verb.NACK, got, queue, error=error).faults

    def stats(self, queue: str = "q") -> QueueStats:
        reply = self.ask(GetQueueStats(), queue, ADMIN)
        assert isinstance(reply, QueueStats)
        return reply

    def counts(self, queue: str = "q") -> tuple[int, int, int]:
        """``(pending, in flight, delayed)``."""
        info = self.stats(queue).info
        return info.pending, info.in_flight, info.delayed

    def redrive(self, count: int = 0, queue: str = "q.dlq") -> Redriven:
        reply = self.ask(Redrive(count), queue, ADMIN)
        assert isinstance(reply, Redriven)
        return reply

    def heartbeat(self, client: bytes = b"c1", queue: str = "q") -> None:
        self.send(Heartbeat(), queue, client)

    def goodbye(self, client: bytes = b"c1", queue: str = "q") -> None:
        self.ask(Goodbye(), queue, client)
