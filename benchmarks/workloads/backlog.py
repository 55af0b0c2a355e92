"""Measure deep queues: memory, disk, restart, and what a message costs at that depth beside what it costs in an empty queue.

One queue, 100 fairness keys, 1 KB payloads, one worker. A worker's memory must not follow the backlog, a restart must not
read it, and a message must cost the same at any depth, within 20 % of the server's CPU time. The disk may take at most 1.5
bytes for a byte of payload at rest, and gives them back within a minute after the backlog was consumed, also when nothing
else happens.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import clients
from benchmarks.harness.cluster import OneCluster
from benchmarks.harness.fila import WAYS, Fila, blocking_client, receive_in_turn
from benchmarks.harness.messages import Check, Load
from benchmarks.harness.processes import Gate, together
from benchmarks.harness.report.results import Chart, Series
from benchmarks.harness.sampling import sampled
from benchmarks.harness.workload import Benchmark, Run, choice, number

QUEUE = "deep"
KEYS = 100
PART = 10_000
RSS_MIB_MAX = 300
READY_S_MAX = {1_000_000: 5.0, 10_000_000: 30.0}
COST_TIMES_MAX = 1.2
DISK_TIMES_MAX = 1.5
GIVEN_BACK_S_MAX = 60.0
GIVEN_BACK_SHARE = 0.05
"""Of the payloads: what the disk may still take when it counts as given back."""
AT_REST = "disk bytes for a byte of payload, at rest"
REST_STEP_S, REST_S_MAX = 0.5, 60.0
IDLE_SHARE = 0.1
"""Of a core: a worker that spends less has nothing to do but its pulse."""
PER = 100_000
TABLE = "A deep queue"
COSTS = "CPU seconds of the server for 100,000 messages that are enqueued, received and acked, by depth"
RATES = "Messages a second, by depth"


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    depths: str = number("Messages that are pending, divided by commas.")
    probe: int = number("Messages that are enqueued, and then received, in each cycle at a depth.")
    cycles: int = number("Cycles at each depth.", 4)
    payload: int = number("Bytes of a payload.", 1024)
    watch_s: float = number("Seconds for which the disk is watched at most after the backlog was consumed.", 90.0)
    way: str = choice("How clients reach the workers.", WAYS)


@dataclass
class Deep:
    """A queue of one depth: its messages are numbered as they come in."""

    run: Run[Scale]
    system: Fila
    depth: int
    load: Load
    check: Check
    column: str
    rss_mib: list[float] = field(default_factory=list)

    def enqueue(self, server: OneCluster, first: int, count: int) -> "clients.Work":
        """Enqueue messages in parts."""
        load = Load(count, self.load.payload_bytes, KEYS, first)
        (done,) = together(
            (clients.produce_parts, self.system, server.address, QUEUE, load, PART), env=self.system.environment()
        )
        assert isinstance(done, clients.Work)
        return done

    def receive(self, server: OneCluster, count: int, step: int = 0) -> "clients.Work":
        """Receive and ack messages, and note them."""
        work = (take, self.system, server.address, self.load, count, step)
        ((done, check),) = together(work, env=self.system.environment())
        self.check.merge(check)
        assert isinstance(done, clients.Work)
        return done

    def probe(self, server: OneCluster, depth: int, first: int) -> None:
        """Measure what enqueueing and receiving cost at a depth, with the flushes and compactions that follow."""
        count, cycles = self.run.scale.probe, self.run.scale.cycles
        at_rest(server)
        before = server.cpu_seconds()
        for cycle in range(cycles):
            sent = self.enqueue(server, first + cycle * count, count)
            taken = self.receive(server, count)
            for what, done in (("enqueue", sent), ("receive + ack", taken)):
                self.run.figure(RATES, f"{what} at {depth:,}", self.column, "/s", count / sum(done.steps_s))
        at_rest(server)
        after = server.cpu_seconds()
        spent = sum(after[kind] - before[kind] for kind in before) * PER / (count * cycles)
        self.run.figure(COSTS, f"at {depth:,}", self.column, "s", spent)

    def figure(self, row: str, unit: str, value: float) -> None:
        """Add a figure of this depth."""
        self.run.figure(TABLE, row, self.column, unit, value)


async def take(gate: Gate, system: Fila, address: str, load: Load, count: int, step: int) -> tuple["clients.Work", Check]:
    """Receive and ack ``count`` messages of a load, and time each ``step`` of them. Return what came, too."""
    check, steps = Check(load, 0), list[float]()
    async with system.connect(address) as connection:
        gate.wait()
        for first in range(0, count, step or count):
            began = time.monotonic()
            check.expect(min(step or count, count - first))
            await clients.moving(receive_in_turn(connection.client, QUEUE, check), check)
            steps.append(time.monotonic() - began)
        spent = gate.spent()
    return clients.Work(spent, steps_s=steps), check


def measure(run: Run[Scale]) -> None:
    """Measure each depth."""
    for depth in [int(each) for each in run.scale.depths.split(",")]:
        load = Load(depth + 2 * run.scale.probe * run.scale.cycles, run.scale.payload, KEYS)
        deep = Deep(run, Fila(way=run.scale.way), depth, load, Check(load), f"{depth:,} pending")
        with run.serving(deep.system) as server:
            clients.create(deep.system, server, QUEUE)
            deep.probe(server, 0, 0)
        with run.directory() as path:
            _filled(deep, path / "data")
            _restarted(deep, path / "data")
        run.verify(deep.check.verified())
        _judge(deep)


def _filled(deep: Deep, data: Path) -> None:
    """Fill the queue, and probe it."""
    probed, step = deep.run.scale.probe * deep.run.scale.cycles, max(1, deep.depth // PART // 100)
    with deep.system.serve(data) as server, sampled(lambda: server.rss_bytes()["worker"] / (1 << 20)) as memory:
        clients.create(deep.system, server, QUEUE)
        done = deep.enqueue(server, probed, deep.depth)
        filled = at_rest(server)
        deep.probe(server, deep.depth, probed + deep.depth)
        probed_too = at_rest(server)
    steps = done.steps_s
    groups = [steps[place : place + step] for place in range(0, len(steps), step)]
    places = [float(min(deep.depth, (number + 1) * step * PART)) for number in range(len(groups))]
    rates = [min(PART * len(group), deep.depth) / sum(group) for group in groups]
    title = f"Enqueue rate while the queue grows to {deep.depth:,}"
    deep.run.chart(Chart(title, "pending", "messages a second", [Series(deep.column, places, rates)]))
    deep.run.chart(Chart(f"Memory of the worker up to {deep.depth:,}", "seconds", "MiB", [memory.series(deep.column)]))
    deep.rss_mib.append(memory.most)
    deep.figure("most memory of the worker", "MiB", memory.most)
    payloads = deep.depth * deep.run.scale.payload
    deep.figure(AT_REST, "×", filled / payloads)
    deep.figure(f"the same, after {probed:,} more came and went", "×", probed_too / payloads)


def at_rest(server: OneCluster) -> int:
    """Wait until compactions are done: the worker is idle, and its files stay as they are. Return the bytes on the disk."""
    give_up_at, calm = time.monotonic() + REST_S_MAX, 0
    size, spent_s = server.disk_bytes(), server.cpu_seconds()["worker"]
    while calm < 2 and time.monotonic() < give_up_at:
        time.sleep(REST_STEP_S)
        now, now_s = server.disk_bytes(), server.cpu_seconds()["worker"]
        calm = calm + 1 if now == size and now_s - spent_s < IDLE_SHARE * REST_STEP_S else 0
        size, spent_s = now, now_s
    return size


def _restarted(deep: Deep, data: Path) -> None:
    """Start again on the same data, consume all, and watch the disk."""
    start = time.monotonic()
    with deep.system.serve(data) as server, sampled(lambda: server.rss_bytes()["worker"] / (1 << 20)) as memory:
        deep.figure("ready again after", "s", time.monotonic() - start)
        with blocking_client(server.address) as client:
            assert client.queue_stats(QUEUE).pending == deep.depth, "messages are missing after the restart"
        done = deep.receive(server, deep.depth, max(1, deep.depth // 100))
        size = max(1, deep.depth // 100)
        places = [float(deep.depth - number * size) for number in range(len(done.steps_s))]
        rates = [size / seconds for seconds in done.steps_s]
        title = f"Rate of receive + ack while the queue of {deep.depth:,} shrinks"
        deep.run.chart(Chart(title, "pending", "messages a second", [Series(deep.column, places, rates)]))
        _given_back(deep, server)
    deep.rss_mib.append(memory.most)
    deep.figure("most memory of the worker after the restart", "MiB", memory.most)


def _given_back(deep: Deep, server: OneCluster) -> None:
    """Watch the disk of an idle cluster until nearly nothing is left."""
    payloads = deep.depth * deep.run.scale.payload
    start = time.monotonic()
    with sampled(lambda: server.disk_bytes() / payloads) as disk:
        while time.monotonic() - start < deep.run.scale.watch_s:
            time.sleep(0.5)
            if disk.values and disk.values[-1] <= GIVEN_BACK_SHARE:
                break
    deep.run.chart(Chart(f"Disk after the {deep.depth:,} were consumed", "seconds", "× payloads", [disk.series(deep.column)]))
    deep.figure("disk bytes for a byte of payload, all consumed", "×", disk.values[-1])
    back = disk.values[-1] <= GIVEN_BACK_SHARE
    deep.figure("disk given back after" if back else "disk NOT given back after", "s", time.monotonic() - start)
    if deep.run.scale.watch_s >= GIVEN_BACK_S_MAX:
        kept = back and time.monotonic() - start <= GIVEN_BACK_S_MAX
        deep.run.promise(f"{deep.column}: the disk is given back within {GIVEN_BACK_S_MAX:g} s", kept)


def _judge(deep: Deep) -> None:
    run, column = deep.run, deep.column

    def value(table: str, row: str) -> float:
        return run.values(table, row, column)[-1]

    most = max(deep.rss_mib)
    run.promise(f"{column}: the worker takes {most:.0f} MiB, at most {RSS_MIB_MAX}", most <= RSS_MIB_MAX)
    limit = min((seconds for depth, seconds in READY_S_MAX.items() if deep.depth <= depth), default=0.0)
    if limit:
        ready = value(TABLE, "ready again after")
        run.promise(f"{column}: ready again after {ready:.1f} s, at most {limit:g}", ready <= limit)
    disk = value(TABLE, AT_REST)
    run.promise(f"{column}: the disk takes {disk:.2f} × the payloads, at most {DISK_TIMES_MAX}", disk <= DISK_TIMES_MAX)
    empty, full = value(COSTS, "at 0"), value(COSTS, f"at {deep.depth:,}")
    times = full / empty if empty else 1.0
    text = f"{column}: a message costs {times:.2f} times as much as in an empty queue, at most {COST_TIMES_MAX}"
    run.promise(text, times <= COST_TIMES_MAX)


BENCHMARK = Benchmark(
    "backlog",
    measure,
    Scale("5000", 1_000, cycles=1, watch_s=1.0),
    Scale("1000000", 50_000),
    Scale("1000000,10000000", 100_000),
)
