"""Measure the longest turn of a shard for everything that clients may ask: a table of requests, each with its longest turn.

No turn may take longer than 50 ms. The shard is driven without sockets on RocksDB and a virtual clock. A turn's time is the CPU
time of its thread, so that other processes on the machine are not in the figures.

    python benchmarks/turns.py [--keys 200000] [--only NAME]
"""

import argparse
import gc
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from rich.console import Console
from rich.table import Table

from fila_proto_zmq import commands as c
from fila_proto_zmq.codec import encode_body, encode_command
from fila_proto_zmq.frames import pack_header
from fila_proto_zmq.limits import CONFIG_KEYS_MAX
from fila_proto_zmq.record import seal_envelope
from fila_router.core.router import Router
from fila_worker.core.effects import Answer, Call, Effect, Push
from fila_worker.core.recovery import recover
from fila_worker.core.settings import ShardSettings
from fila_worker.core.shard import Shard
from fila_worker.host import Host
from fila_worker.lua import compile_hooks
from fila_worker.storage.rocks import RocksStore

TURN_MS_MAX = 50
BATCH = 500
SMALL = seal_envelope(b"x")
SLOW_HOOK = "function on_enqueue(m) local x = 0 for i = 1, 150000 do x = x + i end return {} end"
SLOW_FAILURE = "function on_failure(m) local x = 0 for i = 1, 150000 do x = x + i end return {action='retry'} end"


@dataclass
class Driver:
    """A shard whose turns are timed."""

    shard: Shard
    now_ms: int = 1_800_000_000_000
    requests: int = 0
    longest_ms: float = 0.0
    turns: int = 0
    answers: dict[int, object] = field(default_factory=dict)
    pushed: list[Push] = field(default_factory=list)
    waiting: deque[tuple[c.Command, str, bytes]] = field(default_factory=deque)
    """Commands that are not read yet, because the turn was full."""

    def turn(self, *commands: tuple[c.Command, str, bytes]) -> list[int]:
        """Run a turn that reads commands, each with its queue and its client, until the turn is full. Return their numbers."""
        started, numbers = time.thread_time(), []
        self.waiting += commands
        while self.waiting and not self.shard.jobs.full:
            command, queue, client = self.waiting.popleft()
            self.requests += 1
            numbers.append(self.requests)
            self.shard.apply(Call(client, self.requests, queue, self.now_ms), command)
        effects: list[Effect] = self.shard.turn(self.now_ms)
        for effect in effects:
            effect.frames()
        self.longest_ms = max(self.longest_ms, 1000 * (time.thread_time() - started))
        self.turns += 1
        for effect in effects:
            if isinstance(effect, Answer):
                self.answers[effect.call.request] = effect.reply
            elif isinstance(effect, Push):
                self.pushed.append(effect)
        return numbers

    def settle(self, turns_max: int = 100_000) -> None:
        """Run turns until nothing is due."""
        while (self.waiting or self.shard.jobs.open or self.shard.next_due(self.now_ms) == 0) and turns_max:
            self.turn()
            turns_max -= 1

    def ask(self, command: c.Command, queue: str = "q", client: bytes = b"asker") -> object:
        """Return the answer to a command."""
        (number,) = self.turn((command, queue, client))
        while number not in self.answers and (self.shard.jobs.open or self.shard.next_due(self.now_ms) == 0):
            self.turn()
        return self.answers.pop(number, None)


