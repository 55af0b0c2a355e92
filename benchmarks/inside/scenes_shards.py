"""Scenes of a whole shard, host or router: throttles, the runtime config, many leases, many queues."""

from random import Random

from benchmarks.inside.driver import BATCH, SMALL, Bench, driver, fill, question
from fila_proto_zmq import commands as c
from fila_proto_zmq.codec import encode_body, encode_command
from fila_proto_zmq.frames import pack_header
from fila_proto_zmq.limits import CONFIG_KEYS_MAX
from fila_router.core.feature import ClusterSettings
from fila_router.core.router import Router
from fila_worker.core.settings import ShardSettings
from fila_worker.process.shard_process import ShardProcess
from fila_worker.process.slots import Slot


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
        host = ShardProcess([Slot.of(drive.shard)], 1, drive.now_ms)
        asked: list[tuple[str, list[c.Command]]] = [
            ("the whole comes", [*c.put_whole(1, entries)]),
            ("set one", [c.SetConfig("throttle:other:rate", "5")]),
            ("put one", [c.PutConfig(3, {"throttle:another:rate": "5"}, False)]),
            ("delete one", [c.SetConfig("throttle:other:rate", None)]),
            ("list all", [c.ListConfig("")]),
            ("list none", [c.ListConfig("x")]),
            ("list dotted", [c.ListConfig("throttle.")]),
            ("64 times list dotted", [c.ListConfig("throttle.")] * 64),
            ("a whole comes that differs", [*c.put_whole(5, others)]),
        ]
        for what, commands in asked:
            bench.time_host(host, scene, what, *commands)
        several = ShardProcess(map(Slot.of, (drive.shard, empty.shard)), 2, drive.now_ms)
        bench.time_host(several, scene, "a shard without them begins to serve")


def router_configs(bench: Bench) -> None:
    """Give such a config to a router."""
    count = min(CONFIG_KEYS_MAX - 10, bench.keys // 2)
    entries = {f"throttle:key-{number:06d}:rate": "5" for number in range(count)}
    router = Router(ClusterSettings(1, 15_000, 1 << 24, ""), entropy=Random(7).randbytes)
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
        host = ShardProcess([Slot.of(drive.shard)], 1, drive.now_ms)
        for what, command in (("list, one page", c.ListQueues()), ("metrics", c.GetMetrics())):

            def ask(command: c.Command = command) -> None:
                host.accept([b"", *encode_command(command, 1)], drive.now_ms)
                for effect in host.held.take(host.shards.values()):
                    effect.frames()

            bench.clock(scene, what, ask)
