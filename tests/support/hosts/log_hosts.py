"""Hosts that lead and follow shards on simulated logs, with everything going wrong that may.

A log is a list. Each host has one process at a time, with a steady clock of its own: it runs a little fast or slow and begins anywhere.
Appends, reports, answers and reads take time; a host may be cut off from all logs, a log may stall, and a process may be paused, killed or
asked to end. What a process has on the wire when it dies may still arrive. The control partition is one in memory, without delays; it
may be lost for a while.

Times are true milliseconds unless a name says ``local``.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random

from fila_worker.log.bodies import Figures, Node
from fila_worker.log.leadership import (
    Action,
    Append,
    AskEnd,
    End,
    Follow,
    Leadership,
    LeadershipLimits,
    LeadershipState,
    Recover,
    Serve,
    StopServing,
)
from fila_worker.log.placement import PlacementLimits, Placing
from fila_worker.log.records import LogRecord, RecordKind, decode, encode
from fila_worker.log.rule import START, FencedError, Position, Rule, UnknownOutcomeError, Writer
from tests.support.memory_log import MemoryLog, MemoryPartition

MESSAGE_TIMEOUT_MS = 12_000
"""Less than most cuts last, so that some appends have an unknown outcome."""
TICK_MS = 250
"""A process looks at its shards at least that often."""
PLACE_MS = 100
"""How often it takes part in the placement."""


FAULTS = ("kill", "kill_all", "pause", "cut", "part", "stall", "terminate", "drain", "slow", "fill", "lose_control", "calm")


@dataclass
class Copy:
    """What a host has of a shard on its disk."""

    position: Position = START
    leader: Node | None = None


@dataclass
class Reign:
    """For how long a process has served."""

    shard: int
    host: str
    epoch: int
    began_ms: int
    ended_ms: int | None = None


@dataclass
class World:
    """All there is, and the checks."""

    seed: int
    hosts: int = 3
    shards: int = 4
    limits: LeadershipLimits = field(default_factory=LeadershipLimits)
    placing: PlacementLimits = field(default_factory=PlacementLimits)
    now_ms: int = 0
    reigns: list[Reign] = field(default_factory=list)
    released: list[tuple[int, int, bytes]] = field(default_factory=list)
    """Shard, epoch and body of each turn whose effects have left a process."""
    markers: int = 0
    ends: list[tuple[int, str]] = field(default_factory=list)
    twins: list[tuple[int, "Host"]] = field(default_factory=list)
    """The hosts that have found their name taken, and when."""

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.logs: list[list[bytes]] = [[] for _ in range(self.shards)]
        self.stalled_until = [0] * self.shards
        self.control = MemoryLog()
        self.control_lost_until = 0
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.order = count()
        self.machines = [Host(self, f"host-{number}") for number in range(self.hosts)]

    def after(self, delay_ms: int, do: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now_ms + delay_ms, next(self.order), do))

    def delay(self) -> int:
        """Of the network: mostly short."""
        return self.random.choice((1, 1, 2, 2, 3, 5, 8, 40))

    def run_until(self, time_ms: int) -> None:
        while self.events and self.events[0][0] <= time_ms:
            self.now_ms, _, do = heapq.heappop(self.events)
            do()
        self.now_ms = time_ms

    def start(self) -> None:
        for host in self.machines:
            self.after(self.random.randint(0, 500), host.start)

    def append(self, shard: int, data: bytes) -> int:
        log = self.logs[shard]
        log.append(data)
        self.markers += data[1] == RecordKind.MARKER
        for host in self.machines:
            replica = host.process.replicas.get(shard) if host.process is not None else None
            if replica is not None and replica.writer is None:
                self.after(self.delay(), replica.arrived)
        return len(log) - 1

    # --- what tests ask ---

    def serving(self, shard: int) -> list[Reign]:
        return [reign for reign in self.reigns if reign.shard == shard and reign.ended_ms is None]

    def leader(self, shard: int) -> "Host":
        (reign,) = self.serving(shard)
        return next(host for host in self.machines if host.name == reign.host)

    def led(self) -> list[int]:
        """How many shards each host serves."""
        return [sum(reign.host == host.name and reign.ended_ms is None for reign in self.reigns) for host in self.machines]

    def gap(self, shard: int, since_ms: int) -> int:
        """The longest time that nobody served a shard."""
        spans = sorted((reign.began_ms, reign.ended_ms or self.now_ms) for reign in self.reigns if reign.shard == shard)
        longest, until = 0, since_ms
        for began, ended in spans:
            longest, until = max(longest, began - until), max(until, ended)
        return max(longest, self.now_ms - until)

    def check_what_was_released(self) -> None:
        """All effects that left a process are of turns that every reader replays, in the log's order."""
        for shard, log in enumerate(self.logs):
            rule = Rule()
            counted = [rule.read(offset, decode(data, offset)) for offset, data in enumerate(log)]
            replayed = [
                (each.position.epoch, each.body) for each in counted if each is not None and each.kind is RecordKind.BATCH
            ]
            released = [(epoch, body) for of, epoch, body in self.released if of == shard]
            by_epoch: dict[int, list[bytes]] = {}
            for epoch, body in replayed:
                by_epoch.setdefault(epoch, []).append(body)
            for epoch in {epoch for epoch, _ in released}:
                mine = [body for by, body in released if by == epoch]
                assert mine == by_epoch.get(epoch, [])[: len(mine)], f"shard {shard}, epoch {epoch}"

    def check_that_it_is_whole(self) -> None:
        """Each shard has one leader, and the leaders are spread evenly."""
        for shard in range(self.shards):
            assert len(self.serving(shard)) == 1, f"shard {shard} is served by {self.serving(shard)}"
        assert max(self.led()) - min(self.led()) <= 1, f"hosts lead {self.led()} shards"

    # --- faults ---

    def trouble(self, until_ms: int) -> None:
        """Let something happen now and then."""
        while self.now_ms < until_ms:
            getattr(self, self.random.choice(FAULTS))()
            self.run_until(self.now_ms + self.random.choice((50, 500, 3000, 8000)))

    def span(self, longest_ms: int) -> int:
        return self.random.choice((100, 1000, longest_ms // 2, self.random.randint(1, longest_ms)))

    def kill(self) -> None:
        self.random.choice(self.machines).kill(self.span(15_000))

    def kill_all(self) -> None:
        if self.random.random() < 0.2:
            for host in self.machines:
                host.kill(self.span(5000))

    def pause(self) -> None:
        self.random.choice(self.machines).pause(self.span(25_000))

    def cut(self) -> None:
        self.random.choice(self.machines).cut(self.span(25_000))

    def part(self) -> None:
        self.random.choice(self.machines).part(self.span(25_000))

    def stall(self) -> None:
        """A log's partition loses its broker."""
        self.stalled_until[self.random.randrange(self.shards)] = self.now_ms + self.span(12_000)

    def terminate(self) -> None:
        host = self.random.choice(self.machines)
        host.terminate()
        self.after(self.span(8000), host.back)

    def drain(self) -> None:
        host = self.random.choice(self.machines)
        host.drains = not host.drains

    def slow(self) -> None:
        """A host's copies fall behind."""
        self.random.choice(self.machines).slow_until = self.now_ms + self.span(25_000)

    def fill(self) -> None:
        """A host's disk is full, or has room again."""
        host = self.random.choice(self.machines)
        host.full = not host.full

    def lose_control(self) -> None:
        """The control partition loses its broker."""
        self.control_lost_until = self.now_ms + self.span(25_000)

    def calm(self) -> None:
        """Nothing."""

    def heal(self) -> None:
        """End all faults that are under way."""
        self.stalled_until, self.control_lost_until = [0] * self.shards, 0
        for host in self.machines:
            host.cut_until, host.slow_until, host.apart_until, host.drains, host.full = 0, 0, 0, False, False
            host.paused_until = min(host.paused_until, self.now_ms + 1)
            self.after(1000, host.back)


class Host:
    """A machine with a disk. Its process comes and goes."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.copies: dict[int, Copy] = {}
        self.process: Process | None = None
        self.cut_until = self.paused_until = self.slow_until = self.apart_until = 0
        self.drains = self.full = False
        self.lives = 0
        self.others_name = ""
        """Of the host that this one is a copy of, disks and all."""
        self.down = False

    def start(self) -> None:
        if self.process is None and not self.down:
            self.lives += 1
            self.process = Process(self)

    def clone(self) -> "Host":
        """Start a copy of this machine with its name and its disk."""
        twin = Host(self.world, f"{self.name}-copy")
        twin.others_name = self.name
        twin.copies = {shard: replace(copy) for shard, copy in self.copies.items()}
        self.world.machines.append(twin)
        twin.start()
        return twin

    def kill(self, down_ms: int) -> None:
        """End it at once, and start it again later."""
        if self.process is not None:
            self.process.die()
        self.down = True
        self.world.after(down_ms, self.back)

    def back(self) -> None:
        self.down = False
        self.start()

    def pause(self, span_ms: int) -> None:
        self.paused_until = self.world.now_ms + span_ms

    def cut(self, span_ms: int) -> None:
        self.cut_until = self.world.now_ms + span_ms

    def part(self, span_ms: int) -> None:
        """Cut it off from the other hosts, but not from the log."""
        self.apart_until = self.world.now_ms + span_ms

    @property
    def reached(self) -> bool:
        """Whether other hosts reach its router."""
        now_ms = self.world.now_ms
        return self.process is not None and now_ms >= max(self.paused_until, self.apart_until)

    @property
    def apart(self) -> bool:
        """Whether it reaches no router of another host."""
        others = [host for host in self.world.machines if host is not self]
        return self.world.now_ms < self.apart_until or not any(host.reached for host in others)

    def terminate(self) -> None:
        """SIGTERM; it is not started again before :meth:`start`."""
        if self.process is not None:
            self.process.terminate()

    def reaches(self, shard: int) -> bool:
        now = self.world.now_ms
        return now >= self.cut_until and now >= self.world.stalled_until[shard]


class Process:
    """One life of a host: a loop over its shards."""

    def __init__(self, host: Host) -> None:
        self.host, self.world = host, host.world
        random = self.world.random
        self.rate = random.randint(980, 1020)
        self.shift = random.randint(0, 10**9)
        name = host.others_name or host.name
        self.node = Node(f"disk-of-{name}", name, "", f"life-{host.lives}{' of the copy' if host.others_name else ''}")
        self.alive, self.retiring = True, False
        self.replicas: dict[int, Replica] = {}
        self.control = MemoryPartition(self.world.control, self.local)
        self.placing = Placing(
            self.node, self.world.shards, lambda: self.replicas, self.control, self.local(), self.world.placing
        )
        for shard in range(self.world.shards):
            self.replicas[shard] = Replica(self, shard)
            self.placing.join(shard, self.replicas[shard])
        self.place()
        self.tick()

    def local(self) -> int:
        return self.shift + self.world.now_ms * self.rate // 1000

    def later(self, delay_ms: int, do: Callable[[], None]) -> None:
        """Do it in this process: not while it is paused, and not after its end."""

        def run() -> None:
            if not self.alive:
                return
            if self.world.now_ms < self.host.paused_until:
                self.world.after(min(self.host.paused_until - self.world.now_ms, TICK_MS), run)
            else:
                do()

        self.world.after(delay_ms, run)

    def wake(self) -> None:
        """Take a round of the loop, if it runs."""
        if self.alive and self.world.now_ms >= self.host.paused_until:
            for replica in list(self.replicas.values()):
                replica.round()

    def tick(self) -> None:
        self.wake()
        self.later(TICK_MS, self.tick)

    def place(self) -> None:
        """Take part in the placement."""
        self.control.reachable = self.world.now_ms >= max(self.host.cut_until, self.world.control_lost_until)
        self.placing.drains, self.placing.apart = self.host.drains, self.host.apart
        self.placing.failing = self.host.full
        self.placing.step(self.local())
        if self.placing.twin is not None:
            self.twin_found()
            return
        if not self.retiring:
            leave = [shard for shard, replica in self.replicas.items() if replica.leadership.state is LeadershipState.LEAVES]
            assert len(leave) <= 1, f"{self.host.name} gives away {leave} at once"
        self.later(PLACE_MS, self.place)

    def twin_found(self) -> None:
        """End for good: another host has this name."""
        self.world.twins.append((self.world.now_ms, self.host))
        self.host.down = True
        self.die()

    def terminate(self) -> None:
        self.retiring = True
        self.placing.retire(self.local())
        self.wake()
        self.exit_when_left()

    def exit_when_left(self) -> None:
        if all(replica.leadership.state is LeadershipState.FOLLOWS for replica in self.replicas.values()):
            self.die()
            self.host.down = True
        else:
            self.later(10, self.exit_when_left)

    def die(self) -> None:
        self.alive = False
        self.host.process = None
        self.placing.close()
        for replica in self.replicas.values():
            replica.end_reign()
            replica.wire.owner_died()

    def end(self, reason: str) -> None:
        """End by itself; the supervisor starts it again."""
        if self.alive:
            self.world.ends.append((self.world.now_ms, reason))
            self.die()
            self.world.after(self.world.random.randint(500, 2000), self.host.start)


class Wire:
    """An appender: one record in flight, in order, nothing behind a failure."""

    def __init__(self, replica: "Replica") -> None:
        self.replica, self.world = replica, replica.process.world
        self.queue: deque[tuple[bytes, int, Callable[[int | None, str], None]]] = deque()
        self.busy = self.broken = False

    def append(self, data: bytes, report: Callable[[int | None, str], None]) -> None:
        if not self.broken:
            self.queue.append((data, self.world.now_ms, report))
            self.send()

    def send(self) -> None:
        if not self.busy and self.queue and not self.broken:
            self.busy = True
            self.world.after(self.world.delay(), self.arrive)

    def arrive(self) -> None:
        if not self.queue:
            return
        data, since, report = self.queue[0]
        if not self.replica.process.host.reaches(self.replica.shard):
            if self.world.now_ms - since > MESSAGE_TIMEOUT_MS:
                self.broken = True
                self.replica.process.later(0, lambda: report(None, "timed out"))
            else:
                self.world.after(100, self.arrive)
            return
        self.queue.popleft()
        self.busy = False
        offset = self.world.append(self.replica.shard, data)
        told = None if self.world.random.random() < 0.01 else offset
        self.replica.process.later(self.world.delay(), lambda: report(told, ""))
        self.send()

    def owner_died(self) -> None:
        """Some of what is on the way may still arrive."""
        for _ in range(self.world.random.randint(0, len(self.queue))):
            self.queue.pop()


class Replica:
    """One shard in one process: what a worker does with the machine."""

    def __init__(self, process: Process, shard: int) -> None:
        self.process, self.world, self.shard = process, process.world, shard
        self.copy = process.host.copies.setdefault(shard, Copy())
        now = process.local()
        self.leadership = Leadership(process.node, now, self.world.limits, self.copy.position.epoch, self.copy.leader)
        self.rule = Rule(self.copy.position)
        self.wire = Wire(self)
        self.writer: Writer | None = None
        self.end: int | None = None
        self.asked: int | None = None
        self.asking = False
        self.held: deque[tuple[int, bytes]] = deque()
        self.turns = 0
        self.reign: Reign | None = None
        self.turn_due = 0
        self.due_ms = 0
        self.times: dict[int, int] = {}
        """When each number of the reign was appended. 0 is the marker."""
        self.proved = 0
        self.may_give: Callable[[str, int], bool] = lambda host, now_ms: True

    @property
    def behind(self) -> int | None:
        return None if self.end is None else max(self.end - self.rule.next_offset, 0)

    def local(self) -> int:
        return self.process.local()

    def round(self) -> None:
        self.do()
        if self.process.alive and self.writer is None:
            self.read()
        if self.process.alive:
            self.leadership.tail(self.rule.next_offset, self.end, self.asked, self.local())
            self.do()
        if self.process.alive and self.leadership.serves and self.world.now_ms >= self.turn_due:
            self.turn()

    def read(self) -> None:
        if not self.process.host.reaches(self.shard) or self.world.now_ms < self.process.host.slow_until:
            return
        log = self.world.logs[self.shard]
        for offset in range(self.rule.next_offset, len(log)):
            counted = self.rule.read(offset, decode(log[offset], offset))
            if counted is not None:
                self.leadership.read(counted, self.local())
                self.copy.position, self.copy.leader = self.rule.position, self.leadership.leader

    def do(self) -> None:
        for action in self.leadership.step(self.local()):
            self.act(action)
        due = self.leadership.next_due(self.local())
        if due is not None:
            at = self.world.now_ms + max((due - self.local()) * 1000 // self.process.rate + 1, 1)
            if not self.world.now_ms < self.due_ms <= at:
                self.due_ms = at
                self.process.later(at - self.world.now_ms, self.round_again)

    def round_again(self) -> None:
        if self.due_ms == self.world.now_ms:
            self.due_ms = 0
        if self.process.replicas.get(self.shard) is self:
            self.round()

    def arrived(self) -> None:
        if self.process.alive and self.world.now_ms >= self.process.host.paused_until and self.writer is None:
            self.round()

    def act(self, action: Action) -> None:
        if isinstance(action, AskEnd):
            self.ask()
        elif isinstance(action, Append):
            self.append(action)
        elif isinstance(action, Recover):
            assert self.rule.position == Position(action.epoch, action.epoch, 0, self.rule.position.before)
            self.writer = Writer(self.rule.position, 4096)
            writer = self.writer
            self.process.later(self.world.random.randint(20, 300), lambda: self.recovered(writer))
        elif isinstance(action, Serve):
            self.reign = Reign(self.shard, self.process.host.name, self.leadership.epoch, self.world.now_ms)
            self.world.reigns.append(self.reign)
        elif isinstance(action, StopServing):
            self.end_reign()
            if self.leadership.state is LeadershipState.LEAVES:
                self.process.later(self.world.random.randint(5, 100), lambda: self.leadership.stopped(self.local()))
        elif isinstance(action, Follow):
            self.follow()
        elif isinstance(action, End):
            self.process.end(action.reason)

    def follow(self) -> None:
        if self.writer is not None:
            assert not self.held, "turns that are not confirmed are in the copy"
            self.copy.position = self.writer.position
            self.writer = None
            self.rule = Rule(self.copy.position)
        self.wire.owner_died()
        self.wire = Wire(self)

    def ask(self) -> None:
        if not self.asking:
            self.asking, asked = True, self.local()
            self.asked = None
            self.process.later(self.world.delay(), lambda: self.answer(asked))

    def answer(self, asked: int) -> None:
        if not self.process.host.reaches(self.shard):
            self.process.later(100, lambda: self.answer(asked))
            return
        self.asking, self.asked, self.end = False, asked, len(self.world.logs[self.shard])
        self.round()

    def append(self, action: Append) -> None:
        if action.kind is RecordKind.MARKER:
            self.times, self.proved = {}, self.local()
            self.wire.append(encode(LogRecord(action.kind, 0, 0, action.body)), self.marked)
        elif action.kind is RecordKind.TRANSFER_REQUEST:
            self.wire.append(encode(LogRecord(action.kind, 0, 0, action.body)), lambda *_: None)
        else:
            assert self.writer is not None
            data = self.writer.beat(action.body) if action.kind is RecordKind.BEAT else self.writer.leaves(action.body)
            self.write(data, turn=False)

    def write(self, data: bytes, *, turn: bool) -> None:
        assert self.writer is not None
        writer, number = self.writer, self.writer.appended
        self.times[number] = self.local()
        self.leadership.appended(number, self.local(), turn=turn)
        self.wire.append(data, lambda offset, error: self.report(writer, number, offset, error))

    def turn(self) -> None:
        assert self.writer is not None
        assert self.local() - self.proved < 10_000, "it served without proof that it leads"
        self.turns += 1
        body = b"%s/%s/%d" % (self.process.host.name.encode(), self.process.node.life.encode(), self.turns)
        (data,) = self.writer.batch(body)
        self.held.append((self.writer.appended, body))
        self.write(data, turn=True)
        self.turn_due = self.world.now_ms + self.world.random.choice((50, 300, 1500))

    def marked(self, offset: int | None, error: str) -> None:
        if error:
            self.leadership.mark_failed(error, self.local())
        else:
            self.leadership.marked(offset, self.local())
        self.round()

    def report(self, writer: Writer, number: int, offset: int | None, error: str) -> None:
        if writer is not self.writer:
            return
        try:
            if error:
                writer.failed(number, error)
            writer.report(number, offset)
            self.look(writer)
        except FencedError as fence:
            self.leadership.fenced(str(fence), self.local())
        except UnknownOutcomeError as unknown:
            self.leadership.failed(str(unknown))
        else:
            self.release(writer)
        self.round()

    def look(self, writer: Writer) -> None:
        """Read what stands between, wishes among it."""
        log = self.world.logs[self.shard]
        while (at := writer.read_from) is not None:
            record = decode(log[at], at)
            writer.read(at, record)
            to = self.leadership.requested_transfer(record.body) if record.kind is RecordKind.TRANSFER_REQUEST else None
            if to is not None and self.may_give(to, self.local()):
                self.leadership.leave(to, self.local())

    def release(self, writer: Writer) -> None:
        self.copy.position, self.copy.leader = writer.position, self.process.node
        self.leadership.figures = Figures(self.turns)
        self.proved = max([self.proved, *(self.times.pop(number) for number in [*self.times] if number <= writer.confirmed)])
        while self.held and self.held[0][0] <= writer.confirmed:
            self.world.released.append((self.shard, writer.epoch, self.held.popleft()[1]))
        self.leadership.confirmed(writer.confirmed, self.local())

    def recovered(self, writer: Writer) -> None:
        if writer is self.writer:
            self.leadership.recovered(self.local())
            self.round()

    def end_reign(self) -> None:
        if self.reign is not None:
            self.reign.ended_ms = self.world.now_ms
            self.reign = None