@contextmanager
def driver(settings: ShardSettings | None = None, index: int = 0) -> Iterator[Driver]:
    """Make a new shard in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="fila-turns-") as directory:
        store = RocksStore(Path(directory))
        settings = settings or ShardSettings(consumer_timeout_ms=1 << 40)
        yield Driver(recover(store, settings, compile_hooks, index=index, shards=index + 1, now_ms=1_800_000_000_000))
        store.close()


def fill(drive: Driver, keys: int, priorities: int = 1, **columns: object) -> c.Enqueued:
    """Make a queue with a message for each of many keys."""
    drive.ask(c.CreateQueue(c.QueueOptions()))
    last: object = None
    for start in range(0, keys, BATCH):
        count = min(BATCH, keys - start)
        names = [f"tenant-{start + number:09d}" for number in range(count)]
        last = drive.ask(
            c.Enqueue([SMALL] * count, names, priority=[(start + number) % priorities for number in range(count)], **columns)  # type: ignore[arg-type]
        )
    assert isinstance(last, c.Enqueued)
    drive.settle()
    return last


Scene = Callable[["Bench"], None]


class Bench:
    """Run scenes and keep the longest turn of each request."""

    def __init__(self, keys: int, only: str = "") -> None:
        self.keys = keys
        self.rows: list[tuple[str, str, float, int]] = []
        self._only = only

    def time(self, drive: Driver, scene: str, what: str, *questions: tuple[c.Command, str, bytes]) -> None:
        """Send a request, and time the turns until all is done."""
        gc.collect()
        gc.freeze()  # as in a worker: garbage collections skip long-lived objects
        drive.longest_ms, drive.turns = 0.0, 0
        drive.turn(*questions)
        drive.settle()
        self.rows.append((scene, what, drive.longest_ms, drive.turns))

    def time_host(self, host: Host, scene: str, what: str, *commands: c.Command) -> None:
        """Send a request to a host, and time its turns until all is done. Frames are decoded and encoded, but not sent."""
        gc.collect()
        gc.freeze()
        now_ms, longest_ms, turns = 1_800_000_000_000, 0.0, 0
        waiting = deque([b"", *encode_command(command, number)] for number, command in enumerate(commands))
        while waiting or not turns or host.next_due(now_ms) == 0:
            started = time.thread_time()
            host.begin_turn(now_ms)
            while waiting and not host.full:
                host.accept(waiting.popleft(), now_ms)
            for effect in host.turn(now_ms):
                effect.frames()
            longest_ms, turns = max(longest_ms, 1000 * (time.thread_time() - started)), turns + 1
        self.rows.append((scene, what, longest_ms, turns))

    def clock(self, scene: str, what: str, action: Callable[[], object]) -> None:
        """Time one part of a turn, without the rest of the turn."""
        gc.collect()
        gc.freeze()
        started = time.thread_time()
        action()
        self.rows.append((scene, what, 1000 * (time.thread_time() - started), 1))

    def run(self, scenes: "list[Scene]") -> None:
        """Run the scenes that were chosen."""
        for scene in scenes:
            if self._only in scene.__name__:
                scene(self)

    @property
    def longest_ms(self) -> float:
        """Of all turns."""
        return max((longest_ms for _, _, longest_ms, _ in self.rows), default=0.0)


def question(command: c.Command, queue: str = "q", client: bytes = b"asker") -> tuple[c.Command, str, bytes]:
    """Return a command as the host reads it."""
    return command, queue, client


def many_keys(bench: Bench) -> None:
    """Ask a queue with many fairness keys and several priorities."""
    for keys, priorities in ((bench.keys, 1), (bench.keys, 8), (bench.keys // 4, 60)):
        scene = f"{keys:,} keys, {priorities} priorities"
        with driver() as drive:
            last = fill(drive, keys, priorities)
            high, low = last.id_high, last.id_low
            for what, command in (
                ("cancel the last message", c.Cancel(high, low + last.count - 1)),
                ("cancel what is not there", c.Cancel(high, low + 10_000_000)),
                ("why of a message", c.Explain((high, low + 1))),
                ("why of a queue", c.Explain()),
                ("browse", c.Browse(1000)),
                ("browse delayed ones", c.Browse(1000, state="delayed")),
                ("browse behind an id", c.Browse(1000, (high, low + 2))),
                ("describe", c.DescribeQueue()),
                ("statistics, one page", c.GetQueueStats()),
                ("64 pages of statistics in one turn", c.GetQueueStats()),
                (
                    "update the cap of each key",
                    c.UpdateQueue(c.QueueOptions(max_in_flight_per_key=2), ["max_in_flight_per_key"]),
                ),
                ("take the cap away", c.UpdateQueue(c.QueueOptions(), ["max_in_flight_per_key"])),
                ("pause a key", c.Pause(True, "tenant-000000001")),
                ("open a view", c.OpenView("v", ["q"], 10_000, 60_000)),
                ("a page of it", c.BrowseView("v", 1000)),
                ("64 pages of it", c.BrowseView("v", 1000)),
                ("receive", c.Receive(100_000, 0)),
                ("purge, one command", c.PurgeQueue()),
                ("delete the queue", c.DeleteQueue(True)),
            ):
                asked = [question(command)] * (64 if what.startswith("64") else 1)
                bench.time(drive, scene, what, *asked)


def consumers(bench: Bench) -> None:
    """Let clients leave, with many receives, subscriptions or leases."""
    count = max(10, bench.keys * 16 // 200)
    for what, demand in (
        ("receives", lambda number: c.Receive(1, 60_000)),
        ("subscriptions", lambda number: c.Subscribe(number + 1, 10)),
    ):
        with driver() as drive:
            drive.ask(c.CreateQueue(c.QueueOptions()))
            for start in range(0, count, 100):
                drive.turn(*(question(demand(start + each), client=b"leaver") for each in range(100)))
            bench.time(drive, f"{count:,} {what} of a client", "goodbye", question(c.Goodbye(), "", b"leaver"))
    for what, leave in (("goodbye", True), ("lost", False)):
        with driver(ShardSettings(consumer_timeout_ms=15_000)) as drive:
            fill(drive, bench.keys // 2)
            drive.turn(question(c.Subscribe(1, 100_000), client=b"leaver"))
            drive.settle()
            if leave:
                bench.time(
                    drive, f"{bench.keys // 2:,} messages leased by a client", what, question(c.Goodbye(), "", b"leaver")
                )
            else:
                drive.now_ms += 16_000
                bench.time(drive, f"{bench.keys // 2:,} messages leased by a client", what)
    with driver() as drive:
        drive.ask(c.CreateQueue(c.QueueOptions()))
        for _start in range(0, count, 100):
            drive.turn(*(question(c.Receive(1, 1000), client=b"c") for _ in range(100)))
        drive.now_ms += 2000
        bench.time(drive, f"{count:,} receives", "their time is up at once")


def settling(bench: Bench) -> None:
    """Settle as many messages as one frame may name."""
    fences = min(10_000, max(20, bench.keys // 20))
    for verb in (c.Verb.ACK, c.Verb.NACK, c.Verb.RELEASE, c.Verb.DEFER, c.Verb.FAIL):
        with driver() as drive:
            fill(drive, fences)
            drive.turn(question(c.Subscribe(1, 100_000), client=b"c"))
            drive.settle()
            leases = [
                (batch.lease, list(range(len(batch.records)))) for push in drive.pushed for batch in push.delivered.batches
            ]
            bench.time(drive, f"{fences:,} messages leased", verb.name.lower(), question(c.Settle(verb, leases), client=b"c"))
    with driver() as drive:
        drive.ask(c.CreateQueue(c.QueueOptions()))
        strange = [(number + 1, []) for number in range(fences)]
        bench.time(drive, f"{fences:,} unknown leases", "ack", question(c.Settle(c.Verb.ACK, strange), client=b"c"))
        bench.time(drive, f"{fences:,} unknown leases", "extend", question(c.Extend(strange, 1000), client=b"c"))


def hooks(bench: Bench) -> None:
    """Run hooks that take some milliseconds for each message."""
    count = min(600, max(5, bench.keys // 300))
    with driver() as drive:
        drive.ask(c.CreateQueue(c.QueueOptions(on_enqueue=SLOW_HOOK, on_failure=SLOW_FAILURE)))
        bench.time(drive, "a hook of 3.5 ms", f"enqueue of {count}", question(c.Enqueue([SMALL] * count)))
        several = [question(c.Enqueue([SMALL] * (count // 5))) for _ in range(4)]
        bench.time(drive, "a hook of 3.5 ms", f"4 enqueues of {count // 5}", *several)
        drive.turn(question(c.Subscribe(1, 100_000), client=b"c"))
        drive.settle()
        leases: c.Fences = [(batch.lease, []) for push in drive.pushed for batch in push.delivered.batches]
        drive.pushed.clear()
        drive.turn(question(c.Unsubscribe(1), client=b"c"))
        bench.time(drive, "a hook of 3.5 ms", "nack of all", question(c.Settle(c.Verb.NACK, leases), client=b"c"))


def enqueues(bench: Bench) -> None:
    """Send the largest enqueues, usual and unusual ones."""
    count = min(10_000, max(10, bench.keys // 20))
    with driver() as drive:
        drive.ask(c.CreateQueue(c.QueueOptions()))
        keys = [f"key-{number}" for number in range(count)]
        for what, command in (
            ("one key", c.Enqueue([SMALL] * count)),
            ("a key for each", c.Enqueue([SMALL] * count, keys)),
            ("delayed", c.Enqueue([SMALL] * count, delay_ms=1000)),
            ("with dedup ids", c.Enqueue([SMALL] * count, dedup_id=keys)),
            ("with a time to live", c.Enqueue([SMALL] * count, ttl_ms=1000)),
        ):
            bench.time(drive, f"enqueue of {count:,}", what, question(command))
        drive.now_ms += 3000
        bench.time(drive, f"enqueue of {count:,}", "delays and times to live end")


def throttles(bench: Bench) -> None:
    """Let many lanes wait for tokens of one throttle key, and of one for each."""
    keys = bench.keys // 2
    with driver() as drive:
        drive.shard.set_config(c.SetConfig("throttle:t:rate", "0"), drive.now_ms)
        drive.shard.set_config(c.SetConfig("throttle:t:burst", "0"), drive.now_ms)
        fill(drive, keys, throttle_keys=[["t"]])
        drive.turn(question(c.Subscribe(1, 10), client=b"c"))
        drive.settle(3000)
        drive.shard.set_config(c.SetConfig("throttle:t:rate", None), drive.now_ms)
        bench.time(drive, f"{keys:,} lanes behind a throttle key", "its limit is taken away")


def throttle_sets(bench: Bench) -> None:
    """Use many sets of throttle keys that share one key."""
    sets = bench.keys // 2
    scene = f"{sets:,} sets that share a throttle key"
    with driver() as drive:
        drive.shard.set_config(c.SetConfig("throttle:t:rate", "0"), drive.now_ms)
        drive.shard.set_config(c.SetConfig("throttle:t:burst", "0"), drive.now_ms)
        drive.ask(c.CreateQueue(c.QueueOptions()))
        for start in range(0, sets, BATCH):
            numbers = range(start, min(sets, start + BATCH))
            drive.ask(c.Enqueue([SMALL] * len(numbers), throttle_keys=[[f"s{number}", "t"] for number in numbers]))
        bench.time(drive, scene, "a receive", question(c.Receive(1, 0)))
        drive.turn(question(c.Subscribe(1, 10), client=b"c"))
        drive.settle(3000)
        bench.clock(scene, "park the key", lambda: drive.shard.park({"t": drive.now_ms + 1000}, drive.now_ms))
        drive.now_ms += 2000
        bench.time(drive, scene, "its park ends")
        change = c.SetConfig("throttle:t:rate", "1000000")
        bench.clock(scene, "its limit changes", lambda: drive.shard.set_config(change, drive.now_ms))
        bench.time(drive, scene, "... and later turns")
        gone = c.SetConfig("throttle:t:rate", None)
        bench.clock(scene, "its limit is taken away", lambda: drive.shard.set_config(gone, drive.now_ms))
        bench.time(drive, scene, "... and later turns")
        bench.clock(scene, "a new session of the router", lambda: drive.shard.new_session(drive.now_ms))
        bench.time(drive, scene, "... and later turns")


def configs(bench: Bench) -> None:
    """Use the largest possible runtime config."""
    count = min(CONFIG_KEYS_MAX - 10, bench.keys // 2)
    scene = f"{count:,} entries of the config"
    with driver() as drive, driver(index=1) as empty:
        entries = {f"throttle:key-{number:06d}:rate": "5" for number in range(count)}
        others = {f"throttle:key-{number:06d}:rate": "0.5" for number in range(1, count)}
        host = Host([drive.shard], 1, drive.now_ms)
        for what, *commands in (
            ("the whole comes", *c.put_whole(1, entries)),
            ("set one", c.SetConfig("throttle:other:rate", "5")),
            ("put one", c.PutConfig(3, {"throttle:another:rate": "5"}, False)),
            ("delete one", c.SetConfig("throttle:other:rate", None)),
            ("list all", c.ListConfig("")),
            ("list none", c.ListConfig("x")),
            ("list dotted", c.ListConfig("throttle.")),
            ("64 times list dotted", *[c.ListConfig("throttle.")] * 64),
            ("a whole comes that differs", *c.put_whole(5, others)),
        ):
            bench.time_host(host, scene, what, *commands)
        several = Host([drive.shard, empty.shard], 2, drive.now_ms)
        bench.time_host(several, scene, "a shard without them begins to serve")


def router_configs(bench: Bench) -> None:
    """Give such a config to a router."""
    count = min(CONFIG_KEYS_MAX - 10, bench.keys // 2)
    entries = {f"throttle:key-{number:06d}:rate": "5" for number in range(count)}
    router = Router(1, 15_000, 1 << 24, "", entropy=Random(7).randbytes)
    header = pack_header(c.Register.opcode, 1)
    for epoch, (what, version, config) in enumerate(
        (
            ("the first worker registers, with the config", 5, entries),
            ("a worker registers that has it", 5, entries),
            ("a worker registers that lacks it", 0, {}),
        )
    ):
        body = encode_body(c.Register("worker", 1, "", [(0, epoch)], version, config))

        def register(body: bytes = body) -> None:
            router.from_worker(b"worker", b"", header, b"", body, 0)
            router.outgoing.take()

        bench.clock(f"{count:,} entries of the config, a router", what, register)


def many_leases(bench: Bench) -> None:
    """Make a lease for each message, and send requests that examine all leases."""
    count = bench.keys // 2
    scene = f"{count:,} leases of a message each"
    with driver(ShardSettings(consumer_timeout_ms=1 << 40)) as drive:
        fill(drive, count)
        for start in range(0, count, 100):
            drive.turn(*(question(c.Receive(1, 0), client=b"c%d" % (start % 1000)) for _ in range(100)))
        drive.settle()
        for what, command in (
            ("describe", c.DescribeQueue()),
            ("64 times describe", c.DescribeQueue()),
            ("why of a queue", c.Explain()),
            ("why of a key", c.Explain(None, "tenant-000000001")),
            ("64 times why of a key", c.Explain(None, "tenant-000000001")),
            ("browse leased ones", c.Browse(1000, state="leased")),
            ("open a view", c.OpenView("v", ["q"], 10_000, 60_000)),
            ("a page of it", c.BrowseView("v", 1000)),
            ("64 pages of it", c.BrowseView("v", 1000, states=["delayed"])),
            ("64 pages of the leased ones", c.BrowseView("v", 1000, states=["leased"])),
            ("purge", c.PurgeQueue()),
        ):
            bench.time(drive, scene, what, *[question(command)] * (64 if what.startswith("64") else 1))
    with driver() as drive:
        drive.ask(c.CreateQueue(c.QueueOptions()))
        waits = max(10, bench.keys * 16 // 200)
        numbers: list[int] = []
        for _start in range(0, waits, 100):
            numbers += drive.turn(*[question(c.Receive(1, 60_000), client=b"c")] * 100)
        cancels = [question(c.CancelReceive(number), client=b"c") for number in numbers]
        bench.time(drive, f"{waits:,} receives", "all are cancelled", *cancels)


def queues(bench: Bench) -> None:
    """Make many queues."""
    count = bench.keys // 10
    with driver() as drive:
        for number in range(count):
            drive.turn(question(c.CreateQueue(c.QueueOptions()), f"queue-{number}"))
        scene = f"{2 * count:,} queues"
        host = Host([drive.shard], 1, drive.now_ms)
        for what, command in (("list, one page", c.ListQueues()), ("metrics", c.GetMetrics())):

            def ask(command: c.Command = command) -> None:
                call = Call(b"c", 1, "", drive.now_ms)
                Answer(call, command.opcode, host._reply(call, command)).frames()

            bench.clock(scene, what, ask)


SCENES: list[Scene] = [
    many_keys, consumers, settling, hooks, enqueues, throttles, throttle_sets, configs, router_configs, many_leases, queues,
]  # fmt: skip


def main() -> None:
    """Run all scenes and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--only", default="", help="scenes with this in their names")
    arguments = parser.parse_args()
    gc.set_threshold(10_000, 1_000_000_000, 1_000_000_000)  # as in a worker
    bench = Bench(arguments.keys, arguments.only)
    bench.run(SCENES)
    table = Table("there is", "what was asked", "longest turn, ms", "turns")
    for scene, what, longest_ms, turns in bench.rows:
        table.add_row(scene, what, f"{longest_ms:.1f}", f"{turns:,}", style="red" if longest_ms > TURN_MS_MAX else "")
    Console(width=120).print(table)
    raise SystemExit(0 if bench.longest_ms <= TURN_MS_MAX else 1)


if __name__ == "__main__":
    main()
